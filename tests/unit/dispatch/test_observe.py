"""Attacks what one observation says of a job: which answer counts, who cancelled it, whether it comes back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from outerloop.compute.protocol import (
    History,
    JobRow,
    JobSpec,
    JobState,
    Listing,
    NoAnswer,
    SiteLimits,
    SubmitOutcome,
    Unavailable,
)
from outerloop.dispatch.live import LiveRow
from outerloop.dispatch.observe import HISTORY_MARGIN, Observation, Sighting, observe
from outerloop.dispatch.settle import ask_about

NOW = datetime(2026, 1, 2, tzinfo=UTC)
EMPTY, DOWN = History(()), NoAnswer("down")
CUT = JobRow("7", "ol-d1-a-0-1", JobState.CANCELLED)


@dataclass
class Answers:
    """A cluster that gives the same answers for ever, and counts."""

    past: History | NoAnswer | Unavailable = EMPTY
    site: SiteLimits | NoAnswer = DOWN
    queue: Listing | NoAnswer = field(default_factory=lambda: Listing((CUT,)))
    asked: int = 0
    questions: list[tuple[float, list[str], list[str]]] = field(default_factory=list)
    name: str = "answers"
    arrays: bool = True

    def submit(self, job: JobSpec) -> SubmitOutcome:
        raise NotImplementedError

    def submit_array(self, job: JobSpec, count: int, throttle: int | None) -> SubmitOutcome:
        raise NotImplementedError

    def listing(self) -> Listing | NoAnswer:
        return self.queue

    def history(self, since: float, ids: Iterable[str], names: Iterable[str]) -> History | NoAnswer | Unavailable:
        self.questions.append((since, list(ids), list(names)))
        return self.past

    def cancel(self, ids: Iterable[str]) -> NoAnswer | None:
        return None

    def limits(self) -> SiteLimits | NoAnswer:
        self.asked += 1
        return self.site


def observed(answers: Answers, *ids: str) -> Observation:
    seen = Observation(NOW, answers.listing(), answers)
    seen.ask_history(NOW, ids, [])
    return seen


@pytest.mark.parametrize(
    ("past", "who", "is_open"),
    [
        (History((JobRow("7", CUT.name, JobState.CANCELLED, cancelled_by="0"),)), "0", False),
        (History((JobRow("7", "", JobState.CANCELLED, cancelled_by="1000"),)), "1000", False),
        (History((JobRow("7", "an older job's", JobState.CANCELLED, cancelled_by="0"),)), "", False),
        (History((JobRow("7", CUT.name, JobState.RUNNING),)), "", False),
        (History(()), "", False),
        (NoAnswer("slurmdbd is down"), "", True),
        (Unavailable("no accounting"), "", False),
    ],
)
def test_accounting_says_who_cancelled_a_listed_job(
    past: History | NoAnswer | Unavailable, who: str, is_open: bool
) -> None:
    sighting = observed(Answers(past=past), "7").job("7", CUT.name)
    assert sighting.listed and sighting.row is not None
    assert (sighting.row.cancelled_by, sighting.canceller_open) == (who, is_open)
    assert sighting.row.state is JobState.CANCELLED


def test_a_job_that_was_submitted_before_any_attempt_is_somebody_elses_with_the_same_id_and_name() -> None:
    def of(submitted: float) -> History:
        return History((JobRow("9", CUT.name, JobState.COMPLETED, submitted=submitted),))

    old, recent = NOW.timestamp() - 7200, NOW.timestamp() + 5
    assert observed(Answers(past=of(old)), "9").job("9", CUT.name).row is None
    seen = observed(Answers(past=of(recent)), "9").job("9", CUT.name)
    assert seen.row is not None and seen.row.state is JobState.COMPLETED


def test_a_question_that_was_not_asked_leaves_it_open() -> None:
    assert observed(Answers(), "8").job("7", CUT.name).canceller_open
    assert observed(Answers()).job("7", CUT.name).canceller_open


@pytest.mark.parametrize(
    ("site", "partitions", "partition", "cancels"),
    [
        ("CANCEL", {}, "", True),
        ("REQUEUE", {}, "cpu", False),
        ("GANG,SUSPEND", {}, "", False),
        ("OFF", {"cpu": {"PreemptMode": "CANCEL", "Default": "YES"}}, "", True),
        ("CANCEL", {"cpu": {"PreemptMode": "REQUEUE"}}, "cpu", False),
        ("CANCEL", {"cpu": {"PreemptMode": "REQUEUE"}, "gpu": {}}, "gpu,cpu", False),
        ("CANCEL", {"cpu": {"PreemptMode": "CANCEL"}, "gpu": {}}, "gpu,cpu", True),
        ("", {}, "cpu", False),
    ],
)
def test_the_sites_preempt_mode_says_whether_a_job_comes_back(
    site: str, partitions: Mapping[str, Mapping[str, str]], partition: str, cancels: bool
) -> None:
    answers = Answers(site=SiteLimits(preempt_mode=site, partitions=partitions))
    seen = observed(answers)
    assert [seen.preemption_cancels(partition), seen.preemption_cancels(partition)] == [cancels, cancels]
    assert answers.asked == 1


def test_a_site_that_does_not_answer_is_waited_for() -> None:
    assert not observed(Answers()).preemption_cancels("")


# -- which answer counts

OURS = "ol-d1-a-0-1"
RUNNING, ENDED = JobRow("8", OURS, JobState.RUNNING), JobRow("8", OURS, JobState.COMPLETED, submitted=NOW.timestamp())
SILENT = Sighting(answered=False, listed=False, row=None)
ABSENT = Sighting(answered=True, listed=False, row=None)


def sees(queue: Listing | NoAnswer, past: History | NoAnswer | Unavailable = EMPTY, *ids: str) -> Observation:
    return observed(Answers(past=past, queue=queue), *ids)


def test_a_listed_job_counts_by_its_id_and_its_name() -> None:
    assert sees(Listing((RUNNING,))).job("8", OURS) == Sighting(True, True, RUNNING)
    nameless = JobRow("8", "", JobState.RUNNING)
    assert sees(Listing((nameless,))).job("8", OURS) == Sighting(True, True, nameless)
    other = sees(Listing((JobRow("8", "somebody-elses", JobState.RUNNING),)), EMPTY, "8")
    assert other.job("8", OURS) == ABSENT, "ids are used again"


@pytest.mark.parametrize("queue", [DOWN, Listing((RUNNING,), bad_rows=1), Listing((), bad_rows=1)])
def test_absence_from_an_incomplete_answer_means_nothing(queue: Listing | NoAnswer) -> None:
    seen = sees(queue, History((JobRow("9", OURS, JobState.COMPLETED),)), "9")
    assert not seen.complete and seen.why_not
    assert seen.job("9", OURS) == SILENT
    assert seen.named("ol-d1-other-0-1") == SILENT
    if isinstance(queue, Listing) and queue.jobs:
        assert seen.job("8", OURS).row == RUNNING, "what it shows is so all the same"
        assert seen.named(OURS) == Sighting(True, True, RUNNING)


def test_absence_needs_the_history_where_there_is_one_and_it_must_have_been_asked() -> None:
    empty = Listing(())
    assert sees(empty, DOWN, "8").job("8", OURS) == SILENT
    assert sees(empty, DOWN, "8").named(OURS) == SILENT
    assert sees(empty, EMPTY, "9").job("8", OURS) == SILENT, "it was asked about another job"
    assert sees(empty, EMPTY, "8").job("8", OURS) == ABSENT
    assert sees(empty, Unavailable("no accounting"), "8").job("8", OURS) == ABSENT
    assert sees(empty, History((ENDED,)), "8").job("8", OURS) == Sighting(True, False, ENDED)


@pytest.mark.parametrize(
    "row", [JobRow("8", "another-name", JobState.COMPLETED), RUNNING, JobRow("8", OURS, JobState.PENDING)]
)
def test_a_history_says_nothing_of_another_job_nor_that_one_is_alive(row: JobRow) -> None:
    assert sees(Listing(()), History((row,)), "8").job("8", OURS) == ABSENT


def test_a_history_row_without_a_name_is_the_job_that_was_asked_for() -> None:
    nameless = JobRow("8", "", JobState.COMPLETED)
    assert sees(Listing(()), History((nameless,)), "8").job("8", OURS).row == nameless


def test_of_several_jobs_of_a_name_the_living_one_counts_and_then_the_newest() -> None:
    def row(job_id: str, state: JobState, submitted: float) -> JobRow:
        return JobRow(job_id, OURS, state, submitted=submitted)

    old, alive, new = row("1", JobState.FAILED, 1.0), row("2", JobState.PENDING, 2.0), row("3", JobState.FAILED, 3.0)
    assert sees(Listing((new, alive, old))).named(OURS).row == alive
    assert sees(Listing((new, old))).named(OURS).row == new == sees(Listing((old, new))).named(OURS).row
    past = Observation(NOW, Listing(()), Answers(past=History((new, alive, old))))
    past.ask_history(datetime.fromtimestamp(0, UTC) + HISTORY_MARGIN, [], [OURS])
    assert past.named(OURS) == Sighting(True, False, alive)
    assert past.named("ol-d1-b-0-1") == ABSENT


def test_accounting_is_asked_once_from_an_hour_before_and_an_array_by_one_id() -> None:
    answers = Answers(past=History((JobRow("5_1", OURS, JobState.COMPLETED),)), queue=Listing(()))
    seen = Observation(NOW, answers.listing(), answers)
    seen.ask_history(NOW, [], [])
    assert answers.questions == []
    seen.ask_history(NOW, ["5_0", "5_1", "8"], ["n"])
    seen.ask_history(NOW, ["9"], [])
    assert answers.questions == [(NOW.timestamp() - 3600, ["5", "8"], ["n"])]
    assert seen.job("5_1", OURS).row is not None and seen.job("5_0", OURS) == ABSENT and seen.job("9", OURS) == SILENT
    silent = Answers(queue=DOWN)
    Observation(NOW, DOWN, silent).ask_history(NOW, ["8"], [])
    assert silent.questions == [], "a queue that is silent is no reason to burden the accounts"


@pytest.mark.parametrize(
    ("past", "code"),
    [
        (History((JobRow("8", OURS, JobState.FAILED, exit_code=96),)), 96),
        (History((JobRow("8", "", JobState.FAILED, exit_code=99),)), 99),
        (History((JobRow("8", "another", JobState.FAILED, exit_code=96),)), None),
        (History((JobRow("8", OURS, JobState.RUNNING),)), None),
        (EMPTY, None),
        (DOWN, None),
        (Unavailable("no accounting"), None),
    ],
)
def test_accounting_says_how_a_listed_job_failed_and_nobody_waits_for_it(
    past: History | NoAnswer | Unavailable, code: int | None
) -> None:
    listed = JobRow("8", OURS, JobState.FAILED)
    sighting = sees(Listing((listed,)), past, "8").job("8", OURS)
    assert sighting.answered and sighting.listed and sighting.row is not None
    assert (sighting.row.state, sighting.row.exit_code) == (JobState.FAILED, code)


def live(job_id: str | None, name: str = OURS, minutes_ago: int = 0) -> LiveRow:
    state = "intent" if job_id is None else "submitted"
    return LiveRow(1, state, job_id, name, "", "", None, NOW - timedelta(minutes=minutes_ago), None)


def test_accounting_is_asked_about_what_the_queue_lacks_or_leaves_out_and_about_nothing_else() -> None:
    rows = (
        RUNNING,
        JobRow("1", OURS, JobState.CANCELLED),
        JobRow("2", OURS, JobState.CANCELLED, cancelled_by="7"),
        JobRow("3", OURS, JobState.FAILED),
        JobRow("4", OURS, JobState.FAILED, exit_code=1),
        JobRow("5", OURS, JobState.COMPLETED),
    )
    answers = Answers(queue=Listing(rows))
    seen = Observation(NOW, answers.listing(), answers)
    ask_about(seen, [live(row.job_id) for row in rows if row.job_id not in "13"])
    ask_about(seen, [live(None)])
    assert answers.questions == [], "the queue says all there is to know of them"
    ask_about(seen, [live(i, minutes_ago=int(i)) for i in ("8", "1", "3", "5", "9")] + [live(None, "lost", 30)])
    assert answers.questions == [(NOW.timestamp() - 3600 - 30 * 60, ["1", "3", "9"], ["lost"])]


def test_an_observation_began_before_the_queue_was_asked() -> None:
    """The other way round a job submitted in between would be taken for one that the queue should have shown."""
    order: list[str] = []

    class Clock:
        def now(self) -> datetime:
            order.append("clock")
            return NOW

    class Queue(Answers):
        def listing(self) -> Listing | NoAnswer:
            order.append("queue")
            return Listing(())

    assert observe(cast(Any, Clock()), Queue()).started == NOW
    assert order == ["clock", "queue"]

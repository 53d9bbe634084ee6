"""Attacks what one observation says of a job: who cancelled it, and whether a preempted one comes back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

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
from outerloop.dispatch.observe import Observation

NOW = datetime(2026, 1, 2, tzinfo=UTC)
EMPTY, DOWN = History(()), NoAnswer("down")
CUT = JobRow("7", "ol-d1-a-0-1", JobState.CANCELLED)


@dataclass
class Answers:
    """A cluster that gives the same answers for ever, and counts."""

    past: History | NoAnswer | Unavailable = EMPTY
    site: SiteLimits | NoAnswer = DOWN
    asked: int = 0
    name: str = "answers"
    arrays: bool = True

    def submit(self, job: JobSpec) -> SubmitOutcome:
        raise NotImplementedError

    def submit_array(self, job: JobSpec, count: int, throttle: int | None) -> SubmitOutcome:
        raise NotImplementedError

    def listing(self) -> Listing | NoAnswer:
        return Listing((CUT,))

    def history(self, since: float, ids: Iterable[str], names: Iterable[str]) -> History | NoAnswer | Unavailable:
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

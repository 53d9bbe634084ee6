"""Attacks on what a person is told first: the worst must win, silence must not look like health."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from outerloop.controller.health import age, groups, next_action, worst_problem
from outerloop.controller.shown import Overview, QueueView, RunRow, RunView, TickView, WakeView
from outerloop.controller.unrecorded import Damaged, Unrecorded

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
CADENCE = 300.0
FRESH = TickView(NOW, 60.0, "login1", {"queue_answered": True})
STALE = TickView(NOW, 3 * CADENCE + 1, "login1", {"queue_answered": True})
SILENT = TickView(NOW, 60.0, "login1", {"queue_answered": False})
IDLE = Overview(NOW, 0, 0, 0, 7, None, "", "", 0, "")
BUSY = replace(IDLE, queued=1, waiting=2, oldest=NOW - timedelta(hours=5))
BLOCKED = replace(BUSY, blocked=2, blocked_run="c-b", blocked_reason="CONTRACT")
BROKEN = replace(BLOCKED, broken=1, broken_run="c-x")
HELD = QueueView("pending", "JobHeldAdmin", 2, 1, NOW)
NEVER = QueueView("pending", "PartitionTimeLimit", 1, 1, NOW)
NORMAL = QueueView("pending", "Priority", 3, 2, NOW)
RUNNING = QueueView("running", "JobHeldAdmin", 1, 1, NOW)

ROW = RunRow(
    id="c-1",
    kind="climb",
    target="t",
    benchmark="tsp",
    label="",
    submitter="ada",
    state="waiting",
    state_reason="JOBS",
    state_detail="",
    verdict=None,
    verdict_reason=None,
    sentence=None,
    base_commit="b",
    candidate_commit="c",
    round=0,
    ask=0,
    priority=0,
    last_error=None,
    created_at=NOW,
    updated_at=NOW,
    due_at=NOW + timedelta(minutes=90),
    ended_at=None,
    measures=2,
    done=0,
    jobs={"running": 1},
    pending={},
)


@pytest.mark.parametrize(
    ("seen", "tick", "queue", "kind"),
    [
        (BROKEN, STALE, [HELD], "tick"),
        (BROKEN, None, [HELD], "tick"),
        (BROKEN, SILENT, [HELD], "queue"),
        (BROKEN, FRESH, [HELD], "defect"),
        (BLOCKED, FRESH, [HELD], "blocked"),
        (BUSY, FRESH, [NORMAL, HELD], "held"),
        (BUSY, FRESH, [NEVER], "held"),
        (BUSY, FRESH, [NORMAL, RUNNING], ""),
        (IDLE, STALE, [], ""),
        (IDLE, None, [], ""),
        (replace(BUSY, oldest=NOW - timedelta(seconds=2 * CADENCE)), None, [], ""),
        (replace(IDLE, blocked=1, blocked_run="c-b", blocked_reason="BUDGET"), STALE, [], "blocked"),
    ],
)
def test_the_worst_problem_wins(seen: Overview, tick: TickView | None, queue: list[QueueView], kind: str) -> None:
    found = worst_problem(seen, tick, queue, cadence_seconds=CADENCE)
    assert found.kind == kind
    assert found.sentence.endswith(".")
    assert found.sentence[0].isupper() or found.sentence[0].isdigit()


def test_the_command_that_goes_with_a_blocked_run_names_it() -> None:
    found = worst_problem(BLOCKED, FRESH, [], cadence_seconds=CADENCE)
    assert found.command == "outerloop show c-b"
    assert "c-b and another one are blocked (CONTRACT)" in found.sentence


def test_a_torn_request_comes_before_what_somebody_may_leave_for_later() -> None:
    torn = Damaged("c-t", "/s/runs/c-t/request.json is torn: it is no JSON object")
    found = worst_problem(BLOCKED, FRESH, [], cadence_seconds=CADENCE, damaged=[torn, torn])
    assert found.kind == "damaged" and found.command == "outerloop doctor --no-job"
    assert "c-t and another one" in found.sentence and "torn" in found.sentence
    lost = Unrecorded("c-u", "the record has no such run")
    assert worst_problem(BLOCKED, FRESH, [], cadence_seconds=CADENCE, damaged=[torn], unrecorded=[lost]).kind == (
        "unrecorded"
    )


@pytest.mark.parametrize(
    ("change", "begins"),
    [
        ({"state": "blocked", "state_reason": "BUDGET"}, "Blocked"),
        ({"last_error": "boom"}, "Stopped by an error"),
        ({}, "Waiting for running jobs"),
        ({"jobs": {"pending": 2, "running": 1}, "pending": {"Priority": 2}}, "Waiting for running jobs"),
        ({"jobs": {"pending": 2}, "pending": {"Priority": 2}}, "Pending in the queue: Priority."),
        ({"jobs": {"pending": 3}, "pending": {"Priority": 1, "Resources": 2}}, "Pending in the queue: Resources."),
        ({"jobs": {"submitted": 2}}, "Waiting for submitted jobs"),
        ({"state_reason": "SUBMISSION", "jobs": {"submitted": 1}}, "Waiting to learn"),
        ({"state_reason": "BACKOFF", "jobs": {}}, "Waiting for the next attempt"),
        ({"state": "queued", "state_reason": "", "jobs": {}}, "Queued"),
    ],
)
def test_a_run_stands_under_what_it_waits_for(change: dict[str, object], begins: str) -> None:
    (group,) = groups([replace(ROW, **change)])  # type: ignore[arg-type]
    assert group.heading.startswith(begins)


def test_groups_put_the_urgent_first_and_keep_the_order_inside() -> None:
    rows = [
        replace(ROW, id="q", state="queued", jobs={}),
        replace(ROW, id="r1"),
        replace(ROW, id="b", state="blocked", state_reason="X"),
        replace(ROW, id="r2"),
    ]
    assert [[run.id for run in group.runs] for group in groups(rows)] == [["b"], ["r1", "r2"], ["q"]]


def _view(wakes: tuple[WakeView, ...] = (), **change: object) -> RunView:
    return RunView(replace(ROW, **change), {}, None, (), (), wakes, NOW)  # type: ignore[arg-type]


WAKE = WakeView(1, "submitted", "77", "n", (), "", NOW)


def test_next_is_the_wake_job_and_then_the_tick() -> None:
    told = next_action(_view((WAKE,)), FRESH, cadence_seconds=CADENCE)
    assert told.sentence == (
        "Wake job 77 goes on when its jobs have ended; otherwise a tick looks at it (due in 90 min)."
    )
    assert told.command == ""


@pytest.mark.parametrize("wake", [replace(WAKE, state="dead"), replace(WAKE, state="intent", job_id=None)])
def test_a_wake_that_can_not_ring_is_not_promised(wake: WakeView) -> None:
    told = next_action(_view((wake,)), FRESH, cadence_seconds=CADENCE)
    assert told.sentence == "A tick looks at it (due in 90 min)."


def test_a_run_that_is_late_without_ticks_is_told_to_tick() -> None:
    told = next_action(_view(due_at=NOW - timedelta(hours=3)), STALE, cadence_seconds=CADENCE)
    assert told.sentence == "A tick looks at it (due for 3 h). No tick has run lately."
    assert told.command == "outerloop tick"


def test_a_blocked_run_is_told_to_retry_and_an_ended_one_to_explain() -> None:
    blocked = _view(state="blocked", state_reason="X", due_at=None)
    assert next_action(blocked, FRESH, cadence_seconds=CADENCE).command == "outerloop retry c-1"
    ended = _view(state="ended", verdict="rejected", due_at=None)
    assert next_action(ended, FRESH, cadence_seconds=CADENCE).command == "outerloop explain c-1"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (119 * 60, "119 min"),
        (7200, "2 h"),
        (47.9 * 3600, "47 h"),
        (48 * 3600, "2 d"),
    ],
)
def test_ages_never_round_up(seconds: float, text: str) -> None:
    assert age(seconds) == text

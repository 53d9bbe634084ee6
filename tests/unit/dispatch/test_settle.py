"""What an attempt does to its row and its slot when it ends: whose fault it is, how soon again, what it cost."""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from outerloop.dispatch.budget import hours_asked, hours_used
from outerloop.dispatch.context import Context, Patience
from outerloop.dispatch.evidence import SETTLING, Action, Decision
from outerloop.dispatch.settle import (
    BACKOFF_CEILING,
    _by_whom,
    change_slot,
    decision_from_disk,
    newest_checkpoint,
    settle_row,
)
from outerloop.record.models import Attempt, Slot
from outerloop.slots import Result

NOW = datetime(2026, 1, 2, tzinfo=UTC)
RESULT = Result(attempt=2, job_id="7", restart=1, body={"outcome": "ok", "metric": {"text": "8"}})


@dataclass
class Patient:
    """The one thing that changing a slot asks of the dispatcher's context."""

    patience: Patience


CONTEXT = cast(Context, Patient(Patience(backoff=60.0)))


def slot(**changed: Any) -> Slot:
    return Slot(state="open", attempts_counted=0, attempts_allowed=3, excluded_nodes=[], **changed)


def ended(action: Action, *, exclude: bool = False, node: str = "n7", of: Slot | None = None) -> tuple[Slot, Attempt]:
    row, attempt = of or slot(), Attempt(n=2)
    decision = Decision(action, "WHY", "in words", exclude)
    settle_row(attempt, decision, NOW)
    result = RESULT if action in {Action.DONE, Action.FAILED, Action.SUPERSEDED, Action.ENVIRONMENT} else None
    change_slot(CONTEXT, row, attempt, decision, now=NOW, node=node, result=result)
    return row, attempt


@pytest.mark.parametrize(
    ("action", "state", "blamed", "again"),
    [
        (Action.DONE, "done", None, None),
        (Action.SUPERSEDED, "done", None, None),
        (Action.FAILED, "failed", "candidate", None),
        (Action.INFRASTRUCTURE, "open", None, 60.0),
        (Action.SUSPECT, "open", None, 60.0),
        (Action.ENVIRONMENT, "exhausted", "environment", None),
        (Action.USER, "exhausted", "user", None),
        (Action.HOPELESS, "exhausted", "infrastructure", None),
        (Action.CONTINUE, "open", None, 0.0),
        (Action.CANCELLED, "open", None, 0.0),
    ],
)
def test_each_ending_has_its_effect_on_the_slot(
    action: Action, state: str, blamed: str | None, again: float | None
) -> None:
    row, attempt = ended(action)
    assert (row.state, row.failure_class) == (state, blamed)
    assert row.next_try_at == (None if again is None else NOW + timedelta(seconds=again))
    assert row.attempts_counted == (1 if action in {Action.INFRASTRUCTURE, Action.SUSPECT} else 0)
    assert attempt.counted is (action in {Action.INFRASTRUCTURE, Action.SUSPECT})
    assert (attempt.state, attempt.outcome, attempt.reason) == ("settled", action.value, "WHY")
    assert (row.pinned_attempt, row.pinned_restart) == ((2, 1) if state == "done" else (None, None))
    if state in {"failed", "exhausted"}:
        assert (row.reason, row.detail, row.settled_at) == ("WHY", "in words", NOW)


def test_every_ending_is_in_that_table() -> None:
    assert len(SETTLING) == 10


@pytest.mark.parametrize("action", sorted(SETTLING))
def test_a_value_is_never_taken_back(action: Action) -> None:
    done = slot(pinned_attempt=1, result={"outcome": "ok"})
    done.state = "done"
    row, _attempt = ended(action, exclude=True, of=done)
    assert (row.state, row.pinned_attempt, row.attempts_counted, row.excluded_nodes) == ("done", 1, 0, [])


def test_each_failure_of_the_infrastructure_waits_twice_as_long_up_to_a_ceiling_and_then_nobody_tries_again() -> None:
    row, waits = slot(), []
    row.attempts_allowed = 12
    while row.state == "open":
        ended(Action.INFRASTRUCTURE, of=row)
        if row.next_try_at is not None:
            waits.append((row.next_try_at - NOW).total_seconds())
    assert waits == [min(60.0 * 2**n, BACKOFF_CEILING.total_seconds()) for n in range(11)]
    assert (row.state, row.failure_class, row.attempts_counted) == ("exhausted", "infrastructure", 12)


def test_a_node_is_excluded_once_and_only_when_it_is_to_blame_and_known() -> None:
    row = slot()
    row.attempts_allowed = 9
    for exclude, node in ((True, "n7"), (True, "n7"), (False, "n8"), (True, ""), (True, "n9")):
        ended(Action.INFRASTRUCTURE, exclude=exclude, node=node, of=row)
    assert row.excluded_nodes == ["n7", "n9"]


# -- GPU-hours


def test_gpu_hours_are_of_all_nodes() -> None:
    assert hours_asked({"gpus": 4, "nodes": 2}, 90.0) == 12.0
    assert hours_asked({"gpus": 4}, 60.0) == 4.0 and hours_asked({}, 60.0) == 0.0


@pytest.mark.parametrize(
    ("measured", "elapsed", "began", "used"),
    [
        (1800.0, 9000.0, True, 4.0),  # the result's own account goes before the cluster's
        (0.0, None, True, 0.0),
        (36_000.0, None, True, 8.0),  # never more than was reserved
        (None, 900.0, True, 2.0),  # killed: what the cluster gave to it
        (None, 30.0, False, 8.0 / 120),  # a job that failed before our program began
        (None, 0.0, False, 0.0),  # cancelled while it pended
        (None, None, False, 0.0),  # refused, held, or never seen
        (None, None, True, 8.0),  # it began, and nobody knows when it ended
    ],
)
def test_an_attempt_is_charged_what_it_had(
    measured: float | None, elapsed: float | None, began: bool, used: float
) -> None:
    assert hours_used(8.0, 60.0, measured=measured, elapsed=elapsed, began=began) == pytest.approx(used)


# -- words from outside


def test_the_account_of_slurm_itself_is_known_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    me = pwd.getpwuid(os.getuid())
    own = pwd.struct_passwd(("slurm", *me[1:]))
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: own if uid == 64030 else me)
    assert _by_whom("64030") == "slurm"
    assert (_by_whom("0"), _by_whom("1000"), _by_whom("alice"), _by_whom("")) == ("0", "1000", "alice", "")
    assert _by_whom("9" * 40) == "9" * 40


def test_a_decision_on_disk_is_read_back_and_an_unknown_one_is_none() -> None:
    body = {"outcome": "infrastructure", "reason": "HELD", "detail": "x", "exclude_node": True}
    assert decision_from_disk(body) == Decision(Action.INFRASTRUCTURE, "HELD", "x", True)
    assert decision_from_disk({}) is None and decision_from_disk({"outcome": "tomorrow's"}) is None


def test_the_newest_complete_checkpoint_counts(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path / "none") == ""
    for name, complete in (("step-0000000009", True), ("step-0000000010", True), ("step-0000000011", False),
                           ("step-12", True), ("other", True)):  # fmt: skip
        (tmp_path / name).mkdir()
        if complete:
            (tmp_path / name / "manifest.json").write_text("{}")
    assert newest_checkpoint(tmp_path) == "step-0000000010"
    sealed = tmp_path / "sft" / "checkpoints" / "checkpoint-200"
    sealed.mkdir(parents=True)
    assert newest_checkpoint(tmp_path) == "step-0000000010"
    (sealed / "outerloop.json").write_text("{}")
    assert newest_checkpoint(tmp_path) == "step-0000000200"

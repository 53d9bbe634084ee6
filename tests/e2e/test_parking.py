"""What happens while a process parks a run, or just after: jobs that end in the middle, doorbells that ring at once.

Each interleaving is forced, on a cluster of files. Not covered: words of people said meanwhile (test_turns.py), kills
(test_crash_points.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outerloop.controller import engine
from outerloop.controller import tick as sweep
from outerloop.controller.operate import pause
from outerloop.dispatch import wakes
from outerloop.record.models import Attempt, Wake
from tests.controller_rig.world import World
from tests.e2e.test_crash_points_arrays import ArrayWorld


def once(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, before: Callable[[], None]) -> None:
    """Let `before` happen after the next call of a function, before its caller goes on."""
    original = getattr(module, name)

    def called(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(module, name, original)
        answer = original(*arguments, **named)
        before()
        return answer

    monkeypatch.setattr(module, name, called)


def test_jobs_that_a_sweep_settles_while_their_run_parks_are_not_left_until_tomorrow(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep knows nobody who awaits them yet, and the run knows them as live."""
    run_id = world.submit("better")
    other = world.open()

    def settled_meanwhile() -> None:
        assert world.run_measures() == 2
        report = sweep.TickReport()
        sweep._fold(other, report)
        assert report.settled == 2

    once(monkeypatch, engine, "open_attempts", settled_meanwhile)
    try:
        world.wake(run_id, None)
    finally:
        other.close()
    assert world.run(run_id).verdict == "accepted", world.describe()


def test_a_doorbell_that_rings_before_its_submitter_knows_its_id_is_neither_counted_on_nor_cancelled(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    rung = []

    def rings() -> None:
        [wake] = world.rows(Wake)
        [job] = world.wake_jobs()
        world.cluster.change(job, state="running")
        monkeypatch.setattr(sweep, "BUSY_PATIENCE_SECONDS", 0.0)
        assert [item.state for item in world.wake(wake.run_id, wake.number).advanced] == ["busy"]
        rung.append(job)

    once(monkeypatch, wakes, "_submit", rings)
    run_id = world.submit("better")
    [wake] = world.rows(Wake)
    assert (wake.state, wake.reason, [wake.job_id]) == ("done", "rang", rung)
    world.wake(run_id, None)  # what it does once the lease is free
    assert [body["state"] for body in world.wake_jobs().values()] == ["running", "pending"]
    assert [(w.state, w.awaited) for w in sorted(world.rows(Wake), key=lambda w: w.number)][1:] == [
        ("submitted", wake.awaited)
    ]


def test_a_run_that_is_paused_while_it_parks_knows_the_jobs_of_its_array(
    tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = ArrayWorld(tmp_path, database)
    other = world.open()
    once(monkeypatch, engine, "open_attempts", lambda: pause(other, world.runs()[0].id, "not now"))
    try:
        run_id = world.submit("better")
    finally:
        other.close()
    assert world.run(run_id).state_reason == "PAUSED"
    assert {attempt.state for attempt in world.rows(Attempt)} == {"submitted"}


def test_a_claim_of_something_that_is_no_job_id_keeps_no_run_from_parking(tmp_path: Path, database: str) -> None:
    world = World(tmp_path, database, gone_grace_seconds=600)
    run_id = world.submit("better")
    first, second = sorted(str(attempt.job_id) for attempt in world.rows(Attempt))
    slot = world.slot_folder(first)
    claim = {"schema": 1, "digest": slot.name, "attempt": 1, "job_id": '9,"{}\\', "restart": 0}
    (slot / "attempts" / "1" / "claim.json").write_text(json.dumps(claim))
    world.wake(run_id, 1)
    run = world.run(run_id)
    assert (run.state, run.last_error) == ("waiting", None), world.describe()
    assert max(world.rows(Wake), key=lambda wake: wake.number).awaited == [second]

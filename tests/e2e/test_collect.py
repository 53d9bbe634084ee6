"""Garbage collection: what nothing needs goes, what something needs stays, and a death in between loses nothing."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psycopg
import pytest

from outerloop.controller.collect import TRASH_DAYS, Collected, collect
from outerloop.controller.noise import SeriesRunner, prepare_series
from outerloop.record.models import Attempt, Measure, Slot
from tests.controller_rig.kept import Kept
from tests.controller_rig.world import World, resume, stopped, wait_for
from tests.e2e.test_crash_points import points_of, worlds
from tests.e2e.test_outages import _plain

__all__ = ["worlds"]

DAY = 86400.0


def gc(world: World, *, keep_days: float = 1.0, dry_run: bool = False) -> Collected:
    deployment = world.open()
    try:
        return collect(deployment, keep_days=keep_days, dry_run=dry_run)
    finally:
        deployment.close()


def test_a_clock_that_jumps_ahead_deletes_no_young_trash(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    rejected_long_ago(world)
    assert len(gc(world).slots) == 2
    theirs = time.time
    monkeypatch.setattr(time, "time", lambda: theirs() + (TRASH_DAYS + 10) * DAY)
    assert gc(world).deleted == 0 and len(list(world.state.trash.iterdir())) >= 2


def test_a_study_whose_older_values_are_collected_meanwhile_measures_them_again(world: World) -> None:
    deployment = world.open()
    try:
        series = prepare_series(
            world.settings, world.state, repository=world.repo, benchmark="speed", base="main", repeats=3
        )
        runner = SeriesRunner(deployment, series, nodes=1)

        def rests() -> int:
            for _ in range(9):
                state = runner.look()
                if state.rests:
                    return len(state.measured)
                world.run_measures()
            raise AssertionError(world.describe())

        runner.enter()
        total = rests()
        world.pass_time(2 * DAY)
        runner.enter()
        assert len(gc(world).slots) == total > 2
        assert rests() == total and world.executions() == 2 * total
    finally:
        deployment.close()


def states(world: World) -> list[str]:
    return sorted(slot.state for slot in world.rows(Slot))


def folders(world: World) -> set[str]:
    return {path.name for path in world.state.slots.glob("??/*")}


def rejected_long_ago(world: World) -> str:
    """A verdict that nobody needs any more: two slots to collect."""
    run_id = world.submit("bigger", benchmark="size")
    world.ticks_until_rest()
    assert world.run(run_id).verdict == "rejected"
    world.pass_time(2 * DAY)
    return run_id


def test_only_what_nothing_needs_goes(world: World) -> None:
    champion = world.submit("better")
    world.ticks_until_rest()
    world.pass_time(2 * DAY)
    old = world.submit("same")
    world.ticks_until_rest()
    world.pass_time(2 * DAY)
    recent = world.submit("bigger")
    world.ticks_until_rest()
    world.branch("smaller", size="90")
    waiting = world.submit("smaller", benchmark="size")
    of = {run: slots_of(world, run) for run in (champion, old, recent, waiting)}
    kept = of[champion] | of[recent] | of[waiting]
    gone = of[old] - kept
    assert gone

    before, there = states(world), folders(world)
    assert set(gc(world, dry_run=True).slots) == gone
    assert states(world) == before and folders(world) == there, "a dry run changed something"
    report = gc(world)
    assert set(report.slots) == gone and report.bytes > 0 and report.deleted == 0
    assert folders(world) == there - gone
    assert {slot.digest for slot in world.rows(Slot) if slot.state == "collected"} == gone
    assert gc(world).slots == [], "once is enough"
    world.ticks_until_rest()
    assert world.run(waiting).verdict == "accepted"


def slots_of(world: World, run_id: str) -> set[str]:
    digests = {slot.id: slot.digest for slot in world.rows(Slot)}
    return {digests[measure.slot_id] for measure in world.rows(Measure) if measure.run_id == run_id}


def test_a_collected_slot_that_is_asked_for_again_is_measured_again(world: World) -> None:
    rejected_long_ago(world)
    ran = world.executions()
    assert len(gc(world).slots) == 2 and states(world) == ["collected"] * 2
    again = world.submit("bigger", benchmark="size", again=True)
    world.ticks_until_rest()
    assert world.run(again).verdict == "rejected"
    assert world.executions() == ran + 2 and states(world) == ["done"] * 2


def test_killed_at_every_point_of_a_collection(worlds: Callable[[], World]) -> None:
    """Whatever a dead collection left: who asks again gets values that lie on disk, and the next collection ends it."""
    beginning = worlds()
    rejected_long_ago(beginning)
    kept = Kept(beginning)
    calm = kept.again()
    assert calm.forked(lambda: gc(calm), trace=True) == 0
    points = points_of(calm)
    assert {"before:tx.collect:kill:1", "after:gc.trash:kill:1", "after:gc.trash:kill:2"} <= set(points)
    for fault in points:
        world = kept.again()
        assert world.forked(partial(gc, world), fault=fault) == -signal.SIGKILL, fault
        again = world.submit("bigger", benchmark="size", again=True)
        world.ticks_until_rest()
        assert world.run(again).verdict == "rejected", fault
        assert set(states(world)) == {"done"}, fault
        for slot in world.rows(Slot):
            assert (world.state.slot(slot.digest) / "accepted").exists(), (fault, "a value without its evidence")
        world.pass_time(2 * DAY)
        assert gc(world, keep_days=365).slots == []


def waits_for_a_lock(world: World, pid: int) -> bool:
    """Whether this process ended, or one of the database's sessions waits for another one's lock."""
    with psycopg.connect(_plain(world.settings.database_url.get_secret_value()), autocommit=True) as connection:
        waiting = (
            "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        )
        [count] = connection.execute(waiting).fetchone() or (0,)
    return bool(count) or Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.skipif(not os.environ.get("OUTERLOOP_NIGHTLY"), reason="many worlds: set OUTERLOOP_NIGHTLY")
@pytest.mark.parametrize("paused", ["submit", "gc"])
def test_a_collection_and_a_submission_of_the_same_slots_at_once(worlds: Callable[[], World], paused: str) -> None:
    """One stands still at each of its points in turn while the other one goes through: no value without its evidence,
    no run that waits for what was taken away, and nothing that somebody is about to use is gone."""
    beginning = worlds()
    rejected_long_ago(beginning)
    kept = Kept(beginning)

    def does(world: World, name: str) -> Callable[[], object]:
        return partial(gc, world) if name == "gc" else partial(world.submit, "bigger", benchmark="size", again=True)

    other = "gc" if paused == "submit" else "submit"
    calm = kept.again()
    assert calm.forked(does(calm, paused), trace=True) == 0
    points = [point.replace(":kill", ":stop") for point in points_of(calm)]
    assert len(points) > 4
    for point in points:
        world = kept.again()
        slow = world.start(does(world, paused), fault=point)
        wait_for(lambda pid=slow: stopped(pid), 60, point)
        quick = world.start(does(world, other))
        wait_for(lambda w=world, pid=quick: waits_for_a_lock(w, pid), 60, f"the {other} at {point}")
        assert resume(slow) == 0, (point, (world.folder / "errors").read_text())
        assert os.waitstatus_to_exitcode(os.waitpid(quick, 0)[1]) == 0, (point, (world.folder / "errors").read_text())
        world.ticks_until_rest()
        assert {run.verdict for run in world.runs()} == {"rejected"} and len(world.runs()) == 2, (
            point,
            world.describe(),
        )
        assert set(states(world)) == {"done"}, point
        for slot in world.rows(Slot):
            assert (world.state.slot(slot.digest) / "accepted").exists(), (point, "a value without its evidence")
        assert all(attempt.outcome == "done" for attempt in world.rows(Attempt)), (point, "an attempt was lost to it")


def test_old_trash_is_deleted_and_a_death_in_it_is_made_up_for(world: World) -> None:
    rejected_long_ago(world)
    assert len(gc(world).slots) == 2
    young = sorted(world.state.trash.iterdir())
    for folder in young[:1]:
        stamp = int(time.time() - (TRASH_DAYS + 1) * DAY)
        folder.rename(folder.with_name(f"{stamp}-{folder.name.partition('-')[2]}"))
    (world.state.trash / "README").mkdir()
    assert world.forked(lambda: gc(world), fault="before:gc.delete:kill") == -signal.SIGKILL
    assert len(list(world.state.trash.iterdir())) == 3
    assert world.forked(lambda: gc(world), fault="after:gc.delete:kill") == -signal.SIGKILL
    assert gc(world).deleted == 0, "it was deleted already"
    assert {path.name for path in world.state.trash.iterdir()} == {young[1].name, "README"}


def test_a_slot_whose_directory_was_lost_is_measured_again_when_asked_for(world: World) -> None:
    rejected_long_ago(world)
    for path in world.state.slots.iterdir():
        shutil.rmtree(path)
    again = world.submit("bigger", benchmark="size", again=True)
    world.ticks_until_rest()
    assert world.run(again).verdict == "rejected" and world.executions() == 4

"""kill -9 of submit, wake and tick at every point between two effects; a process stopped between intent and sbatch.

The points are not listed here: a first, undisturbed climb records which ones each command comes by, and each of them
is then attacked in a world of its own. An effect that no command of this file reaches fails the last test, unless it
stands in OTHERWHERE with the place of its test.
"""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from outerloop.effects import EFFECTS
from outerloop.record.models import Attempt
from tests.controller_rig.kept import Kept
from tests.controller_rig.world import World, resume, stopped, wait_for
from tests.postgres.conftest import _execute

pytestmark = pytest.mark.timeout(1800)  # a hundred worlds one after the other

EXPECTED = ("accepted", "")

OTHERWHERE = {
    "array.map": "test_crash_points_arrays.py",
    "array.script": "test_crash_points_arrays.py",
    "array.log": "test_crash_points_arrays.py: a task that never began",
    "array.submitted": "test_crash_points_arrays.py",
    "campaign.event": "test_campaign_kills.py",
    "campaign.config": "test_campaign_kills.py",
    "campaign.link": "test_campaign_kills.py",
    "campaign.teacher": "test_campaign_kills.py",
    "campaign.watch": "test_campaigns.py: an idle campaign",
    "campaign.aside": "test_campaigns.py: what lies in a campaign's folder and does not belong there",
    "tx.campaign": "test_campaign_kills.py",
    "spool.make": "tests/service: the operator's own set-up, which can be repeated",
    "spool.public": "tests/service: the operator's own set-up, which can be repeated",
    "spool.secret": "tests/service: the operator's own set-up, which can be repeated",
    "spool.leave": "tests/service/test_service.py",
    "spool.remove": "tests/service/test_service.py: the service killed between run and answer",
    "reply.watch": "tests/service/test_service.py: the service killed between run and answer",
    "reply.write": "tests/service/test_service.py: the service killed between run and answer",
    "ladder.link": "tests/service/test_ladder.py",
    "archive.write": "test_archive.py",
    "tx.notify": "test_notify.py",
    "entry.data": "test_entries.py: every command is killed",
    "study.asked": "test_service_noise.py: a service killed anywhere on the way",
    "study.remove": "test_service_noise.py: a service killed anywhere on the way",
    "noise.study": "test_evidence_noise.py: a study that is killed goes on",
    "run.marker": "test_cli_wake.py: a wake that cannot reach the record",
    "slot.retry": "test_faults.py: retry",
    "compute.cancel": "test_faults.py: cancel",
    "tx.operator": "test_faults.py: cancel and retry",
    "tx.block": "test_faults.py: blocked runs",
    "tx.rebuild": "test_rebuild.py",
    "tx.collect": "test_collect.py",
    "gc.trash": "test_collect.py",
    "gc.delete": "test_collect.py",
}
TABLES = "realms, runs, slots, measures, attempts, awaits, wakes, champions, leases, events, heartbeats"


@pytest.fixture
def worlds(tmp_path: Path, database: str) -> Callable[[], World]:
    """Makes fresh worlds, one after the other on one database."""
    count = itertools.count()

    def make() -> World:
        _execute(database, f"truncate {TABLES} restart identity cascade")
        return World(tmp_path / str(next(count)), database)

    return make


def points_of(world: World) -> list[str]:
    """Each point with the number of the time that it is reached: after:tx.outcome:kill:2.

    Between the end of one effect and the beginning of the next nothing outside the process changes, so one kill there
    stands for both points: every `after`, and the `before` that nothing precedes.
    """
    seen: dict[str, int] = {}
    faults = []
    for place, point in enumerate(world.reached()):
        seen[point] = seen.get(point, 0) + 1
        if place == 0 or point.startswith("after:"):
            faults.append(f"{point}:kill:{seen[point]}")
    return faults


def the_only_run(world: World) -> str:
    return world.runs()[0].id


def finish(world: World) -> None:
    world.ticks_until_rest()
    assert world.verdicts() == {"better": EXPECTED}, world.describe()
    world.check_invariants()


def test_submit_killed_at_every_point(worlds: Callable[[], World]) -> None:
    kept = Kept(worlds())
    calm = kept.again()
    assert calm.forked(lambda: calm.submit("better"), trace=True) == 0
    points = points_of(calm)
    finish(calm)
    acknowledged = "after:inbox.write:kill:1"
    assert acknowledged in points
    durable = False
    for fault in points:
        world = kept.again()
        assert world.forked(lambda w=world: w.submit("better"), fault=fault) == -signal.SIGKILL, fault
        durable = durable or fault == acknowledged
        if not durable:
            assert not world.runs() or world.verdicts(), fault
            world.submit("better")  # the researcher's shell said "Killed"; asking again is what anybody would do
        finish(world)
        assert world.executions() == 2, fault


def test_wake_killed_at_every_point(worlds: Callable[[], World]) -> None:
    def parked() -> World:
        world = worlds()
        world.submit("better")
        world.run_measures()
        return world

    kept = Kept(parked())
    calm = kept.again()
    [(_job, run_id, number)] = calm.take_wakes()
    assert calm.forked(lambda: calm.wake(run_id, number), trace=True) == 0
    points = points_of(calm)
    finish(calm)
    for fault in points:
        world = kept.again()
        [(_job, run_id, number)] = world.take_wakes()
        assert world.forked(lambda w=world, r=run_id, n=number: w.wake(r, n), fault=fault) == -signal.SIGKILL, fault
        finish(world)
        assert world.executions() == 2, fault


def test_tick_killed_at_every_point(worlds: Callable[[], World]) -> None:
    """The tick that takes a request from the inbox, and the one that decides."""

    def left_in_inbox() -> World:
        world = worlds()
        world.forked(lambda: world.submit("better"), fault="after:inbox.write:kill")
        return world

    def decided_by_tick() -> World:
        world = worlds()
        world.submit("better")
        world.run_measures()
        return world

    for prepare in (left_in_inbox, decided_by_tick):
        kept = Kept(prepare())
        calm = kept.again()
        assert calm.forked(lambda w=calm: w.tick(), trace=True) == 0
        points = points_of(calm)
        finish(calm)
        for fault in points:
            world = kept.again()
            assert world.forked(lambda w=world: w.tick(), fault=fault) == -signal.SIGKILL, fault
            finish(world)
            assert world.executions() == 2, fault


@pytest.mark.parametrize(
    "point", ["after:tx.intent", "before:compute.submit", "after:compute.submit", "before:tx.outcome"]
)
def test_a_process_stopped_between_intent_and_outcome_changes_nothing_when_it_comes_back(
    worlds: Callable[[], World], point: str
) -> None:
    world = worlds()
    pid = world.start(lambda: world.submit("better"), fault=f"{point}:stop")
    wait_for(lambda: stopped(pid), 60, "the stop")
    # Its lease is as good as any until it runs out; nobody waits five minutes in a test.
    world.expire_leases()
    finish(world)
    before = world.snapshot()
    resume(pid)
    world.run_measures()
    world.tick()
    assert world.snapshot() == before
    assert world.executions() == 2
    world.check_invariants()


def test_results_that_came_while_a_submission_slept_are_not_left_for_tomorrow(worlds: Callable[[], World]) -> None:
    """A tick settles jobs of a run that does not await them yet, so nothing rings for them (schedule of seed 112)."""
    world = worlds()
    pid = world.start(lambda: world.submit("better"), fault="before:tx.park:stop")
    wait_for(lambda: stopped(pid), 60, "the stop")
    world.run_measures()
    world.tick()
    assert {attempt.state for attempt in world.rows(Attempt)} == {"settled"}, world.describe()
    assert resume(pid) == 0
    [run] = world.runs()
    assert (run.verdict, run.verdict_reason) == EXPECTED, world.describe()
    world.check_invariants()


def test_every_effect_is_attacked_somewhere(worlds: Callable[[], World]) -> None:
    world = worlds()
    world.forked(lambda: world.submit("better"), trace=True)
    world.run_measures()
    world.forked(lambda: world.tick(), trace=True)
    for _job, run_id, number in world.take_wakes():
        world.forked(lambda r=run_id, n=number: world.wake(r, n), trace=True)
    reached = {point.split(":")[1] for point in world.reached()}
    second = worlds()
    second.forked(lambda: second.submit("better"), fault="after:inbox.write:kill")
    second.forked(lambda: second.tick(), trace=True)
    reached |= {point.split(":")[1] for point in second.reached()}
    assert set(EFFECTS) - reached - set(OTHERWHERE) == set()

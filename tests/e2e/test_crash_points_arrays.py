"""A climb of twelve measures that go out as one array: kill -9 at every point of that, lost replies, refusals, claims.

The points are not listed here: an undisturbed submit records which ones it comes by, and those that belong to the
array's submission are attacked, each in a world of its own. Ticks alone finish every climb.
"""

from __future__ import annotations

import itertools
import json
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from outerloop.controller.collect import Collected, collect
from outerloop.controller.rebuild import rebuild
from outerloop.record.models import Array, Attempt, Run, Wake
from outerloop.settings_sections import LaneSettings
from tests.controller_rig.world import World, resume, stopped, wait_for
from tests.e2e.test_crash_points import TABLES, points_of
from tests.postgres.conftest import _execute

PAIRED = """\
[[benchmarks]]
name = "speed"
command = "sh bench.sh"
metric = "cost"
direction = "min"
seed_env = "BENCH_SEED"
minutes = 1
min_delta = 0.5
rule = { kind = "paired", pairs = 6 }

[scope]
allowed = ["src/"]
"""
MEASURES = 12

OF_THE_ARRAY = {"tx.intent", "array.map", "array.script", "compute.submit", "array.submitted"}
OF_THE_ARRAY |= {"tx.outcome", "tx.park", "compute.wake"}


class ArrayWorld(World):
    """The rig with a cluster that takes arrays and a benchmark of six pairs."""

    def __init__(self, folder: Path, database: str, **dispatch: float) -> None:
        super().__init__(folder, database, **dispatch)
        self.cluster.set_mode("arrays", "on")

    def contract(self) -> str:
        return PAIRED

    def arrays(self) -> list[Any]:
        return sorted(self.rows(Array), key=lambda row: row.id)

    def check(self) -> None:
        """At rest: the verdict, one execution of each measure, and no attempt that was spent."""
        assert self.verdicts() == {"better": ("accepted", "")}, self.describe()
        assert self.executions() == MEASURES, self.describe()
        self.check_invariants()
        for attempt in self.rows(Attempt):
            assert attempt.outcome == "done" and attempt.n == 1, self.describe()


@pytest.fixture
def worlds(tmp_path: Path, database: str) -> Callable[..., ArrayWorld]:
    count = itertools.count()

    def make(**dispatch: float) -> ArrayWorld:
        _execute(database, f"truncate {TABLES} restart identity cascade")
        return ArrayWorld(tmp_path / str(next(count)), database, **dispatch)

    return make


def test_twelve_measures_are_one_request_and_one_wake(worlds: Callable[..., ArrayWorld]) -> None:
    world = worlds()
    world.submit("better")
    [array] = world.arrays()
    assert world.cluster.requests() == [(array.name, MEASURES)]
    assert (array.state, array.count, array.cap) == ("submitted", MEASURES, None)
    attempts = sorted(world.rows(Attempt), key=lambda a: a.array_task)
    assert [a.job_id for a in attempts] == [f"{array.job_id}_{task}" for task in range(MEASURES)]
    folder = world.state.array(array.name)
    mapped = json.loads((folder / "map.json").read_text())["tasks"]
    assert [[Path(entry["slot"]).name, entry["attempt"]] for entry in mapped] == array.map["tasks"]
    # All tasks are this run's own: one id says it all.
    [wake] = world.rows(Wake)
    assert wake.awaited == [array.job_id]
    world.wakes_until_rest()
    world.check()
    assert len(world.cluster.requests()) == 1
    for task, entry in enumerate(mapped):
        log = Path(entry["slot"]) / "attempts" / "1" / "r0" / "slurm.log"
        assert log.resolve() == (folder / f"slurm.log.{task}").resolve()


def test_the_lane_says_how_many_tasks_run_at_once(worlds: Callable[..., ArrayWorld]) -> None:
    """Also of the array that goes out again because nobody knows what became of its first request."""
    world = worlds()
    world.settings = world.settings.model_copy(update={"lanes": {"default": LaneSettings(array_throttle=4)}})
    world.cluster.set_mode("submit", "lost-before")
    world.submit("better")
    [array] = world.arrays()
    world.cluster.set_mode("submit", "")
    for _ in range(4):
        world.tick()
    assert len(world.measuring_jobs()) == MEASURES, world.describe()
    throttles = (world.cluster.folder / "throttles").read_text().splitlines()
    assert throttles == [f"{array.name} 4"] * 2


def test_a_task_that_never_began_still_shows_its_log(worlds: Callable[..., ArrayWorld]) -> None:
    """It made no folder, and the log is all that says why. Killed around the link, the next tick makes it."""
    world = worlds()
    world.submit("better")
    [array] = world.arrays()
    job_id = f"{array.job_id}_3"
    attempt = next(a for a in world.rows(Attempt) if a.job_id == job_id)
    digest = array.map["tasks"][3][0]
    written = world.state.array(array.name) / "slurm.log.3"
    written.write_text("slurmstepd: error: prologue failed\n")
    world.cluster.change(job_id, state="failed", exit=1)
    for fault in ("before:array.log:kill", "after:array.log:kill"):
        assert world.forked(world.tick, fault=fault) == -signal.SIGKILL, fault
    world.tick()
    settled = next(a for a in world.rows(Attempt) if a.id == attempt.id)
    assert (settled.state, settled.reason) == ("settled", "NEVER_STARTED")
    log = world.state.slot(digest) / "attempts" / "1" / "r0" / "slurm.log"
    assert log.read_text() == written.read_text()


SHARDS = 4
"""Each has its own time limit: a world with twelve measures takes seconds."""


@pytest.mark.parametrize("shard", range(SHARDS))
def test_submit_killed_at_every_point_of_the_array(worlds: Callable[..., ArrayWorld], shard: int) -> None:
    calm = worlds()
    assert calm.forked(lambda: calm.submit("better"), trace=True) == 0
    points = [point for point in points_of(calm) if point.split(":")[1] in OF_THE_ARRAY]
    assert {point.split(":")[1] for point in points} == OF_THE_ARRAY
    # Before an effect is after the one before it: nothing else happens in between.
    points = [point for point in points if point.startswith("after:") or point == points[0]]
    for fault in points[shard::SHARDS]:
        world = worlds()
        assert world.forked(lambda w=world: w.submit("better"), fault=fault) == -signal.SIGKILL, fault
        world.ticks_until_rest()
        world.check()
        names = [name for name, count in world.cluster.requests() if count > 1]
        assert len(names) == 1, f"{fault}: {names}"


@pytest.mark.parametrize("mode", ["lost-before", "lost-after"])
def test_a_lost_reply_is_found_again_and_the_array_stays_whole(worlds: Callable[..., ArrayWorld], mode: str) -> None:
    world = worlds()
    world.cluster.set_mode("submit", mode)
    world.submit("better")
    world.cluster.set_mode("submit", "")
    [array] = world.arrays()
    assert array.state == "intent" and all(a.unknown_at is not None for a in world.rows(Attempt))
    world.ticks_until_rest()
    world.check()
    requests = world.cluster.requests()
    assert requests == [(array.name, MEASURES)] * (2 if mode == "lost-before" else 1)


def test_tasks_that_started_before_the_reply_was_lost_tell_the_arrays_id(worlds: Callable[..., ArrayWorld]) -> None:
    """Half of the tasks claimed their attempts, the queue and accounting forgot them all: the claims are enough."""
    world = worlds(gone_grace_seconds=0)
    world.cluster.set_mode("submit", "lost-after")
    world.submit("better")
    world.cluster.set_mode("submit", "")
    jobs = list(world.measuring_jobs())
    for job_id in jobs[:5]:
        world.cluster.execute(job_id)
    for job_id in jobs:
        world.cluster.change(job_id, purged=True, forgotten=True)
    world.tick()
    [array] = world.arrays()
    assert (array.state, array.job_id) == ("submitted", jobs[0].partition("_")[0])
    for job_id in jobs[5:]:
        world.cluster.change(job_id, purged=False)
    world.ticks_until_rest()
    world.check()
    assert len(world.cluster.requests()) == 1


def test_only_a_refused_array_is_halved_and_the_next_one_starts_smaller(worlds: Callable[..., ArrayWorld]) -> None:
    world = worlds()
    world.cluster.set_mode("submit", "at-most-4")
    world.submit("better")
    sizes = [count for _name, count in world.cluster.requests()]
    # 12 and 6 are refused, 3 fit, 3 more do not, then one does; nobody asks for each of the others.
    assert sizes == [12, 6, 3, 3, 1, 1], sizes
    assert [row.cap for row in world.arrays() if row.cap] == [6, 3, 1]
    assert len(world.rows(Attempt)) == 4
    assert not [a for a in world.rows(Attempt) if a.state != "submitted"]
    world.cluster.set_mode("submit", "")
    for _ in range(3):
        world.run_measures()
        world.tick()
        world.pass_time(61)
    world.ticks_until_rest()
    world.check()
    assert max(count for _name, count in world.cluster.requests()[len(sizes) :]) == 1
    names = Counter(name for name, count in world.cluster.requests() if count > 1)
    assert max(names.values()) == 1, "a refused array was sent again under its name"


def test_a_refusal_for_good_blocks_the_run_and_is_asked_once(worlds: Callable[..., ArrayWorld]) -> None:
    world = worlds()
    world.cluster.set_mode("submit", "never")
    run_id = world.submit("better")
    run = world.run(run_id)
    assert (run.state, run.state_reason) == ("blocked", "INFRASTRUCTURE")
    assert "QOSMaxWallDurationPerJobLimit" in run.state_detail
    assert [count for _name, count in world.cluster.requests()] == [MEASURES]


@pytest.mark.parametrize("point", ["after:tx.intent", "before:compute.submit", "after:compute.submit"])
def test_a_process_stopped_around_the_submission_changes_nothing_when_it_comes_back(
    worlds: Callable[..., ArrayWorld], point: str
) -> None:
    world = worlds()
    pid = world.start(lambda: world.submit("better"), fault=f"{point}:stop")
    wait_for(lambda: stopped(pid), 60, "the stop")
    world.expire_leases()
    world.ticks_until_rest()
    world.check()
    before = world.snapshot()
    resume(pid)
    world.run_measures()
    world.tick()
    assert world.snapshot() == before
    world.check()


def test_a_task_that_vanished_while_it_was_folded_is_measured_anew_and_harms_no_other(
    worlds: Callable[..., ArrayWorld],
) -> None:
    """A pending task that is cancelled leaves no record anywhere; an ended one was cancelled by somebody."""
    world = worlds()
    world.submit("better")
    gone = list(world.measuring_jobs())[7]
    world.cluster.change(gone, state="cancelled", purged=True, forgotten=True)
    world.ticks_until_rest()
    assert world.verdicts() == {"better": ("accepted", "")}, world.describe()
    assert world.executions() == MEASURES
    world.check_invariants()
    [lost] = [a for a in world.rows(Attempt) if a.outcome != "done"]
    assert (lost.job_id, lost.reason) == (gone, "LOST")
    # Alone it is a job like any other.
    assert [count for _name, count in world.cluster.requests()] == [MEASURES, 1]


def killed_before_the_outcome_is_handed_on(world: ArrayWorld) -> str:
    """A run whose array's row has the job id while its attempts' rows are intents still: everything is handed over,
    and the process died. Returns the run's id."""
    # tx.outcome: the array's; the next one hands it on.
    fault = "before:tx.outcome:kill:2"
    assert world.forked(lambda: world.submit("better"), fault=fault) == -signal.SIGKILL
    [array] = world.arrays()
    assert (array.state, array.job_id) == ("submitted", next(iter(world.measuring_jobs())).partition("_")[0])
    assert {(a.state, a.job_id) for a in world.rows(Attempt)} == {("intent", None)}
    [wake] = world.rows(Wake)
    assert wake.awaited == [array.job_id], "the doorbell knows the array before its tasks do"
    [run] = world.rows(Run)
    assert (run.state, run.state_reason) == ("waiting", "JOBS")
    return str(run.id)


def test_the_next_look_hands_an_outcome_on_and_asks_nobody(worlds: Callable[..., ArrayWorld]) -> None:
    world = worlds()
    killed_before_the_outcome_is_handed_on(world)
    world.cluster.set_mode("listing", "silent")
    world.tick()
    world.cluster.set_mode("listing", "")
    [array] = world.arrays()
    attempts = sorted(world.rows(Attempt), key=lambda a: a.array_task)
    assert [(a.state, a.job_id) for a in attempts] == [("submitted", f"{array.job_id}_{k}") for k in range(MEASURES)]
    assert {a.submitted_at for a in attempts} == {array.submitted_at}
    world.wakes_until_rest()
    world.check()
    assert len(world.cluster.requests()) == 1


def test_a_wake_hands_an_outcome_on_that_nobody_else_did(worlds: Callable[..., ArrayWorld]) -> None:
    world = worlds()
    killed_before_the_outcome_is_handed_on(world)
    world.wakes_until_rest()
    world.check()
    assert len(world.cluster.requests()) == 1


def test_a_cancel_reaches_the_jobs_whose_ids_only_their_array_knows(worlds: Callable[..., ArrayWorld]) -> None:
    world = worlds()
    run_id = killed_before_the_outcome_is_handed_on(world)
    assert world.cancel(run_id) is not None
    assert {body["state"] for body in world.measuring_jobs().values()} == {"cancelled"}, world.describe()


class Undone(Exception):
    """Takes a transaction back."""


def test_a_run_that_shares_an_array_waits_for_its_own_tasks_only(worlds: Callable[..., ArrayWorld]) -> None:
    """Two candidates share the base's slots only when they share seeds; a second asking shares every slot."""
    world = worlds()
    run_id = world.submit("better")
    [array] = world.arrays()
    attempts = {a.slot_id: a for a in world.rows(Attempt)}
    deployment = world.open()
    try:
        from outerloop.dispatch.awaited import awaited_jobs

        some, everything = sorted(attempts)[:3], sorted(attempts)
        with pytest.raises(Undone), deployment.record.transaction("tx.observe") as session:
            assert awaited_jobs(session, some) == sorted(str(attempts[i].job_id) for i in some)
            assert awaited_jobs(session, everything) == [array.job_id]
            # All of it is ours although most of it has ended.
            others = update(Attempt).where(Attempt.slot_id.not_in(some))
            session.execute(others.values(state="settled", outcome="done"))
            assert awaited_jobs(session, everything) == [array.job_id]
            assert awaited_jobs(session, some) == sorted(str(attempts[i].job_id) for i in some)
            # Another job executes one of them.
            session.execute(update(Attempt).where(Attempt.slot_id == some[0]).values(job_id="99999_7"))
            assert awaited_jobs(session, everything) == sorted([array.job_id, "99999_7"])
            # As they are until the outcome of their array is handed on.
            session.execute(update(Attempt).where(Attempt.slot_id == some[1]).values(state="intent", job_id=None))
            assert awaited_jobs(session, some[1:]) == sorted(str(attempts[i].job_id) for i in some[1:])
            raise Undone
    finally:
        deployment.close()
    assert world.cancel(run_id) is not None
    states = {body["state"] for body in world.measuring_jobs().values()}
    assert states == {"cancelled"}


def test_a_record_made_anew_knows_its_arrays(worlds: Callable[..., ArrayWorld]) -> None:
    world = worlds()
    world.cluster.set_mode("submit", "lost-after")
    world.submit("better")
    world.cluster.set_mode("submit", "")
    before = [(row.name, row.state, row.map) for row in world.arrays()]
    deployment = world.open()
    try:
        made = rebuild(deployment.context)
    finally:
        deployment.close()
    assert made.problems == [] and made.attempts == MEASURES
    assert [(row.name, row.state, row.map) for row in world.arrays()] == before
    world.tick()
    deployment = world.open()
    try:
        after = world.snapshot()
        assert {state for _name, state, _outcome, _job in after["attempts"]} == {"submitted"}
        rebuild(deployment.context)
    finally:
        deployment.close()
    world.ticks_until_rest()
    world.check()
    assert len(world.cluster.requests()) == 1


def test_the_map_and_the_script_do_not_change_when_the_same_array_goes_out_again(
    worlds: Callable[..., ArrayWorld],
) -> None:
    world = worlds()
    world.cluster.set_mode("submit", "lost-before")
    world.submit("better")
    [array] = world.arrays()
    folder = world.state.array(array.name)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    inode = (folder / "map.json").stat().st_ino
    world.cluster.set_mode("submit", "")
    # A task makes its attempt's folder itself: what it needs stands in the map, which is durable.
    assert not [digest for digest, _n in array.map["tasks"] if (world.state.slot(digest) / "attempts").exists()]
    world.ticks_until_rest()
    world.check()
    assert {name: (folder / name).read_bytes() for name in before} == before
    assert (folder / "map.json").stat().st_ino == inode


def test_an_array_goes_with_the_last_of_its_attempts(worlds: Callable[..., ArrayWorld]) -> None:
    world = worlds()
    world.submit("same")
    world.ticks_until_rest()
    [array] = world.arrays()
    folder = world.state.array(array.name)
    world.pass_time(2 * 86400.0)
    for fault in ("", "before:gc.trash:kill:13", "after:gc.trash:kill"):
        if fault:
            assert world.forked(lambda: collected(world, keep_days=1.0), fault=fault) == -signal.SIGKILL, fault
        else:
            assert collected(world, keep_days=3.0).arrays == [] and folder.is_dir()
    assert not folder.is_dir() and len(world.arrays()) == 1, "killed after the thirteenth folder, before its row went"
    assert collected(world, keep_days=1.0).arrays == [array.name]
    assert world.arrays() == [] and list(world.state.trash.glob(f"*-{array.name}"))
    assert collected(world, keep_days=1.0).arrays == []


def collected(world: ArrayWorld, *, keep_days: float) -> Collected:
    deployment = world.open()
    try:
        return collect(deployment, keep_days=keep_days, dry_run=False)
    finally:
        deployment.close()

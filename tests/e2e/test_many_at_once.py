"""Submit, wake and tick at once, in many processes, with and without kill -9 at random points.

Attacked (reports row 81): one execution per slot attempt, one verdict per question, one champion per number, and that
the crowd always comes to rest. What is random comes from one seed, which a failure prints and OUTERLOOP_TEST_SEED sets.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable

import pytest

from outerloop.effects import EFFECTS
from outerloop.record.models import Attempt, Champion, Slot
from tests.controller_rig.world import World

PROCESSES = 8
ROUNDS = 4
SEED = int(os.environ.get("OUTERLOOP_TEST_SEED", "20261129"))
CANDIDATES = ("better", "bigger", "same")
POINTS = [name for name in EFFECTS if not name.startswith(("gc.", "tx.rebuild", "tx.collect", "mirror."))]


def crowd(world: World, chance: random.Random, *, kill: bool) -> list[int]:
    """One round: so many commands at once, all waited for. Their exit codes."""

    def something() -> Callable[[], object]:
        runs = [run.id for run in known]
        kind = chance.choice(["submit", "submit", "wake", "tick", "tick"])
        if kind == "submit" or not runs:
            candidate = chance.choice(CANDIDATES)
            return lambda: world.submit(candidate)
        if kind == "wake":
            run_id = chance.choice(runs)
            return lambda: world.wake(run_id, None)
        return world.tick

    known = sorted(world.runs(), key=lambda run: run.id)
    pids = []
    for _ in range(PROCESSES):
        body = something()
        fault = ""
        if kill and chance.random() < 0.5:
            place = chance.choice(["before", "after"])
            fault = f"{place}:{chance.choice(POINTS)}:kill:{chance.choice([1, 1, 2])}"
        pids.append(world.start(body, fault=fault))
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


@pytest.mark.parametrize("kill", [False, True], ids=["calm", "killed"])
def test_row_81_a_crowd_executes_everything_once_and_decides_everything_once(world: World, kill: bool) -> None:
    chance = random.Random(f"{SEED} {kill}")
    where = f"OUTERLOOP_TEST_SEED={SEED}"
    for _ in range(ROUNDS):
        codes = crowd(world, chance, kill=kill)
        allowed = {0, -signal.SIGKILL} if kill else {0}
        assert set(codes) <= allowed, f"{where}\n{world.describe()}"
        world.run_measures()
    for candidate in CANDIDATES:
        world.submit(candidate)
    world.ticks_until_rest(40)
    verdicts = {label: verdict for label, (verdict, _reason) in world.verdicts().items()}
    assert verdicts == {"better": "accepted", "bigger": "rejected", "same": "rejected"}, f"{where}\n{world.describe()}"
    assert len(world.runs()) == len(CANDIDATES), f"{where}: a question became several runs"
    done = [slot for slot in world.rows(Slot) if slot.state == "done"]
    assert world.executions() == len(done), f"{where}\n{world.describe()}"
    assert {attempt.n for attempt in world.rows(Attempt)} == {1}, f"{where}: infrastructure was counted"
    assert [champion.seq for champion in world.rows(Champion)] == [1], where
    world.check_invariants()
    before, jobs = world.snapshot(), len(world.measuring_jobs())
    assert crowd(world, chance, kill=False) == [0] * PROCESSES, where
    assert world.snapshot() == before and len(world.measuring_jobs()) == jobs, f"{where}: rest was no rest"


def test_row_81_many_wakes_and_ticks_of_one_run_are_one_submission_each(world: World) -> None:
    """Without a crash and with the usual patience there is not even a second job."""
    world.settings = world.settings.model_copy(
        update={"dispatch": world.settings.dispatch.model_copy(update={"intent_patience_seconds": 180.0})}
    )
    pids = [world.start(lambda: world.submit("bigger")) for _ in range(PROCESSES)]
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * PROCESSES, world.describe()
    [run] = world.runs()
    while world.open_runs():
        assert world.run_measures() > 0, world.describe()
        bodies = [world.tick, lambda: world.wake(run.id, None)] * (PROCESSES // 2)
        pids = [world.start(body) for body in bodies]
        assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * PROCESSES, world.describe()
    assert world.run(run.id).verdict == "rejected"
    assert len(world.measuring_jobs()) == world.executions() == 4
    world.check_invariants()

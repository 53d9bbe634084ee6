"""Packs: several measures in one job, one after another, each with an outcome of its own.

Attacked: a member that is killed, the job that is killed before it came to all of them, a site that refuses the pack
and would take its members, crashes around the submission, and a pack that two runs have an interest in.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outerloop.compute.names import is_pack
from outerloop.record.models import Array, Attempt, Measure, Slot
from tests.controller_rig.world import World
from tests.e2e.test_crash_points import TABLES, points_of
from tests.postgres.conftest import _execute

nightly = pytest.mark.skipif(not os.environ.get("OUTERLOOP_NIGHTLY"), reason="takes long: OUTERLOOP_NIGHTLY runs it")
ONE_PAIR = {"together": "pack = 2", "rule": 'kind = "threshold"'}
PAIRS = 4
MEASURES = 2 * PAIRS
PACK = 4
MARGIN = 5
CONTRACT = """\
[[benchmarks]]
name = "speed"
command = "sh bench.sh"
metric = "cost"
direction = "min"
{seed}
minutes = 1
min_delta = 0.5
{together}
rule = {{ {rule} }}

[scope]
allowed = ["src/"]
"""
# Once, whoever comes first kills the wrapper that measures it: not the benchmark's own failure.
KILL_MY_WRAPPER = """\
if mkdir {marker} 2>/dev/null; then
  pid=$PPID
  while ! tr '\\0' ' ' < /proc/$pid/cmdline | grep -q -e '-m outerloop.job '; do
    pid=$(awk '{{print $4}}' /proc/$pid/stat)
  done
  kill -KILL $pid
  sleep 60
fi
"""


class PackWorld(World):
    """The rig with a benchmark whose measures share jobs."""

    def __init__(
        self,
        folder: Path,
        database: str,
        *,
        together: str = f"pack = {PACK}",
        seed: str = "",
        rule: str = "",
        **more: float,
    ) -> None:
        self.text = CONTRACT.format(
            together=together,
            seed=seed or 'seed_env = "BENCH_SEED"',
            rule=rule or f'kind = "paired", pairs = {PAIRS}, alpha = 0.1',
        )
        super().__init__(folder, database, **more)

    def contract(self) -> str:
        return self.text

    def packs(self) -> list[Any]:
        return sorted(self.rows(Array), key=lambda row: row.id)

    def by_role(self) -> dict[str, list[Attempt]]:
        """Role -> its attempts, in their order."""
        attempts: dict[int, list[Attempt]] = {}
        for attempt in sorted(self.rows(Attempt), key=lambda a: a.n):
            attempts.setdefault(attempt.slot_id, []).append(attempt)
        return {measure.role: attempts.get(measure.slot_id, []) for measure in self.rows(Measure)}

    def check(self, *, executions: int = MEASURES) -> None:
        assert self.verdicts() == {"better": ("accepted", "")}, self.describe()
        assert self.executions() == executions, self.describe()
        self.check_invariants()


@pytest.fixture
def worlds(tmp_path: Path, database: str) -> Callable[..., PackWorld]:
    count = itertools.count()

    def make(**options: Any) -> PackWorld:
        _execute(database, f"truncate {TABLES} restart identity cascade")
        return PackWorld(tmp_path / str(next(count)), database, **options)

    return make


def test_eight_measures_are_two_jobs_and_keep_eight_outcomes(worlds: Callable[..., PackWorld]) -> None:
    world = worlds()
    world.submit("better")
    packs = world.packs()
    assert [(row.count, is_pack(row.name)) for row in packs] == [(PACK, True)] * 2
    assert world.cluster.requests() == [(row.name, 1) for row in packs]
    jobs = world.measuring_jobs()
    assert {body["minutes"] for body in jobs.values()} == {PACK * (1 + MARGIN)}
    assert Counter(a.job_id for a in world.rows(Attempt)) == Counter({row.job_id: PACK for row in packs})
    world.wakes_until_rest()
    world.check()
    for attempt in world.rows(Attempt):
        assert (attempt.outcome, attempt.n) == ("done", 1)
    digests = {slot.id: slot.digest for slot in world.rows(Slot)}
    for attempt in world.rows(Attempt):
        folder = world.state.slot(digests[attempt.slot_id]) / "attempts/1"
        assert json.loads((folder / "member.json").read_text())["exit_code"] == 0
        assert json.loads((folder / "submitted.json").read_text())["job_name"] == attempt.job_name
    rebuilt(world)


def rebuilt(world: PackWorld) -> None:
    """The record made anew from disk is what it was."""
    from outerloop.controller.rebuild import rebuild

    before = world.snapshot()
    deployment = world.open()
    try:
        assert rebuild(deployment.context).problems == []
    finally:
        deployment.close()
    assert world.snapshot() == before


def test_a_killed_member_is_measured_again_and_its_neighbours_are_not(worlds: Callable[..., PackWorld]) -> None:
    world = worlds()
    world.branch("better", cost="8", extra=KILL_MY_WRAPPER.format(marker=world.folder / "once"))
    world.submit("better")
    world.ticks_until_rest()
    # The one that was killed left its mark before, so the benchmark began once more than there are measures.
    world.check(executions=MEASURES + 1)
    ended = Counter((a.outcome, a.n) for a in world.rows(Attempt))
    assert ended == {("done", 1): MEASURES - 1, ("infrastructure", 1): 1, ("done", 2): 1}, ended
    [lost] = [a for a in world.rows(Attempt) if a.outcome == "infrastructure"]
    assert lost.reason == "NO_RESULT", lost.reason
    assert not [a for a in world.rows(Attempt) if a.n == 2 and a.array_id], "one measure alone is no pack"


@nightly
def test_a_job_that_is_killed_costs_only_what_it_had_not_measured(worlds: Callable[..., PackWorld]) -> None:
    """The whole job dies in its first member, as at a walltime: the others were not reached, nobody is charged."""
    world = worlds()
    world.submit("better")
    [first, *_] = world.measuring_jobs()
    # As Slurm does it: the job is taken away from under its members.
    script = Path(world.cluster.jobs()[first]["script"])
    members = [
        Path(t["slot"]) / f"attempts/{t['attempt']}"
        for t in json.loads((script.parent / "map.json").read_text())["tasks"]
    ]
    (members[0] / "job.sh").write_text("#!/bin/bash\nkill -TERM $PPID\nexec sleep 60\n")
    world.cluster.execute(first)
    world.cluster.change(first, state="timeout")
    assert world.executions() == 0
    world.tick()
    reasons = Counter(a.reason for a in world.rows(Attempt) if a.job_id == first)
    assert reasons == {"NOT_REACHED": PACK - 1, "SLURM_TIMEOUT": 1}, reasons
    world.ticks_until_rest()
    world.check()


def test_colocate_puts_both_sides_into_one_job_in_random_order(worlds: Callable[..., PackWorld]) -> None:
    pairs = 12
    world = worlds(together="colocate = true", rule=f'kind = "paired", pairs = {pairs}')
    world.branch("also", cost="8", note="another")
    for candidate in ("better", "also"):
        world.submit(candidate)
    assert [row.count for row in world.packs()] == [2] * (2 * pairs), "a pair is a job"
    places = {m.slot_id: (m.run_id, m.pair, m.side) for m in world.rows(Measure)}
    by_pack: dict[int | None, list[Attempt]] = {}
    for attempt in sorted(world.rows(Attempt), key=lambda a: a.array_task or 0):
        by_pack.setdefault(attempt.array_id, []).append(attempt)
    orders = set()
    for members in by_pack.values():
        assert len({places[a.slot_id][:2] for a in members}) == 1, "both sides of one pair"
        orders.add(tuple(places[a.slot_id][2] for a in members))
    # One order alone, of 24 pairs, has the probability 2⁻²³.
    assert orders == {("base", "candidate"), ("candidate", "base")}


@nightly
def test_a_pack_that_the_site_refuses_goes_out_one_by_one(worlds: Callable[..., PackWorld]) -> None:
    world = worlds()
    world.cluster.set_mode("submit", f"minutes-{1 + MARGIN}")
    world.submit("better")
    names = [name for name, _count in world.cluster.requests()]
    assert [is_pack(name) for name in names] == [True, True] + [False] * MEASURES
    world.ticks_until_rest()
    world.check()
    assert {row.state for row in world.packs()} == {"refused"}
    assert {a.n for a in world.rows(Attempt)} == {1}, "a refusal spends no attempt"


@nightly
def test_a_full_queue_is_not_asked_again_for_each_member(worlds: Callable[..., PackWorld]) -> None:
    world = worlds()
    world.cluster.set_mode("submit", "at-most-1")
    world.submit("better")
    assert [count for _name, count in world.cluster.requests()] == [1, 1]
    world.cluster.set_mode("submit", "")
    for _ in range(2):
        world.run_measures()
        world.pass_time(61)
        world.tick()
    world.ticks_until_rest()
    world.check()


OF_THE_PACK = {"tx.intent", "array.map", "array.script", "compute.submit", "array.submitted", "tx.outcome"}


@nightly
def test_submit_killed_around_every_effect_of_a_pack(worlds: Callable[..., PackWorld]) -> None:
    calm = worlds(**ONE_PAIR)
    assert calm.forked(lambda: calm.submit("better"), trace=True) == 0
    points = [p for p in points_of(calm) if p.split(":")[1] in OF_THE_PACK and p.startswith("after:")]
    assert {point.split(":")[1] for point in points} == OF_THE_PACK
    for fault in points:
        world = worlds(**ONE_PAIR)
        assert world.forked(lambda w=world: w.submit("better"), fault=fault) == -signal.SIGKILL, fault
        world.ticks_until_rest()
        world.check(executions=2)
        assert {a.n for a in world.rows(Attempt)} == {1}, fault
        assert len({name for name, _ in world.cluster.requests()}) == 1, f"{fault}: {world.cluster.requests()}"


@pytest.mark.parametrize("mode", ["lost-before", "lost-after"])
def test_a_lost_reply_is_found_again_and_the_pack_stays_whole(worlds: Callable[..., PackWorld], mode: str) -> None:
    world = worlds(**ONE_PAIR)
    world.cluster.set_mode("submit", mode)
    world.submit("better")
    world.cluster.set_mode("submit", "")
    if mode == "lost-after":
        # A twin of the pack, as a second submission would make: its members find every claim taken.
        [job] = world.measuring_jobs()
        world.cluster.execute(job)
        assert world.cluster.execute(world.cluster.copy(job)) == 95
    world.ticks_until_rest()
    world.check(executions=2)
    assert {a.outcome for a in world.rows(Attempt)} == {"done"} and {a.n for a in world.rows(Attempt)} == {1}


def test_a_run_that_ends_takes_no_pack_away_from_another(worlds: Callable[..., PackWorld]) -> None:
    """Two runs share the base's measure, which lies in a pack with the first one's candidate."""
    world = worlds(**(ONE_PAIR | {"seed": "deterministic = true"}))
    world.branch("other", cost="8", note="other")
    first, second = world.submit("better"), world.submit("other")
    [pack] = world.packs()
    world.cancel(first)
    world.tick()
    assert world.cluster.jobs()[pack.job_id]["state"] == "pending", "the second run waits for a member of it"
    world.ticks_until_rest()
    assert world.run(second).verdict == "accepted"
    assert world.run(first).verdict == "cancelled"
    third = worlds(**(ONE_PAIR | {"seed": "deterministic = true"}))
    alone = third.submit("better")
    third.cancel(alone)
    [pack] = third.packs()
    assert third.cluster.jobs()[pack.job_id]["state"] == "cancelled", "nobody wants any of it"

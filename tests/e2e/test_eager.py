"""Attacked: `eager`, which queues siblings beside the first pairs. One queue wait less, the same verdicts, and no job
outlives the need for it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from outerloop.record.models import Attempt, Measure
from tests.e2e.evidence_world import EvidenceWorld, contract
from tests.e2e.test_crash_points import TABLES
from tests.postgres.conftest import _execute

nightly = pytest.mark.skipif(not os.environ.get("OUTERLOOP_NIGHTLY"), reason="half a minute: set OUTERLOOP_NIGHTLY")
Make = Callable[[str, bool], EvidenceWorld]
THRESHOLD = '{ kind = "threshold" }'
SEQUENTIAL = '{ kind = "sequential", min_pairs = 4, max_pairs = 8, batch = 4 }'
SIBLING = """
[[benchmarks]]
name = "size"
command = "sh bench.sh"
metric = "bytes"
direction = "min"
minutes = 1
deterministic = true
regression = { free = 0.0, max = 0.1 }
"""


@pytest.fixture
def make(tmp_path: Path, database: str) -> Make:
    count = itertools.count()

    def made(rule: str, eager: bool) -> EvidenceWorld:
        _execute(database, f"truncate {TABLES} restart identity cascade")
        more = f'suite = ["size"]\neager = {"true" if eager else "false"}'
        text = contract(rule, siblings=SIBLING, more=more)
        # So little noise that a sequential test takes the same number of looks whatever seeds are drawn.
        world = EvidenceWorld(tmp_path / str(next(count)), database, text, spread=10)
        world.branch("smaller", cost="8", size="90")
        world.branch("no-gain", size="90")
        return world

    return made


def waits(world: EvidenceWorld, run_id: str) -> int:
    """How often jobs of a run had to come through the queue before it had its verdict."""
    rounds = 0
    while world.run(run_id).state != "ended":
        assert world.run_measures() and rounds < 9, world.describe()
        world.tick()
        rounds += 1
    return rounds


@pytest.mark.parametrize(
    ("rule", "candidate", "reason"),
    [
        (THRESHOLD, "smaller", ""),
        pytest.param(THRESHOLD, "bigger", "suite-regression", marks=nightly),
        pytest.param(SEQUENTIAL, "smaller", "", marks=nightly),
        pytest.param(SEQUENTIAL, "bigger", "suite-regression", marks=nightly),
    ],
)
def test_one_queue_wait_less_and_the_same_verdict(make: Make, rule: str, candidate: str, reason: str) -> None:
    seen = {}
    for eager in (False, True):
        world = make(rule, eager)
        run_id = world.submit(candidate)
        siblings = [m.role for m in world.rows(Measure) if m.benchmark == "size"]
        assert bool(siblings) == eager
        seen[eager] = waits(world, run_id)
        run = world.run(run_id)
        assert (run.verdict, run.verdict_reason) == ("rejected" if reason else "accepted", reason), run.sentence
        world.check_invariants()
    assert seen[False] - seen[True] == 1
    assert rule == SEQUENTIAL or seen[True] == 1


def test_siblings_that_nobody_needs_any_more_are_cancelled_and_charge_nobody(make: Make) -> None:
    world = make(THRESHOLD, True)
    run_id = world.submit("no-gain")
    roles = {m.slot_id: m.role for m in world.rows(Measure)}
    job_of = {roles[a.slot_id]: a.job_id for a in world.rows(Attempt)}
    assert set(job_of) == {"baseline", "candidate", "sib-size-base", "sib-size-cand"}
    world.cluster.execute(job_of["baseline"])
    world.cluster.execute(job_of["candidate"])
    world.tick()
    run = world.run(run_id)
    assert (run.state, run.verdict, run.verdict_reason) == ("ended", "rejected", "no-improvement")
    jobs = world.cluster.jobs()
    assert {jobs[job_of[role]]["state"] for role in ("sib-size-base", "sib-size-cand")} == {"cancelled"}
    world.tick()
    assert not [a for a in world.rows(Attempt) if a.state in {"intent", "submitted"}], "an attempt is still open"
    world.check_invariants()
    # Whoever asks for the same work later is given it.
    other = world.submit("smaller")
    world.ticks_until_rest()
    assert world.run(other).verdict == "accepted"
    world.check_invariants()


@nightly
def test_an_eager_sibling_that_hangs_keeps_no_rejection_waiting(make: Make) -> None:
    world = make(SEQUENTIAL, True)
    run_id = world.submit("no-gain")
    rounds = 0
    while world.run(run_id).state != "ended":
        roles = {m.slot_id: m.role for m in world.rows(Measure)}
        climbed = [
            a.job_id for a in world.rows(Attempt) if a.state == "submitted" and not roles[a.slot_id].startswith("sib-")
        ]
        assert climbed and rounds < 9, world.describe()
        for job_id in climbed:
            world.cluster.execute(job_id)
        world.tick()
        rounds += 1
    run = world.run(run_id)
    assert run.verdict == "rejected" and run.verdict_reason in {"no-improvement", "undecided"}, run.sentence
    world.check_invariants()

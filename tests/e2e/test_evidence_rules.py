"""Paired and sequential climbs through the real controller: looks, batches, askings, failures of the cluster."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest

from outerloop.record.models import Measure, Slot, Wake
from tests.e2e.evidence_world import EvidenceWorld, contract

Make = Callable[..., EvidenceWorld]
SEQUENTIAL = '{ kind = "sequential", h1 = 1, min_pairs = 4, batch = 2, max_pairs = 12 }'
# with h1 this small the ratio stays at zero: never decided, whatever the seeds
UNDECIDED = '{ kind = "sequential", h1 = 0.01, min_pairs = 2, batch = 2, max_pairs = 4 }'


@pytest.fixture
def make(tmp_path: Path, database: str) -> Make:
    return lambda text, **more: EvidenceWorld(tmp_path, database, text, **more)


def test_a_sequential_climb_looks_after_each_batch_and_stops_when_it_may(make: Make) -> None:
    world = make(contract(SEQUENTIAL))
    run_id = world.submit("better")
    world.wakes_until_rest()
    run = world.run(run_id)
    assert run.evidence is not None and run.verdict == "accepted", world.describe()
    test = run.evidence["findings"]["climbed"]["test"]
    looks = [event.body for event in world.events(run_id, "look")]
    assert [(look["pairs"], look["llr"]) for look in looks] == [(look["pairs"], look["llr"]) for look in test["looks"]]
    assert [look["pairs"] for look in looks] == [4, 6, 8, 10, 12][: len(looks)]
    assert all((look["lower"], look["upper"]) == (test["lower"], test["upper"]) for look in looks)
    assert looks[-1]["llr"] >= test["upper"] and all(look["llr"] < test["upper"] for look in looks[:-1])
    # no more was measured than was looked at, on the first seeds that were drawn, and each batch had its wake
    used = looks[-1]["pairs"]
    assert world.executions() == 2 * used
    assert [pair["seed"] for pair in world.pairs(run_id)] == world.round(run_id)["pair_seeds"][:used]
    assert len(world.rows(Wake)) >= len(looks)
    for pair in world.pairs(run_id):
        assert Decimal(pair["base"]) == world.value(pair["seed"], 10)
        assert Decimal(pair["candidate"]) == world.value(pair["seed"], 8)
    world.check_invariants()
    told = world.cli("explain", run_id).stdout
    assert "LLR" in told and f"\n  {used:>5}  {looks[-1]['llr']:>6.2f}" in told
    shown = world.json("explain", run_id)
    assert [look["llr"] for look in shown["looks"]] == [look["llr"] for look in looks]
    assert {"Asked", "Measured", "Decided", "What would have changed it"} <= {
        part["title"] for part in shown["argument"]
    }
    for part in shown["argument"]:
        assert part["title"] in told or part["title"] == ""


def test_kills_between_looks_leave_each_look_once(make: Make) -> None:
    world = make(contract(UNDECIDED))
    run_id = world.submit("same")
    faults = ["after:run.event:kill", "before:tx.fold:kill", "after:tx.fold:kill", "before:tx.end:kill"]
    for fault in faults * 3:
        world.run_measures()
        world.expire_leases()
        world.forked(world.tick, fault=fault)
        if world.run(run_id).state == "ended":
            break
    world.expire_leases()
    world.ticks_until_rest()
    assert [event.body["pairs"] for event in world.events(run_id, "look")] == [2, 4]
    assert world.run(run_id).verdict_reason == "undecided" and world.executions() == 8
    world.check_invariants()


def test_an_unfinished_sequential_climb_draws_its_path_so_far(make: Make) -> None:
    world = make(contract(UNDECIDED))
    run_id = world.submit("same")
    world.run_measures()
    world.tick()
    assert world.run(run_id).state == "waiting"
    told = world.cli("explain", run_id).stdout
    assert "LLR" in told and "\n      2" in told
    assert [look["pairs"] for look in world.json("explain", run_id)["looks"]] == [2]


def test_asking_again_uses_what_was_measured_and_a_smaller_alpha(make: Make) -> None:
    world = make(contract(UNDECIDED))
    first = world.submit("same")
    world.ticks_until_rest()
    assert (world.run(first).verdict, world.run(first).verdict_reason) == ("rejected", "undecided")
    assert world.executions() == 8
    again = world.submit("same", again=True)
    assert again != first
    world.ticks_until_rest()
    assert world.run(again).verdict_reason == "undecided"
    assert world.executions() == 16, "the four earlier pairs were measured again, or not used"
    old, new = world.round(first), world.round(again)
    assert new["pair_seeds"][:4] == old["pair_seeds"] and len(set(new["pair_seeds"])) == 8
    assert (new["asking"], new["prior_pairs"]) == (2, 4)
    assert [event.body["pairs"] for event in world.events(again, "look")] == [6, 8]
    evidence = world.run(again).evidence
    assert evidence is not None
    assert Decimal(evidence["findings"]["climbed"]["test"]["alpha"]) == Decimal("0.025")
    assert any("asked again: 4 earlier pairs" in note for note in evidence["findings"]["notes"])
    world.check_invariants()


def test_asking_again_after_an_early_stop_counts_the_decided_pairs_only(make: Make) -> None:
    world = make(contract(SEQUENTIAL))
    world.branch("worse", cost="12")
    first = world.submit("worse")
    world.ticks_until_rest()
    used = len(world.pairs(first))
    assert world.run(first).verdict == "rejected" and used < 12
    again = world.submit("worse", again=True)
    assert world.round(again)["prior_pairs"] == used
    assert world.round(again)["pair_seeds"][:12] == world.round(first)["pair_seeds"]
    world.ticks_until_rest()
    assert world.events(again, "look")[0].body["pairs"] == min(n for n in range(4, 40, 2) if n > used)


def test_cancelling_is_no_new_draw(make: Make) -> None:
    world = make(contract('{ kind = "paired", pairs = 3, alpha = 0.2 }'))
    first = world.submit("better")
    world.run_measures()
    world.cancel(first)
    second = world.submit("better")
    assert second != first
    assert world.round(second)["pair_seeds"] == world.round(first)["pair_seeds"]
    assert (world.round(second)["asking"], world.round(second)["prior_pairs"]) == (1, 0)
    world.ticks_until_rest()
    assert world.run(second).verdict == "accepted" and world.executions() == 6
    world.check_invariants()


def test_failures_of_the_cluster_cost_no_seed_and_shift_nothing(make: Make) -> None:
    """Jobs whose value will be high die first, on both sides; the estimate is what the drawn seeds say all the same."""
    world = make(contract('{ kind = "paired", pairs = 6 }'))
    run_id = world.submit("better")
    measures = {m.slot_id: m for m in world.rows(Measure)}
    slots = {slot.digest[:8]: measures[slot.id] for slot in world.rows(Slot)}
    killed = 0
    for job_id, body in world.measuring_jobs().items():
        measure = next(m for digest, m in slots.items() if digest in body["name"])
        cost = 10 if measure.side == "base" else 8
        if world.value(measure.seed, cost) % 1000 >= 400:
            world.cluster.change(job_id, state="node_fail", node="n4")
            killed += 1
    assert killed, "the seeds of this run left nobody to kill"
    world.ticks_until_rest()
    seeds = world.round(run_id)["pair_seeds"]
    pairs = world.pairs(run_id)
    assert [pair["seed"] for pair in pairs] == seeds and len(pairs) == 6
    gains = [world.value(seed, 10) - world.value(seed, 8) for seed in seeds]
    assert [Decimal(pair["gain"]) for pair in pairs] == gains
    assert len(world.measuring_jobs()) == 12 + killed and world.executions() == 12
    world.check_invariants()


def test_replicates_keep_an_unseeded_benchmark_from_deciding_by_one_old_baseline(make: Make) -> None:
    world = make(contract('{ kind = "paired", pairs = 3, alpha = 0.2 }', seeded=False))
    first = world.submit("better")
    world.ticks_until_rest()
    assert world.executions() == 6 and world.run(first).verdict == "accepted"
    world.branch("other", cost="7")
    second = world.submit("other")
    world.ticks_until_rest()
    assert world.executions() == 12
    replicates = [m.replicate for m in world.rows(Measure)]
    assert len(set(replicates)) == 12 and {run.verdict for run in world.runs()} == {"accepted"}
    assert {pair["seed"] for pair in world.pairs(second)} == {0}
    world.check_invariants()


def test_a_cached_baseline_is_measured_once_for_all_climbs(make: Make) -> None:
    world = make(contract('{ kind = "threshold" }', more='baseline = "cached"'))
    first = world.submit("better")
    world.ticks_until_rest()
    assert world.executions() == 6
    world.branch("other", cost="7")
    second = world.submit("other")
    world.ticks_until_rest()
    assert world.executions() == 7, "five base measurements were not shared"
    bases = {m.slot_id for m in world.rows(Measure) if m.side == "base"}
    assert len(bases) == 5
    for run_id in (first, second):
        evidence = world.run(run_id).evidence
        assert evidence is not None and evidence["outcome"] == "accepted"
        assert Decimal(evidence["findings"]["climbed"]["floor"]["cached_error"]) > 0
        assert any("nothing was paired" in note for note in evidence["findings"]["notes"])
    world.check_invariants()

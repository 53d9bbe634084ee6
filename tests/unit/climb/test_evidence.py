"""Property attacked: readings that must not be compared raise an error that names them, never a verdict."""

from __future__ import annotations

from decimal import Decimal

import pytest

from outerloop.climb import (
    EvidenceError,
    NeedMore,
    Paired,
    Reading,
    Verdict,
    judge,
    next_step,
    plan_measures,
)
from tests.unit.climb.builders import benchmark, plan, reading


def five_pairs():
    climb = plan(benchmark(rule=Paired(pairs=5)))
    readings = {}
    for request in plan_measures(climb, {}):
        readings[request.role] = reading(request, 10 - (request.side == "candidate"))
    assert isinstance(next_step(climb, readings), Verdict)
    return climb, readings


def spoil(readings, role: str, **facts) -> None:
    from dataclasses import replace

    readings[role] = replace(readings[role], facts=replace(readings[role].facts, **facts))


def test_a_seed_that_is_not_the_pair_s_is_named() -> None:
    climb, readings = five_pairs()
    spoil(readings, "candidate-3", seed=7)
    with pytest.raises(EvidenceError, match="candidate-3 ran with seed 7, but pair 3 of tsp has seed 104"):
        next_step(climb, readings)


def test_a_duplicate_seed_in_the_plan_is_named() -> None:
    with pytest.raises(EvidenceError, match="pairs 0 and 2 have the same seed 5"):
        plan(benchmark(rule=Paired(pairs=5)), pair_seeds=(5, 6, 5, 7, 8))


def test_one_measurement_counted_twice_is_named() -> None:
    climb, readings = five_pairs()
    spoil(readings, "baseline-4", slot=readings["baseline-1"].facts.slot)
    with pytest.raises(EvidenceError, match="baseline-1 and baseline-4 are one measurement"):
        next_step(climb, readings)


def test_a_missing_partner_is_asked_for_and_never_judged_without() -> None:
    climb, readings = five_pairs()
    del readings["baseline-2"]
    step = next_step(climb, readings)
    assert isinstance(step, NeedMore)
    assert [m.role for m in step.measures] == ["baseline-2"]
    with pytest.raises(EvidenceError, match="baseline-2"):
        judge(climb, readings)


def test_unequal_cpus_are_named() -> None:
    climb, readings = five_pairs()
    spoil(readings, "candidate-1", cpus_seen=4)
    with pytest.raises(EvidenceError, match="baseline-1 saw 2 CPUs and candidate-1 saw 4"):
        next_step(climb, readings)


def test_cpus_may_differ_between_pairs_but_not_inside_one() -> None:
    climb, readings = five_pairs()
    spoil(readings, "candidate-1", cpus_seen=4)
    spoil(readings, "baseline-1", cpus_seen=4)
    assert isinstance(next_step(climb, readings), Verdict)


def test_different_images_are_named() -> None:
    climb, readings = five_pairs()
    spoil(readings, "baseline", image="sha256:aa")
    with pytest.raises(EvidenceError, match=r"baseline ran in image sha256:aa and candidate in \(none\)"):
        next_step(climb, readings)


def test_siblings_are_checked_the_same_way() -> None:
    climb = plan(siblings=(benchmark("k"),), eager=True)
    readings = {m.role: reading(m, 10 - (m.side == "candidate")) for m in plan_measures(climb, {})}
    spoil(readings, "sib-k-cand", cpus_seen=9)
    with pytest.raises(EvidenceError, match="sib-k-base saw 2 CPUs and sib-k-cand saw 9"):
        next_step(climb, readings)


def test_a_plan_without_enough_or_with_useless_seeds_can_t_be_built() -> None:
    with pytest.raises(EvidenceError, match="can need 5 pairs but has 4 seeds"):
        plan(benchmark(rule=Paired(pairs=5)), pair_seeds=(1, 2, 3, 4))
    with pytest.raises(EvidenceError, match="takes a seed, and 0 is none"):
        plan(benchmark(), pair_seeds=(0,))
    with pytest.raises(EvidenceError, match="takes no seed but was given 3"):
        plan(benchmark(seeded=False), pair_seeds=(3,))
    with pytest.raises(EvidenceError, match="can need 1 pairs but has 0 seeds"):
        plan(benchmark(), siblings=(benchmark("k"),), suite_seeds={"k": ()})
    with pytest.raises(EvidenceError, match="is in the plan twice"):
        plan(benchmark(), siblings=(benchmark("tsp"),))


def test_noise_without_a_seed_gets_fresh_replicates_on_both_sides() -> None:
    climb = plan(benchmark(seeded=False, rule=Paired(pairs=5)), replicate_start=7000)
    measures = plan_measures(climb, {})
    assert [m.replicate for m in measures] == list(range(7000, 7010))
    assert {m.seed for m in measures} == {0}
    with pytest.raises(EvidenceError, match="replicate_start must be a number fresh to this run"):
        plan(benchmark(seeded=False), replicate_start=0)
    still = plan(benchmark(seeded=False, deterministic=True), replicate_start=0)
    assert {m.replicate for m in plan_measures(still, {})} == {0}


def test_a_value_without_a_number_can_t_be_built() -> None:
    with pytest.raises(EvidenceError, match="has the status value but no value"):
        Reading(role="baseline", status="value")
    assert Reading(role="baseline", status="value", value=Decimal(0)).value == 0

"""Property attacked: several pairs are judged by floor and test together, on a fixed schedule of looks."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pytest

from outerloop.climb import NeedMore, Paired, Sequential, Verdict, Waiting, judge, next_step, plan_measures
from outerloop.climb.plan import climbed_requests
from outerloop.climb.sequential import look_schedule, wald_bounds
from outerloop.climb.simulate import paired_climbs, sequential_climbs
from tests.unit.climb.builders import Lab, benchmark, paired_values, pending, plan


def from_gains(gains, base: str = "100") -> dict[str, object]:
    bases = [Decimal(base)] * len(gains)
    return paired_values(bases, [b - Decimal(str(g)) for b, g in zip(bases, gains, strict=True)])


def verdict_of(climb, values) -> Verdict:
    step = Lab(values).run(climb)
    assert isinstance(step, Verdict), step
    return step


def test_all_pairs_go_out_at_once() -> None:
    climb = plan(benchmark(rule=Paired(pairs=5)))
    step = next_step(climb, {})
    assert isinstance(step, NeedMore)
    assert [m.role for m in step.measures][:4] == ["baseline", "candidate", "baseline-1", "candidate-1"]
    assert len(step.measures) == 10
    by_pair = {m.pair: set() for m in step.measures}
    for m in step.measures:
        by_pair[m.pair].add(m.seed)
    assert all(len(seeds) == 1 for seeds in by_pair.values())


def test_a_significant_mean_below_the_floor_is_rejected_and_at_it_accepted() -> None:
    for floor, outcome in (("2", "accepted"), ("2.0000001", "rejected")):
        climb = plan(benchmark(rule=Paired(pairs=5), min_delta=Decimal(floor)))
        verdict = verdict_of(climb, from_gains([1, 2, 3, 2, 2]))
        assert verdict.outcome == outcome
        assert verdict.findings.climbed.test.p_value == 1 / 32


def test_a_large_mean_that_one_lucky_pair_made_is_rejected() -> None:
    climb = plan(benchmark(rule=Paired(pairs=8)))
    verdict = verdict_of(climb, from_gains([50, -1, -1, -1, -1, -1, -1, -1]))
    assert (verdict.reason, verdict.findings.climbed.why) == ("no-improvement", "test")
    assert verdict.findings.climbed.clears_floor


def test_all_pairs_refuses_a_single_loss() -> None:
    gains = [5, 6, 7, 5, 6, 5, 7, "-0.1"]
    loose = verdict_of(plan(benchmark(rule=Paired(pairs=8))), from_gains(gains))
    strict = verdict_of(plan(benchmark(rule=Paired(pairs=8, all_pairs=True))), from_gains(gains))
    assert loose.outcome == "accepted"
    assert (strict.reason, strict.findings.climbed.worse_pairs) == ("no-improvement", (7,))


def test_the_schedule_is_fixed_by_the_rule() -> None:
    rule = Sequential(min_pairs=20, batch=4, max_pairs=30)
    assert look_schedule(rule) == (20, 24, 28, 30)
    assert look_schedule(rule, prior_pairs=24) == (28, 32, 36, 40, 44, 48, 52, 54)
    assert look_schedule(Sequential(min_pairs=20, max_pairs=20)) == (20,)


def test_the_bounds_are_wald_s() -> None:
    lower, upper = wald_bounds(0.05, 0.1)
    assert lower == pytest.approx(np.log(0.1 / 0.95))
    assert upper == pytest.approx(np.log(0.9 / 0.05))


def test_pairs_come_in_batches_and_each_look_is_reported() -> None:
    rule = Sequential(min_pairs=8, batch=4, max_pairs=40)
    climb = plan(benchmark(rule=rule))
    values = from_gains([1, -1, 1, -1, 1, 1, -1, 1, 1, -1, 1, 1] * 4)
    readings = {}
    lab = Lab(values)
    sizes = []
    while isinstance(step := next_step(climb, readings), NeedMore):
        sizes.append(len(step.measures))
        assert len(step.looks) == len(sizes) - 1
        for request in step.measures:
            readings[request.role] = pending(request)
        waiting = next_step(climb, readings)
        assert isinstance(waiting, Waiting)
        assert waiting.roles == tuple(m.role for m in step.measures)
        for request in step.measures:
            readings[request.role] = lab.answer(request)
    assert isinstance(step, Verdict)
    assert sizes == [16] + [8] * (len(sizes) - 1)
    assert [look.pairs for look in step.findings.climbed.test.looks] == [8 + 4 * i for i in range(len(sizes))]


def test_the_cap_without_a_decision_is_undecided() -> None:
    rule = Sequential(min_pairs=8, batch=4, max_pairs=12)
    verdict = verdict_of(plan(benchmark(rule=rule)), from_gains([1, -1, 1, 1, -1, 1] * 2))
    assert (verdict.outcome, verdict.reason) == ("rejected", "undecided")
    assert verdict.findings.climbed.test.decision == "open"
    assert "--again" in verdict.findings.would_have_changed[0]


def test_an_unchanged_deterministic_candidate_is_rejected_at_the_lower_bound() -> None:
    verdict = verdict_of(plan(benchmark(rule=Sequential(min_pairs=4))), from_gains([0] * 130))
    assert verdict.reason == "no-improvement"
    assert verdict.findings.climbed.test.decision == "h0"
    assert verdict.findings.climbed.test.looks[-1].t is None


def test_a_decided_test_still_has_to_clear_the_floor() -> None:
    gains = [1, 2, 1.5, 1.2] * 10
    accepted = verdict_of(plan(benchmark(rule=Sequential())), from_gains(gains))
    floored = verdict_of(plan(benchmark(rule=Sequential(), min_delta=Decimal(2))), from_gains(gains))
    assert accepted.outcome == "accepted"
    assert (floored.reason, floored.findings.climbed.why) == ("no-improvement", "floor")


def test_absolute_hypotheses_are_in_the_metric_s_unit() -> None:
    rule = Sequential(units="absolute", h0=Decimal(1), h1=Decimal(3), min_pairs=8)
    assert verdict_of(plan(benchmark(rule=rule)), from_gains([3, 2, 4, 3] * 10)).outcome == "accepted"
    low = verdict_of(plan(benchmark(rule=rule)), from_gains([1, 0.5, 1.5, 1] * 10))
    assert (low.reason, low.findings.climbed.test.decision) == ("no-improvement", "h0")


@pytest.mark.parametrize("test", ["t", "gsprt"])
def test_real_climbs_are_decided_as_the_simulated_ones(test: str) -> None:
    rule = Sequential(test=test, min_pairs=6, batch=3, max_pairs=60)  # type: ignore[arg-type]
    climb = plan(benchmark(rule=rule))
    rng = np.random.default_rng(11)
    outcomes = set()
    for effect in (0.0, 0.25, 0.5) * 8:
        gains = np.round(rng.normal(effect, 1, 60), 6)
        drawn = iter(gains)

        def source(_rng, shape, drawn=drawn):
            return np.array([[next(drawn) for _ in range(shape[1])]])

        accepted, undecided, used = sequential_climbs(rule, source, 0.0, 1, rng)
        verdict = verdict_of(climb, from_gains([repr(float(g)) for g in gains], base="0"))
        assert verdict.findings.climbed.test.pairs == used[0]
        assert (verdict.outcome == "accepted") == accepted[0]
        assert (verdict.reason == "undecided") == undecided[0]
        outcomes.add((verdict.outcome, verdict.reason))
    assert len(outcomes) >= 2


@pytest.mark.parametrize("pairs", [6, 20])
def test_real_paired_climbs_are_decided_as_the_simulated_ones(pairs: int) -> None:
    from outerloop.climb.signflip import seed_from

    rule = Paired(pairs=pairs)
    climb = plan(benchmark(rule=rule))
    gains = np.round(np.random.default_rng(12).normal(0.4, 1, (30, pairs)), 6)
    simulated = paired_climbs(rule, gains, seed_from("tsp", climb.pair_seeds))
    real = [
        verdict_of(climb, from_gains([repr(float(g)) for g in row], base="0")).outcome == "accepted" for row in gains
    ]
    assert real == simulated.tolist()
    assert 0 < sum(real) < 30


def test_recomputing_from_the_roles_that_were_read_gives_the_same_verdict() -> None:
    climb = plan(benchmark(rule=Sequential(min_pairs=8)), siblings=(benchmark("k"),), eager=True)
    values = from_gains([3, 2, 4, 3, 1, 5, 3, 2] * 20)
    values |= {role.replace("baseline", "sib-k-base").replace("candidate", "sib-k-cand"): 5 for role in values}
    lab = Lab(values)
    verdict = lab.run(climb)
    assert isinstance(verdict, Verdict)
    again = judge(climb, {role: lab.readings[role] for role in verdict.findings.roles})
    assert again == verdict
    assert Verdict.from_json(verdict.to_json()) == verdict
    assert set(verdict.findings.roles) <= {m.role for m in plan_measures(climb, lab.readings)}


def test_readings_beyond_the_stopping_look_change_nothing() -> None:
    climb = plan(benchmark(rule=Sequential(min_pairs=8)))
    values = from_gains([3, 2, 4, 3, 1, 5, 3, 2] * 4 + [-500] * 98)
    lab = Lab(values)
    verdict = lab.run(climb)
    assert isinstance(verdict, Verdict)
    assert verdict.outcome == "accepted"
    everything = {m.role: lab.answer(m) for m in climbed_requests(climb, 130)}
    assert len(everything) > len(lab.readings)
    assert next_step(climb, everything) == verdict

"""Property attacked: what else may be lost, what a cached baseline costs, and what asking again may use."""

from __future__ import annotations

from decimal import Decimal

import pytest

from outerloop.climb import (
    Guard,
    NeedMore,
    Paired,
    Reading,
    Regression,
    Sequential,
    Threshold,
    Verdict,
    Waiting,
    alpha_share,
    next_step,
    plan_measures,
    scope_verdict,
    superseded_verdict,
    total_alpha,
)
from outerloop.climb.findings import Failure
from tests.unit.climb.builders import Lab, benchmark, failed, paired_values, pending, plan, reading


def verdict_of(climb, values) -> Verdict:
    step = Lab(values).run(climb)
    assert isinstance(step, Verdict), step
    return step


def with_sibling(sib_gains, regression=None, **fields) -> Verdict:
    sibling = benchmark("k", regression=regression, **fields)
    climb = plan(benchmark(rule=Paired(pairs=8)), siblings=(sibling,))
    values = paired_values([100] * 8, [90, 91, 92, 90, 91, 92, 93, 91])
    for pair, gain in enumerate(sib_gains):
        suffix = f"-{pair}" if pair else ""
        values[f"sib-k-base{suffix}"] = 100
        values[f"sib-k-cand{suffix}"] = 100 - Decimal(str(gain))
    return verdict_of(climb, values)


WIDE = Regression(free=Decimal("0.01"), max=Decimal("0.02"))


def test_siblings_use_as_many_pairs_and_their_own_seeds() -> None:
    climb = plan(benchmark(rule=Paired(pairs=5)), siblings=(benchmark("k"),), eager=True)
    sib = [m for m in plan_measures(climb, {}) if m.benchmark == "k"]
    assert [m.seed for m in sib if m.side == "base"] == [901, 902, 903, 904, 905]
    assert [m.role for m in sib][:4] == ["sib-k-base", "sib-k-cand", "sib-k-base-1", "sib-k-cand-1"]


def test_a_deterministic_sibling_is_measured_once() -> None:
    sibling = benchmark("k", seeded=False, deterministic=True)
    climb = plan(benchmark(rule=Paired(pairs=5)), siblings=(sibling,), eager=True)
    assert len([m for m in plan_measures(climb, {}) if m.benchmark == "k"]) == 2


def test_the_confidence_bound_must_stay_below_the_limit() -> None:
    precise = with_sibling([-1.1, -0.9, -1, -1, -1, -1, -1, -1], WIDE)
    assert precise.outcome == "accepted"
    noisy = with_sibling([9, -11, 9, -11, 9, -11, 9, -11], WIDE)
    assert noisy.reason == "suite-regression"
    loss = next(loss for loss in noisy.findings.losses)
    assert (loss.why, loss.loss) == ("bound-above-limit", Decimal(1))
    # t(0.95, 7) = 1.8946, s = 10.690
    assert float(loss.bound) == pytest.approx(1 + 1.8946 * 10.690 / 8**0.5, rel=1e-3)
    assert loss.confidence == Decimal("0.95")


def test_an_unchanged_deterministic_sibling_passes_whatever_is_declared() -> None:
    for regression in (None, Regression(), WIDE):
        assert with_sibling([0] * 8, regression).outcome == "accepted"


def test_the_bound_at_the_limit_exactly_passes() -> None:
    assert with_sibling([-1] * 8, Regression(free=Decimal("0.01"), max=Decimal("0.01"))).outcome == "accepted"
    over = with_sibling([-1] * 7 + ["-1.0000001"], Regression(free=Decimal("0.01"), max=Decimal("0.01")))
    assert over.reason == "suite-regression"


def test_false_refusals_are_known_from_the_pairs_or_the_noise_study() -> None:
    noisy = with_sibling([1, -1, 1, -1, 1, -1, 1, -1])
    assert noisy.outcome == "accepted"
    assert noisy.findings.losses[0].false_refusal == pytest.approx(0.5)
    for noise_sd, expected in ((None, None), (Decimal(1), 0.0786)):
        sibling = benchmark("k", min_delta=Decimal(2), noise_sd=noise_sd)
        values = {"baseline": 10, "candidate": 9, "sib-k-base": 5, "sib-k-cand": 5}
        loss = verdict_of(plan(siblings=(sibling,)), values).findings.losses[0]
        # P(N(0, √2) > 2)
        assert loss.false_refusal == (None if expected is None else pytest.approx(expected, abs=1e-3))


def test_a_crashing_sibling_candidate_fails_and_a_broken_sibling_base_charges_nobody() -> None:
    climb = plan(siblings=(benchmark("k"),))
    crash = Reading(role="sib-k-cand", status="failed", reason="TIMEOUT", detail="10 minutes")
    values = {"baseline": 10, "candidate": 9, "sib-k-base": 5, "sib-k-cand": crash}
    verdict = verdict_of(climb, values)
    assert (verdict.reason, verdict.findings.failures[0].code) == ("candidate-error", "TIMEOUT")
    assert verdict.findings.climbed is not None
    assert verdict.findings.roles == ("baseline", "candidate", "sib-k-base", "sib-k-cand")
    broken = Reading(role="sib-k-base", status="failed", reason="EXIT_2", detail="")
    assert verdict_of(climb, values | {"sib-k-base": broken}).reason == "base-error"


PEAK = Guard("peak_mb", "min", max_loss_rel=Decimal("0.1"))


def guarded(base: str, candidate: str, guard: Guard = PEAK) -> Verdict:
    climb = plan(benchmark(guards=(guard,)))
    first, second = plan_measures(climb, {})
    printed = {guard.metric: Decimal(candidate)} if candidate else {}
    readings = {
        "baseline": reading(first, 10, guards={guard.metric: Decimal(base)}),
        "candidate": reading(second, 9, guards=printed),
    }
    step = next_step(climb, readings)
    assert isinstance(step, Verdict)
    return step


def test_a_guard_at_its_limit_passes_and_beyond_it_refuses() -> None:
    assert guarded("100", "110").outcome == "accepted"
    verdict = guarded("100", "110.0000000000000001")
    assert (verdict.outcome, verdict.reason) == ("rejected", "guard")
    assert "peak_mb" in verdict.sentence


@pytest.mark.parametrize("candidate", ["NaN", "Infinity", ""])
def test_a_guard_that_is_missing_or_not_finite_refuses(candidate: str) -> None:
    verdict = guarded("100", candidate)
    assert (verdict.reason, verdict.findings.losses[0].why) == ("guard", "unusable")
    assert Verdict.from_json(verdict.to_json()) == verdict


def test_a_base_that_prints_no_guard_charges_nobody() -> None:
    assert guarded("NaN", "1").reason == "base-error"


def test_guard_limits_absolute_relative_and_at_baseline_zero() -> None:
    both = Guard("peak_mb", "min", max_loss=Decimal(5), max_loss_rel=Decimal("0.1"))
    assert guarded("100", "105", both).outcome == "accepted"
    assert guarded("100", "106", both).reason == "guard"
    assert guarded("0", "5", both).outcome == "accepted"
    assert guarded("0", "0.1", PEAK).reason == "guard"
    up = Guard("hits", "max", max_loss=Decimal(1))
    assert guarded("10", "9", up).outcome == "accepted"
    assert guarded("10", "8.9", up).reason == "guard"
    nothing = Guard("hits", "max")
    assert guarded("10", "10", nothing).outcome == "accepted"
    assert guarded("10", "9.99", nothing).reason == "guard"


CACHED = {"baseline": "99", "baseline-1": "101", "baseline-2": "100", "baseline-3": "98", "baseline-4": "102"}


def test_a_cached_baseline_is_shared_and_the_candidate_is_not() -> None:
    climb = plan(benchmark(baseline="cached", seeded=False), replicate_start=9000)
    measures = plan_measures(climb, {})
    assert [(m.role, m.replicate) for m in measures] == [
        ("baseline", 1),
        ("baseline-1", 2),
        ("baseline-2", 3),
        ("baseline-3", 4),
        ("baseline-4", 5),
        ("candidate", 9001),
    ]
    seeded = plan_measures(plan(benchmark(baseline="cached")), {})
    other = plan_measures(plan(benchmark(baseline="cached"), pair_seeds=(7,)), {})
    assert [m.seed for m in seeded][:5] == [m.seed for m in other][:5]
    assert len({m.seed for m in seeded}) == 6
    assert other[-1].seed == 7


def test_the_error_of_a_cached_baseline_is_in_the_floor() -> None:
    climb = plan(benchmark(baseline="cached", min_delta=Decimal(1)))
    # mean 100, s = 1.5811, t(0.95, 4) = 2.1318: error 1.5074, floor 2.5074
    near = verdict_of(climb, CACHED | {"candidate": "97.5"})
    assert near.reason == "no-improvement"
    assert float(near.findings.climbed.floor.cached_error) == pytest.approx(1.5074, abs=1e-4)
    assert near.findings.climbed.why == "floor"
    far = verdict_of(climb, CACHED | {"candidate": "97.49"})
    assert far.outcome == "accepted"
    assert "nothing was paired" in far.sentence
    assert "nothing was paired" in far.findings.notes[0]


def test_alpha_is_split_over_askings_and_stays_below_twice_alpha() -> None:
    assert [alpha_share(n) for n in (1, 2, 3)] == [1, Decimal("0.5"), Decimal("0.25")]
    assert total_alpha(Decimal("0.05"), 50) < Decimal("0.1")
    with pytest.raises(ValueError, match="counted from 1"):
        alpha_share(0)


def test_asking_again_adds_pairs_at_the_split_alpha() -> None:
    gains = [1, 1, 1, 1, -1, 1, 1, 1, 1, 1, 1, 1, 1, 1]
    values = paired_values([100] * 14, [100 - g for g in gains])
    first = plan(benchmark(rule=Paired(pairs=7)))
    again = plan(benchmark(rule=Paired(pairs=7)), prior_pairs=7, alpha_share=alpha_share(2))
    assert verdict_of(first, values).outcome == "rejected"
    verdict = verdict_of(again, values)
    assert verdict.outcome == "accepted"
    assert len(verdict.findings.climbed.pairs) == 14
    assert verdict.findings.climbed.test.alpha == Decimal("0.025")
    assert "all askings together" in verdict.findings.notes[0]


def test_asking_a_sequential_test_again_does_not_look_at_the_old_pairs_alone() -> None:
    rule = Sequential(min_pairs=8, batch=4, max_pairs=12)
    climb = plan(benchmark(rule=rule), prior_pairs=12, alpha_share=alpha_share(2))
    step = next_step(climb, {})
    assert isinstance(step, NeedMore)
    assert max(m.pair for m in step.measures) == 15
    assert len(climb.pair_seeds) == 24


def test_asking_a_threshold_again_warns_that_nothing_is_split() -> None:
    climb = plan(benchmark(rule=Threshold()), prior_pairs=1)
    verdict = verdict_of(climb, paired_values([10, 10], [9, 10]))
    assert verdict.findings.climbed.gain == Decimal("0.5")
    assert "no alpha to split" in verdict.findings.notes[0]


def test_verdicts_that_the_controller_reaches_carry_their_reason() -> None:
    scope = scope_verdict("tsp", [Failure("bench/tsp.py", "SCOPE", "is outside scope.allowed")])
    assert (scope.outcome, scope.reason) == ("failed", "scope")
    assert "bench/tsp.py" in scope.sentence
    accepted = verdict_of(plan(), {"baseline": 10, "candidate": 9})
    moved = superseded_verdict(accepted, 3)
    assert (moved.outcome, moved.reason) == ("rejected", "superseded")
    assert "changed 3 times" in moved.sentence
    assert moved.findings.climbed == accepted.findings.climbed


def test_any_cached_base_value_shows_that_the_base_works() -> None:
    climb = plan(benchmark(baseline="cached"))
    requests = {m.role: m for m in plan_measures(climb, {})}
    readings = {role: pending(request) for role, request in requests.items()}
    readings["candidate"] = failed(requests["candidate"])
    assert isinstance(next_step(climb, readings), Waiting)
    readings["baseline-3"] = reading(requests["baseline-3"], 100)
    verdict = next_step(climb, readings)
    assert isinstance(verdict, Verdict)
    assert verdict.reason == "candidate-error"

"""The climbed benchmark: floor and test together.

Covers: one comparison, one rule -> ClimbedFinding. Does not cover: how many pairs there should be (judge.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Literal

from outerloop.climb.comparison import Comparison, sample_sd
from outerloop.climb.evidence import Pair, metric_value
from outerloop.climb.findings import ClimbedFinding, PairFinding, TestFinding
from outerloop.climb.floor import clears_floor, floor_of
from outerloop.climb.model import BenchmarkRule, ClimbPlan, Paired, Reading, Sequential, Threshold
from outerloop.climb.noise_odds import exceedance
from outerloop.climb.sequential import wald_bounds
from outerloop.climb.signflip import seed_from, sign_flip_p

Why = Literal["passed", "gain", "floor", "test", "worse-pairs", "undecided"]


def comparison_of(benchmark: BenchmarkRule, pairs: Sequence[Pair], bases: Sequence[Reading]) -> Comparison:
    """The climbed metric of these pairs as a comparison."""
    return Comparison(
        benchmark.direction,
        tuple(metric_value(reading) for reading in bases),
        tuple(metric_value(pair.candidate) for pair in pairs),
        paired=benchmark.baseline == "paired",
    )


def effective_alpha(plan: ClimbPlan) -> Decimal | None:
    """The rule's alpha times the share that this asking may use; None for a rule without one."""
    rule = plan.climbed.rule
    return None if isinstance(rule, Threshold) else rule.alpha * plan.alpha_share


def sequential_bounds(plan: ClimbPlan) -> tuple[float, float]:
    """(lower, upper) log bounds of the sequential test at the alpha of this asking; infinite for other rules."""
    rule = plan.climbed.rule
    if not isinstance(rule, Sequential):
        return -math.inf, math.inf
    return wald_bounds(float(effective_alpha(plan) or rule.alpha), float(rule.beta))


def climbed_finding(
    plan: ClimbPlan, pairs: Sequence[Pair], comparison: Comparison, sequential: TestFinding | None
) -> ClimbedFinding:
    """Everything found on the climbed benchmark; `sequential` is that rule's test, already carried out."""
    benchmark, rule = plan.climbed, plan.climbed.rule
    floor = floor_of(benchmark, comparison)
    clears = clears_floor(benchmark, comparison)
    gains = comparison.gains
    worse = tuple(pair.index for pair, gain in zip(pairs, gains, strict=False) if gain < 0)
    test = sequential if sequential is not None else _test(plan, gains, len(pairs))
    odds = None
    if isinstance(rule, Threshold) and benchmark.noise_sd is not None:
        # The difference of two means has variance noise²·(1/bases + 1/candidates), seeds or not: a candidate
        # that merely draws its random numbers differently has the full unpaired noise.
        weight = 1 / (1 / len(comparison.bases) + 1 / len(comparison.candidates))
        odds = exceedance(floor.required, benchmark.noise_sd, weight)
    why = _why(rule, clears, comparison, worse, test)
    return ClimbedFinding(
        benchmark=benchmark.name,
        metric=benchmark.metric,
        direction=benchmark.direction,
        rule=rule,
        paired=comparison.paired,
        pairs=tuple(
            PairFinding(
                pair=pair.index,
                seed=pair.seed,
                candidate_role=pair.candidate.role,
                candidate=comparison.candidates[position],
                base_role=pair.base.role if pair.base is not None else "",
                base=comparison.bases[position] if pair.base is not None else None,
                gain=gains[position] if pair.base is not None else None,
            )
            for position, pair in enumerate(pairs)
        ),
        baselines=() if comparison.paired else comparison.bases,
        mean_base=comparison.mean_base,
        mean_candidate=comparison.mean_candidate,
        gain=comparison.mean_gain,
        gain_relative=comparison.relative_gain,
        gain_sd=sample_sd(gains),
        floor=floor,
        clears_floor=clears,
        worse_pairs=worse,
        test=test,
        passed=why == "passed",
        why=why,
        noise_acceptance=odds,
    )


def _test(plan: ClimbPlan, gains: tuple[Decimal, ...], pairs: int) -> TestFinding:
    if not isinstance(plan.climbed.rule, Paired):
        return TestFinding(test="point", pairs=pairs)
    p_value, resamples = sign_flip_p(gains, seed_from(plan.climbed.name, plan.pair_seeds[:pairs]))
    return TestFinding(
        test="sign-flip",
        pairs=pairs,
        alpha=effective_alpha(plan),
        p_value=p_value,
        resamples=resamples,
    )


def _why(rule: object, clears: bool, comparison: Comparison, worse: tuple[int, ...], test: TestFinding) -> Why:
    if test.decision == "open":
        return "undecided"
    if comparison.scaled_gain <= 0:
        return "gain"
    if test.decision == "h0":
        return "test"
    if not clears:
        return "floor"
    if isinstance(rule, Paired):
        if test.p_value is None or test.alpha is None or Decimal(test.p_value) > test.alpha:
            return "test"
        if rule.all_pairs and worse:
            return "worse-pairs"
    return "passed"

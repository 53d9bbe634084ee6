"""Siblings and guards: whether something else lost more than it may.

Covers: the one-sided confidence bound of the mean loss against its limit, the allowance `free`, the gain
that buys a loss between them, the point estimate where there is one pair or nothing was declared. Does not
cover: which siblings are relevant (the controller's choice), or the climbed metric.

A loss is positive when the candidate is worse. Reaching a limit exactly is allowed, exceeding it is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from outerloop.climb.comparison import Comparison, sample_sd
from outerloop.climb.evidence import Pair, metric_value
from outerloop.climb.exact import comparable, exact, from_float, quotient, steady, why_incomparable
from outerloop.climb.findings import LossFinding, LossWhy, PairFinding
from outerloop.climb.model import BenchmarkRule, Guard, Reading
from outerloop.climb.noise_odds import exceedance
from outerloop.climb.text import number, percent


@dataclass(frozen=True)
class Allowance:
    """What may be lost: scaled like the comparison it is for. `scaled_free = None`: only the limit counts."""

    scaled_limit: Decimal
    limit_from: str
    scaled_free: Decimal | None = None
    requires_gain: Decimal | None = None
    gain_is_enough: bool = False
    point_only: bool = False


def sibling_loss(sibling: BenchmarkRule, pairs: Sequence[Pair], alpha: Decimal, climbed: Comparison) -> LossFinding:
    """The sibling's own metric, judged by its `regression`, or against its own floor if it declares none."""
    comparison = Comparison(
        sibling.direction,
        tuple(metric_value(pair.base) for pair in pairs if pair.base is not None),
        tuple(metric_value(pair.candidate) for pair in pairs),
    )
    magnitude = comparison.scaled_base_magnitude
    regression = sibling.regression
    if regression is None:
        scaled_floor = comparison.scaled(sibling.min_delta, sibling.min_delta_rel)
        source = "its own floor, since it declares no regression"
        allowance = Allowance(scaled_floor, source, point_only=True)
    else:
        with exact():
            wanted = regression.requires_gain * climbed.scaled_base_magnitude
            allowance = Allowance(
                scaled_limit=regression.max * magnitude,
                limit_from=f"regression.max = {percent(regression.max)} of its baseline",
                scaled_free=regression.free * magnitude,
                requires_gain=quotient(wanted, climbed.scale),
                gain_is_enough=climbed.scaled_gain >= wanted,
            )
    finding = _judge_loss(
        "sibling", sibling.name, sibling.metric, comparison, _pair_findings(pairs, comparison), allowance, alpha,
        sibling.noise_sd,
    )  # fmt: skip
    return _with_gain(finding, climbed.mean_gain)


def guard_loss(
    benchmark: BenchmarkRule, guard: Guard, pairs: Sequence[Pair], bases: Sequence[Reading], alpha: Decimal
) -> LossFinding:
    """Another metric of the same readings. A candidate that doesn't print it, or prints NaN, is refused."""
    for pair in pairs:
        value = pair.candidate.guards.get(guard.metric)
        problem = "it was not printed" if value is None else why_incomparable(value)
        if problem is not None:
            return _unusable(benchmark, guard, f"{pair.candidate.role}: {guard.metric} can't be used: {problem}")
    paired = all(pair.base is not None for pair in pairs)
    comparison = Comparison(
        guard.direction,
        tuple(comparable(reading.guards[guard.metric]) for reading in bases),
        tuple(comparable(pair.candidate.guards[guard.metric]) for pair in pairs),
        paired=paired,
    )
    allowance = _guard_allowance(guard, comparison)
    findings = _pair_findings(pairs, comparison)
    return _judge_loss("guard", benchmark.name, guard.metric, comparison, findings, allowance, alpha, noise_sd=None)


def _guard_allowance(guard: Guard, comparison: Comparison) -> Allowance:
    magnitude = comparison.scaled_base_magnitude
    limits: list[tuple[Decimal, str]] = []
    with exact():
        if guard.max_loss is not None:
            limits.append((guard.max_loss * comparison.scale, f"max_loss = {number(guard.max_loss)}"))
        if guard.max_loss_rel is not None and (magnitude > 0 or not limits):
            source = f"max_loss_rel = {percent(guard.max_loss_rel)} of its baseline"
            limits.append((guard.max_loss_rel * magnitude, source))
    if not limits:
        return Allowance(Decimal(0), "no loss, since it declares none", point_only=True)
    limit, source = min(limits, key=lambda entry: entry[0])
    return Allowance(limit, source)


def _judge_loss(
    kind: str,
    benchmark: str,
    metric: str,
    comparison: Comparison,
    pair_findings: tuple[PairFinding, ...],
    allowance: Allowance,
    alpha: Decimal,
    noise_sd: Decimal | None,
) -> LossFinding:
    scale = comparison.scale
    with exact():
        scaled_loss = -comparison.scaled_gain
    spread = sample_sd(comparison.gains)
    n = len(comparison.candidates)
    half_width = Decimal(0)
    uses_bound = spread is not None and not allowance.point_only
    if spread is not None and uses_bound:
        half_width = _half_width(spread, n, alpha)
    with exact():
        scaled_bound = scaled_loss + half_width * scale
    passed, why = _decide(scaled_loss, scaled_bound, allowance)
    free = allowance.scaled_limit if allowance.scaled_free is None else allowance.scaled_free
    difference_sd = spread
    if difference_sd is None and noise_sd is not None:
        difference_sd = noise_sd * Decimal(2).sqrt()
    odds = None
    if difference_sd is not None:
        with exact():
            reach = quotient(allowance.scaled_limit - half_width * scale, scale)
        strictest = reach if allowance.gain_is_enough else min(reach, quotient(free, scale))
        odds = exceedance(strictest, difference_sd, n)
    return LossFinding(
        kind=kind,  # type: ignore[arg-type]
        benchmark=benchmark,
        metric=metric,
        direction=comparison.direction,
        pairs=pair_findings,
        mean_base=comparison.mean_base,
        mean_candidate=comparison.mean_candidate,
        loss=quotient(scaled_loss, scale),
        loss_sd=spread,
        bound=quotient(scaled_bound, scale),
        confidence=1 - alpha if uses_bound else None,
        free=quotient(free, scale),
        limit=quotient(allowance.scaled_limit, scale),
        limit_from=allowance.limit_from,
        requires_gain=allowance.requires_gain,
        climbed_gain=None,
        passed=passed,
        why=why,
        false_refusal=odds,
    )


def _decide(scaled_loss: Decimal, scaled_bound: Decimal, allowance: Allowance) -> tuple[bool, LossWhy]:
    if scaled_loss > allowance.scaled_limit:
        return False, "loss-above-limit"
    if scaled_bound > allowance.scaled_limit:
        return False, "bound-above-limit"
    if allowance.scaled_free is None:
        return True, "within-limit"
    if scaled_loss <= allowance.scaled_free:
        return True, "within-free"
    if allowance.gain_is_enough:
        return True, "bought-by-gain"
    return False, "gain-too-small"


def _half_width(spread: Decimal, n: int, alpha: Decimal) -> Decimal:
    """t(1−alpha, n−1) · s / √n, the distance of the one-sided confidence bound from the mean."""
    if spread == 0:
        return Decimal(0)
    from scipy.special import stdtrit

    factor = from_float(steady(float(stdtrit(n - 1, 1 - float(alpha))) / n**0.5))
    with exact():
        return factor * spread


def _pair_findings(pairs: Sequence[Pair], comparison: Comparison) -> tuple[PairFinding, ...]:
    gains = comparison.gains
    return tuple(
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
    )


def _with_gain(finding: LossFinding, gain: Decimal) -> LossFinding:
    from dataclasses import replace

    return replace(finding, climbed_gain=gain)


def _unusable(benchmark: BenchmarkRule, guard: Guard, detail: str) -> LossFinding:
    return LossFinding(
        kind="guard", benchmark=benchmark.name, metric=guard.metric, direction=guard.direction, pairs=(),
        mean_base=None, mean_candidate=None, loss=None, loss_sd=None, bound=None, confidence=None,
        free=Decimal(0), limit=Decimal(0), limit_from="", requires_gain=None, climbed_gain=None,
        passed=False, why="unusable", detail=detail,
    )  # fmt: skip

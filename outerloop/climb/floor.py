"""The floor of a benchmark: the smallest mean gain that is accepted.

Covers: max(min_delta, min_delta_rel·|baseline|), plus the error of a cached baseline; compared exactly, and
a gain of zero never clears it. Does not cover: significance.
"""

from __future__ import annotations

from decimal import Decimal

from outerloop.climb.comparison import Comparison, sample_sd
from outerloop.climb.exact import exact, from_float, quotient, steady
from outerloop.climb.findings import FloorFinding
from outerloop.climb.model import BenchmarkRule

# One-sided confidence with which the error of a cached baseline's mean is added to the floor.
CACHED_CONFIDENCE = 0.95


def floor_of(benchmark: BenchmarkRule, comparison: Comparison) -> FloorFinding:
    """The floor that this comparison has to clear. Baseline zero leaves only the absolute part."""
    absolute = benchmark.min_delta
    with exact():
        scaled_relative = benchmark.min_delta_rel * comparison.scaled_base_magnitude
    relative = quotient(scaled_relative, comparison.scale)
    error = Decimal(0) if comparison.paired else cached_error(comparison.bases)
    scaled_required = _scaled_required(benchmark, comparison, error)
    binding = "above-zero"
    if scaled_required > 0:
        with exact():
            binding = "relative" if scaled_relative > absolute * comparison.scale else "absolute"
    return FloorFinding(
        absolute=absolute,
        relative=relative,
        cached_error=error,
        required=quotient(scaled_required, comparison.scale),
        binding=binding,  # type: ignore[arg-type]
    )


def clears_floor(benchmark: BenchmarkRule, comparison: Comparison) -> bool:
    """Whether the mean gain is above zero and at least the floor, decided on exact sums."""
    error = Decimal(0) if comparison.paired else cached_error(comparison.bases)
    gain = comparison.scaled_gain
    return gain > 0 and gain >= _scaled_required(benchmark, comparison, error)


def cached_error(bases: tuple[Decimal, ...]) -> Decimal:
    """The one-sided 95 % error of the mean of k cached base values: t(k−1) · s / √k, in metric units."""
    from scipy.special import stdtrit

    spread = sample_sd(bases)
    if spread is None or spread == 0:
        return Decimal(0)
    factor = from_float(steady(float(stdtrit(len(bases) - 1, CACHED_CONFIDENCE)) / len(bases) ** 0.5))
    with exact():
        return factor * spread


def _scaled_required(benchmark: BenchmarkRule, comparison: Comparison, error: Decimal) -> Decimal:
    with exact():
        return comparison.scaled(benchmark.min_delta, benchmark.min_delta_rel) + error * comparison.scale

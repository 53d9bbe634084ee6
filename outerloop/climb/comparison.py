"""Two sides of one metric: exact scaled sums, means and signs.

Covers: gain (positive when the candidate is better) of paired and of unpaired (cached) values, and exact
comparison with absolute and relative bounds. Does not cover: which bound applies.

All `scaled_…` numbers are the mean times `scale`, so that no division is needed before a decision.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from outerloop.climb.exact import exact, from_float, mean, quotient, rounded, scaled_floats, steady, total
from outerloop.climb.model import Direction


@dataclass(frozen=True)
class Comparison:
    """Base and candidate values of one metric; with `paired`, entry i of both is one pair."""

    direction: Direction
    bases: tuple[Decimal, ...]
    candidates: tuple[Decimal, ...]
    paired: bool = True

    def __post_init__(self) -> None:
        if not self.bases or not self.candidates:
            raise ValueError("a comparison needs values on both sides")
        if self.paired and len(self.bases) != len(self.candidates):
            raise ValueError(f"{len(self.bases)} base values can't pair {len(self.candidates)} candidate values")

    @property
    def scale(self) -> int:
        """What the scaled sums are multiplied by: n when paired, else the product of both counts."""
        return len(self.candidates) if self.paired else len(self.candidates) * len(self.bases)

    @property
    def scaled_gain(self) -> Decimal:
        """The mean gain times `scale`, exactly."""
        base, candidate = total(self.bases), total(self.candidates)
        with exact():
            if not self.paired:
                base, candidate = base * len(self.candidates), candidate * len(self.bases)
            return base - candidate if self.direction == "min" else candidate - base

    @property
    def scaled_base_magnitude(self) -> Decimal:
        """The absolute value of the mean baseline times `scale`, exactly."""
        with exact():
            return abs(total(self.bases)) * (1 if self.paired else len(self.candidates))

    @property
    def gains(self) -> tuple[Decimal, ...]:
        """The gain of each pair; empty when nothing is paired."""
        if not self.paired:
            return ()
        with exact():
            if self.direction == "min":
                return tuple(b - c for b, c in zip(self.bases, self.candidates, strict=True))
            return tuple(c - b for b, c in zip(self.bases, self.candidates, strict=True))

    @property
    def mean_base(self) -> Decimal:
        return mean(self.bases)

    @property
    def mean_candidate(self) -> Decimal:
        return mean(self.candidates)

    @property
    def mean_gain(self) -> Decimal:
        return quotient(self.scaled_gain, self.scale)

    @property
    def relative_gain(self) -> Decimal | None:
        """The gain as a fraction of the absolute mean baseline; None at baseline zero. For display."""
        magnitude = self.scaled_base_magnitude
        return None if magnitude == 0 else quotient(self.scaled_gain, magnitude)

    def scaled(self, absolute: Decimal, relative: Decimal = Decimal(0)) -> Decimal:
        """max(absolute, relative × |mean baseline|), times `scale`, exactly."""
        with exact():
            return max(absolute * self.scale, relative * self.scaled_base_magnitude)


def sample_sd(values: Sequence[Decimal]) -> Decimal | None:
    """The sample standard deviation (n−1 in the denominator); None for fewer than two values.

    Exactly 0 when all values are equal, whatever their scale.
    """
    if len(values) < 2:
        return None
    if all(value == values[0] for value in values):
        return Decimal(0)
    centre = mean(values)
    with exact():
        deviations = [value - centre for value in values]
    floats, largest = scaled_floats(deviations)
    spread = steady((math.fsum(x * x for x in floats) / (len(floats) - 1)) ** 0.5)
    with exact():
        product = from_float(spread) * largest
    return rounded(product)

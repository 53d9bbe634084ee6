"""Exact decimal arithmetic on measured values.

Covers: which values can be compared exactly at all, the context in which sums and products of them never
round, and rounding for display. Does not cover statistics: test statistics are floats, floors are not.

A floor is a promise ("a gain of 0.5 % is accepted"), so the comparison with it must not depend on how a
binary double happens to round. Every value arrives as the decimal text that the command printed; sums and
products of such numbers are finite decimals, so comparing sums with n times the floor needs no division.
"""

from __future__ import annotations

import decimal
from collections.abc import Iterable
from contextlib import AbstractContextManager
from decimal import Decimal

# A double holds magnitudes from 5e-324 to 1.8e308; anything a program prints on purpose lies inside.
LARGEST_ADJUSTED_EXPONENT = 400
# Longest significand that is compared: a number with more digits than this is no measurement.
MOST_DIGITS = 1000
# Enough for the product of two values or for the sum of 10^6 of them, without a single rounding.
_PRECISION = 8 * LARGEST_ADJUSTED_EXPONENT + 4 * MOST_DIGITS
# Digits kept where a quotient has to be shown (Python's own default precision).
DISPLAY_DIGITS = 28
# Digits of a float statistic that are recorded and decided on: numpy and scipy releases differ in the last
# ones, and a verdict that is recomputed elsewhere must be equal, not nearly equal.
STEADY_DIGITS = 10

_EXACT = decimal.Context(
    prec=_PRECISION,
    rounding=decimal.ROUND_HALF_EVEN,
    Emin=-999_999,
    Emax=999_999,
    traps=[decimal.Inexact, decimal.InvalidOperation, decimal.DivisionByZero, decimal.Overflow],
)
_DISPLAY = decimal.Context(
    prec=DISPLAY_DIGITS,
    rounding=decimal.ROUND_HALF_EVEN,
    Emin=-999_999,
    Emax=999_999,
    traps=[decimal.InvalidOperation, decimal.DivisionByZero, decimal.Overflow],
)


def exact() -> AbstractContextManager[decimal.Context]:
    """A decimal context in which +, − and × of comparable values never round (rounding would raise)."""
    return decimal.localcontext(_EXACT)


def why_incomparable(value: Decimal) -> str | None:
    """Why this value can't be compared exactly, in words; None if it can."""
    if value.is_nan():
        return "it is not a number (NaN)"
    if value.is_infinite():
        return "it is infinite"
    if value.is_zero():
        return None
    if abs(value.adjusted()) > LARGEST_ADJUSTED_EXPONENT:
        return f"its magnitude lies outside 1e±{LARGEST_ADJUSTED_EXPONENT}"
    if len(value.as_tuple().digits) > MOST_DIGITS:
        return f"it has more than {MOST_DIGITS} digits"
    return None


def comparable(value: Decimal) -> Decimal:
    """The value itself, with every spelling of zero turned into 0 (0E-999999 would need a million digits)."""
    return Decimal(0) if value.is_zero() else value


def total(values: Iterable[Decimal]) -> Decimal:
    """The exact sum."""
    with exact():
        return sum(values, Decimal(0))


def quotient(numerator: Decimal, denominator: Decimal | int) -> Decimal:
    """A quotient rounded to DISPLAY_DIGITS digits; exact (not rounded) when the denominator is one."""
    if denominator == 1:
        return numerator
    return _DISPLAY.divide(numerator, Decimal(denominator))


def rounded(value: Decimal) -> Decimal:
    """The value at DISPLAY_DIGITS digits."""
    return _DISPLAY.plus(value)


def mean(values: Iterable[Decimal]) -> Decimal:
    """The mean, for display and for test statistics; decisions at a floor compare exact sums instead."""
    listed = tuple(values)
    return quotient(total(listed), len(listed))


def scaled_floats(values: Iterable[Decimal]) -> tuple[list[float], Decimal]:
    """The values divided by their largest magnitude, as floats, and that magnitude (0 if all are zero).

    Statistics that don't depend on the unit are computed on these, so 1e300 and 1e-300 don't overflow.
    """
    listed = tuple(values)
    largest = max((abs(value) for value in listed), default=Decimal(0))
    if largest == 0:
        return [0.0] * len(listed), Decimal(0)
    return [float(_DISPLAY.divide(value, largest)) for value in listed], largest


def steady(value: float) -> float:
    """The float at STEADY_DIGITS digits: recorded statistics must not change with a library's last bit."""
    return float(f"{value:.{STEADY_DIGITS}g}")


def from_float(value: float) -> Decimal:
    """A float's shortest decimal text as a Decimal (0.1 gives 0.1)."""
    return Decimal(repr(value))

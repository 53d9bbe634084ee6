"""Numbers on the command line: finite, inside bounds that everything behind them can hold.

Covered: the two types that every option of a number has. Not covered: numbers in files, whose models have bounds of
their own (contract.py, settings.py, planner, strategies).

click's own FLOAT takes `nan` and `inf`, and `nan` passes every range because no comparison with it is true; its INT
takes a number that neither a database column nor a time span holds.
"""

from __future__ import annotations

import math
from typing import Any

import click

__all__ = [
    "MOST_DAYS",
    "MOST_GIB",
    "MOST_INTEGER",
    "MOST_MIB",
    "MOST_MINUTES",
    "MOST_SD",
    "MOST_SECONDS",
    "Number",
    "Whole",
]

MOST_INTEGER = 2**31 - 1
"""The largest value of a Postgres `integer`, and of the numbers in Slurm's messages that are no times."""
MOST_NUMBER = 10.0**15
"""Bound of a number without one of its own: the planner's, far above any real count."""
MOST_MINUTES = 10 * 366 * 24 * 60
"""Ten years; a time span that no date overflows."""
MOST_SECONDS = 366 * 24 * 60 * 60
"""A year: what may pass between two looks."""
MOST_DAYS = 100 * 366
"""A century: a date so far back still is one."""
MOST_MIB = 2**30
"""1 PiB."""
MOST_SD = 1e9
"""Standard deviations of anything."""
MOST_GIB = 2**20
"""1 PiB: in MiB it still is an `integer` of Postgres."""


class Number(click.FloatRange):
    """A finite number in a closed range; `above` leaves the least value itself out.

    A message names what was given, and the nearest value that is taken.
    """

    name = "float"

    def __init__(self, least: float | None = None, most: float = MOST_NUMBER, *, above: bool = False) -> None:
        self.least, self.most = least, most
        super().__init__(min=-most if least is None else least, max=most, min_open=above)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            self.fail(f"{_cut(value)} is not a number; {self._range()}.", param, ctx)
        if not math.isfinite(number):
            self.fail(f"{_cut(value)} is not a finite number; {self._range()}.", param, ctx)
        low = self.least if self.least is not None else -self.most
        if number < low or (self.min_open and number == low):
            nearest = f"more than {low:g} is needed" if self.min_open else f"{low:g} is the least"
            self.fail(f"{_cut(value)} is too small; {nearest}.", param, ctx)
        if number > self.most:
            self.fail(f"{_cut(value)} is too large; {self.most:.15g} is the most.", param, ctx)
        return number

    def _range(self) -> str:
        if self.least is None:
            return "write one such as 0.5"
        return f"write one {'above' if self.min_open else 'of at least'} {self.least:g}"

    def _describe_range(self) -> str:
        return _described(self.least, self.most, above=self.min_open)


class Whole(click.IntRange):
    """A whole number in a closed range."""

    name = "integer"

    def __init__(self, least: int | None = None, most: int = MOST_INTEGER) -> None:
        self.least, self.most = least, most
        super().__init__(min=-most if least is None else least, max=most)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = int(value)
        except (TypeError, ValueError, OverflowError):
            self.fail(f"{_cut(value)} is not a whole number; write one such as {self._such()}.", param, ctx)
        low = self.least if self.least is not None else -self.most
        if number < low:
            self.fail(f"{_cut(value)} is too small; {low} is the least.", param, ctx)
        if number > self.most:
            self.fail(f"{_cut(value)} is too large; {self.most} is the most.", param, ctx)
        return number

    def _such(self) -> int:
        return max(1, self.least or 1)

    def _describe_range(self) -> str:
        return _described(self.least, self.most)


_WORTH_SAYING = 1_000_000
"""A bound up to this is one that a person may meet."""
_MOST_SHOWN = 40


def _described(least: float | None, most: float, *, above: bool = False) -> str:
    """What help shows; a bound that only keeps nonsense out is not worth a reader's time."""
    sign = "<" if above else "<="
    if most > _WORTH_SAYING:
        return "" if least is None else f"x>{sign[1:]}{least:g}"
    return f"x<={most:g}" if least is None else f"{least:g}{sign}x<={most:g}"


def _cut(value: object) -> str:
    """What was given, in quotes and short: a number may have ten thousand digits."""
    text = repr(str(value))
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 2]}…'"

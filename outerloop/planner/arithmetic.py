"""Lines of arithmetic: how every estimate says where it comes from.

Covers the one shape that all estimators return their working in, and the estimate with a range. Does not format
anything: that is render.py's work.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import BaseModel, ConfigDict

Basis = Literal["static", "profiled", "ledger", "given"]
"""Where a number comes from: our formula, the user's own measurement, a recorded run, or the request itself."""

GB = 1e9
"""Bytes in the planner's gigabyte. GPU labels ("24 GB") are read as decimal too, which understates what the card has
by up to 7 % (24 GB cards hold 24 GiB): the difference is left as headroom on purpose."""


class Frozen(BaseModel):
    """Base of every planner model: immutable; unknown keys, infinities and NaN refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Line(Frozen):
    """One line of working: `label: formula = value unit`."""

    label: str
    formula: str
    value: float
    unit: str
    basis: Basis = "static"


class Estimate(Frozen):
    """A number with its range, its basis and its working. `low <= central <= high`, all in `unit`."""

    central: float
    low: float
    high: float
    unit: str
    basis: Basis = "static"
    lines: tuple[Line, ...] = ()


def total(lines: Iterable[Line]) -> float:
    """Sum of the lines' values, in their common unit."""
    return sum(line.value for line in lines)


def short(number: float) -> str:
    """`number` with at most four significant digits: 8.03e9 -> '8.03B', 16384 -> '16,384', 0.25 -> '0.25'."""
    size = abs(number)
    for limit, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if size >= limit:
            return f"{number / limit:.4g}{suffix}"
    if size >= 1000:
        return f"{number:,.0f}"
    return f"{number:.4g}"

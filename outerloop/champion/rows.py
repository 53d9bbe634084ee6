"""A row: named error counts with their denominators, and the objectives that say which of them are compared.

Covers reading counts out of a row. Not covered: where a row comes from (report.py) and who wins (front.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

Row = Mapping[str, Any]

REJECTED_TOTAL = "rejected_total"
FINISHED = "finished"


class RowError(ValueError):
    """A row does not carry the counts that its campaign compares."""


class Objective(BaseModel):
    """One error count, to be made small, and the denominator that belongs to it.

    `count` and `total` are keys of a row. `correct`, if given, is the key under which a report gives the
    items of the class that were right, so that the error count is total − correct.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$", description="Name shown in tables and plots")
    count: str = Field(min_length=1, description="Key of the error count")
    total: str = Field(min_length=1, description="Key of its denominator")
    correct: str | None = Field(default=None, description="Report key of the right items: count = total - correct")


DEFAULT_OBJECTIVES: tuple[Objective, ...] = (
    Objective(name="fail_to_pass", count="fail_to_pass_count", total="fail_count"),
    Objective(name="pass_to_fail", count="pass_to_fail_count", total="pass_count", correct="pass_correct_count"),
)


def integer_at(row: Row, key: str) -> int:
    """The non-negative integer under a key. Raises RowError when it is missing or something else."""
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        found = "missing" if key not in row else f"{value!r}"
        raise RowError(f"{key} must be a whole number of at least 0, it is {found}")
    return value


def counts_of(
    row: Row, objectives: Sequence[Objective] = DEFAULT_OBJECTIVES, *, reject_objective: bool = False
) -> tuple[int, ...]:
    """The error counts of a row, in the objectives' order; with `reject_objective` the rejections come last."""
    counts = tuple(integer_at(row, objective.count) for objective in objectives)
    return (*counts, integer_at(row, REJECTED_TOTAL)) if reject_objective else counts

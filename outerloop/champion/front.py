"""Dominance, the Pareto front and its lexicographic best. Error counts: fewer is better.

Covers the plain functions on rows, and `Front`, which does the same insertion without rebuilding the front.
Not covered: which rows may compete (state.py) and when the champion changes (ledger.py).
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from outerloop.champion.rows import (
    DEFAULT_OBJECTIVES,
    FINISHED,
    REJECTED_TOTAL,
    Objective,
    Row,
    counts_of,
    integer_at,
)

R = TypeVar("R", bound=Row)
T = TypeVar("T")


def vector_dominates(a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether no count of `a` is higher than that of `b` and at least one is lower. Of equal lengths."""
    return a != b and all(map(operator.le, a, b))


def dominates(
    a: Row, b: Row, objectives: Sequence[Objective] = DEFAULT_OBJECTIVES, *, reject_objective: bool = False
) -> bool:
    """Whether row `a` dominates row `b`: no error count higher, one lower. Equal rows dominate neither way.

    Raises RowError when a row lacks one of the counts. Counts compare only on one fixed set of items; that
    the denominators agree is checked where rows enter a campaign.
    """
    return vector_dominates(
        counts_of(a, objectives, reject_objective=reject_objective),
        counts_of(b, objectives, reject_objective=reject_objective),
    )


def pareto_front(
    rows: Iterable[R], objectives: Sequence[Objective] = DEFAULT_OBJECTIVES, *, reject_objective: bool = False
) -> list[R]:
    """The rows that no other row dominates, ties included, in the order given. Quadratic: the reference."""
    pairs = [(counts_of(row, objectives, reject_objective=reject_objective), row) for row in rows]
    return [row for counts, row in pairs if not any(vector_dominates(other, counts) for other, _ in pairs)]


def insert(
    front: Sequence[R],
    row: R,
    objectives: Sequence[Objective] = DEFAULT_OBJECTIVES,
    *,
    reject_objective: bool = False,
) -> list[R]:
    """The front after one more row: equals `pareto_front` of all rows so far, order and ties included."""
    counts = counts_of(row, objectives, reject_objective=reject_objective)
    pairs = [(counts_of(other, objectives, reject_objective=reject_objective), other) for other in front]
    if any(vector_dominates(other, counts) for other, _ in pairs):
        return list(front)
    return [*(kept for other, kept in pairs if not vector_dominates(counts, other)), row]


def lexicographic_champion(front: Sequence[R], objectives: Sequence[Objective] = DEFAULT_OBJECTIVES) -> R | None:
    """The row with the fewest errors in the first objective, then the next ones, then the fewest rejections.

    What still ties goes to the smallest `finished` (the ledger's sequence number, never a clock), then to the
    first in the sequence given. None for an empty front.
    """

    def rank(item: tuple[int, R]) -> tuple[tuple[int, ...], int, int, int]:
        position, row = item
        rejected = integer_at(row, REJECTED_TOTAL) if REJECTED_TOTAL in row else 0
        finished = integer_at(row, FINISHED) if FINISHED in row else 0
        return counts_of(row, objectives), rejected, finished, position

    return min(enumerate(front), key=rank)[1] if front else None


@dataclass
class Front(Generic[T]):
    """A front that is kept, not recomputed. Items with equal counts share a group, so a tie costs one append.

    `insert` costs one comparison per distinct count vector on the front, however many items came before.
    """

    groups: dict[tuple[int, ...], list[tuple[int, T]]] = field(default_factory=dict)
    size: int = 0
    # Who turned away the last item turns away the next one most often: asked first, it saves the walk. It stays right
    # when it has left the front, since what beat it also beats what it beats.
    doorkeeper: tuple[int, ...] | None = field(default=None, compare=False)

    def insert(self, counts: tuple[int, ...], position: int, item: T) -> tuple[bool, list[T]]:
        """Offer an item; `position` (strictly increasing) is its arrival. Returns (entered, items that left)."""
        group = self.groups.get(counts)
        if group is not None:
            group.append((position, item))
            self.size += 1
            return True, []
        if self.doorkeeper is not None and all(map(operator.le, self.doorkeeper, counts)):
            return False, []
        beaten = []
        for other in self.groups:
            # Equal counts were dealt with above, so "nowhere higher" is dominance here.
            if all(map(operator.le, other, counts)):
                self.doorkeeper = other
                return False, []
            if all(map(operator.le, counts, other)):
                beaten.append(other)
        left = sorted((pair for other in beaten for pair in self.groups.pop(other)), key=lambda pair: pair[0])
        self.groups[counts] = [(position, item)]
        self.size += 1 - len(left)
        return True, [item for _, item in left]

    def items(self) -> list[T]:
        """The items on the front, in order of arrival."""
        pairs = (pair for group in self.groups.values() for pair in group)
        return [item for _, item in sorted(pairs, key=lambda pair: pair[0])]

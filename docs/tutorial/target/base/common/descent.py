"""Local search by moves, for any problem.

Covered: taking improving moves until a round finds none. Not covered: escaping a local optimum.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

Move = TypeVar("Move")

EVALUATIONS = 100_000
"""Moves that one descent may look at. Enough for both solvers to reach a local optimum on every instance."""


def descend(
    moves: Callable[[], Iterable[tuple[int, Move]]],
    apply: Callable[[Move], None],
    evaluations: int = EVALUATIONS,
) -> int:
    """Take improving moves as they are met, round after round, and return how many moves were looked at.

    `moves()` yields `(change of the cost, move)`; a negative change is an improvement. It must compute each
    change from the current state when it is asked for the next one, because a move may have been applied since.
    """
    seen = 0
    improved = True
    while improved:
        improved = False
        for change, move in moves():
            seen += 1
            if change < 0:
                apply(move)
                improved = True
            if seen == evaluations:
                return seen
    return seen

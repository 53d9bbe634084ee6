"""The parameter-free Ladder: answers about one hidden data set that can't be boosted.

Covers: which score is released when somebody submits again and again against the same fixed items. Does not
cover: where the per-item losses come from, or keeping withheld values out of every other output.

Source: Blum and Hardt, "The Ladder: a reliable leaderboard for machine learning competitions", ICML 2015,
figure 3. A score is released only if it beats the best so far by more than the standard error of the paired
difference, and then rounded to a multiple of 1/n; otherwise the best so far is answered again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Rung:
    """The best submission so far: its released mean loss and its loss on each hidden item."""

    released: float
    losses: tuple[float, ...]


@dataclass(frozen=True)
class Climbed:
    """The answer to one submission.

    `released` may be shown to anybody; `loss` and `step` (the standard error that had to be beaten, None for the
    first submission) may not.
    """

    rung: Rung
    released: float
    improved: bool
    loss: float
    step: float | None


def ladder_step(best: Rung | None, losses: Sequence[float]) -> Climbed:
    """The released mean loss after one more submission with these per-item losses (smaller is better).

    Raises ValueError for no items, another number of items than before, or a loss that is not finite.
    """
    items = tuple(float(loss) for loss in losses)
    if not items:
        raise ValueError("a ladder needs at least one item")
    if not all(math.isfinite(loss) for loss in items):
        raise ValueError("a per-item loss is not finite")
    n = len(items)
    loss = math.fsum(items) / n
    if best is None:
        rung = Rung(_rounded(loss, n), items)
        return Climbed(rung, rung.released, improved=True, loss=loss, step=None)
    if len(best.losses) != n:
        raise ValueError(f"the hidden set has {len(best.losses)} items, not {n}")
    step = _standard_error([new - old for new, old in zip(items, best.losses, strict=True)])
    if loss < best.released - step:
        rung = Rung(_rounded(loss, n), items)
        return Climbed(rung, rung.released, improved=True, loss=loss, step=step)
    return Climbed(best, best.released, improved=False, loss=loss, step=step)


def _rounded(loss: float, n: int) -> float:
    return round(loss * n) / n


def _standard_error(differences: Sequence[float]) -> float:
    """std/√n of the paired differences, with n in the denominator as in the paper."""
    n = len(differences)
    centre = math.fsum(differences) / n
    return math.sqrt(math.fsum((d - centre) ** 2 for d in differences) / n) / math.sqrt(n)

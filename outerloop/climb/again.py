"""Asking for the same verdict again.

Covers: how alpha is split over askings. Does not cover: that the same question without `--again` returns the
verdict that exists (the controller's record).

Resubmitting until lucky accepts noise with probability 1 − (1 − alpha)^k. Asking again therefore adds new
pairs to the old ones and tests all of them at a smaller alpha.
"""

from __future__ import annotations

from decimal import Decimal


def alpha_share(n_asks: int) -> Decimal:
    """The share of the rule's alpha that the n-th asking may use: 1, 1/2, 1/4, … (n counts from 1).

    The first asking keeps the alpha that the contract states; by the union bound all askings together, however
    many there are, accept noise with a probability below twice that alpha. Raises ValueError below 1.
    """
    if n_asks < 1:
        raise ValueError(f"askings are counted from 1, not {n_asks}")
    return Decimal("0.5") ** (n_asks - 1)


def total_alpha(alpha: Decimal, n_asks: int) -> Decimal:
    """An upper bound of the probability that noise is accepted in any of so many askings."""
    return alpha * sum((alpha_share(n) for n in range(1, n_asks + 1)), Decimal(0))

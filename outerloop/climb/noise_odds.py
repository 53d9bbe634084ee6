"""How often normal noise alone would pass or fail a comparison of two equal programs.

Covers: the normal tail beyond a limit for a mean of n differences. Does not cover: skewed or heavy-tailed
noise (error_table.json), or floors recommended from a noise study (noise.py).
"""

from __future__ import annotations

from decimal import Decimal
from statistics import NormalDist

from outerloop.climb.exact import steady


def exceedance(limit: Decimal, difference_sd: Decimal, pairs: float) -> float:
    """P(mean of n differences > limit) when the true difference is zero and their sd is known.

    Without noise the mean is exactly zero, so it exceeds negative limits only.
    """
    if difference_sd == 0:
        return 1.0 if limit < 0 else 0.0
    return steady(NormalDist().cdf(-float(limit / difference_sd) * pairs**0.5))


def best_of_noise(candidates: int) -> float:
    """By how many standard errors the best of so many equal candidates is expected to look better than it is.

    The expected maximum of k independent standard normals in Blom's approximation (Statistical estimates and
    transformed beta-variables, 1958), within 0.02 of the exact one. 0 for one candidate.
    """
    from statistics import NormalDist

    if candidates < 2:
        return 0.0
    return NormalDist().inv_cdf((candidates - 0.375) / (candidates + 0.25))

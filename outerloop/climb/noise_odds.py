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

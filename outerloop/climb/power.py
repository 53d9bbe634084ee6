"""Sample sizes of the fixed-n test and exact binomial bounds: what sequential rules are compared with.

Covers: pairs needed by the one-sided one-sample t-test, Clopper-Pearson bounds. Does not cover: simulation.
"""

from __future__ import annotations

from outerloop.climb.model import MOST_PAIRS


def t_test_power(effect: float, pairs: int, alpha: float) -> float:
    """The probability that a one-sided t-test of so many paired gains finds this effect (in sd of the gains)."""
    from scipy.special import nctdtr, stdtrit

    if effect == 0:
        return alpha
    critical = stdtrit(pairs - 1, 1 - alpha)
    return float(1 - nctdtr(pairs - 1, effect * pairs**0.5, critical))


def pairs_needed(effect: float, alpha: float, beta: float) -> int | None:
    """The fewest pairs with which that t-test finds the effect with probability 1 − beta.

    None if more than MOST_PAIRS would be needed. Raises ValueError for an effect that is not positive.
    """
    if not effect > 0:
        raise ValueError(f"only a gain above zero can be found, not {effect}")
    low, high = 1, 2
    while t_test_power(effect, high, alpha) < 1 - beta:
        low, high = high, high * 2
        if low >= MOST_PAIRS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        if t_test_power(effect, middle, alpha) < 1 - beta:
            low = middle
        else:
            high = middle
    return high if high <= MOST_PAIRS else None


def rate_upper_bound(count: int, trials: int, confidence: float) -> float:
    """The exact one-sided upper bound of a rate (Clopper and Pearson, Biometrika 26, 1934)."""
    from scipy.special import betaincinv

    return 1.0 if count == trials else float(betaincinv(count + 1, trials - count, confidence))


def rate_lower_bound(count: int, trials: int, confidence: float) -> float:
    """The exact one-sided lower bound of a rate."""
    from scipy.special import betaincinv

    return 0.0 if count == 0 else float(betaincinv(count, trials - count + 1, 1 - confidence))

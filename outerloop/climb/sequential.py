"""The sequential rule: at which pair counts it looks, and what it decides there.

Covers: the fixed schedule of looks, Wald's bounds at the alpha that this asking may use, the decision after
each look. Does not cover: the likelihood ratios (llr.py), the floor (floor.py).

Source of the bounds: Wald, Sequential Analysis (1947), §3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal

from outerloop.climb.comparison import sample_sd
from outerloop.climb.exact import mean, scaled_floats, steady
from outerloop.climb.findings import Decision, Look, TestFinding
from outerloop.climb.llr import log_ratio
from outerloop.climb.model import Sequential


def look_schedule(rule: Sequential, prior_pairs: int = 0) -> tuple[int, ...]:
    """The pair counts at which the test may stop: `min_pairs`, then one batch more each time, to the cap.

    When asking again the counts up to `prior_pairs` were looked at before, and `max_pairs` more are allowed.
    """
    cap = prior_pairs + rule.max_pairs
    counts = [*range(rule.min_pairs, cap, rule.batch), cap]
    return tuple(count for count in counts if count > prior_pairs)


def wald_bounds(alpha: float, beta: float) -> tuple[float, float]:
    """(log(β/(1−α)), log((1−β)/α)): below the first H0 is taken, above the second H1."""
    return steady(math.log(beta / (1 - alpha))), steady(math.log((1 - beta) / alpha))


def look_at(rule: Sequential, gains: Sequence[Decimal]) -> Look:
    """The test's state after these gains."""
    import numpy as np

    n = len(gains)
    if rule.units == "absolute":
        # hypotheses and gains in one unit in which none of them overflows
        scaled, _ = scaled_floats((*gains, rule.h0, rule.h1))
        floats, (h0, h1) = scaled[:n], scaled[n:]
    else:
        floats, _ = scaled_floats(gains)
        h0, h1 = float(rule.h0), float(rule.h1)
    equal = all(gain == gains[0] for gain in gains)
    centre = floats[0] if equal else math.fsum(floats) / n
    spread = 0.0 if equal else math.sqrt(math.fsum((x - centre) ** 2 for x in floats) / (n - 1))
    llr = log_ratio(rule.test, rule.units, n, np.array([centre]), np.array([spread]), h0, h1)
    return Look(
        pairs=n,
        llr=steady(float(llr[0])),
        t=None if spread == 0 else steady(centre / spread * math.sqrt(n)),
        mean_gain=mean(gains),
        sd=sample_sd(gains) or Decimal(0),
    )


def sequential_finding(rule: Sequential, looks: Sequence[Look], alpha: Decimal) -> TestFinding:
    """The test after these looks, of which only the last may have stopped it.

    `alpha` is what this asking may use. The decision is "open" where the ratio lies between both bounds.
    """
    lower, upper = wald_bounds(float(alpha), float(rule.beta))
    decision: Decision = "open"
    if looks and looks[-1].llr >= upper:
        decision = "h1"
    elif looks and looks[-1].llr <= lower:
        decision = "h0"
    return TestFinding(
        test="sequential-t" if rule.test == "t" else "gsprt",
        pairs=looks[-1].pairs if looks else 0,
        alpha=alpha,
        beta=rule.beta,
        looks=tuple(looks),
        lower=lower,
        upper=upper,
        decision=decision,
    )

"""Does a champion hold up on items it was not chosen on? One-sided tests of a risen error rate.

Covers the pooled two-proportion z-test (the default), Fisher's exact test and the z-test against a base rate
corrected for selection, each with its power and false-alarm rate at the sizes at hand.
Not covered: estimating the optimism of a selection from margins (optimism.py), and when to check (decide.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from outerloop.champion.rows import DEFAULT_OBJECTIVES, Objective, Row, integer_at

ReserveRule = Literal["z", "fisher", "optimism"]

DEFAULT_ALPHA = 0.01
# The rise whose detection the power is printed for: half as many errors again (10 % becomes 15 %).
POWER_RISE = 1.5
# Binomial outcomes further from the mean than this are left out of the exact sums (mass below 1e-14).
TAIL_SDS = 8.0


class CheckError(ValueError):
    """A hold-up test was asked about sizes that decide nothing."""


def _require_counts(hits: int, total: int, which: str) -> None:
    if total <= 0:
        raise CheckError(f"the {which} set has no items of this class, so its error rate is undefined")
    if not 0 <= hits <= total:
        raise CheckError(f"{hits} errors among {total} items of the {which} set is impossible")


def normal_upper_tail(z: float) -> float:
    """P(Z > z) for a standard normal."""
    return 0.5 * math.erfc(z / math.sqrt(2.0))


def two_proportion_z(
    base_hits: int, base_total: int, new_hits: int, new_total: int, shift: float = 0.0
) -> tuple[float, float]:
    """(z, p) of the one-sided pooled two-proportion z-test: is the new rate higher than the base rate + shift?

    Zero pooled variance (nobody or everybody errs) gives (0, 1): no evidence of a rise. Raises CheckError on
    an empty set or impossible counts.
    """
    _require_counts(base_hits, base_total, "test")
    _require_counts(new_hits, new_total, "reserve")
    pooled = (base_hits + new_hits) / (base_total + new_total)
    variance = pooled * (1.0 - pooled) * (1.0 / base_total + 1.0 / new_total)
    if variance <= 0.0:
        return 0.0, 1.0
    z = (new_hits / new_total - base_hits / base_total - shift) / math.sqrt(variance)
    return z, normal_upper_tail(z)


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def fisher_p(base_hits: int, base_total: int, new_hits: int, new_total: int) -> float:
    """One-sided p of Fisher's exact test: P(at least `new_hits` of all errors fall into the new set | margins)."""
    _require_counts(base_hits, base_total, "test")
    _require_counts(new_hits, new_total, "reserve")
    errors, items = base_hits + new_hits, base_total + new_total
    first, last = max(0, errors - base_total), min(errors, new_total)
    share = new_total / items
    mean = errors * share
    reach = TAIL_SDS * math.sqrt(errors * share * (1.0 - share)) + TAIL_SDS
    low = max(first, new_hits, math.floor(mean - reach))
    high = min(last, max(math.ceil(mean + reach), new_hits + math.ceil(reach)))
    whole = _log_choose(items, errors)
    term = math.exp(_log_choose(new_total, low) + _log_choose(base_total, errors - low) - whole)
    terms = [term]
    for k in range(low, high):
        term *= (new_total - k) * (errors - k) / ((k + 1) * (base_total - errors + k + 1))
        terms.append(term)
    return min(1.0, math.fsum(terms))


def _p_value(rule: ReserveRule, shift: float) -> Callable[[int, int, int, int], float]:
    if rule == "fisher":
        return fisher_p
    return lambda a, n, b, m: two_proportion_z(a, n, b, m, shift)[1]


def _binomial(n: int, rate: float) -> tuple[int, list[float]]:
    """(first k, probabilities from there on) of Binomial(n, rate), cut at TAIL_SDS standard deviations."""
    if rate <= 0.0 or rate >= 1.0:
        return (0 if rate <= 0.0 else n), [1.0]
    reach = TAIL_SDS * math.sqrt(n * rate * (1.0 - rate)) + TAIL_SDS
    low, high = max(0, math.floor(n * rate - reach)), min(n, math.ceil(n * rate + reach))
    log_odds = (math.log(rate), math.log1p(-rate))
    return low, [math.exp(_log_choose(n, k) + k * log_odds[0] + (n - k) * log_odds[1]) for k in range(low, high + 1)]


def rejection_rate(
    base_total: int,
    new_total: int,
    base_rate: float,
    new_rate: float,
    alpha: float,
    *,
    rule: ReserveRule = "z",
    shift: float = 0.0,
    selected_from: int = 1,
) -> float:
    """Exact probability that the test says "the rate has risen", for given true rates.

    The base count is the smallest of `selected_from` independent checkpoints that all err at `base_rate`
    (1: not selected at all). Checkpoints of one run are correlated, so the value for the true number of
    evaluations is an upper bound of what selection does. Equal rates give the false-alarm rate, a higher
    `new_rate` gives the power.
    """
    p_value = _p_value(rule, shift)
    low, base = _binomial(base_total, base_rate)
    new_low, new = _binomial(new_total, new_rate)
    upper = [0.0] * (len(new) + 1)
    for index in range(len(new) - 1, -1, -1):
        upper[index] = upper[index + 1] + new[index]
    rejected, critical, above = 0.0, new_low, 1.0
    below = 0.0
    for index, mass in enumerate(base):
        hits = low + index
        below = min(1.0, below + mass)
        least_above = (1.0 - below) ** selected_from
        chosen, above = above - least_above, least_above
        # The critical count only grows with the base count, so one walk finds all of them.
        while critical < new_low + len(new) and p_value(hits, base_total, critical, new_total) >= alpha:
            critical += 1
        rejected += chosen * upper[critical - new_low]
    return min(1.0, max(0.0, rejected))


@dataclass(frozen=True)
class HoldUpLine:
    """The test of one objective, with everything that led to it. Rates are shares in 0..1."""

    objective: str
    test_count: int
    test_total: int
    reserve_count: int
    reserve_total: int
    optimism: float
    z: float | None
    p: float
    power: float
    false_alarm: float
    false_alarm_selected: float


@dataclass(frozen=True)
class HoldUp:
    """Verdict of a reserve check. `holds` is False when any objective's p is below alpha.

    Per line, taking the test set's rate (plus optimism) as true, `power` is the chance to notice that the errors
    rose by half (POWER_RISE), `false_alarm` the chance of "luck" for an unselected model whose rate did not change, and
    `false_alarm_selected` the same for the best of `selected_from` equally good independent ones.
    """

    holds: bool
    rule: ReserveRule
    alpha: float
    selected_from: int
    lines: tuple[HoldUpLine, ...]


def hold_up(
    test: Row,
    reserve: Row,
    alpha: float = DEFAULT_ALPHA,
    *,
    objectives: Sequence[Objective] = DEFAULT_OBJECTIVES,
    rule: ReserveRule = "z",
    optimism: Sequence[float] | None = None,
    selected_from: int = 1,
) -> HoldUp:
    """Ask for each objective whether the reserve rate is higher than the test rate.

    `optimism` (one share per objective, from optimism.selection_optimism) is required by the rule of that name,
    which tests against test rate + optimism; the other rules refuse it. Raises RowError on rows without the
    counts, CheckError on empty sets, impossible counts, or an optimism that doesn't fit the rule.
    """
    if not 0.0 < alpha < 1.0:
        raise CheckError(f"alpha must lie between 0 and 1, it is {alpha}")
    if (rule == "optimism") != (optimism is not None):
        raise CheckError("the rule 'optimism' needs the optimism of each objective, and no other rule takes it")
    if optimism is not None and (len(optimism) != len(objectives) or not all(map(math.isfinite, optimism))):
        raise CheckError(f"the optimism must be {len(objectives)} finite numbers, it is {list(optimism)}")
    shifts = [0.0] * len(objectives) if optimism is None else [max(0.0, value) for value in optimism]
    lines = []
    for objective, shift in zip(objectives, shifts, strict=True):
        a, n = integer_at(test, objective.count), integer_at(test, objective.total)
        b, m = integer_at(reserve, objective.count), integer_at(reserve, objective.total)
        if rule == "fisher":
            z, p = None, fisher_p(a, n, b, m)
        else:
            z, p = two_proportion_z(a, n, b, m, shift)
        rate = min(1.0, a / n + shift)
        # An optimism is meant for a selected champion, so its power is that of a selected champion, too.
        chosen_from = max(1, selected_from) if rule == "optimism" else 1

        def odds(new_rate: float, among: int, *, at: tuple[int, int, float, float] = (n, m, rate, shift)) -> float:
            return rejection_rate(at[0], at[1], at[2], new_rate, alpha, rule=rule, shift=at[3], selected_from=among)

        lines.append(
            HoldUpLine(
                objective.name, a, n, b, m, shift, z, p,
                power=odds(min(1.0, rate * POWER_RISE), chosen_from),
                false_alarm=odds(rate, 1),
                false_alarm_selected=odds(rate, max(1, selected_from)),
            )
        )  # fmt: skip
    return HoldUp(all(line.p >= alpha for line in lines), rule, alpha, max(1, selected_from), tuple(lines))

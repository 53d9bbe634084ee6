"""Who wins: the candidate's task scores against the opponent's, and whether a win holds up on the reserve.

Covered: the paired comparison over tasks. The unit is the task, whose score is its mean over trials and training seeds:
pooled trials are not independent, and a test over them accepts too many equals. One trial and one seed of pass or fail
on both sides: exact McNemar. Otherwise the one-sided sign-flip test, with climb/'s own implementation.
Not covered: who the opponent is (the controller knows the champion), sequential rules.

McNemar, "Note on the sampling error of the difference between correlated proportions" (1947), in its exact form.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from statistics import NormalDist
from typing import Any, Literal

from outerloop.climb.exact import exact, quotient, steady
from outerloop.climb.signflip import seed_from, sign_flip_p

__all__ = ["RESERVE_ALPHA", "Comparison", "HoldUp", "Verdict", "compare", "decide", "hold_up", "mcnemar_p"]

Scores = Mapping[str, tuple[Decimal, ...] | None]
"""Task -> its scores over trials and seeds (from 0 to 1), or None where infrastructure lost one."""

Reason = Literal["", "no-improvement", "too-few-tasks", "reserve"]
Detail = Literal["", "not-above-zero", "below-floor", "not-significant"]

RESERVE_ALPHA = 0.01
"""Strict, because the winner of several entries regresses on fresh tasks by selection alone (champion/reserve.py)."""


@dataclass(frozen=True)
class Comparison:
    """Paired figures. `gain` is the mean over tasks of candidate minus opponent; `p` one-sided."""

    test: Literal["mcnemar", "sign-flip"]
    tasks: int
    dropped: int
    candidate: Decimal
    opponent: Decimal
    gain: Decimal
    better: int
    worse: int
    p: float
    resamples: int | None
    gains: tuple[Decimal, ...]

    def as_dict(self) -> dict[str, Any]:
        """Without the gains of single tasks, which are sealed."""
        shown = asdict(self)
        del shown["gains"]
        return shown


@dataclass(frozen=True)
class HoldUp:
    """Does the gain hold on tasks that nobody was chosen on? `p` asks whether it is smaller there."""

    gain: Decimal
    reserve_gain: Decimal
    p: float
    held: bool


@dataclass(frozen=True)
class Verdict:
    """accepted, or rejected for a reason; with every number that led to it.

    `detail` says what made it "no-improvement": the gain is not above zero, below the floor, or not significant.
    """

    outcome: Literal["accepted", "rejected"]
    reason: Reason
    detail: Detail
    comparison: Comparison
    reserve: HoldUp | None
    alpha: Decimal
    min_delta: Decimal


def mcnemar_p(better: int, worse: int) -> float:
    """P(at least `better` of the tasks that differ went to the candidate | each way equally likely)."""
    differ = better + worse
    if differ == 0:
        return 1.0
    ways = sum(math.comb(differ, k) for k in range(better, differ + 1))
    return float(ways / 2**differ)


def compare(candidate: Scores, opponent: Scores, *, name: str, train_seeds: Sequence[int]) -> Comparison:
    """The paired comparison. A task that either side lost is dropped on both.

    `name` and `train_seeds` fix the Monte Carlo patterns of the sign-flip test, so anybody recomputes the same p.
    Raises ValueError for different tasks, or none left.
    """
    if candidate.keys() != opponent.keys():
        raise ValueError("the two sides were evaluated on different tasks")
    ours, theirs, gains = [], [], []
    single = True
    for task, kept in candidate.items():
        other = opponent[task]
        if kept is None or other is None:
            continue
        single = single and len(kept) == len(other) == 1 and {kept[0], other[0]} <= {Decimal(0), Decimal(1)}
        with exact():
            # over a common denominator: nothing is rounded before the test has seen it
            gain = sum(kept, Decimal(0)) * len(other) - sum(other, Decimal(0)) * len(kept)
        ours.append(quotient(sum(kept, Decimal(0)), len(kept)))
        theirs.append(quotient(sum(other, Decimal(0)), len(other)))
        gains.append((gain, len(kept) * len(other)))
    if not gains:
        raise ValueError("no task is left that both sides finished")
    common = math.lcm(*(denominator for _, denominator in gains))
    with exact():
        scaled = tuple(gain * (common // denominator) for gain, denominator in gains)
        total = sum(scaled, Decimal(0))
    better, worse = sum(gain > 0 for gain in scaled), sum(gain < 0 for gain in scaled)
    resamples: int | None = None
    if single:
        p = mcnemar_p(better, worse)
    else:
        p, resamples = sign_flip_p(scaled, seed_from(name, train_seeds))
    count = len(scaled)
    return Comparison(
        test="mcnemar" if single else "sign-flip",
        tasks=count,
        dropped=len(candidate) - count,
        candidate=quotient(sum(ours, Decimal(0)), count),
        opponent=quotient(sum(theirs, Decimal(0)), count),
        gain=quotient(total, common * count),
        better=better,
        worse=worse,
        p=steady(p),
        resamples=resamples,
        gains=tuple(quotient(gain, common) for gain in scaled),
    )


def hold_up(suite: Comparison, reserve: Comparison) -> HoldUp:
    """Whether the gain is above zero on the reserve and not significantly smaller there.

    Two samples of task gains, unequal variances, normal approximation; zero variance gives p = 1, as in a campaign's
    reserve check. Gains rather than scores, because a reserve need not be as hard as the suite.
    """
    variance = sum(_variance(comparison.gains) / comparison.tasks for comparison in (suite, reserve))
    p = 1.0
    if variance > 0:
        z = float(suite.gain - reserve.gain) / math.sqrt(variance)
        p = 1 - NormalDist().cdf(z)
    p = steady(p)
    return HoldUp(suite.gain, reserve.gain, p, held=reserve.gain > 0 and p >= RESERVE_ALPHA)


def _variance(gains: Sequence[Decimal]) -> float:
    if len(gains) < 2:
        return 0.0
    values = [float(gain) for gain in gains]
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def decide(comparison: Comparison, *, alpha: Decimal, min_delta: Decimal, reserve: Comparison | None = None) -> Verdict:
    """The verdict: gain above zero, at least `min_delta`, significant at `alpha`; then the reserve, if there is one."""
    held = None if reserve is None else hold_up(comparison, reserve)
    reason: Reason = ""
    detail: Detail = ""
    if comparison.gain <= 0:
        reason, detail = "no-improvement", "not-above-zero"
    elif 2.0**-comparison.tasks > alpha:
        reason = "too-few-tasks"
    elif comparison.gain < min_delta:
        reason, detail = "no-improvement", "below-floor"
    elif comparison.p > alpha:
        reason, detail = "no-improvement", "not-significant"
    elif held is not None and not held.held:
        reason = "reserve"
    return Verdict("rejected" if reason else "accepted", reason, detail, comparison, held, alpha, min_delta)

"""Outcomes of trials, and what they come to: a task's score, the share of lost trials, a suite's aggregates.

Covered: the arithmetic. A trial that infrastructure ended is no wrong answer: its task counts for nobody, and the
evaluation is refused when too many were lost. Not covered: retrying (evaluate.py), deciding (decision.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any, Literal

__all__ = ["Aggregates", "Outcome", "RefusedEvaluationError", "aggregates", "merged", "task_scores"]


class RefusedEvaluationError(Exception):
    """Infrastructure ended too many trials for the scores to mean anything."""


@dataclass(frozen=True)
class Outcome:
    """One trial of one task. `score` is None exactly when infrastructure ended it."""

    task: str
    trial: int
    status: Literal["scored", "timeout", "infrastructure"]
    score: Decimal | None
    attempts: int = 1

    def __post_init__(self) -> None:
        if (self.score is None) != (self.status == "infrastructure"):
            raise ValueError(f"a trial that is {self.status} can't have the score {self.score}")
        if self.score is not None and not (self.score.is_finite() and 0 <= self.score <= 1):
            raise ValueError(f"a score is a number from 0 to 1, not {self.score}")


@dataclass(frozen=True)
class Aggregates:
    """What may be shown of an evaluation. Scores are from 0 to 1; `sd` is over tasks, None with fewer than two."""

    tasks: int
    trials: int
    scored_tasks: int
    dropped_tasks: int
    infrastructure_errors: int
    timeouts: int
    infrastructure_fraction: float
    mean: float | None
    sd: float | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def task_scores(
    outcomes: Iterable[Outcome], tasks: Sequence[str], trials: int
) -> dict[str, tuple[Decimal, ...] | None]:
    """Per task its scores in the order of trials, or None where a trial was lost.

    Raises ValueError when a trial is missing, doubled, or of an unknown task: an evaluation is whole or it is none.
    """
    found: dict[str, dict[int, Decimal | None]] = {task: {} for task in tasks}
    for outcome in outcomes:
        if outcome.task not in found:
            raise ValueError(f"an outcome of {outcome.task!r}, which is not in the suite's list")
        if outcome.trial in found[outcome.task] or not 0 <= outcome.trial < trials:
            raise ValueError(f"trial {outcome.trial} of {outcome.task!r} is doubled or was not asked for")
        found[outcome.task][outcome.trial] = outcome.score
    short = [task for task, scores in found.items() if len(scores) != trials]
    if short:
        raise ValueError(f"{len(short)} tasks have fewer than {trials} trials, such as {short[0]!r}")
    whole: dict[str, tuple[Decimal, ...] | None] = {}
    for task, scores in found.items():
        ordered = [scores[trial] for trial in range(trials)]
        kept = tuple(score for score in ordered if score is not None)
        whole[task] = kept if len(kept) == trials else None
    return whole


def aggregates(
    outcomes: Sequence[Outcome], tasks: Sequence[str], trials: int, *, max_infra_error_fraction: float
) -> Aggregates:
    """The suite's figures. Raises RefusedEvaluationError above the fraction, ValueError as `task_scores` does."""
    scores = task_scores(outcomes, tasks, trials)
    lost = sum(outcome.status == "infrastructure" for outcome in outcomes)
    fraction = lost / len(outcomes) if outcomes else 0.0
    if fraction > max_infra_error_fraction:
        raise RefusedEvaluationError(
            f"infrastructure ended {lost} of {len(outcomes)} trials ({fraction:.1%}), more than the"
            f" {max_infra_error_fraction:.1%} that an evaluation may lose"
        )
    means = [float(sum(kept, Decimal(0)) / len(kept)) for kept in scores.values() if kept is not None]
    mean = math.fsum(means) / len(means) if means else None
    sd = None
    if mean is not None and len(means) > 1:
        sd = math.sqrt(math.fsum((value - mean) ** 2 for value in means) / (len(means) - 1))
    return Aggregates(
        tasks=len(tasks),
        trials=trials,
        scored_tasks=len(means),
        dropped_tasks=len(tasks) - len(means),
        infrastructure_errors=lost,
        timeouts=sum(outcome.status == "timeout" for outcome in outcomes),
        infrastructure_fraction=fraction,
        mean=mean,
        sd=sd,
    )


def merged(seeds: Sequence[Mapping[str, tuple[Decimal, ...] | None]]) -> dict[str, tuple[Decimal, ...] | None]:
    """The trials of several training seeds, one after another; a task lost under any seed is lost."""
    first, *others = seeds
    whole: dict[str, tuple[Decimal, ...] | None] = dict(first)
    for scores in others:
        if scores.keys() != whole.keys():
            raise ValueError("the training seeds were evaluated on different tasks")
        for task, kept in scores.items():
            before = whole[task]
            whole[task] = None if before is None or kept is None else before + kept
    return whole

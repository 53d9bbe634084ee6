"""A verdict from the folders of runs: an entry's trainings against the champion's, or against the untrained model.

Covered: reading aggregates, checking the sealed rows behind them, several training seeds, several suites. Not covered:
the rule (decision.py), and who the champion is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

from outerloop.posttrain.decision import Comparison, Verdict, compare, decide
from outerloop.posttrain.evaluate import read_sealed
from outerloop.posttrain.outcomes import merged, task_scores
from outerloop.posttrain.store import read_record

__all__ = ["JudgeError", "judge", "verdict_record"]

Side = Literal["evaluate", "baseline"]
Scores = dict[str, tuple[Decimal, ...] | None]


class JudgeError(ValueError):
    """The runs can't be compared: something is missing, or they were evaluated differently."""


def _scores(run: Path, side: Side, suite: str, sealed: Path | None) -> tuple[Scores, str]:
    """The scores of one run on one suite, its tasks named `suite/task`, and its evaluator's digest."""
    record = read_record(run / side / f"{suite}.json")
    if record is None:
        said = "the untrained model" if side == "baseline" else "the trained model"
        raise JudgeError(f"{run}: {said} was not evaluated on {suite}")
    outcomes = read_sealed(sealed or run / "sealed", record)
    tasks = list(dict.fromkeys(outcome.task for outcome in outcomes))
    found = task_scores(outcomes, tasks, record["trials"])
    return {f"{suite}/{task}": kept for task, kept in found.items()}, record["evaluator"]


def _compared(
    entry: Sequence[Path],
    opponent: Sequence[Path],
    side: Side,
    suites: Sequence[str],
    name: str,
    sealed: Path | None,
) -> Comparison:
    ours: Scores = {}
    theirs: Scores = {}
    for suite in suites:
        mine = [_scores(run, "evaluate", suite, sealed) for run in entry]
        others = [_scores(run, side, suite, sealed) for run in opponent]
        if len({evaluator for _, evaluator in (*mine, *others)}) != 1:
            raise JudgeError(f"{suite}: the runs were evaluated with different tasks, sampling or trials")
        ours |= merged([scores for scores, _ in mine])
        theirs |= merged([scores for scores, _ in others])
    seeds = []
    for run in entry:
        record = read_record(run / "inputs.json")
        if record is None:
            raise JudgeError(f"{run} is not the folder of a run")
        seeds.append(int(record["seed"]))
    return compare(ours, theirs, name=name, train_seeds=seeds)


def judge(
    entry: Sequence[Path],
    champion: Sequence[Path],
    *,
    name: str,
    suites: Sequence[str],
    reserve: Sequence[str],
    alpha: Decimal,
    min_delta: Decimal,
    sealed: Path | None = None,
) -> Verdict:
    """The verdict over an entry's trainings, one folder per training seed.

    Without a champion the opponent is the untrained model, as the entry's first folder evaluated it. The reserve is
    read only when the entry wins without it. `sealed` is the root of the sealed rows where it is not in the folders.

    Raises JudgeError, SealError.
    """
    side: Side = "evaluate" if champion else "baseline"
    opponent = list(champion) or list(entry[:1])
    suite = _compared(entry, opponent, side, suites, name, sealed)
    first = decide(suite, alpha=alpha, min_delta=min_delta)
    if first.outcome == "rejected" or not reserve:
        return first
    held = _compared(entry, opponent, side, reserve, f"{name}/reserve", sealed)
    return decide(suite, alpha=alpha, min_delta=min_delta, reserve=held)


def verdict_record(verdict: Verdict) -> dict[str, Any]:
    """The verdict as JSON, decimals as text, without anything about a single task."""
    record = {name: value for name, value in asdict(verdict).items() if name not in ("comparison", "reserve")}
    record["comparison"] = verdict.comparison.as_dict()
    record["reserve"] = None if verdict.reserve is None else asdict(verdict.reserve)
    return {"schema": 1, **_plain(record)}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    return str(value) if isinstance(value, Decimal) else value

"""A verdict from evaluations: an entry's trainings against the champion's, or against the untrained model.

Covered: reading aggregates, checking the sealed rows behind them, several training seeds, several suites; from records
(`judge_records`, the controller) or from the folders of runs (`judge`). Not covered: the rule (decision.py), and who
the champion is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

from outerloop.posttrain.decision import Comparison, Verdict, compare, decide
from outerloop.posttrain.evaluate import read_sealed
from outerloop.posttrain.outcomes import merged, task_scores
from outerloop.posttrain.store import read_record

__all__ = ["Evaluated", "JudgeError", "ReserveMissing", "judge", "judge_records", "verdict_record"]

Side = Literal["evaluate", "baseline"]
Scores = dict[str, tuple[Decimal, ...] | None]


class JudgeError(ValueError):
    """The runs can't be compared: something is missing, or they were evaluated differently."""


class ReserveMissing(JudgeError):
    """The entry wins on the suites, and the reserve, which counts then, was not scored."""

    def __init__(self, won: Verdict, missing: str) -> None:
        found = won.comparison
        super().__init__(
            f"it wins so far (gain {found.gain:.4f}, p {found.p:.2g}), and now the reserve counts. {missing}: score it"
            " in the same folder, then judge again"
        )


@dataclass(frozen=True)
class Evaluated:
    """The record of one evaluation, and the root of the sealed rows behind it."""

    record: Mapping[str, Any]
    sealed: Path


def _scores(evaluated: Evaluated, suite: str) -> Scores:
    """The scores of one evaluation, its tasks named `suite/task`."""
    outcomes = read_sealed(evaluated.sealed, evaluated.record)
    tasks = list(dict.fromkeys(outcome.task for outcome in outcomes))
    found = task_scores(outcomes, tasks, evaluated.record["trials"])
    return {f"{suite}/{task}": kept for task, kept in found.items()}


def _compared(
    entry: Mapping[str, Sequence[Evaluated]],
    opponent: Mapping[str, Sequence[Evaluated]],
    name: str,
    train_seeds: Sequence[int],
) -> Comparison:
    ours: Scores = {}
    theirs: Scores = {}
    for suite, mine in entry.items():
        others = opponent[suite]
        if len({each.record["evaluator"] for each in (*mine, *others)}) != 1:
            raise JudgeError(f"{suite}: the runs were evaluated with different tasks, sampling or trials")
        ours |= merged([_scores(each, suite) for each in mine])
        theirs |= merged([_scores(each, suite) for each in others])
    return compare(ours, theirs, name=name, train_seeds=train_seeds)


def judge_records(
    entry: Mapping[str, Sequence[Evaluated]],
    opponent: Mapping[str, Sequence[Evaluated]],
    *,
    reserve: tuple[Mapping[str, Sequence[Evaluated]], Mapping[str, Sequence[Evaluated]]] | None,
    name: str,
    train_seeds: Sequence[int],
    alpha: Decimal,
    min_delta: Decimal,
) -> Verdict:
    """The verdict over evaluations by suite, one for each training seed; `reserve` is both sides on the reserve.

    Without a reserve it says whether the entry wins on the suites alone. Raises JudgeError, SealError.
    """
    suite = _compared(entry, opponent, name, train_seeds)
    first = decide(suite, alpha=alpha, min_delta=min_delta)
    if first.outcome == "rejected" or reserve is None:
        return first
    held = _compared(*reserve, f"{name}/reserve", train_seeds)
    return decide(suite, alpha=alpha, min_delta=min_delta, reserve=held)


def _of_folders(
    runs: Sequence[Path], side: Side, suites: Sequence[str], sealed: Path | None
) -> dict[str, list[Evaluated]]:
    found: dict[str, list[Evaluated]] = {}
    for suite in suites:
        for run in runs:
            record = read_record(run / side / f"{suite}.json")
            if record is None:
                said = "the untrained model" if side == "baseline" else "the trained model"
                raise JudgeError(f"{run}: {said} was not evaluated on {suite}")
            found.setdefault(suite, []).append(Evaluated(record, sealed or run / "sealed"))
    return found


def _seed_of(run: Path) -> int:
    record = read_record(run / "inputs.json")
    if record is None:
        raise JudgeError(f"{run} is not the folder of a run")
    return int(record["seed"])


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

    Raises JudgeError, SealError; ReserveMissing when a reserve is all that is missing.
    """
    side: Side = "evaluate" if champion else "baseline"
    opponent = list(champion) or list(entry[:1])
    ours, theirs = _of_folders(entry, "evaluate", suites, sealed), _of_folders(opponent, side, suites, sealed)
    seeds = [_seed_of(run) for run in entry]

    def judged(both: tuple[dict[str, list[Evaluated]], dict[str, list[Evaluated]]] | None) -> Verdict:
        return judge_records(ours, theirs, reserve=both, name=name, train_seeds=seeds, alpha=alpha, min_delta=min_delta)

    first = judged(None)
    if first.outcome == "rejected" or not reserve:
        return first
    try:
        both = _of_folders(entry, "evaluate", reserve, sealed), _of_folders(opponent, side, reserve, sealed)
    except JudgeError as missing:
        raise ReserveMissing(first, str(missing)) from None
    return judged(both)


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

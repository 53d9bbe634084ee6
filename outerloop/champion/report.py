"""Reading what the commands write: run selections, Pareto files, validation metrics and evaluation reports.

Covers validation with every problem named; a text that is doubtful in any count is refused, so that it can't make a
champion. Not covered: reading files (texts come in) and what the ledger makes of them (outcomes.py).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from outerloop.champion.config import MOST_WHOLE, Rules
from outerloop.champion.rows import REJECTED_TOTAL, Objective
from outerloop.champion.toml_source import nearest
from outerloop.json_text import JsonError, parse_json

# Checkpoint names end in the epoch, by the contract with the train command.
_EPOCH = re.compile(r"-(\d{4,})$")

_DIGEST = re.compile(r"[0-9a-f]{64}")

MOST_CHECKPOINTS = 1000
"""Checkpoints that a run may offer. Each is an event, a report and a turn of the campaign's loop; a search of weeks
has some ten of them per run, and a list of thousands is a broken program's."""


class ReportError(ValueError):
    """A file that a command wrote can't be used. `problems` names every reason."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


def load_object(text: str, what: str) -> dict[str, Any]:
    """The JSON object of a text. Raises ReportError; NaN, infinities and duplicate keys are refused."""
    try:
        loaded = parse_json(text)
    except JsonError as error:
        raise ReportError([f"{what} is not valid JSON: {error}"]) from None
    if not isinstance(loaded, dict):
        raise ReportError([f"{what} must be a JSON object, it is a {type(loaded).__name__}"])
    return loaded


# --- training ------------------------------------------------------------------------------------------------------


def epoch_of(checkpoint: str) -> int:
    """The epoch in a checkpoint's name. Raises ReportError when the name doesn't end in one."""
    match = _EPOCH.search(checkpoint)
    if match is None:
        raise ReportError([f"the checkpoint name {checkpoint!r} does not end in -NNNN, its epoch"])
    return int(match.group(1))


def _checkpoint_name(value: Any, what: str) -> str:
    if not isinstance(value, str) or not value:
        raise ReportError([f"{what}: checkpoint must be a name, it is {value!r}"])
    if value.startswith("/") or "\\" in value or any(part in ("", ".", "..") for part in value.split("/")):
        raise ReportError([f"{what}: the checkpoint {value!r} is not a path inside the run's folder"])
    epoch_of(value)
    return value


def checkpoints_to_score(selection: str, pareto: str | None) -> tuple[str, tuple[str, ...]]:
    """(selected, all names to score): the run's Pareto entries plus its selected one, once each, sorted.

    Takes the texts of `selection.json` and, if there is one, `pareto.json`. Raises ReportError.
    """
    selected = _checkpoint_name(load_object(selection, "selection.json").get("checkpoint"), "selection.json")
    names = {selected}
    if pareto is not None:
        entries = load_object(pareto, "pareto.json").get("checkpoints")
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise ReportError(["pareto.json: checkpoints must be a list of objects with a checkpoint"])
        if len(entries) > MOST_CHECKPOINTS:
            raise ReportError(
                [f"pareto.json lists {len(entries)} checkpoints, more than the {MOST_CHECKPOINTS} allowed"]
            )
        names |= {_checkpoint_name(entry.get("checkpoint"), "pareto.json") for entry in entries}
    return selected, tuple(sorted(names))


def validation_ranks(metrics: str | None) -> tuple[float | None, int | None]:
    """(gate AUC, fail→pass count) of a validation file, each None when absent or not a sensible number."""
    if metrics is None:
        return None, None
    try:
        loaded = load_object(metrics, "validation metrics")
    except ReportError:
        return None, None
    auc, errors = loaded.get("gate_auc"), loaded.get("fail_to_pass_count")
    return (
        float(auc) if _finite(auc) and 0.0 <= auc <= 1.0 else None,
        errors if isinstance(errors, int) and not isinstance(errors, bool) and 0 <= errors <= MOST_WHOLE else None,
    )


# --- evaluation ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Report:
    """A valid evaluation report: counts with denominators, and what is only recorded. Rates are shares in 0..1."""

    row: Mapping[str, int]
    decided: Mapping[str, int] | None
    rates: Mapping[str, float]
    totals: tuple[int, ...]
    checkpoint_sha256: str
    macro_f1: float | None = None
    s_f1: float | None = None
    gate_auc: float | None = None
    gate_curve: tuple[tuple[float, ...], ...] | None = None
    reject_band: tuple[float, float] | None = None


@dataclass
class _Reader:
    """Collects the problems of one report."""

    source: Mapping[str, Any]
    problems: list[str] = field(default_factory=list)

    def count(self, block: Mapping[str, Any], key: str, where: str) -> int | None:
        value = block.get(key)
        if key not in block:
            self.problems.append(f"{where}{key} is missing; {nearest(key, [str(k) for k in block] or ['nothing'])}")
        elif isinstance(value, bool) or not isinstance(value, int) or value < 0:
            self.problems.append(f"{where}{key} must be a whole number of at least 0, it is {value!r}")
        elif value > MOST_WHOLE:
            self.problems.append(f"{where}{key} has {len(str(value))} digits; nothing has so many items")
        else:
            return value
        return None

    def counts(
        self, block: Mapping[str, Any], objectives: Sequence[Objective], where: str, *, empty: bool
    ) -> dict[str, int]:
        row: dict[str, int] = {}
        for objective in objectives:
            total = self.count(block, objective.total, where)
            if objective.correct is not None and objective.count not in block:
                correct = self.count(block, objective.correct, where)
                errors = None if correct is None or total is None else total - correct
                key = objective.correct
                too_many = errors is not None and errors < 0
            else:
                errors = self.count(block, objective.count, where)
                key = objective.count
                too_many = errors is not None and total is not None and errors > total
                if objective.correct is not None and objective.correct in block and total is not None:
                    correct = self.count(block, objective.correct, where)
                    if errors is not None and correct is not None and correct + errors != total:
                        self.problems.append(
                            f"{where}{objective.count} = {errors} and {objective.correct} = {correct} do not add up to"
                            f" {objective.total} = {total}"
                        )
            if total is None or errors is None:
                continue
            if total == 0 and not empty:
                self.problems.append(f"{where}{objective.total} is 0, so no error of this class can be counted")
            elif too_many:
                self.problems.append(f"{where}{key} is above its denominator {objective.total} = {total}")
            else:
                row[objective.count], row[objective.total] = errors, total
        return row

    def share(self, key: str) -> float | None:
        value = self.source.get(key)
        if value is None:
            return None
        if not _finite(value) or not 0 <= value <= 1:
            self.problems.append(f"{key} must be a finite number from 0 to 1, it is {value!r}")
            return None
        return float(value)


def _finite(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def parse_report(
    text: str,
    rules: Rules,
    *,
    totals: Sequence[int] | None = None,
    checkpoint_sha256: str | None = None,
) -> Report:
    """The report of one checkpoint. Raises ReportError naming every problem.

    Refused: missing or other objectives than the campaign's, denominators of 0 or other than `totals` (those of
    the generation's earlier rows), counts above their denominators, errors and right items that do not add up to
    them, shares outside 0..1, numbers that are not finite, and another checkpoint's hash than `checkpoint_sha256`.
    """
    source = load_object(text, "the report")
    reader = _Reader(source)
    row = reader.counts(source, rules.objectives, "", empty=False)
    own_totals = tuple(row.get(objective.total, 0) for objective in rules.objectives)
    complete = all(objective.total in row for objective in rules.objectives)
    if complete and totals is not None and own_totals != tuple(totals):
        names = ", ".join(objective.total for objective in rules.objectives)
        reader.problems.append(
            f"the denominators ({names}) are {list(own_totals)}, on this set they were {list(totals)} before"
        )
    decided = _decided(reader, rules, row) if source.get("decided") is not None else None
    found = source.get("checkpoint_sha256")
    if checkpoint_sha256 is not None and found != checkpoint_sha256:
        reader.problems.append(f"checkpoint_sha256 is {found!r}, the checkpoint's is {checkpoint_sha256!r}")
    numbers = {key: reader.share(key) for key in ("macro_f1", "s_f1", "gate_auc")}
    curve, band = _curve(reader), _band(reader)
    if reader.problems:
        raise ReportError(reader.problems)
    return Report(
        row=row,
        decided=decided,
        rates={o.name: row[o.count] / row[o.total] for o in rules.objectives},
        totals=own_totals,
        checkpoint_sha256=found if isinstance(found, str) and _DIGEST.fullmatch(found) else "",
        gate_curve=curve,
        reject_band=band,
        **numbers,
    )


def _decided(reader: _Reader, rules: Rules, row: Mapping[str, int]) -> dict[str, int] | None:
    block = reader.source["decided"]
    if not isinstance(block, dict):
        reader.problems.append(f"decided must be an object, it is {block!r}")
        return None
    counts = block.get("counts", block)
    if not isinstance(counts, dict):
        reader.problems.append(f"decided.counts must be an object, it is {counts!r}")
        return None
    decided = reader.counts(counts, rules.objectives, "decided.", empty=True)
    for objective in rules.objectives:
        whole, part = row.get(objective.total), decided.get(objective.total)
        if whole is not None and part is not None and part > whole:
            reader.problems.append(f"decided.{objective.total} is {part}, above the {whole} items there are")
    if REJECTED_TOTAL in block:
        rejected = reader.count(block, REJECTED_TOTAL, "decided.")
        most = sum(row.get(objective.total, 0) for objective in rules.objectives)
        complete = all(objective.total in row for objective in rules.objectives)
        if complete and rejected is not None and rejected > most:
            reader.problems.append(f"decided.{REJECTED_TOTAL} is {rejected}, above the {most} items there are")
    else:
        rejected = sum(row.get(o.total, 0) - decided.get(o.total, 0) for o in rules.objectives)
    decided[REJECTED_TOTAL] = rejected or 0
    return decided


def _curve(reader: _Reader) -> tuple[tuple[float, ...], ...] | None:
    value = reader.source.get("gate_curve")
    if value is None:
        return None
    points: list[Any] = value if isinstance(value, list) else [None]
    if not all(isinstance(point, list) and point and all(map(_finite, point)) for point in points):
        reader.problems.append("gate_curve must be a list of points, each a list of finite numbers")
        return None
    return tuple(tuple(float(number) for number in point) for point in points)


def _band(reader: _Reader) -> tuple[float, float] | None:
    value = reader.source.get("reject_band")
    if value is None:
        return None
    if not (isinstance(value, list) and len(value) == 2 and all(map(_finite, value)) and value[0] <= value[1]):
        reader.problems.append(f"reject_band must be two finite numbers, low then high, it is {value!r}")
        return None
    return float(value[0]), float(value[1])

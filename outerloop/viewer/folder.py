"""`outerloop view DIR`: one folder or plan report, shown without a record.

Covered: a training's output folder (run.json), a slot, an attempt, a run's folder in the state folder (request and
events), a report of `outerloop plan --json`. Not covered: anything that only the record knows (jobs, queue).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from outerloop.controller.ledger import Ledger, LedgerEvent, TornEvent
from outerloop.controller.log_files import STREAMS, tail
from outerloop.job import layout
from outerloop.planner import PlanReport
from outerloop.printable import plain
from outerloop.slots import SlotDirectory, StateRoot
from outerloop.slots.files import MAX_JSON_BYTES, read_json
from outerloop.viewer.answers import json_answer, page
from outerloop.viewer.confined import readable
from outerloop.viewer.reports import METRICS, RANKS, REPORT, Training, read_outputs, read_slot
from outerloop.viewer.run_page import LOG_LINES, chosen_series, curves, machines, training_chart

__all__ = ["Folder", "folder_chart_json", "folder_json", "folder_page", "recognised"]


@dataclass(frozen=True)
class Folder:
    """What is shown: `kind` is training, slot, run or plan."""

    path: Path
    kind: str


@dataclass
class _Attempt:
    n: int
    claim: Mapping[str, Any]
    result: Mapping[str, Any]
    settled: Mapping[str, Any]


@dataclass
class _Found:
    """The folder's content at one look."""

    training: Training = field(default_factory=Training)
    spec: Mapping[str, Any] = field(default_factory=dict)
    attempts: list[_Attempt] = field(default_factory=list)
    request: Mapping[str, Any] = field(default_factory=dict)
    events: list[LedgerEvent] = field(default_factory=list)
    logs: list[tuple[str, str, bool]] = field(default_factory=list)
    plan: PlanReport | None = None
    notes: list[str] = field(default_factory=list)


def recognised(path: Path) -> Folder:
    """What kind of thing lies there. Raises ValueError with what can be shown instead."""
    where = path.resolve()
    if where.is_file():
        if _plan(where) is not None:
            return Folder(where, "plan")
        if where.name in {REPORT, METRICS}:
            return Folder(where.parent, "training")
        raise ValueError(f"{path} is no report of `outerloop plan --json`")
    if not where.is_dir():
        raise ValueError(f"there is no folder {path}")
    if (where / "request.json").is_file() or (where / "events").is_dir():
        return Folder(where, "run")
    if (where / layout.SPEC).is_file() or (where / layout.ATTEMPTS).is_dir():
        return Folder(where, "slot")
    if (where / layout.OUT).is_dir():
        return Folder(where / layout.OUT, "training")
    if any((where / name).exists() for name in (REPORT, METRICS, RANKS)):
        return Folder(where, "training")
    raise ValueError(
        f"{path} holds nothing to show: a training's output folder has run.json, a slot spec.json, a run request.json"
    )


def _plan(path: Path) -> PlanReport | None:
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            return None
        return PlanReport.model_validate(json.loads(path.read_bytes()))
    except (OSError, ValueError, RecursionError):
        return None


def _look(folder: Folder) -> _Found:
    path = folder.path
    found = _Found()
    if folder.kind == "plan":
        found.plan = _plan(path)
        if found.plan is None:
            found.notes.append("The report can no longer be read.")
    elif folder.kind == "run":
        _look_at_run(path, found)
    elif folder.kind == "slot":
        _look_at_slot(path, found)
    else:
        # The checkpoints of a slot lie beside its attempts; elsewhere they are where the script was told.
        state = next(
            (p / layout.STATE for p in path.parents[:4] if (p / layout.ATTEMPTS).is_dir()), path / layout.STATE
        )
        root = state.parent if state.is_dir() else path
        found.training = read_outputs([path], state, root)
        _logs(path.parent, path.parent, found)
    return found


def _look_at_run(path: Path, found: _Found) -> None:
    if readable(path / "request.json", path):
        found.request = read_json(path / "request.json") or {}
    if not found.request:
        found.notes.append("request.json cannot be read: what was asked is not known.")
    try:
        found.events = Ledger(StateRoot(path.parent.parent), path.name).read()
    except (TornEvent, ValueError) as error:
        found.notes.append(f"{error}.")


def _look_at_slot(path: Path, found: _Found) -> None:
    spec = read_json(path / layout.SPEC) if readable(path / layout.SPEC, path) else None
    if spec is None:
        found.notes.append("spec.json cannot be read: what was executed is not known.")
    found.spec = spec or {}
    directory = SlotDirectory(path, str(found.spec.get("digest") or path.name))
    for n in directory.attempt_numbers():
        bodies = [
            (read_json(directory.attempt(n) / name) if readable(directory.attempt(n) / name, path) else None) or {}
            for name in (layout.CLAIM, layout.RESULT, layout.SETTLED)
        ]
        found.attempts.append(_Attempt(n, *bodies))
    found.training = read_slot(directory)
    if found.attempts:
        restart = found.attempts[-1].claim.get("restart")
        newest = directory.logs(found.attempts[-1].n, restart if isinstance(restart, int) else 0)
        _logs(newest, path, found)


def _logs(folder: Path, root: Path, found: _Found) -> None:
    for name in STREAMS:
        if readable(folder / name, root):
            try:
                text, cut = tail(folder / name, LOG_LINES)
            except OSError:
                continue
            found.logs.append((name, text, cut))


def folder_page(request: Request) -> Response:
    folder: Folder = request.app.state.folder
    found = _look(folder)
    running = found.training.report.get("state") == "running" or any(not a.settled for a in found.attempts)
    return page(
        request,
        "plan.html" if folder.kind == "plan" and found.plan is not None else "folder.html",
        live=running,
        folder=folder,
        found=found,
        training=found.training,
        machines=machines(found.training),
        loss_names=curves(found.training),
        series=chosen_series(found.training, request.query_params.get("series", "")),
    )


def folder_json(request: Request) -> Response:
    found = _look(request.app.state.folder)
    if found.plan is not None:
        return json_answer(found.plan.model_dump(mode="json"))
    return json_answer(plain(found))


def folder_chart_json(request: Request) -> Response:
    name = request.path_params["chart"]
    if name not in {"loss", "memory"}:
        raise HTTPException(404, f"There is no chart {name}.")
    found = _look(request.app.state.folder)
    return json_answer(training_chart(found.training, name, request.query_params.get("series", "")))

"""The page of one run: its head, measures with jobs, the verdict's argument, the timeline, the end of its logs.

Covered: gathering what the template and the JSON show, and the charts of one run. Not covered: markup, other pages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from outerloop.climb import Verdict
from outerloop.climb.explain import sections
from outerloop.controller.argument import Argument, gather, looks_of, notes_of
from outerloop.controller.health import next_action
from outerloop.controller.history import usual_durations
from outerloop.controller.log_files import STREAMS, default_measure, log_files, tail
from outerloop.controller.sealing import WITHHELD, withheld_view
from outerloop.controller.shown import AttemptView, MeasureView, RunView
from outerloop.controller.timeline import attempt_state, base_revision, moved_base, timeline
from outerloop.controller.training_shown import TrainingFacts
from outerloop.controller.views import last_tick, one_run
from outerloop.printable import members
from outerloop.slots import SlotDirectory
from outerloop.viewer.answers import json_answer, page
from outerloop.viewer.charts import look_chart, loss_chart, memory_chart, pair_chart
from outerloop.viewer.confined import readable
from outerloop.viewer.reports import Training, read_slot
from outerloop.viewer.source import Looking

__all__ = ["chosen_series", "logs_page", "run_argument_json", "run_chart_json", "run_json", "run_logs_json", "run_page"]

LOG_LINES = 40
TRAINS = ("training", "entry")
"""Kinds whose processes report metrics and heartbeats."""
MOST_LOG_LINES = 5000
MOST_MEASURES = 200
MOST_EVENTS = 200
WIDTH = 96
"""Of the argument's tables, in characters."""


def _view(looking: Looking, run_id: str) -> RunView:
    view = one_run(looking.record, run_id)
    if view is None:
        raise HTTPException(404, f"There is no run {run_id} here.")
    return withheld_view(view)


@dataclass(frozen=True)
class _Argued:
    """The argument as paragraphs and tables under titles; `missing` says why there is none."""

    parts: tuple[tuple[str, tuple[str, ...]], ...] = ()
    notes: tuple[str, ...] = ()
    missing: str = ""
    argument: Argument | None = None


def _argued(looking: Looking, view: RunView) -> _Argued:
    if view.row.kind != "climb":
        return _Argued()
    if view.row.sealed:
        return _Argued(missing=WITHHELD)
    argument = gather(looking, view)
    notes = tuple(notes_of(argument))
    if view.evidence is None or argument.plan is None:
        return _Argued((), notes, argument.missing, argument)
    try:
        verdict = Verdict.from_json(view.evidence)
        told = sections(verdict, argument.plan, argument.readings, WIDTH)
    except (ValueError, TypeError, LookupError) as error:
        return _Argued((), notes, f"the verdict in the record can't be read: {str(error).splitlines()[0]}", argument)
    return _Argued(tuple((title, tuple(lines)) for title, lines in told), notes, "", argument)


@dataclass(frozen=True)
class _Log:
    """The end of one stream."""

    name: str
    text: str
    cut: bool
    bytes: int


def _logs(
    looking: Looking, view: RunView, role: str, number: int, lines: int
) -> tuple[MeasureView | None, AttemptView | None, list[_Log]]:
    measures = view.current or view.measures
    measure = next((m for m in measures if m.role == role), None) if role else default_measure(view)
    if role and measure is None:
        raise HTTPException(404, f"Run {view.row.id} has no measure {role}.")
    if measure is None or not measure.attempts:
        return measure, None, []
    attempt = next((a for a in measure.attempts if a.n == number), None) if number else measure.attempts[-1]
    if attempt is None:
        raise HTTPException(404, f"{measure.role} has no attempt {number}.")
    found: list[_Log] = []
    if view.row.sealed:
        return measure, attempt, found
    directory = SlotDirectory(looking.root.slot(measure.slot), measure.slot)
    for name, path in log_files(directory, attempt.n, STREAMS).items():
        if not readable(path, looking.root.path):
            continue
        try:
            text, cut = tail(path, lines)
            size = path.stat().st_size
        except OSError:
            continue
        if text or name in STREAMS[:2]:
            found.append(_Log(name, text, cut, size))
    return measure, attempt, found


def _training(looking: Looking, view: RunView, role: str) -> tuple[MeasureView | None, Training]:
    """The reports of one task: the asked one, else the first that has any."""
    if role:
        chosen = [m for m in view.current if m.role == role]
        if not chosen:
            raise HTTPException(404, f"Run {view.row.id} has no task {role}.")
    else:
        ran = [m for m in view.current if m.attempts]
        # of an entry its own trainings come before the evaluations of its opponent
        chosen = sorted(ran, key=lambda m: m.side != "candidate")[:8]
    found = Training()
    for measure in chosen:
        found = read_slot(SlotDirectory(looking.root.slot(measure.slot), measure.slot), view.now)
        if not found.empty:
            return measure, found
    return (chosen[0] if chosen else None), found


def machines(training: Training) -> dict[str, list[Any]]:
    """Ranks by machine, in the order of their first rank."""
    found: dict[str, list[Any]] = {}
    for rank in training.ranks:
        found.setdefault(rank.host, []).append(rank)
    return found


def run_page(request: Request) -> Response:
    source = request.app.state.source
    query = request.query_params
    with source.looking() as looking:
        view = _view(looking, request.path_params["run"])
        row = view.row
        action = next_action(view, last_tick(looking.record), cadence_seconds=looking.cadence_seconds)
        argued = _argued(looking, view)
        measure, attempt, logs = _logs(looking, view, query.get("role", ""), _count(query.get("attempt")), LOG_LINES)
        training, task, facts = Training(), None, None
        if row.kind in TRAINS:
            task, training = _training(looking, view, query.get("task", ""))
            facts = TrainingFacts(looking, view)
        usual = None
        if row.state != "ended":
            usual = usual_durations(looking.record, [(row.target, row.benchmark)]).get((row.target, row.benchmark))
    entries = timeline(view)
    measures = view.current or view.measures
    looks = looks_of(argued.argument) if argued.argument is not None else []
    climbed = {m.pair for m in measures if m.benchmark == row.benchmark and m.value is not None}
    return page(
        request,
        "run.html",
        live=row.state != "ended",
        view=view,
        row=row,
        action=action,
        usual=usual,
        measures=measures[:MOST_MEASURES],
        hidden_measures=max(0, len(measures) - MOST_MEASURES),
        jobs=sum(len(m.attempts) for m in view.measures),
        attempt_state=attempt_state,
        base_revision=base_revision(view),
        moved=moved_base(view),
        argued=argued,
        pairs=row.kind == "climb" and len(climbed) > 1,
        looks=looks,
        entries=entries[-MOST_EVENTS:],
        hidden_entries=max(0, len(entries) - MOST_EVENTS),
        log_measure=measure,
        log_attempt=attempt,
        logs=logs,
        task=task,
        training=training,
        facts=facts,
        machines=machines(training),
        loss_names=curves(training),
        series=chosen_series(training, query.get("series", "")),
        trains=row.kind in TRAINS,
    )


def chosen_series(training: Training, name: str) -> str:
    """The curve of this name, "" when the training has none: then its losses are shown."""
    return name if name in {series.name for series in training.series} else ""


def curves(training: Training) -> list[str]:
    """The curve that a training is judged by first: a loss if there is one; and its kin."""
    names = [series.name for series in training.series]
    losses = [name for name in names if "loss" in name.lower()]
    return losses[:4] or names[:1]


def logs_page(request: Request) -> Response:
    query = request.query_params
    lines = min(_count(query.get("lines")) or 500, MOST_LOG_LINES)
    with request.app.state.source.looking() as looking:
        view = _view(looking, request.path_params["run"])
        measure, attempt, logs = _logs(looking, view, query.get("role", ""), _count(query.get("attempt")), lines)
    return page(
        request,
        "logs.html",
        live=attempt is not None and attempt.live,
        row=view.row,
        measures=view.current or view.measures,
        measure=measure,
        attempt=attempt,
        attempt_state=attempt_state,
        logs=logs,
        lines=lines,
        most=MOST_LOG_LINES,
    )


def _count(text: str | None) -> int:
    """A positive number out of a query, 0 for none."""
    return int(text) if text and text.isdecimal() and len(text) < 10 else 0


# ------------------------------------------------------------------------------------------------ JSON


def run_json(request: Request) -> Response:
    with request.app.state.source.looking() as looking:
        view = _view(looking, request.path_params["run"])
        action = next_action(view, last_tick(looking.record), cadence_seconds=looking.cadence_seconds)
        training = TrainingFacts(looking, view).as_json() if view.row.kind in TRAINS else None
    told = [{"at": at, "what": what} for at, what in timeline(view)]
    return json_answer({**members(view), "next": action, "timeline": told, "training": training})


def run_argument_json(request: Request) -> Response:
    with request.app.state.source.looking() as looking:
        view = _view(looking, request.path_params["run"])
        argued = _argued(looking, view)
    argument = argued.argument
    return json_answer(
        {
            "run": view.row.id,
            "state": view.row.state,
            "verdict": view.evidence,
            "sentence": view.row.sentence,
            "argument": [{"title": title, "lines": lines} for title, lines in argued.parts],
            "notes": argued.notes,
            "missing": argued.missing,
            "looks": [] if argument is None else looks_of(argument),
            "readings": {} if argument is None else argument.readings,
        }
    )


def run_logs_json(request: Request) -> Response:
    query = request.query_params
    lines = min(_count(query.get("lines")) or LOG_LINES, MOST_LOG_LINES)
    with request.app.state.source.looking() as looking:
        view = _view(looking, request.path_params["run"])
        measure, attempt, logs = _logs(looking, view, query.get("role", ""), _count(query.get("attempt")), lines)
    return json_answer(
        {
            "run": view.row.id,
            "role": None if measure is None else measure.role,
            "attempt": attempt,
            "streams": {log.name: {"text": log.text, "cut": log.cut, "bytes": log.bytes} for log in logs},
        }
    )


def run_chart_json(request: Request) -> Response:
    """/api/charts/runs/RUN/{pairs,looks,loss,memory}."""
    name, query = request.path_params["chart"], request.query_params
    with request.app.state.source.looking() as looking:
        view = _view(looking, request.path_params["run"])
        if name == "pairs":
            measures = view.current or view.measures
            return json_answer(pair_chart(measures, view.row.benchmark, _metric(view.evidence)))
        if name == "looks":
            number = view.row.round
            events = [e.body for e in view.events if e.kind == "look" and e.body.get("round") == number]
            return json_answer(look_chart([dict(body) for body in events]))
        if name in {"loss", "memory"}:
            _task, training = _training(looking, view, query.get("task", ""))
            return json_answer(training_chart(training, name, query.get("series", "")))
    raise HTTPException(404, f"There is no chart {name}.")


def _metric(evidence: Any) -> str:
    """The metric's name in a verdict; "" where the verdict has another shape."""
    for key in ("findings", "climbed", "metric"):
        evidence = evidence.get(key) if isinstance(evidence, Mapping) else None
    return evidence if isinstance(evidence, str) else ""


def training_chart(training: Training, name: str, series: str) -> dict[str, Any]:
    """The loss or memory chart of a training; `series` is one curve's name instead of the losses."""
    if name == "memory":
        return memory_chart(training.ranks)
    return loss_chart(training.series, [series] if series else curves(training))

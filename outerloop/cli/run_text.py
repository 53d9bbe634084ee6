"""What `outerloop show` prints of one run.

Covered: the head, measures, jobs and the commands to go on, as text and as JSON. Not covered: asking the record
(controller.views), the timeline's sentences (controller.timeline), the argument behind a verdict (explaining.py).
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from outerloop.cli.entry_text import entry_head
from outerloop.cli.text import Columns, Hanging, clock, moment, one_line, plain
from outerloop.cli.training_text import training_lines
from outerloop.climb.text import number
from outerloop.controller.timeline import attempt_state, base_revision, moved_base, timeline

if TYPE_CHECKING:
    from rich.console import Group

    from outerloop.controller.health import NextAction
    from outerloop.controller.training_shown import TrainingFacts
    from outerloop.controller.views import AttemptView, MeasureView, RunView

__all__ = ["run_json", "run_text"]

MOST_MEASURES = 24
MOST_JOBS = 24
MOST_EVENTS = 20
_SHORT_COMMIT = 12


def run_json(view: RunView, action: NextAction, training: TrainingFacts | None = None) -> dict[str, Any]:
    """Everything, for programs."""
    return {
        **({} if training is None else {"training": training.as_json()}),
        **plain(view.row),
        "now": plain(view.now),
        "next": plain(action),
        "waits_for": [attempt.job_id for attempt in view.waits_for],
        "measures_detail": plain(view.measures),
        "events": plain(view.events),
        "wakes": plain(view.wakes),
        "request": plain(view.request),
        "evidence": plain(view.evidence),
    }


def run_text(view: RunView, action: NextAction, *, everything: bool, training: TrainingFacts | None = None) -> Group:
    """The run as text; without `everything` long lists are cut, which is said."""
    from rich.console import Group
    from rich.text import Text

    def section(title: str) -> list[Any]:
        return [Text(), Text(title, style="bold")]

    parts: list[Any] = [Hanging(prefix, text) for prefix, text in _head(view, action)]
    if training is not None and training.reports:
        parts += section("Reported by its processes")
        parts += [Hanging(prefix, one_line(text)) for prefix, text in training_lines(training)]
    measures = view.measures if everything else view.current
    tasks = view.row.kind == "training"
    if tasks:
        measures = tuple(sorted(measures, key=lambda measure: measure.role))
    if measures:
        rounds = f", round {view.row.round + 1}" if view.row.round and not everything else ""
        title = "Handed out" if view.row.kind == "campaign" else f"Measures{rounds}"
        parts += section(_tasks_title(measures) if tasks else title)
        shown = measures if everything else _most_telling_measures(measures) if tasks else measures[:MOST_MEASURES]
        parts.append(_measures(shown))
        parts += [Hanging("  ", detail) for detail in _details(shown)]
        if len(shown) < len(measures):
            parts.append(Text(f"  … and {len(measures) - len(shown)} more; --all shows them"))
    jobs = [(measure, attempt) for measure in measures for attempt in measure.attempts]
    if jobs:
        parts += section("Jobs")
        kept = jobs if everything else _most_telling(jobs)
        parts.append(_jobs(kept))
        if len(kept) < len(jobs):
            parts.append(Text(f"  … and {len(jobs) - len(kept)} more; --all shows them"))
        if any(attempt.live and attempt.cancel_reason for _, attempt in jobs):
            parts.append(Hanging("  ", "cancelling: asked of the cluster; the next tick sees whether the job is gone"))
    entries = timeline(view)
    parts += section("Timeline")
    if not everything and len(entries) > MOST_EVENTS:
        parts.append(Text(f"  … {len(entries) - MOST_EVENTS} earlier entries; --all shows them"))
        entries = entries[-MOST_EVENTS:]
    parts += [Hanging(f"  {clock(at)}  ", one_line(sentence)) for at, sentence in entries]
    if view.row.last_error:
        parts += section("Last error")
        parts += [Text(f"  {one_line(line)}") for line in view.row.last_error.strip().splitlines()[-3:]]
    parts += section("Go on with")
    commands = list(_commands(view))
    width = max(32, *(len(command) for command, _ in commands))
    parts += [Text(f"  {command:<{width}} {what}") for command, what in commands]
    return Group(*parts)


def _head(view: RunView, action: NextAction) -> Iterator[tuple[str, str]]:
    row, request = view.row, view.request
    if row.kind == "training":
        yield "run ", f"{row.id}: training {one_line(row.benchmark)} of {one_line(row.target)}"
        yield "  tree       ", f"{row.candidate_commit[:_SHORT_COMMIT]}  {one_line(row.label)}"
        yield "  launch     ", _launch(request)
    elif row.kind == "campaign":
        yield "run ", f"{row.id}: campaign {one_line(row.benchmark)} of {one_line(row.target)}"
        yield "  tree       ", f"{row.candidate_commit[:_SHORT_COMMIT]}  {one_line(row.label)}"
    elif row.kind == "entry":
        yield from entry_head(view)
    else:
        yield "run ", f"{row.id}: {row.kind} on {one_line(row.benchmark)} of {one_line(row.target)}"
        yield "  candidate  ", f"{row.candidate_commit[:_SHORT_COMMIT]}  {one_line(row.label)}"
        yield "  base       ", f"{row.base_commit[:_SHORT_COMMIT]}  {moved_base(view) or base_revision(view)}"
    again = f", asking number {row.ask + 1}" if row.ask else ""
    yield "  asked      ", f"{moment(row.created_at)} by {one_line(row.submitter)}{again}"
    if row.state == "ended":
        yield "  ended      ", moment(row.ended_at)
        sentence = one_line(row.sentence or "")
        if not sentence.startswith(str(row.verdict)):
            sentence = f"{row.verdict}: {sentence}" if sentence else str(row.verdict)
        yield "  verdict    ", sentence
        return
    reason = f" ({row.state_reason})" if row.state_reason else ""
    detail = f": {one_line(row.state_detail)}" if row.state_detail else ""
    yield "  state      ", f"{row.state}{reason}{detail}"
    yield "  next       ", action.sentence
    if action.command:
        yield "             ", action.command


def _launch(request: Mapping[str, Any]) -> str:
    tasks = request.get("tasks") or [{}]
    several = f"{len(tasks)} tasks, " if len(tasks) > 1 else ""
    argv = shlex.join((tasks[0].get("launch") or {}).get("argv") or [])
    lane = (request.get("execution") or {}).get("lane", {}).get("name") or ""
    nodes = int(request.get("nodes") or 1)
    where = f"{nodes} node{'s' if nodes > 1 else ''}" + (f" of lane {lane}" if lane else "")
    return one_line(f"{several}{request.get('family')} on {where}: {argv}")


def _state(measure: MeasureView) -> str:
    last = measure.newest
    if measure.state == "done":
        return "built" if measure.kind == "environment" else "done"
    if measure.state in {"failed", "exhausted"}:
        return f"{measure.state} {measure.reason}"
    return attempt_state(last) if last is not None and last.live else "open"


def _tasks_title(tasks: Sequence[MeasureView]) -> str:
    """How many of several tasks stand how, the most frequent first."""
    if len(tasks) == 1:
        return "Tasks"
    counts = Counter(_state(task) for task in tasks)
    return "Tasks: " + ", ".join(f"{count} {state}" for state, count in counts.most_common())


def _most_telling_measures(measures: Sequence[MeasureView]) -> Sequence[MeasureView]:
    """At most MOST_MEASURES: troubled ones, then those under way, before those that are done; in their old order."""
    troubled = {"failed", "exhausted"}
    order = sorted(
        range(len(measures)), key=lambda i: (measures[i].state not in troubled, measures[i].state == "done", i)
    )
    return [measures[i] for i in sorted(order[:MOST_MEASURES])]


def _measures(measures: Sequence[MeasureView]) -> Any:
    rows = []
    for measure in measures:
        rows.append(
            [
                measure.role,
                _state(measure),
                "" if measure.value is None else _value(measure.value),
                str(measure.seed) if measure.seed else "",
                f"{measure.attempts_counted}/{measure.attempts_allowed}" if measure.attempts_counted else "",
                measure.slot[:_SHORT_COMMIT],
            ]
        )
    return Columns(
        ["ROLE", "STATE", "VALUE", "SEED", "LOST", "SLOT"], rows, right=["VALUE", "SEED"], give="ROLE", indent=2
    )


def _value(value: object) -> str:
    """A measure's value as people read it; --json has every digit."""
    try:
        return number(Decimal(str(value)))
    except InvalidOperation:
        return one_line(str(value))


def _details(measures: Sequence[MeasureView]) -> Iterator[str]:
    for measure in measures:
        if measure.state in {"failed", "exhausted"} and measure.detail:
            yield f"{measure.role}: {one_line(measure.detail)}"


def _most_telling(
    jobs: Sequence[tuple[MeasureView, AttemptView]],
) -> list[tuple[MeasureView, AttemptView]]:
    """At most MOST_JOBS: live ones and troubled ones before those that simply ended, in their old order."""
    order = sorted(range(len(jobs)), key=lambda i: (not jobs[i][1].live, jobs[i][1].outcome == "done", i))[:MOST_JOBS]
    return [jobs[i] for i in sorted(order)]


def _jobs(jobs: Sequence[tuple[MeasureView, AttemptView]]) -> Any:
    rows = [
        [
            measure.role,
            str(attempt.n),
            attempt.job_id or "",
            attempt_state(attempt),
            attempt.node,
            clock(attempt.submitted_at or attempt.intent_at),
            _took(attempt),
        ]
        for measure, attempt in jobs
    ]
    heads = ["ROLE", "TRY", "JOB", "STATE", "NODE", "SUBMITTED", "TOOK"]
    return Columns(heads, rows, right=["TRY", "TOOK"], give="ROLE", indent=2)


def _took(attempt: AttemptView) -> str:
    from outerloop.controller.health import age

    if attempt.settled_at is None:
        return ""
    return age((attempt.settled_at - (attempt.submitted_at or attempt.intent_at)).total_seconds())


def _commands(view: RunView) -> Iterator[tuple[str, str]]:
    row = view.row
    if row.kind == "campaign":
        yield f"outerloop campaign status {row.id}", "generation, champion, jobs"
        yield f"outerloop campaign events {row.id}", "everything that happened"
    else:
        yield f"outerloop explain {row.id}", "every number behind it"
    if any(measure.attempts for measure in view.measures):
        yield f"outerloop logs {row.id}", "what the measures printed"
    if row.state == "blocked":
        yield f"outerloop retry {row.id}", "when the cause is gone"
    if row.state != "ended":
        yield f"outerloop cancel {row.id}", "give it up"
    else:
        yield f"outerloop verify {row.id}", "recompute it from the slots"

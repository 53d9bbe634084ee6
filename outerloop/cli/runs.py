"""Commands that only look at runs: status, show, explain, logs, champions.

Covered: options of the first two and of champions, and the text of status and champions. Not covered: the questions
(controller.views), show's text (run_text.py), explain (argument.py), logs (logs.py).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from outerloop.cli import service_client
from outerloop.cli.common import console, emit_json, explained, json_option, notes
from outerloop.cli.errors import CliError, ExitCode
from outerloop.cli.explaining import explain
from outerloop.cli.logs import logs
from outerloop.cli.numbers import Whole
from outerloop.cli.reading import NoRecord, reading
from outerloop.cli.service_client import the_client
from outerloop.cli.text import Columns, Hanging, folded, moment, one_line, plain
from outerloop.controller.reuse_text import reuse_sentences

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console, Group

    from outerloop.cli.reading import Reader
    from outerloop.controller.health import Problem
    from outerloop.controller.views import ChampionView, QueueView, ReuseView, RunFilter, RunPage, RunRow, TickView

__all__ = ["champions", "explain", "logs", "show", "status"]

WATCH_SECONDS = 2.0
"""Between two looks of --watch: a question to the record only, the cluster is not asked."""
LAST_VERDICTS = 10
LIMIT = 50
_SHORT_COMMIT = 12
MOST_STEPS_SHOWN = 5
"""Trainings whose own reports one look reads from disk."""
_STYLES = {"accepted": "green", "finished": "green", "rejected": "yellow", "failed": "red", "cancelled": "dim"}


class _Seen:
    """One look at everything that status shows."""

    def __init__(self, reader: Reader, wanted: RunFilter, *, open_: bool, ended: int, limit: int, offset: int) -> None:
        from dataclasses import replace

        from outerloop.controller import health, views
        from outerloop.controller.unrecorded import damaged_requests, unrecorded_runs

        nothing = views.RunPage((), 0, offset, reader.record.now())
        states = [state for state in wanted.states if state != "ended"]
        self.tick: TickView | None = views.last_tick(reader.record)
        self.queue: tuple[QueueView, ...] = views.queue(reader.record)
        seen = views.overview(reader.record)
        self.now = seen.now
        self.open: RunPage = nothing
        if open_:
            asked = replace(wanted, states=tuple(states or views.OPEN_STATES))
            self.open = views.runs(reader.record, asked, limit=limit, offset=offset)
        self.groups = health.groups(self.open.runs)
        self.ends = self._ends(reader)
        self.steps = self._steps(reader)
        self.ended: RunPage = nothing
        if ended:
            self.ended = views.runs(
                reader.record, replace(wanted, states=("ended",)), limit=ended, offset=0 if open_ else offset
            )
        shown = [run.id for run in (*self.open.runs, *self.ended.runs)]
        self.problem: Problem = health.worst_problem(
            seen,
            self.tick,
            self.queue,
            cadence_seconds=reader.settings.wake.cadence_seconds,
            unrecorded=unrecorded_runs(reader.record, reader.root),
            # A file a run that is shown: a status of ten thousand runs stays quick, doctor looks at all of them.
            damaged=damaged_requests(reader.root, shown),
        )

    def _ends(self, reader: Reader) -> dict[str, str]:
        """By run: when it usually would end, after what runs of its benchmark took before."""
        from outerloop.controller import health, history

        moving = [run for run in self.open.runs if run.state in ("queued", "waiting")]
        usual = history.usual_durations(reader.record, {(run.target, run.benchmark) for run in moving})
        told = {}
        for run in moving:
            known = usual.get((run.target, run.benchmark))
            if known is not None:
                waited = (self.now - run.created_at).total_seconds()
                told[run.id] = health.expected_end(waited, known.median, known.p90)
        return told

    def _steps(self, reader: Reader) -> dict[str, str]:
        """By run: how far its running stages say that they are, for the first few that train."""
        training = [run for run in self.open.runs if run.kind in {"training", "entry"} and run.jobs.get("running")]
        if not training:
            return {}
        from outerloop.controller.training_shown import stage_progress
        from outerloop.controller.views import one_run

        told = {}
        for run in training[:MOST_STEPS_SHOWN]:
            view = one_run(reader.record, run.id)
            if view is not None and (steps := stage_progress(reader, view)):
                told[run.id] = steps
        return told

    def as_json(self) -> dict[str, Any]:
        return {
            "problem": plain(self.problem),
            "now": plain(self.now),
            "tick": plain(self.tick),
            "queue": plain(self.queue),
            "groups": plain(self.groups),
            "ends": self.ends,
            "steps": self.steps,
            "open": self.open.total,
            "verdicts": plain(self.ended.runs),
            "ended": self.ended.total,
        }


@click.command("status", help="Runs, what each waits for, and the last verdicts.")
@click.option("--watch", "-w", is_flag=True, help="Stay and look again every 2 seconds, until Ctrl-C.")
@click.option("--all", "-a", "everything", is_flag=True, help="Ended runs too, as many as --limit.")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(["queued", "waiting", "blocked", "ended"]),
    help="Only runs in this state; repeatable.",
)
@click.option("--target", default="", help="Only runs of targets whose name contains this.")
@click.option("--benchmark", default="", help="Only runs of this benchmark.")
@click.option("--find", "text", default="", help="Only runs with this text in id, label, target or benchmark.")
@click.option("--limit", type=Whole(1, 1000), default=LIMIT, show_default=True, help="Runs to show.")
@click.option("--offset", type=Whole(0), default=0, help="Skip so many runs.")
@json_option
def status(
    watch: bool,
    everything: bool,
    states: tuple[str, ...],
    target: str,
    benchmark: str,
    text: str,
    limit: int,
    offset: int,
    as_json: bool,
) -> None:
    if watch and as_json:
        raise CliError("--watch shows a picture, --json prints once: use one of them")
    out = console()
    if watch and not out.is_terminal:
        notes(["--watch needs a terminal; this is one look"])
        watch = False

    def look(reader: Reader) -> _Seen:
        from outerloop.controller.views import RunFilter

        ended_wanted = not states or "ended" in states
        return _Seen(
            reader,
            RunFilter(states=states, target=target, benchmark=benchmark, text=text),
            open_=not states or bool(set(states) - {"ended"}),
            ended=0 if not ended_wanted else limit if everything or "ended" in states else min(LAST_VERDICTS, limit),
            limit=limit,
            offset=offset,
        )

    if (client := the_client()) is not None:
        with explained():
            service_client.status(client, as_json=as_json)
        return
    filtered = bool(states or target or benchmark or text)
    try:
        with reading() as reader:
            if not watch:
                seen = look(reader)
                if as_json:
                    emit_json(seen.as_json())
                else:
                    out.print(_status_text(seen, filtered=filtered))
                return
            _watch(lambda: _status_text(look(reader), filtered=filtered), out)
    except NoRecord as nothing:
        if as_json:
            emit_json({"problem": {"kind": "empty", "sentence": nothing.message, "command": "outerloop init"}})
            return
        click.echo(folded(nothing.message))
    except KeyboardInterrupt:
        if not watch:
            raise


def _watch(picture: Callable[[], Group], out: Console) -> None:
    """Look again and again. A record that is away for a while is said, below what was seen last."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from outerloop.record.store import RecordUnavailable

    last = picture()
    with Live(last, console=out, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(WATCH_SECONDS)
            try:
                last = picture()
                live.update(last, refresh=True)
            except RecordUnavailable as error:
                away = Text(f"the record does not answer: {one_line(str(error))}", "bold red")
                live.update(Group(last, Text(), away), refresh=True)


def _status_text(seen: _Seen, *, filtered: bool) -> Group:
    from rich.console import Group
    from rich.text import Text

    style = "bold red" if seen.problem.kind else "green"
    parts: list[Any] = [Hanging("", one_line(seen.problem.sentence), style)]
    if seen.problem.command:
        parts.append(Text(f"  {seen.problem.command}"))
    for group in seen.groups:
        parts += [Text(), Hanging("", f"{group.heading} ({len(group.runs)})", "bold")]
        parts.append(_open_table(group.runs, seen))
        for run in group.runs:
            if run.id in seen.steps:
                parts.append(Hanging(f"  {run.id}: ", one_line(seen.steps[run.id])))
            if run.state == "blocked":
                parts.append(Hanging(f"  {run.id}: ", f"{run.state_reason}: {one_line(run.state_detail)}"))
    if len(seen.open.runs) < seen.open.total:
        parts.append(Text(f"  {len(seen.open.runs)} of {seen.open.total} open runs; --limit and --offset show others"))
    if seen.queue:
        parts += [Text(), Text("Queue by reason", style="bold"), _queue_table(seen)]
    if seen.ended.runs:
        parts += [Text(), Text("Last verdicts", style="bold"), _ended_table(seen)]
        if len(seen.ended.runs) < seen.ended.total:
            parts.append(Text(f"  {len(seen.ended.runs)} of {seen.ended.total}; --all --limit N shows more"))
    if not seen.open.runs and not seen.ended.runs:
        parts.append(Text())
        if filtered:
            parts.append(Text("No run fits. `outerloop status --all` lists every run."))
        else:
            parts.append(Text("Ask for a first verdict in a target's clone: outerloop submit climb BENCHMARK"))
    return Group(*parts)


def _since(then: Any, now: Any) -> str:
    from outerloop.controller.health import age

    return "-" if then is None else age((now - then).total_seconds())


def _jobs(run: RunRow) -> str:
    parts = []
    for state, count in sorted(run.jobs.items()):
        why = f" ({', '.join(sorted(run.pending))})" if state == "pending" and run.pending else ""
        parts.append(f"{count} {state}{why}")
    return ", ".join(parts)


def _open_table(runs: tuple[RunRow, ...], seen: _Seen) -> Any:
    rows = [
        [
            run.id,
            run.benchmark,
            f"{run.done}/{run.measures}" if run.measures else "-",
            _since(run.created_at, seen.now),
            seen.ends.get(run.id, ""),
            _jobs(run),
            run.label or run.candidate_commit[:_SHORT_COMMIT],
        ]
        for run in runs
    ]
    heads = ["RUN", "BENCHMARK", "DONE", "AGE", "ENDS", "JOBS", "CANDIDATE"]
    return Columns(heads, rows, right=["DONE", "AGE"], give="CANDIDATE", indent=2)


def _queue_table(seen: _Seen) -> Any:
    rows = [[group.state, group.reason, str(group.jobs), str(group.runs)] for group in seen.queue]
    return Columns(["STATE", "REASON", "JOBS", "RUNS"], rows, right=["JOBS", "RUNS"], give="REASON", indent=2)


def _ended_table(seen: _Seen) -> Any:
    rows = [
        [
            run.id,
            run.benchmark,
            f"{run.verdict}: {run.verdict_reason}" if run.verdict_reason else str(run.verdict),
            f"{_since(run.ended_at, seen.now)} ago",
            run.label or run.candidate_commit[:_SHORT_COMMIT],
        ]
        for run in seen.ended.runs
    ]
    return Columns(
        ["RUN", "BENCHMARK", "VERDICT", "ENDED", "CANDIDATE"],
        rows,
        give="CANDIDATE",
        indent=2,
        styles={"VERDICT": [_STYLES.get(run.verdict or "", "") for run in seen.ended.runs]},
    )


@click.command("show", help="One run: its measures, jobs and timeline. RUN is an id or the beginning of one.")
@click.argument("run")
@click.option("--all", "-a", "everything", is_flag=True, help="Every measure, job and event, of all rounds.")
@json_option
def show(run: str, everything: bool, as_json: bool) -> None:
    from outerloop.cli.run_text import run_json, run_text

    if (client := the_client()) is not None:
        service_client.show(client, run, as_json=as_json)
        return
    with reading() as reader:
        from outerloop.controller.health import next_action
        from outerloop.controller.operate import find_run
        from outerloop.controller.views import last_tick, one_run

        view = one_run(reader.record, find_run(reader, run).id)
        if view is None:
            raise CliError(f"run {run} was removed a moment ago", ExitCode.NOT_FOUND)
        action = next_action(view, last_tick(reader.record), cadence_seconds=reader.settings.wake.cadence_seconds)
        training = None
        if view.row.kind in {"training", "entry"}:
            from outerloop.controller.training_shown import training_facts

            training = training_facts(reader, view)
        if as_json:
            emit_json(run_json(view, action, training))
        else:
            console().print(run_text(view, action, everything=everything, training=training))


@click.command("champions", help="The best accepted candidates and how they came about, newest first.")
@click.argument("benchmark", required=False, default="")
@click.option("--target", default="", help="Only targets whose name contains this.")
@click.option("--limit", type=Whole(1, 10_000), default=200, show_default=True, help="Champions to show.")
@json_option
def champions(benchmark: str, target: str, limit: int, as_json: bool) -> None:
    try:
        with reading() as reader:
            from outerloop.controller import views

            found = views.champions(reader.record, benchmark, target=target, limit=limit)
            reused = views.reuse(reader.record, benchmark, target=target)
            if benchmark and not found and not target:
                _say_which(reader, benchmark)
    except NoRecord as nothing:
        if as_json:
            emit_json([])
            return
        click.echo(folded(nothing.message))
        return
    if as_json:
        by_line = {(r.target, r.benchmark, r.definition): r for r in reused}
        emit_json([plain(c) | {"reuse": plain(by_line.get((c.target, c.benchmark, c.definition)))} for c in found])
        return
    if not found:
        click.echo("There is no champion yet. The first accepted climb against the default branch\nmakes one.")
        return
    _print_champions(found, {(r.target, r.benchmark, r.definition): r for r in reused})


def _say_which(reader: Reader, benchmark: str) -> None:
    """Raise when nobody ever asked about this benchmark, with the nearest that somebody did."""
    from outerloop.controller import views

    if views.runs(reader.record, views.RunFilter(benchmark=benchmark), limit=1).total:
        return
    import difflib

    known = views.benchmarks(reader.record)
    near = difflib.get_close_matches(benchmark, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known) or 'none yet'}"
    raise CliError(f"no run was ever asked about the benchmark {benchmark}; {hint}", ExitCode.NOT_FOUND)


def _figure(text: str) -> str:
    """A recorded value as a table shows it: a metric of -1e308 makes gains of 309 digits."""
    from decimal import Decimal, InvalidOperation

    from outerloop.climb.text import number

    try:
        return number(Decimal(text))
    except InvalidOperation:
        return text


def _print_champions(found: tuple[ChampionView, ...], reused: dict[tuple[str, str, str], ReuseView]) -> None:
    out = console()
    lines: dict[tuple[str, str, str], list[ChampionView]] = {}
    for champion in found:
        lines.setdefault((champion.target, champion.benchmark, champion.definition), []).append(champion)
    seen: set[tuple[str, str]] = set()
    for position, ((target, benchmark, definition), members) in enumerate(lines.items()):
        if position:
            out.print()
        older = (target, benchmark) in seen
        seen.add((target, benchmark))
        what = f"  (an earlier definition, {definition[:_SHORT_COMMIT]})" if older else ""
        out.print(f"{one_line(benchmark)} of {one_line(target)}{what}", style="bold", markup=False)
        out.print(
            Columns(
                ["", "VALUE", "GAIN", "COMMIT", "RUN", "ACCEPTED", "CANDIDATE"],
                [
                    [
                        str(c.seq),
                        _figure(c.value),
                        _figure(c.gain),
                        c.commit[:_SHORT_COMMIT],
                        c.run_id,
                        moment(c.accepted_at)[:16],
                        c.label,
                    ]
                    for c in members
                ],
                right=["", "VALUE", "GAIN"],
                give="CANDIDATE",
            )
        )
        reuse = reused.get((target, benchmark, definition))
        if reuse is not None:
            for sentence in reuse_sentences(reuse.decisions, fresh_seeds=reuse.fresh_seeds):
                out.print(Hanging("", sentence))

"""`outerloop explain`: the argument behind a verdict, or what is known so far and what is missing.

Covered: the argument with the facts of the cluster, seed by seed and job by job, and the notes on how far a verdict
can be trusted. Not covered: the argument itself (climb.explain), recomputing it (`outerloop verify`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import click

from outerloop.cli import service_client
from outerloop.cli.common import emit_json, json_option
from outerloop.cli.entry_text import entry_argument
from outerloop.cli.errors import CliError, ExitCode
from outerloop.cli.reading import reading
from outerloop.cli.service_client import the_client
from outerloop.cli.text import Columns, folded, harmless, moment, one_line, plain
from outerloop.cli.training_text import training_argument

if TYPE_CHECKING:
    from outerloop.cli.reading import Reader
    from outerloop.controller.argument import Argument
    from outerloop.controller.views import MeasureView, RunView

__all__ = ["explain"]

WIDTH = 80
_KNOWN = ("done", "failed")
"""States of a slot that say something about the candidate or the base."""


@click.command("explain", help="Every number behind RUN's verdict, or what is known so far and what is missing.")
@click.argument("run")
@json_option
def explain(run: str, as_json: bool) -> None:
    if (client := the_client()) is not None:
        service_client.explain(client, run, as_json=as_json)
        return
    with reading() as reader:
        view = _view(reader, run)
        if view.row.kind in {"training", "entry"}:
            from outerloop.controller.training_shown import training_facts

            facts = training_facts(reader, view)
            if as_json:
                emit_json({**plain(view.row), "evidence": plain(view.evidence), "training": facts.as_json()})
            else:
                argument_of = entry_argument if view.row.kind == "entry" else training_argument
                click.echo(harmless("\n".join(argument_of(view, facts))))
            return
        if view.row.kind == "campaign":
            told = f"what happened in a campaign stands in its ledger: outerloop campaign events {view.row.id}"
            raise CliError(f"{told}, outerloop campaign front {view.row.id}")
        from outerloop.controller.argument import gather

        argument = gather(reader, view)
        if as_json:
            emit_json(_json(argument))
        else:
            click.echo("\n".join(_text(reader, argument)))


def _view(reader: Reader, run: str) -> RunView:
    from outerloop.controller.operate import find_run
    from outerloop.controller.views import one_run

    view = one_run(reader.record, find_run(reader, run).id)
    if view is None:
        raise CliError(f"run {run} was removed a moment ago", ExitCode.NOT_FOUND)
    return view


# text


def _text(reader: Reader, argument: Argument) -> Iterator[str]:
    from outerloop.climb import Verdict
    from outerloop.climb.explain import render
    from outerloop.controller.argument import notes_of
    from outerloop.controller.timeline import moved_base

    view, row = argument.view, argument.view.row
    yield f"run {row.id}: {one_line(row.benchmark)} of {one_line(row.target)}"
    yield folded(row.label, WIDTH, prefix=f"candidate {row.candidate_commit[:12]}  ")
    moved = moved_base(view)
    yield (
        folded(moved, WIDTH, prefix=f"base      {row.base_commit[:12]}  ")
        if moved
        else f"base      {row.base_commit[:12]}"
    )
    yield ""
    verdict = Verdict.from_json(view.evidence) if view.evidence is not None else None
    if argument.damaged:
        yield "Its files no longer support this: the record remembers what they said when"
        yield f"they were accepted, and `outerloop verify {row.id}` compares them"
        for line in argument.damaged:
            yield from _wrapped(line, "  ")
        yield ""
    if verdict is not None and argument.plan is not None:
        yield harmless(render(verdict, argument.plan, argument.readings, WIDTH))
    elif verdict is not None:
        yield from _wrapped(verdict.sentence)
        if verdict.findings.failures:
            yield ""
            yield "Failed"
            for failure in verdict.findings.failures:
                yield from _wrapped(f"{failure.role}: {failure.code}: {failure.detail}", "  ")
        if argument.missing and verdict.reason != "scope":
            yield ""
            yield from _wrapped(f"The rest of the argument is missing: {argument.missing}.")
    else:
        yield from _so_far(reader, argument)
    if view.current:
        yield ""
        yield "Where it ran"
        yield from _cluster_facts(view)
    told = notes_of(argument)
    if told:
        yield ""
        yield "How far to trust it"
        for note in told:
            yield from _wrapped(note, "  ")
    yield ""
    yield f"Go on with: outerloop show {row.id}" + (f", outerloop verify {row.id}" if verdict is not None else "")


def _wrapped(text: str, indent: str = "") -> list[str]:
    return folded(text, WIDTH, indent).splitlines() or [""]


def _so_far(reader: Reader, argument: Argument) -> Iterator[str]:
    """A run without verdict: why, what is there, what is missing, what comes next."""
    from outerloop.controller.health import next_action
    from outerloop.controller.views import last_tick

    view, row = argument.view, argument.view.row
    if row.verdict == "cancelled":
        yield from _wrapped(f"Cancelled on {moment(row.ended_at)}: {row.sentence}. There is no verdict.")
    elif row.state == "blocked":
        yield from _wrapped(f"No verdict yet. The run is blocked ({row.state_reason}): {row.state_detail}")
    else:
        why = f": {row.state_detail}" if row.state_detail else ""
        yield from _wrapped(f"No verdict yet. The run is {row.state}{why}.")
    if argument.missing and row.state != "queued":
        yield from _wrapped(f"The rule can't be shown: {argument.missing}.")
    if argument.plan is not None:
        from outerloop.climb.explain import rule_phrase

        climbed = argument.plan.climbed
        yield ""
        yield "Asked"
        better = "lower" if climbed.direction == "min" else "higher"
        yield from _wrapped(f"Does the candidate make {climbed.metric} of {climbed.name} {better}?", "  ")
        yield from _wrapped(f"Rule: {rule_phrase(climbed.rule)}.", "  ")
    yield from _path_so_far(argument)
    known = [measure for measure in view.current if measure.state in _KNOWN]
    missing = [measure for measure in view.current if measure.state not in _KNOWN]
    if view.current:
        yield ""
        yield f"Known so far: {len(known)} of {len(view.current)} measures"
        for measure in known:
            yield from _wrapped(f"{measure.role}: {_outcome(measure)}", "  ")
    if missing:
        yield ""
        yield "Missing"
        for measure in missing:
            yield from _wrapped(f"{measure.role}: {_why_missing(measure)}", "  ")
    if row.state != "ended":
        action = next_action(view, last_tick(reader.record), cadence_seconds=reader.settings.wake.cadence_seconds)
        yield ""
        yield "Next"
        yield from _wrapped(action.sentence, "  ")
        if action.command:
            yield f"  {action.command}"


def _path_so_far(argument: Argument) -> Iterator[str]:
    """Where a sequential test stands that has not ended."""
    from outerloop.climb import Sequential, sequential_bounds
    from outerloop.climb.explain import draw_path
    from outerloop.climb.findings import Look, TestFinding
    from outerloop.controller.argument import looks_of

    told, plan = looks_of(argument), argument.plan
    if not told or plan is None or not isinstance(plan.climbed.rule, Sequential):
        return
    looks = tuple(
        Look(int(look["pairs"]), float(look["llr"]), None, Decimal(look["mean_gain"]), Decimal(look["sd"]))
        for look in told
    )
    test = "sequential-t" if plan.climbed.rule.test == "t" else "gsprt"
    lower, upper = sequential_bounds(plan)
    yield ""
    yield f"The test after {looks[-1].pairs} pairs"
    for line in draw_path(TestFinding(test, looks[-1].pairs, looks=looks, lower=lower, upper=upper), WIDTH - 2):  # type: ignore[arg-type]
        yield f"  {line}"


def _outcome(measure: MeasureView) -> str:
    if measure.state == "done":
        return "built" if measure.kind == "environment" else f"{measure.value}"
    detail = f": {measure.detail}" if measure.detail else ""
    return f"failed ({measure.reason}){detail}"


def _why_missing(measure: MeasureView) -> str:
    from outerloop.compute.reasons import pending_reason
    from outerloop.controller.timeline import attempt_state

    last = measure.newest
    if measure.state == "exhausted":
        detail = f": {measure.detail}" if measure.detail else ""
        return f"used up its attempts ({measure.reason}){detail}"
    if measure.state == "collected":
        return "its slot was collected, it would be measured again"
    if last is None:
        return "not submitted yet"
    if last.live:
        job = f"job {last.job_id} is " if last.job_id else ""
        meaning = ""
        if last.slurm_state == "pending" and last.slurm_reason:
            meaning = f". {pending_reason(last.slurm_reason).sentence}"
        return f"{job}{attempt_state(last)}{meaning}"
    again = f", again after {moment(measure.next_try_at)}" if measure.next_try_at else ""
    return f"attempt {last.n} ended as {attempt_state(last)}{again}"


def _cluster_facts(view: RunView) -> list[str]:
    """Seed by seed, job by job, node by node."""
    rows = []
    for measure in view.current:
        result = measure.result or {}
        for attempt in measure.attempts or (None,):
            pinned = attempt is not None and attempt.n == measure.pinned_attempt
            mine = result if pinned or (attempt is not None and measure.state == "failed") else {}
            rows.append(
                [
                    measure.role,
                    str(measure.seed) if measure.seed else "",
                    "" if attempt is None or not attempt.job_id else attempt.job_id,
                    "" if attempt is None else attempt.node or str(mine.get("host") or ""),
                    "not submitted" if attempt is None else _word(attempt),
                    _seconds(mine),
                    str(mine.get("cpus_seen") or ""),
                    f"{float(mine['max_rss_mb']):.0f}" if mine.get("max_rss_mb") else "",
                ]
            )
    heads = ["MEASURE", "SEED", "JOB", "NODE", "ENDED AS", "SECONDS", "CPUS", "MB"]
    columns = Columns(heads, rows, right=["SEED", "SECONDS", "CPUS", "MB"], give="MEASURE")
    return [f"  {line}" for line in columns.lines(WIDTH - 2)]


def _word(attempt: Any) -> str:
    from outerloop.controller.timeline import attempt_state

    return attempt_state(attempt)


def _seconds(result: Any) -> str:
    phases = result.get("phases") if isinstance(result, dict) else None
    entry = phases.get("command") if isinstance(phases, dict) else None
    seconds = entry.get("seconds") if isinstance(entry, dict) else None
    return f"{seconds:.1f}" if isinstance(seconds, int | float) else ""


# JSON


def _prose(argument: Argument) -> list[dict[str, Any]]:
    """The argument as the text has it, section by section."""
    from outerloop.climb import Verdict
    from outerloop.climb.explain import sections

    if argument.view.evidence is None or argument.plan is None:
        return []
    verdict = Verdict.from_json(argument.view.evidence)
    told = sections(verdict, argument.plan, argument.readings, WIDTH)
    return [{"title": title, "lines": [harmless(line) for line in lines]} for title, lines in told]


def _error_rates(argument: Argument) -> dict[str, Any] | None:
    """The simulated rows that apply to the rule, and whether they are of that very rule."""
    from outerloop.climb import Verdict
    from outerloop.climb.error_table import nearest_rows

    if argument.view.evidence is None:
        return None
    climbed = Verdict.from_json(argument.view.evidence).findings.climbed
    if climbed is None:
        return None
    rows, same = nearest_rows(climbed.rule, climbed.gain_sd, climbed.floor.required)
    return {"same_rule": same, "rows": [asdict(row) for row in rows]}


def _json(argument: Argument) -> dict[str, Any]:
    from outerloop.controller.argument import looks_of, notes_of

    view, row = argument.view, argument.view.row
    plan = None
    if argument.plan is not None:
        from pydantic import TypeAdapter

        from outerloop.climb import ClimbPlan

        plan = TypeAdapter(ClimbPlan).dump_python(argument.plan, mode="json")
    return {
        "run": row.id,
        "state": row.state,
        "state_reason": row.state_reason,
        "state_detail": row.state_detail,
        "verdict": plain(view.evidence),
        "outcome": row.verdict,
        "sentence": row.sentence,
        "argument": _prose(argument),
        "error_rates": _error_rates(argument),
        "looks": looks_of(argument),
        "plan": plan,
        "readings": plain(argument.readings),
        "measures": plain(view.current),
        "missing": [measure.role for measure in view.current if measure.state not in _KNOWN],
        "notes": notes_of(argument),
        "decided_before": argument.decided_before,
        "problem": argument.missing,
        "damaged": list(argument.damaged),
    }

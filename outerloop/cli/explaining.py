"""`outerloop explain`: the argument behind a verdict, or what is known so far and what is missing.

Covered: the argument with the facts of the cluster, seed by seed and job by job, and the notes on how far a verdict
can be trusted. Not covered: the argument itself (climb.explain), recomputing it (`outerloop verify`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import click

from outerloop.cli.common import emit_json, json_option
from outerloop.cli.errors import CliError, ExitCode
from outerloop.cli.reading import reading
from outerloop.cli.reuse_text import reuse_sentences
from outerloop.cli.text import Columns, folded, harmless, moment, one_line, plain
from outerloop.cli.training_text import training_argument, training_facts

if TYPE_CHECKING:
    from outerloop.cli.reading import Reader
    from outerloop.climb import ClimbPlan, Reading
    from outerloop.contract import Benchmark
    from outerloop.controller.views import MeasureView, RunView

__all__ = ["explain"]

WIDTH = 80
_KNOWN = ("done", "failed")
"""States of a slot that say something about the candidate or the base."""
UNSANDBOXED = (
    "Unsandboxed: the candidate ran as an ordinary process of this account. Accidents were contained, malice could"
    " not be."
)
OWN_PRINT = (
    "There is no score command: the metric is the candidate's own print, so the verdict is as honest as the candidate."
)


@dataclass
class _Argument:
    """What can be said about a run besides its row."""

    view: RunView
    benchmark: Benchmark | None = None
    plan: ClimbPlan | None = None
    readings: dict[str, Reading] = field(default_factory=dict)
    missing: str = ""
    """Why there is no plan."""
    decided_before: int = 0
    """Verdicts on the same benchmark and data before this one."""


@click.command("explain", help="Every number behind RUN's verdict, or what is known so far and what is missing.")
@click.argument("run")
@json_option
def explain(run: str, as_json: bool) -> None:
    with reading() as reader:
        view = _view(reader, run)
        if view.row.kind == "training":
            facts = training_facts(reader, view)
            if as_json:
                emit_json({**plain(view.row), "evidence": plain(view.evidence), "training": facts.as_json()})
            else:
                click.echo(harmless("\n".join(training_argument(view, facts))))
            return
        argument = _gather(reader, view)
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


def _gather(reader: Reader, view: RunView) -> _Argument:
    from outerloop.contract import ContractError
    from outerloop.controller.git import GitError, Mirror
    from outerloop.controller.plan import ContractGone, Round, climb_plan, read_contract, readings_of
    from outerloop.controller.request import ClimbRequest
    from outerloop.controller.views import reuse_before

    argument = _Argument(view, decided_before=reuse_before(reader.record, view.row.id))
    with reader.record.reading() as session:
        argument.readings = readings_of(session, view.row.id, view.row.round)
    rounds = [event for event in view.events if event.kind == "round"]
    if not rounds:
        argument.missing = "no round of measuring was begun"
    try:
        request = ClimbRequest.model_validate(view.request)
        base = str(rounds[-1].body["base_commit"]) if rounds else request.base_commit
        contract = read_contract(Mirror(reader.root.mirror(request.target)), base)
        argument.benchmark = contract.benchmark(request.benchmark)
        if rounds:
            argument.plan = climb_plan(contract, request, Round.of(_ledger_event(rounds[-1])))
    except (ContractError, ContractGone, GitError, OSError, ValueError, LookupError) as error:
        argument.missing = f"the contract at the base can't be read: {str(error).splitlines()[0]}"
    return argument


def _ledger_event(event: Any) -> Any:
    from outerloop.controller.ledger import LedgerEvent

    return LedgerEvent(event.seq, event.kind, dict(event.body), event.at)


def _notes(argument: _Argument) -> list[str]:
    """How far the numbers can be trusted."""
    if not argument.view.measures:
        return []
    told = []
    row, request = argument.view.row, argument.view.request
    execution = (request.get("execution") or {}).get(row.benchmark) or {}
    if execution.get("isolation", "none") == "none":
        told.append(UNSANDBOXED)
    if argument.benchmark is not None and not argument.benchmark.score:
        told.append(OWN_PRINT)
    if row.verdict in ("accepted", "rejected") and argument.decided_before:
        seeded = any(measure.seed for measure in argument.view.measures)
        told.append(" ".join(reuse_sentences(argument.decided_before + 1, fresh_seeds=seeded)))
    return told


# text


def _text(reader: Reader, argument: _Argument) -> Iterator[str]:
    from outerloop.cli.run_text import moved_base
    from outerloop.climb import Verdict
    from outerloop.climb.explain import render

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
    told = _notes(argument)
    if told:
        yield ""
        yield "How far to trust it"
        for note in told:
            yield from _wrapped(note, "  ")
    yield ""
    yield f"Go on with: outerloop show {row.id}" + (f", outerloop verify {row.id}" if verdict is not None else "")


def _wrapped(text: str, indent: str = "") -> list[str]:
    return folded(text, WIDTH, indent).splitlines() or [""]


def _so_far(reader: Reader, argument: _Argument) -> Iterator[str]:
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


def _looks(argument: _Argument) -> list[dict[str, Any]]:
    """The looks of the current round, as the ledger has them."""
    number = argument.view.row.round
    return [dict(e.body) for e in argument.view.events if e.kind == "look" and e.body.get("round") == number]


def _path_so_far(argument: _Argument) -> Iterator[str]:
    """Where a sequential test stands that has not ended."""
    from outerloop.climb import Sequential, sequential_bounds
    from outerloop.climb.explain import draw_path
    from outerloop.climb.findings import Look, TestFinding

    told, plan = _looks(argument), argument.plan
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
    from outerloop.cli.run_text import attempt_state
    from outerloop.compute.reasons import pending_reason

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
    from outerloop.cli.run_text import attempt_state

    return attempt_state(attempt)


def _seconds(result: Any) -> str:
    phases = result.get("phases") if isinstance(result, dict) else None
    entry = phases.get("command") if isinstance(phases, dict) else None
    seconds = entry.get("seconds") if isinstance(entry, dict) else None
    return f"{seconds:.1f}" if isinstance(seconds, int | float) else ""


# JSON


def _prose(argument: _Argument) -> list[dict[str, Any]]:
    """The argument as the text has it, section by section."""
    from outerloop.climb import Verdict
    from outerloop.climb.explain import sections

    if argument.view.evidence is None or argument.plan is None:
        return []
    verdict = Verdict.from_json(argument.view.evidence)
    told = sections(verdict, argument.plan, argument.readings, WIDTH)
    return [{"title": title, "lines": [harmless(line) for line in lines]} for title, lines in told]


def _error_rates(argument: _Argument) -> dict[str, Any] | None:
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


def _json(argument: _Argument) -> dict[str, Any]:
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
        "looks": _looks(argument),
        "plan": plan,
        "readings": plain(argument.readings),
        "measures": plain(view.current),
        "missing": [measure.role for measure in view.current if measure.state not in _KNOWN],
        "notes": _notes(argument),
        "decided_before": argument.decided_before,
        "problem": argument.missing,
    }

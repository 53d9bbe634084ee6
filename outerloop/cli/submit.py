"""`outerloop submit`: ask for a verdict.

Covered: climbs. Not covered: the other kinds (submit_training.py, submit_campaign.py, submit_entry.py), what is checked
(controller.submit), measuring and deciding (controller.advance).
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outerloop.cli.common import console, emit_json, explained, json_option, notes, opened, the_settings
from outerloop.cli.errors import CliError, ExitCode, require_writable
from outerloop.cli.numbers import Whole
from outerloop.cli.service_client import refuse_submitters, submit_climb, the_client
from outerloop.cli.submit_campaign import campaign
from outerloop.cli.submit_entry import entry
from outerloop.cli.submit_training import training
from outerloop.cli.submitted import Asking, asks, leave, report, wait_for_end

if TYPE_CHECKING:
    from outerloop.controller.deployment import Deployment
    from outerloop.controller.submit import Prepared


@click.group(cls=Asking, help="Ask for a verdict, run a training, begin a campaign, give data to a challenge.")
@click.pass_context
def submit(context: click.Context) -> None:
    if context.invoked_subcommand not in ("climb", "training"):
        from outerloop.settings import SettingsError

        with contextlib.suppress(SettingsError):  # whoever wants to read a help page may do so with a broken config
            refuse_submitters(the_settings())


submit.add_command(training)
submit.add_command(campaign)
submit.add_command(entry)


@submit.command("climb", help="Measure a candidate against its base on BENCHMARK and decide.")
@click.argument("benchmark")
@click.option(
    "--repo",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    help="The target's clone. Default: the current folder.",
)
@click.option("--base", help="Revision to beat. Default: the champion, else the default branch.")
@click.option("--candidate", default="HEAD", show_default=True, help="Revision, or `worktree` for the tree as it is.")
@click.option(
    "--candidates",
    metavar="REVS|GLOB",
    help="Many at once: revisions with commas between them, patterns of branch and tag names (exp/*), ranges"
    " (main..exp). Each tree once.",
)
@click.option("--again", is_flag=True, help="Ask the same question once more: new pairs, the error rate split.")
@click.option("--priority", type=Whole(), default=0, show_default=True, help="Higher ones are advanced first.")
@click.option("--dry-run", is_flag=True, help="Do every check and show the plan; submit nothing.")
@click.option("--wait", is_flag=True, help="Stay and show progress until the verdict.")
@json_option
def climb(
    benchmark: str,
    repo: Path,
    base: str | None,
    candidate: str,
    candidates: str | None,
    again: bool,
    priority: int,
    dry_run: bool,
    wait: bool,
    as_json: bool,
) -> None:
    if candidates is not None:
        from outerloop.cli.submit_many import climb_many

        given = click.get_current_context().get_parameter_source("candidate")
        if given is not click.core.ParameterSource.DEFAULT or again:
            raise CliError("--candidates does not go with --candidate or --again")
        climb_many(benchmark, repo, base, candidates, priority=priority, dry_run=dry_run, wait=wait, as_json=as_json)
        return
    with explained():
        from outerloop.controller.plan import ContractGone
        from outerloop.controller.submit import Refusal, prepare_climb
        from outerloop.slots import StateRoot

        settings = the_settings()
        client = the_client(settings)
        if client is not None:
            if dry_run:
                raise CliError(
                    "a service checks what is submitted when it takes it in; --dry-run is not for submitters"
                )
            submit_climb(
                client,
                benchmark,
                repo=repo,
                base=base,
                candidate=candidate,
                again=again,
                priority=priority,
                wait=wait,
                as_json=as_json,
            )
            return
        require_writable(settings.state)
        root = StateRoot(settings.state)

        def prepared(ask: int) -> Prepared:
            try:
                return prepare_climb(
                    settings,
                    root,
                    repository=repo.absolute(),
                    benchmark=benchmark,
                    base=base,
                    candidate=candidate,
                    ask=ask,
                    priority=priority,
                )
            except Refusal as error:
                raise CliError(str(error), ExitCode.REFUSED) from error
            except ContractGone as error:
                raise CliError(str(error)) from error

        first = prepared(0)
        if dry_run:
            _show_plan(first, as_json)
            return
        try:
            with opened(settings) as deployment:
                _submit(deployment, first, prepared, again=again, wait=wait, as_json=as_json)
        except CliError as error:
            if error.exit_code != ExitCode.RECORD_UNAVAILABLE or again:
                raise
            if wait and root.request(first.request.id).exists():
                # Whoever waits for a verdict must not read success from a command that did not see one.
                told = f"run {first.request.id} goes on without this command: {error.message}"
                raise CliError(told, ExitCode.RECORD_UNAVAILABLE) from error
            leave(root, first.request, error, as_json)


def _submit(deployment: Deployment, first: Prepared, prepared: Any, *, again: bool, wait: bool, as_json: bool) -> None:
    from outerloop.controller.advance import advance

    run_id, asked_before = enter(deployment, first, prepared, again=again)
    advanced = advance(deployment, run_id)
    notes([*first.notes, *advanced.notes, *deployment.notes])
    if wait:
        wait_for_end(deployment, run_id, quiet=as_json)
    again_hint = "--again adds evidence to it" if asked_before else None
    report(deployment, run_id, asked_before=again_hint, as_json=as_json)


def enter(deployment: Deployment, first: Prepared, prepared: Any, *, again: bool) -> tuple[str, bool]:
    """(the run that answers this question, whether it was there before). Raises CliError for a budget used up."""
    from outerloop.controller.submit import earlier_asks, enqueue, leave_in_inbox, week_budget_problem

    earlier = earlier_asks(deployment.record, first.request.question)
    latest = earlier[0] if earlier else None
    if latest is not None and latest.verdict != "cancelled" and not again:
        return latest.id, True
    request = first.request if latest is None else prepared(latest.ask + 1).request
    if again and latest is not None and latest.state != "ended":
        raise CliError(f"run {latest.id} asks the same and has not ended yet", ExitCode.REFUSED)
    limits = [deployment.settings.budgets.runs_per_week, request.runs_per_week]
    over = week_budget_problem(deployment.record, request, limits)
    if over is not None:
        raise CliError(over, ExitCode.REFUSED)
    asks(request.id)
    leave_in_inbox(deployment.root, request)
    enqueue(deployment.record, deployment.root, request)
    return request.id, False


def _show_plan(prepared: Prepared, as_json: bool) -> None:
    request, contract = prepared.request, prepared.contract
    climbed = contract.benchmark(request.benchmark)
    if as_json:
        emit_json(
            {
                "dry_run": True,
                "request": request.to_json(),
                "siblings": list(prepared.siblings),
                "scope_problems": [vars(problem) for problem in prepared.problems],
                "notes": list(prepared.notes),
            }
        )
        return
    out = console()
    out.print(f"[bold]{request.benchmark}[/] of {request.target}")
    out.print(f"  base       {request.base_commit[:12]}  ({request.base_revision})")
    out.print(f"  candidate  {request.candidate_commit[:12]}  {request.subject}", markup=False)
    out.print(f"  metric     {climbed.metric} ({climbed.direction})   rule {climbed.parsed_rule().kind}")
    out.print(f"  siblings   {', '.join(prepared.siblings) or 'none (no shared path changed)'}")
    lane = request.execution[request.benchmark].lane["name"]
    out.print(f"  lane       {lane}, {climbed.cpus} CPUs, {climbed.minutes} minutes, {climbed.gpus} GPUs")
    for problem in prepared.problems:
        out.print(f"  scope      {problem.path}: {problem.detail}", markup=False)
    notes(prepared.notes)
    out.print("Dry run: nothing was submitted.")

"""`outerloop submit training`: run what a plan chose, as slots that survive preemption.

Covered: reading the plan, the command, the tasks, and showing what would be submitted. Not covered: compiling
(strategies), what is checked (controller.submit_training), running it (controller.advance).
"""

from __future__ import annotations

import json
import shlex
from codecs import BOM_UTF8
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outerloop.cli.common import console, emit_json, explained, json_option, json_text, notes, opened, the_settings
from outerloop.cli.errors import CliError, ExitCode
from outerloop.cli.numbers import MOST_GIB, MOST_MINUTES, Number, Whole
from outerloop.cli.service_client import submit_training, the_client
from outerloop.cli.submitted import asks, leave, report, wait_for_end

if TYPE_CHECKING:
    from outerloop.controller.deployment import Deployment
    from outerloop.controller.submit_training import Asked
    from outerloop.controller.training_request import Expected
    from outerloop.strategies import LaunchSpec, StrategyPlan

__all__ = ["training"]

MOST_SHOWN = 3
"""Launches of a task array that a dry run prints."""
MB_PER_GIB = 1024


@click.command(
    "training",
    help="Run a training or a task array as the plan in PLAN.json says. The plan is a report of"
    " `outerloop plan --json`, or a strategy plan. `-- python train.py …` is what each rank runs.",
)
@click.argument("path", metavar="PLAN.json", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--repo",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    help="The clone whose tree the command runs in. Default: the current folder.",
)
@click.option("--candidate", default="HEAD", show_default=True, help="Revision, or `worktree` for the tree as it is.")
@click.option("--strategy", "chosen", help="Another candidate of the report than the selected one.")
@click.option(
    "--framework",
    type=click.Choice(["torch", "accelerate"]),
    default="torch",
    show_default=True,
    help="What the script uses; accelerate sets what Accelerate and its Trainer read.",
)
@click.option(
    "--tasks",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A task array's parameters: a JSON list of objects, or an object a line. `{name}` in the command takes them.",
)
@click.option("--lane", default="", help='Lane to run in. Default: "gpu" when the plan has GPUs, else "default".')
@click.option("--minutes", type=Number(0, MOST_MINUTES, above=True), help="Limit of one attempt. Default: 60.")
@click.option("--cpus", type=Whole(1), help="CPUs per node. Default: the plan's, else one per process.")
@click.option("--memory-gb", type=Number(0, MOST_GIB, above=True), help="Memory per node. Default: the site's.")
@click.option(
    "--resumable/--not-resumable",
    default=None,
    help="Whether a lost attempt goes on from its newest checkpoint. Default: yes, for a task array no.",
)
@click.option("--name", default="", help="What it is called; names its jobs. Default: training.")
@click.option("--priority", type=Whole(), default=0, show_default=True, help="Higher ones are advanced first.")
@click.option("--dry-run", is_flag=True, help="Do every check and show the launch; submit nothing.")
@click.option("--wait", is_flag=True, help="Stay and show progress until it has ended.")
@json_option
def training(
    path: Path,
    command: tuple[str, ...],
    repo: Path,
    candidate: str,
    chosen: str | None,
    framework: str,
    tasks: Path | None,
    lane: str,
    minutes: float | None,
    cpus: int | None,
    memory_gb: float | None,
    resumable: bool | None,
    name: str,
    priority: int,
    dry_run: bool,
    wait: bool,
    as_json: bool,
) -> None:
    with explained():
        from outerloop.cli.plan import strategy_of
        from outerloop.controller.git import GitError
        from outerloop.controller.submit import Refusal
        from outerloop.controller.submit_training import prepare_training, resumes, shape_of
        from outerloop.slots import StateRoot

        settings = the_settings()
        client = the_client(settings)
        if client is not None and dry_run:
            raise CliError("a service checks what is submitted when it takes it in; --dry-run is not for submitters")
        root = StateRoot(settings.state)
        strategy = strategy_of(path, command, chosen, framework)
        if tasks is not None:
            strategy = strategy.model_copy(update={"tasks": _read_tasks(tasks)})
        specs = _compiled(strategy)
        memory_mb = round(memory_gb * MB_PER_GIB) if memory_gb else None
        if client is not None:
            told = {
                "plan": strategy.model_dump(mode="json"),
                "name": name,
                "lane": lane,
                "minutes": minutes,
                "cpus": cpus,
                "memory_mb": memory_mb,
                "resumable": resumable,
            }
            submit_training(client, told, repo=repo, candidate=candidate, priority=priority, wait=wait, as_json=as_json)
            return
        try:
            asked = prepare_training(
                settings,
                root,
                repository=repo.absolute(),
                candidate=candidate,
                launches=[spec.model_dump(mode="json") for spec in specs],
                family=strategy.family,
                shape=shape_of(strategy, cpus=cpus, memory_mb=memory_mb),
                name=name,
                lane=lane,
                minutes=minutes,
                resumable=resumes(strategy, resumable),
                expected=_expected(path, chosen),
                priority=priority,
                notes=tuple(dict.fromkeys(note for spec in specs for note in spec.notes)),
            )
        except Refusal as error:
            raise CliError(str(error), ExitCode.REFUSED) from error
        except GitError as error:
            raise CliError(str(error)) from error
        if dry_run:
            _show(asked, as_json)
            return
        try:
            with opened(settings) as deployment:
                _submit(deployment, asked, wait=wait, as_json=as_json)
        except CliError as error:
            if error.exit_code != ExitCode.RECORD_UNAVAILABLE:
                raise
            leave(root, asked.request, error, as_json)


def _submit(deployment: Deployment, asked: Asked, *, wait: bool, as_json: bool) -> None:
    from outerloop.controller.advance import advance
    from outerloop.controller.submit import enqueue, leave_in_inbox, week_budget_problem
    from outerloop.controller.submit_training import ask_again

    asked, answered = ask_again(deployment.record, deployment.root, asked)
    run_id = asked.request.id if answered is None else answered.id
    if answered is None:
        over = week_budget_problem(deployment.record, asked.request, [deployment.settings.budgets.runs_per_week])
        if over is not None:
            raise CliError(over, ExitCode.REFUSED)
        asks(asked.request.id)
        leave_in_inbox(deployment.root, asked.request)
        enqueue(deployment.record, deployment.root, asked.request)
    advanced = advance(deployment, run_id)
    notes([*asked.notes, *advanced.notes, *deployment.notes])
    if wait:
        wait_for_end(deployment, run_id, quiet=as_json)
    hint = None if answered is None else "another command, tree or shape makes another one"
    report(deployment, run_id, asked_before=hint, as_json=as_json)


def _compiled(strategy: StrategyPlan) -> tuple[LaunchSpec, ...]:
    from outerloop.strategies import CompileError, compile_plan

    try:
        return compile_plan(strategy)
    except (CompileError, LookupError) as error:
        raise CliError(str(error.args[0] if isinstance(error, LookupError) else error), ExitCode.REFUSED) from None


def _read_tasks(path: Path) -> tuple[dict[str, Any], ...]:
    """Parameters of each task. Raises CliError that names the line or the item."""
    from outerloop.json_text import JsonError, parse_json, parse_json_lines

    raw = path.read_bytes()
    try:
        if raw.removeprefix(BOM_UTF8).lstrip().startswith(b"["):
            named = [(f"{path}: task {number}", item) for number, item in enumerate(parse_json(raw), start=1)]
        else:
            named = [(f"{path}:{line}", item) for line, item in parse_json_lines(raw)]
    except JsonError as error:
        raise CliError(error.text(path)) from None
    for where, item in named:
        if not isinstance(item, dict):
            raise CliError(f"{where}: must be an object of parameters, not {json.dumps(item)[:40]}")
        for key, value in item.items():
            if not isinstance(value, str | bool | int | float):
                raise CliError(f"{where}: {key} must be text, a number or true or false")
    return tuple(item for _where, item in named)


def _expected(path: Path, chosen: str | None) -> Expected | None:
    """What the report says of the chosen candidate; None for a strategy plan, which says nothing of memory or time."""
    from outerloop.controller.training_request import Expected
    from outerloop.planner import Estimate, PlanReport, figure_fields

    data = json_text(path)
    if "candidates" not in data:
        return None
    plan: PlanReport = PlanReport.model_validate(data)
    candidate = plan.candidate(chosen or str(plan.selected))

    def central(estimate: Estimate | None) -> float | None:
        return None if estimate is None else estimate.central

    return Expected(
        layout=figure_fields(candidate, plan.request) or {"candidate": candidate.name},
        work=plan.request.workload.kind,
        peak_memory_gb=central(candidate.memory),
        tokens_per_second_per_gpu=central(candidate.tokens_per_second_per_gpu),
        host_memory_gb=central(candidate.host_memory),
        hours=central(candidate.time_hours),
    )


def _show(asked: Asked, as_json: bool) -> None:
    request = asked.request
    if as_json:
        emit_json({"dry_run": True, "request": request.to_json(), "notes": list(asked.notes)})
        return
    out = console()
    out.print(f"{request.name}: {request.family} of {request.target}", style="bold", markup=False)
    out.print(f"  tree       {request.commit[:12]}  {request.subject}", markup=False)
    out.print(f"  lane       {request.execution.lane['name']}, {request.minutes:g} minutes an attempt", markup=False)
    memory = f", {request.memory_mb / MB_PER_GIB:g} GB" if request.memory_mb else ""
    several = f"{request.nodes} nodes, each " if request.nodes > 1 else ""
    out.print(f"  shape      {several}{request.cpus} CPUs, {request.gpus} GPUs{memory}", markup=False)
    out.print(f"  resumable  {'yes' if request.resumable else 'no'}", markup=False)
    for task in request.tasks[:MOST_SHOWN]:
        out.print(f"  {task.role:<10} {shlex.join(task.launch['argv'])}", markup=False, soft_wrap=True)
    if len(request.tasks) > MOST_SHOWN:
        out.print(f"  … and {len(request.tasks) - MOST_SHOWN} more tasks")
    notes(asked.notes)
    out.print("Dry run: nothing was submitted.")

"""`outerloop submit entry`: give training data to a post-training challenge, and have them judged.

Covered: options and what is said before and after. Not covered: what is checked (controller.submit_entry), training,
evaluating and deciding (controller.entries).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from outerloop.cli.common import console, emit_json, explained, json_option, notes, opened, the_settings
from outerloop.cli.errors import CliError, ExitCode, require_writable
from outerloop.cli.numbers import MOST_GIB, MOST_MINUTES, Number, Whole
from outerloop.cli.submitted import asks, leave, report, wait_for_end

if TYPE_CHECKING:
    from outerloop.controller.deployment import Deployment
    from outerloop.controller.submit_entry import PreparedEntry

__all__ = ["entry"]

_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
MB_PER_GIB = 1024


@click.command("entry", help="Train CHALLENGE's model on your data, evaluate it, and decide.")
@click.argument("challenge", metavar="CHALLENGE")
@click.option(
    "--train",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The training data, a JSONL file. Every row is checked before anything runs.",
)
@click.option("--name", default="", help="What people call it. Default: the file's name.")
@click.option("--configs", type=_FOLDER, help="Folder of fragments. Default: those that come with outerloop.")
@click.option(
    "--hub",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of pinned downloads; what is missing is fetched. Default: `hub` in the state folder.",
)
@click.option(
    "--vllm",
    metavar="PYTHON",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Python of the environment that has vLLM. Default: $OUTERLOOP_VLLM_PYTHON.",
)
@click.option("--again", is_flag=True, help="Add training seeds to an earlier verdict, the error rate split.")
@click.option("--lane", default="", help='Lane of every stage. Default: "gpu" with GPUs, else "default".')
@click.option("--minutes", type=Number(0, MOST_MINUTES, above=True), help="Limit of one attempt of a stage.")
@click.option("--cpus", type=Whole(1), help="CPUs of a stage. Default: the challenge's.")
@click.option("--memory-gb", type=Number(0, MOST_GIB, above=True), help="Memory. Default: the challenge's.")
@click.option("--priority", type=Whole(), default=0, show_default=True, help="Higher ones are advanced first.")
@click.option("--dry-run", is_flag=True, help="Do every check and say what would run; submit nothing.")
@click.option("--wait", is_flag=True, help="Stay and show progress until the verdict.")
@json_option
def entry(
    challenge: str,
    train: Path,
    name: str,
    configs: Path | None,
    hub: Path | None,
    vllm: Path | None,
    again: bool,
    lane: str,
    minutes: float | None,
    cpus: int | None,
    memory_gb: float | None,
    priority: int,
    dry_run: bool,
    wait: bool,
    as_json: bool,
) -> None:
    with explained():
        from outerloop.compose import SHIPPED
        from outerloop.controller.submit import Refusal
        from outerloop.controller.submit_entry import prepare_entry
        from outerloop.posttrain.config import ConfigError
        from outerloop.posttrain.data import DataError
        from outerloop.posttrain.engines import VLLM_PYTHON
        from outerloop.posttrain.sources import SourceError
        from outerloop.slots import StateRoot

        settings = the_settings()
        if settings.mode == "service":
            raise CliError(
                "this deployment is a service, and a service takes no entries: give them to a personal one, whose"
                ' state folder is yours (mode = "personal" in a configuration of its own, OUTERLOOP_CONFIG)',
                ExitCode.REFUSED,
            )
        if vllm is not None:
            os.environ[VLLM_PYTHON] = str(vllm.absolute())
        require_writable(settings.state)
        root = StateRoot(settings.state)
        try:
            prepared = prepare_entry(
                settings,
                root,
                challenge_id=challenge,
                train=train,
                configs=SHIPPED if configs is None else configs.absolute(),
                name=name,
                lane=lane,
                minutes=minutes,
                cpus=cpus,
                memory_gb=memory_gb,
                hub=hub,
                priority=priority,
                download=None if dry_run else _downloading,
            )
        except (DataError, ConfigError, SourceError) as error:
            raise CliError(str(error)) from error
        except Refusal as error:
            raise CliError(str(error), ExitCode.REFUSED) from error
        if dry_run:
            _show(prepared, as_json)
            return
        try:
            with opened(settings) as deployment:
                _submit(deployment, prepared, again=again, wait=wait, as_json=as_json)
        except CliError as error:
            if error.exit_code != ExitCode.RECORD_UNAVAILABLE or again:
                raise
            if wait and root.request(prepared.request.id).exists():
                # whoever waits for a verdict must not read success from a command that did not see one
                told = f"run {prepared.request.id} goes on without this command: {error.message}"
                raise CliError(told, ExitCode.RECORD_UNAVAILABLE) from error
            from outerloop.controller.entry_data import store_data

            store_data(root, Path(prepared.request.data_path), prepared.table.lines())
            leave(root, prepared.request, error, as_json)


def _submit(deployment: Deployment, prepared: PreparedEntry, *, again: bool, wait: bool, as_json: bool) -> None:
    from outerloop.controller.advance import advance
    from outerloop.controller.entry_data import store_data
    from outerloop.controller.submit import Refusal, checks_problem, enqueue, week_budget_problem
    from outerloop.controller.submit_entry import ask_again

    try:
        prepared, answered = ask_again(deployment.record, deployment.root, prepared, again=again)
    except Refusal as error:
        raise CliError(str(error), ExitCode.REFUSED) from error
    request = prepared.request
    run_id = request.id if answered is None else answered.id
    if answered is None:
        over = week_budget_problem(deployment.record, request, [deployment.settings.budgets.runs_per_week])
        over = over or checks_problem(deployment.record, request)
        if over is not None:
            raise CliError(over, ExitCode.REFUSED)
        store_data(deployment.root, Path(request.data_path), prepared.table.lines())
        asks(request.id)
        try:
            enqueue(deployment.record, deployment.root, request)
        except Refusal as error:
            raise CliError(str(error), ExitCode.REFUSED) from error
    elif answered.state != "ended":
        # who gives the same rows again puts them back where somebody had deleted them
        store_data(deployment.root, Path(answered.request["data_path"]), prepared.table.lines())
    advanced = advance(deployment, run_id)
    notes([*prepared.notes, *advanced.notes, *deployment.notes])
    if wait:
        wait_for_end(deployment, run_id, quiet=as_json)
    hint = None
    if answered is not None:
        settled = answered.verdict_reason == "contaminated"
        hint = "more seeds do not change that" if settled else "--again adds training seeds to it"
    report(deployment, run_id, asked_before=hint, as_json=as_json)


def _show(prepared: PreparedEntry, as_json: bool) -> None:
    request = prepared.request
    if as_json:
        emit_json({"dry_run": True, "request": request.to_json(), "notes": list(prepared.notes)})
        return
    out = console()
    out.print(f"{request.challenge}: entry {request.subject}", style="bold", markup=False)
    rows = ", ".join(f"{count} rows for {stage}" for stage, count in request.rows.items())
    out.print(f"  data       {request.data_sha256[:12]}  {rows}", markup=False)
    out.print(f"  model      {request.model.split()[0]}", markup=False)
    seeds = len(request.train_seeds)
    out.print(f"  stages     {' then '.join(request.stages)}, {seeds} seed{'s' if seeds > 1 else ''}", markup=False)
    reserve = f"; reserve {', '.join(suite.id for suite in request.reserve)}" if request.reserve else ""
    out.print(f"  suites     {', '.join(suite.id for suite in request.suites)}{reserve}", markup=False)
    out.print(f"  rule       gain at least {request.min_delta}, alpha {request.alpha}", markup=False)
    memory = f", {request.memory_mb / MB_PER_GIB:g} GB" if request.memory_mb else ""
    out.print(
        f"  stage      lane {request.execution.lane['name']}, {request.cpus} CPUs, {request.gpus} GPUs{memory},"
        f" {request.minutes:g} minutes",
        markup=False,
    )
    notes(prepared.notes)
    out.print("Dry run: nothing was submitted.")


def _downloading(source: str) -> None:
    """Say it at once: a model takes minutes."""
    click.echo(f"fetching {source} from the hub", err=True)

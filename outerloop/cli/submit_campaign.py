"""`outerloop submit campaign`: begin a champion loop, or go on with it under another configuration.

Covered: options and what is said before and after. Not covered: what is checked (controller.submit_campaign), the loop
itself (controller.campaigns).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from outerloop.cli.common import console, emit_json, explained, json_option, notes, opened, the_settings
from outerloop.cli.errors import CliError, ExitCode, require_writable
from outerloop.cli.numbers import Whole
from outerloop.cli.submitted import asks, leave, report, wait_for_end

if TYPE_CHECKING:
    from outerloop.champion import Event
    from outerloop.controller.deployment import Deployment
    from outerloop.controller.submit_campaign import PreparedCampaign

__all__ = ["campaign"]


@click.command(
    "campaign",
    help="Begin the champion loop of CAMPAIGN.toml, or go on with it. It goes on as the file is now: a campaign is its"
    " repository and its name.",
)
@click.argument("path", metavar="CAMPAIGN.toml", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--repo",
    type=click.Path(path_type=Path, file_okay=False),
    help="The clone whose tree the commands run in. Default: the one that holds CAMPAIGN.toml.",
)
@click.option("--candidate", default="HEAD", show_default=True, help="Revision, or `worktree` for the tree as it is.")
@click.option("--lane", default="", help='Lane of every job. Default: "gpu" for jobs with GPUs, else "default".')
@click.option("--priority", type=Whole(), default=0, show_default=True, help="Higher ones are advanced first.")
@click.option(
    "--ledger",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Begin with this ledger, as `campaign events --jsonl` exported it, instead of with nothing.",
)
@click.option("--dry-run", is_flag=True, help="Do every check and say what would run; submit nothing.")
@click.option("--wait", is_flag=True, help="Stay and show progress until it has ended.")
@json_option
def campaign(
    path: Path,
    repo: Path | None,
    candidate: str,
    lane: str,
    priority: int,
    ledger: Path | None,
    dry_run: bool,
    wait: bool,
    as_json: bool,
) -> None:
    with explained():
        from outerloop.champion import ConfigError, LedgerError
        from outerloop.controller.campaign_import import checked_ledger
        from outerloop.controller.git import GitError
        from outerloop.controller.submit import Refusal
        from outerloop.controller.submit_campaign import prepare_campaign
        from outerloop.slots import StateRoot

        settings = the_settings()
        require_writable(settings.state)
        root = StateRoot(settings.state)
        try:
            prepared = prepare_campaign(
                settings,
                root,
                path=path,
                repository=repo.absolute() if repo is not None else None,
                candidate=candidate,
                lane=lane,
                priority=priority,
            )
            history = checked_ledger(ledger.read_text("utf-8", "replace"), str(ledger)) if ledger else []
        except (ConfigError, GitError, LedgerError) as error:
            raise CliError(str(error)) from error
        except Refusal as error:
            raise CliError(str(error), ExitCode.REFUSED) from error
        if dry_run:
            _show(prepared, as_json)
            return
        try:
            with opened(settings) as deployment:
                _submit(deployment, prepared, history, wait=wait, as_json=as_json)
        except CliError as error:
            if error.exit_code != ExitCode.RECORD_UNAVAILABLE or history:
                raise
            leave(root, prepared.request, error, as_json)


def _submit(
    deployment: Deployment, prepared: PreparedCampaign, history: list[Event], *, wait: bool, as_json: bool
) -> None:
    from outerloop.controller.advance import advance
    from outerloop.controller.campaign_import import import_ledger, left_behind
    from outerloop.controller.campaign_operate import look_now
    from outerloop.controller.submit import Refusal, enqueue, leave_in_inbox
    from outerloop.controller.submit_campaign import change_setting, earlier_campaign

    hint = None
    try:
        earlier = earlier_campaign(deployment.record, prepared)
        if earlier is not None and history:
            raise Refusal(f"campaign {prepared.request.name} is there already (run {earlier.id}), with its own ledger")
        if earlier is None:
            if history:
                import_ledger(deployment.root, prepared.request, history)
                notes(left_behind(deployment.root, prepared.request, history))
            asks(prepared.request.id)
            leave_in_inbox(deployment.root, prepared.request)
            enqueue(deployment.record, deployment.root, prepared.request)
            run_id = prepared.request.id
        else:
            run_id = earlier.id
            changed = change_setting(deployment, run_id, prepared.request.setting)
            look_now(deployment, earlier)
            hint = "it goes on with what was changed" if changed else "nothing has changed"
    except Refusal as error:
        raise CliError(str(error), ExitCode.REFUSED) from error
    advanced = advance(deployment, run_id)
    notes([*prepared.notes, *advanced.notes, *deployment.notes])
    if wait:
        wait_for_end(deployment, run_id, quiet=as_json)
    report(deployment, run_id, asked_before=hint, as_json=as_json)


def _show(prepared: PreparedCampaign, as_json: bool) -> None:
    request, config = prepared.request, prepared.config
    if as_json:
        emit_json({"dry_run": True, "request": request.to_json(), "candidates": list(prepared.candidates)})
        notes(prepared.notes)
        return
    out = console()
    out.print(f"{request.name}: campaign of {request.target}", style="bold", markup=False)
    out.print(f"  tree        {request.setting.commit[:12]}  {request.subject}", markup=False)
    for kind, execution in sorted(request.setting.executions.items()):
        out.print(f"  {kind} lane    {execution.lane['name']}", markup=False)
    out.print(f"  candidates  {', '.join(prepared.candidates) or 'none is active'}", markup=False)
    objectives = ", ".join(objective.name for objective in config.objectives)
    out.print(f"  objectives  {objectives} (compare = {config.compare})", markup=False)
    ends = [f"{config.max_rounds} rounds"] if config.max_rounds else []
    ends += [f"{config.gpu_hours:g} GPU-hours"] if config.gpu_hours else []
    out.print(f"  ends after  {' or '.join(ends)}; {config.parallel} jobs at a time", markup=False)
    notes(prepared.notes)
    out.print("Dry run: nothing was submitted.")

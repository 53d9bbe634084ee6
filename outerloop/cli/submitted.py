"""After a submission: waiting for the end, saying where the run stands, leaving a request where the record is away.

Covered: what climbs and trainings have in common. Not covered: making requests (submit.py, submit_training.py).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from outerloop.cli.common import console, emit_json, say
from outerloop.cli.errors import CliError, ExitCode

if TYPE_CHECKING:
    from outerloop.controller.deployment import Deployment
    from outerloop.controller.training_request import Request
    from outerloop.record.models import Run
    from outerloop.slots import StateRoot

__all__ = ["Asking", "asks", "leave", "report", "the_run", "wait_for_end"]

_USUAL = (
    ("show", "measures, jobs, timeline"),
    ("explain", "every number behind the verdict"),
    ("logs", "what the measures printed"),
    ("cancel", "give it up"),
)
_CAMPAIGN = (
    ("campaign status", "generation, champion, jobs"),
    ("campaign events", "everything that happened"),
    ("logs", "what the jobs printed"),
    ("campaign cancel", "give it up"),
)
"""How to go on after a submission: command, what it tells."""
LEAST_WIDTH = 32
"""Of the commands' column."""

WAIT_POLL_SECONDS = (0.5, 15.0)
"""First and longest pause between two looks of --wait; it doubles while nothing changes."""


_ASKED = "outerloop.asked"
"""Key of the click context's meta: ids of the runs that this command was about to submit."""


def asks(run_id: str) -> None:
    """Note that this command is about to submit a run: should Ctrl-C end it, it says what became of that one."""
    context = click.get_current_context(silent=True)
    if context is not None:
        context.meta.setdefault(_ASKED, []).append(run_id)


class Asking(click.Group):
    """Commands that submit. Ctrl-C in one ends with INTERRUPTED, and with what is durable and what is not."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise CliError(_interrupted(ctx.meta.get(_ASKED, [])), ExitCode.INTERRUPTED) from None


def _interrupted(asked: list[str]) -> str:
    """What Ctrl-C left behind. A request is submitted once its file is there: the tick carries it out."""
    from outerloop.cli.common import the_settings
    from outerloop.slots import StateRoot

    settings = the_settings()
    if settings.mode == "service":
        return (
            "interrupted. If the submission was in the spool already, it goes on, and `outerloop status` shows it; the"
            " same command asks again and makes no second run"
        )
    root = StateRoot(settings.state)
    there = [run for run in asked if root.request(run).exists() or root.inbox_request(run).exists()]
    if not there:
        return "interrupted: nothing was submitted; the same command submits it"
    if len(there) == 1:
        [run] = there
        told = f"run {run} was submitted and goes on without this command: `outerloop show {run}`"
        return f"interrupted: {told}, `outerloop cancel {run}`"
    told = f"{len(there)} runs were submitted and go on without this command: {', '.join(there)}"
    return f"interrupted: {told}; the same command submits the rest, `outerloop cancel RUN` ends one"


def leave(root: StateRoot, request: Request, error: CliError, as_json: bool) -> None:
    """The record is out of reach: the request waits in the inbox for the tick."""
    from outerloop.controller.submit import leave_in_inbox

    asks(request.id)
    leave_in_inbox(root, request)
    if as_json:
        emit_json({"run": request.id, "state": "inbox", "why": str(error.message)})
        return
    say(f"run {request.id} is in the inbox: {error.message}")
    click.echo("The next tick takes it in. Nothing else needs to be done.")


def the_run(deployment: Deployment, run_id: str) -> Run:
    """The row of a run that was just submitted."""
    from outerloop.record.models import Run

    with deployment.record.reading() as session:
        run = session.get(Run, run_id)
    assert run is not None, "it was just submitted"
    return run


def report(deployment: Deployment, run_id: str, *, asked_before: str | None, as_json: bool) -> None:
    """Say where a run stands and how to go on. `asked_before`: that it was not made now, and what to do about it.

    Exits with REFUSED for what the scope refuses, and for a run that is blocked: it goes nowhere by itself.
    """
    run = the_run(deployment, run_id)
    if as_json:
        emit_json(
            {
                "run": run.id,
                "state": run.state,
                "verdict": run.verdict,
                "reason": run.verdict_reason or run.state_reason,
                "sentence": run.sentence or run.state_detail,
                "asked_before": asked_before is not None,
            }
        )
    else:
        if asked_before is not None:
            say(f"This was asked before, as run {run.id}; {asked_before}.")
        if run.state == "ended":
            say(f"run {run.id}: {run.sentence}")
        else:
            detail = f" ({run.state_detail})" if run.state_detail else ""
            say(f"run {run.id} is {run.state}{detail}")
        click.echo()
        commands = _CAMPAIGN if run.kind == "campaign" else _USUAL
        width = len("outerloop  ") + max(len(command) for command, _ in commands) + len(run.id)
        for command, what in commands:
            if run.state != "ended" or "cancel" not in command:
                click.echo(f"  {f'outerloop {command} {run.id}':<{max(width, LEAST_WIDTH)}} {what}")
    if run.state == "blocked" or (run.state == "ended" and run.verdict_reason == "scope"):
        click.get_current_context().exit(int(ExitCode.REFUSED))


def wait_for_end(deployment: Deployment, run_id: str, *, quiet: bool) -> None:
    """Look again until the run has ended or is blocked, advancing it like a tick would; progress goes to stderr.

    Ctrl-C ends the waiting alone: the run goes on, and the exit code is INTERRUPTED.
    """
    from outerloop.cli.progress import progress_line, run_progress
    from outerloop.controller.tick import advance_when_due

    pause, longest = WAIT_POLL_SECONDS
    last = ""
    out = console(error=True)
    status = out.status("waiting") if out.is_terminal and not quiet else None
    if status is not None:
        status.start()
    try:
        while True:
            run = the_run(deployment, run_id)
            if run.state in {"ended", "blocked"}:
                return
            line = progress_line(run_progress(deployment, run))
            if status is not None:
                status.update(line)
            elif line != last and not quiet:
                say(line, err=True)
            pause = WAIT_POLL_SECONDS[0] if line != last else min(pause * 1.5, longest)
            last = line
            time.sleep(pause)
            advance_when_due(deployment, run_id)
    except KeyboardInterrupt:
        raise CliError(
            f"no longer waiting; run {run_id} goes on without this command: `outerloop show {run_id}`,"
            f" `outerloop cancel {run_id}`",
            ExitCode.INTERRUPTED,
        ) from None
    finally:
        if status is not None:
            status.stop()

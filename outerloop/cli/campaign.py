"""`outerloop campaign`: look at a champion loop and say something to it.

Covered: status, events, front, advance, stop, resume, retry, cancel. Not covered: submitting (submit_campaign.py),
drawing (campaign_plot.py), what the words do (controller.campaign_operate).
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from outerloop.cli.campaign_plot import plot
from outerloop.cli.common import console, emit_json, explained, json_option, notes, opened, say
from outerloop.cli.errors import CliError, ExitCode
from outerloop.cli.reading import reading

if TYPE_CHECKING:
    from outerloop.cli.reading import Reader
    from outerloop.controller.campaign_views import CampaignView, Replay
    from outerloop.controller.deployment import Deployment
    from outerloop.record.models import Run

__all__ = ["campaign", "the_campaign"]

MOST_EVENTS = 40


@click.group(help="Look at a campaign and say something to it. CAMPAIGN is its name, its run or the run's beginning.")
def campaign() -> None:
    pass


campaign.add_command(plot)


def the_campaign(reader: Reader, name: str) -> CampaignView:
    """The campaign that a person means, folded. Raises CliError."""
    from outerloop.controller.campaign_operate import find_campaign
    from outerloop.controller.campaign_views import campaign_view
    from outerloop.controller.ledger import TornEvent
    from outerloop.controller.operate import OperatorError

    try:
        return campaign_view(reader.record, reader.root, find_campaign(reader, name))
    except OperatorError as error:
        raise CliError(str(error), ExitCode.REFUSED) from error
    except TornEvent as error:
        raise CliError(str(error), ExitCode.UNEXPECTED) from error


@campaign.command("status", help="Where CAMPAIGN stands: generation, champion, jobs, troubles.")
@click.argument("name", metavar="CAMPAIGN")
@json_option
def status(name: str, as_json: bool) -> None:
    from outerloop.cli.campaign_text import status_json, status_text

    with reading() as reader:
        view = the_campaign(reader, name)
        if as_json:
            emit_json(status_json(view))
        else:
            console().print(status_text(view))


@campaign.command("front", help="The generation's Pareto front, oldest first; * is the champion.")
@click.argument("name", metavar="CAMPAIGN")
@json_option
def front(name: str, as_json: bool) -> None:
    from outerloop.champion import front_table
    from outerloop.cli.campaign_text import front_text

    with reading() as reader:
        view = the_campaign(reader, name)
        if as_json:
            emit_json(front_table(view.state))
        else:
            console().print(front_text(view))


@campaign.command("events", help="The ledger of CAMPAIGN: everything that happened, in order.")
@click.argument("name", metavar="CAMPAIGN", required=False)
@click.option("--jsonl", is_flag=True, help="Print every event as a line of JSON: the export.")
@click.option(
    "--replay", "check", is_flag=True, help="Fold the ledger from nothing and check it, on disk and in the record."
)
@click.option(
    "--file",
    "path",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    help="An exported ledger to look at or to --replay instead of CAMPAIGN's; - reads from stdin.",
)
@click.option("--all", "-a", "everything", is_flag=True, help=f"Every event; else the last {MOST_EVENTS}.")
@json_option
def events(name: str | None, jsonl: bool, check: bool, path: Path | None, everything: bool, as_json: bool) -> None:
    if (name is None) == (path is None):
        raise CliError("name a CAMPAIGN, or a --file with an exported ledger")
    if check and (jsonl or everything):
        raise CliError(f"--replay prints a verdict and no events; leave out {'--jsonl' if jsonl else '--all'}")
    if path is not None:
        _events_of_file(path, jsonl=jsonl, check=check, everything=everything, as_json=as_json)
        return
    assert name is not None
    with reading() as reader:
        view = the_campaign(reader, name)
        if check:
            from outerloop.controller.campaign_views import replay
            from outerloop.controller.ledger import TornEvent

            try:
                _tell_replay(replay(reader.record, reader.root, view.run.id), as_json)
            except TornEvent as error:
                raise CliError(str(error), ExitCode.UNEXPECTED) from error
            return
        _print_events(view.events, jsonl=jsonl, everything=everything, as_json=as_json)


def _events_of_file(path: Path, *, jsonl: bool, check: bool, everything: bool, as_json: bool) -> None:
    from outerloop.champion import LedgerError, events_from_jsonl
    from outerloop.controller.campaign_views import replay_text

    with explained():
        name = "stdin" if str(path) == "-" else str(path)
        text = sys.stdin.read() if str(path) == "-" else path.read_bytes().decode("utf-8", "replace")
        try:
            if not text.strip():
                raise LedgerError(f"{name} holds no event")
            if check:
                _tell_replay(replay_text(text, name), as_json)
                return
            _print_events(events_from_jsonl(text, name), jsonl=jsonl, everything=everything, as_json=as_json)
        except LedgerError as error:
            raise CliError(str(error)) from error


def _print_events(found, *, jsonl: bool, everything: bool, as_json: bool) -> None:  # type: ignore[no-untyped-def]
    from outerloop.champion import events_to_jsonl
    from outerloop.cli.campaign_text import events_text

    if jsonl:
        click.echo(events_to_jsonl(found), nl=False)
    elif as_json:
        emit_json([event.model_dump(mode="json") for event in found])
    else:
        console().print(events_text(found if everything else found[-MOST_EVENTS:], len(found)))


def _tell_replay(result: Replay, as_json: bool) -> None:
    if as_json:
        emit_json(
            {
                "holds": not result.problems,
                "events": result.events,
                "generations": result.generations,
                "champion": result.champion,
                "front": list(result.front),
                "problems": list(result.problems),
            }
        )
    else:
        for problem in result.problems:
            say(problem, prefix="wrong: ")
        verdict = "The ledger holds" if not result.problems else "The ledger DOES NOT hold"
        generations = f"{result.generations} generation{'s' if result.generations != 1 else ''}"
        say(f"{verdict}: {result.events} events, {generations}, champion {result.champion or 'none'}.")
    if result.problems:
        click.get_current_context().exit(int(ExitCode.UNEXPECTED))


# -- words of an operator


@contextlib.contextmanager
def _speaking(name: str) -> Iterator[tuple[Deployment, Run]]:
    from outerloop.controller.campaign_operate import find_campaign
    from outerloop.controller.ledger import TornEvent
    from outerloop.controller.operate import OperatorError

    with opened() as deployment:
        try:
            yield deployment, find_campaign(deployment, name)
        except OperatorError as error:
            raise CliError(str(error), ExitCode.REFUSED) from error
        except TornEvent as error:
            raise CliError(str(error), ExitCode.UNEXPECTED) from error


def _go_on(deployment: Deployment, run: Run) -> None:
    from outerloop.controller.advance import advance
    from outerloop.controller.tick import ring_doorbell

    advanced = advance(deployment, run.id)
    if advanced.busy:
        # What was said stands in the ledger, where the process at work finds it; the marker is for its looking away.
        ring_doorbell(deployment.root, run.id)
        advanced.sentence = "another process is at work on it and takes this in; the next tick looks again"
    say(str(advanced.sentence), prefix=f"{run.id}  {advanced.state:<8} ")
    notes([*advanced.notes, *deployment.notes])


_reason = click.option("--reason", default="operator", show_default=True, help="Recorded in the ledger.")


@campaign.command("advance", help="Begin a new generation now: another split, another champion.")
@click.argument("name", metavar="CAMPAIGN")
@_reason
def advance_(name: str, reason: str) -> None:
    from outerloop.controller.campaign_operate import advance_generation

    with _speaking(name) as (deployment, run):
        advance_generation(deployment, run, reason)
        say(f"campaign {run.benchmark}: a new generation begins ({reason})")
        _go_on(deployment, run)


@campaign.command("stop", help="Hand out nothing more. Jobs that run come to their end and are taken in.")
@click.argument("name", metavar="CAMPAIGN")
@_reason
def stop(name: str, reason: str) -> None:
    from outerloop.controller import campaign_operate

    with _speaking(name) as (deployment, run):
        campaign_operate.stop(deployment, run, reason)
        say(f"campaign {run.benchmark}: stopped; `outerloop campaign resume {run.benchmark}` goes on")
        _go_on(deployment, run)


@campaign.command("resume", help="Go on after a stop, or look at the candidates file now.")
@click.argument("name", metavar="CAMPAIGN")
def resume(name: str) -> None:
    from outerloop.controller import campaign_operate

    with _speaking(name) as (deployment, run):
        resumed = campaign_operate.resume(deployment, run)
        say(f"campaign {run.benchmark}: " + ("goes on" if resumed else "was not stopped; looked at again"))
        _go_on(deployment, run)


@campaign.command("retry", help="Try again what failed: split, teacher, package, exhausted jobs.")
@click.argument("name", metavar="CAMPAIGN")
@click.argument("step", required=False, type=click.Choice(["split", "teacher", "package"]))
def retry(name: str, step: str | None) -> None:
    from outerloop.controller.campaign_operate import retry_step

    with _speaking(name) as (deployment, run):
        done = retry_step(deployment, run, step)
        say(f"campaign {run.benchmark}: tried again: {', '.join(done)}")
        _go_on(deployment, run)


@campaign.command("cancel", help="End CAMPAIGN: its jobs are cancelled, its ledger is closed.")
@click.argument("name", metavar="CAMPAIGN")
@_reason
def cancel(name: str, reason: str) -> None:
    from outerloop.controller.campaign_operate import cancel_campaign

    with _speaking(name) as (deployment, run):
        cancel_campaign(deployment, run, reason)
        say(f"campaign {run.benchmark}: cancelled ({reason})")
        _go_on(deployment, run)

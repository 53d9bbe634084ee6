"""What a submitter of a service sees: the same commands, answered from the spool.

Covered: submit climb and training, status, show, explain, logs and cancel of a submitter, and the refusal of everything
else. Not covered: noise studies (noise.py), the service's own commands, which work on the record.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outerloop.cli.common import console, emit_json
from outerloop.cli.errors import CliError, ExitCode
from outerloop.cli.text import Columns, folded, harmless, one_line

if TYPE_CHECKING:
    from outerloop.controller.service.client import Client
    from outerloop.settings import Settings

__all__ = [
    "cancel",
    "explain",
    "left_in_spool",
    "logs",
    "refuse_submitters",
    "show",
    "status",
    "submit_climb",
    "submit_training",
    "the_client",
]

WAIT_POLL_SECONDS = (0.5, 15.0)
WIDTH = 80
HERE = "submit climb, submit training, noise, status, show, explain, logs and cancel"


def the_client(settings: Settings | None = None) -> Client | None:
    """This process as a submitter, None where it may work on the record itself."""
    from outerloop.cli.common import the_settings

    settings = settings or the_settings()
    if settings.mode == "personal":
        return None
    from outerloop.controller.service.client import NoService, client_of

    try:
        return client_of(settings)
    except NoService as error:
        raise CliError(str(error), ExitCode.NO_ACCESS) from error


def refuse_submitters(settings: Settings) -> None:
    """Raise for a submitter: this command works on what belongs to the service."""
    client = the_client(settings)
    if client is not None:
        raise CliError(
            f"this deployment is a service of the account {client.service}, and only that account may do this; as a"
            f" submitter you have {HERE}",
            ExitCode.REFUSED,
        )


def submit_climb(
    client: Client,
    benchmark: str,
    *,
    repo: Path,
    base: str | None,
    candidate: str,
    again: bool,
    priority: int,
    wait: bool,
    as_json: bool,
) -> None:
    """Leave a climb in the spool; with `wait`, stay until its end."""
    from pydantic import ValidationError

    from outerloop.controller.service.client import NoService

    try:
        left = client.climb(repo.absolute(), benchmark, base=base, candidate=candidate, again=again, priority=priority)
    except NoService as error:
        raise CliError(str(error), ExitCode.NOT_FOUND) from error
    except ValidationError as error:
        detail = error.errors(include_url=False, include_input=False)[0]
        raise CliError(f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}") from error
    _left(client, left.nonce, wait=wait, as_json=as_json)


def submit_training(
    client: Client,
    told: Mapping[str, Any],
    *,
    repo: Path,
    candidate: str,
    priority: int,
    wait: bool,
    as_json: bool,
) -> None:
    """Leave a training in the spool; with `wait`, stay until its end."""
    from pydantic import ValidationError

    from outerloop.controller.git import GitError
    from outerloop.controller.service.client import NoService
    from outerloop.controller.service.spool import SubmissionError

    try:
        left = client.training(repo.absolute(), told, candidate=candidate, priority=priority)
    except NoService as error:
        raise CliError(str(error), ExitCode.NOT_FOUND) from error
    except SubmissionError as error:
        raise CliError(str(error), ExitCode.REFUSED) from error
    except GitError as error:
        raise CliError(str(error)) from error
    except ValidationError as error:
        detail = error.errors(include_url=False, include_input=False)[0]
        raise CliError(f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}") from error
    _left(client, left.nonce, wait=wait, as_json=as_json)


def left_in_spool(client: Client, nonce: str, *, as_json: bool) -> None:
    """Say that a submission waits for the service's next tick."""
    if as_json:
        emit_json({"submission": nonce, "state": "spool", "service": client.service})
        return
    click.echo(f"submission {nonce} is in the spool of {client.service}")
    click.echo("Its next tick takes it in; `outerloop status` says what became of it.")


def _left(client: Client, nonce: str, *, wait: bool, as_json: bool) -> None:
    """Say that a submission lies in the spool, or wait for the end of its run."""
    if not wait:
        left_in_spool(client, nonce, as_json=as_json)
        return
    body = _wait(client, nonce)
    if as_json:
        emit_json({**body, "submission": nonce})
    else:
        click.echo(folded(f"run {body['run']}: {_standing(body)}", WIDTH))
    if body["state"] == "ended" and body["reason"] == "scope":
        click.get_current_context().exit(int(ExitCode.REFUSED))


def _wait(client: Client, nonce: str) -> dict[str, Any]:
    pause, longest = WAIT_POLL_SECONDS
    while True:
        told = client.answer(nonce)
        if told is not None and told.get("state") == "refused":
            raise CliError(f"{client.service} refused it: {harmless(str(told.get('why')))}", ExitCode.REFUSED)
        if told is not None:
            try:
                body = client.run(str(told["run"]))
            except LookupError:
                body = {}
            if body.get("state") in {"ended", "blocked"}:
                return body
        time.sleep(pause)
        pause = min(pause * 1.5, longest)


def _standing(body: dict[str, Any]) -> str:
    if body["sentence"]:
        return one_line(str(body["sentence"]))
    return f"{body['state']}{': ' + body['reason'] if body['reason'] else ''}"


def status(client: Client, *, as_json: bool) -> None:
    """One's own runs and refusals."""
    runs, refused, studies = client.runs(), client.refusals(), client.studies()
    if as_json:
        emit_json({"service": client.service, "runs": runs, "refused": refused, "studies": studies})
        return
    click.echo(f"Your runs at the service of {client.service}")
    if not runs:
        click.echo("  none yet; `outerloop submit climb BENCHMARK` in a target's clone asks for a verdict")
    else:
        rows = [
            [b["run"], b["benchmark"], b["verdict"] or b["state"], one_line(str(b["label"] or b["candidate"][:12]))]
            for b in runs
        ]
        console().print(Columns(["RUN", "BENCHMARK", "STANDS", "CANDIDATE"], rows, give="CANDIDATE", indent=2))
    for body in studies[:10]:
        far = f"{body['measured']} of {body['total']} measured"
        told = "there" if body["state"] == "studied" else far
        click.echo(f"noise of {one_line(str(body['benchmark']))}: {told}")
    for body in refused[:10]:
        click.echo(folded(f"refused: {harmless(str(body.get('why')))}", WIDTH, "  "))


def show(client: Client, run: str, *, as_json: bool) -> None:
    """Where a run stands."""
    body = _run(client, run)
    if as_json:
        emit_json(body)
        return
    what = "training" if body["kind"] == "training" else f"{body['kind']} on"
    click.echo(f"run {body['run']}: {what} {one_line(str(body['benchmark']))}")
    click.echo(folded(one_line(str(body["label"])), WIDTH, prefix=f"  candidate  {body['candidate'][:12]}  "))
    if body["kind"] == "climb":
        click.echo(f"  base       {body['base'][:12]}")
    click.echo(folded(_standing(body), WIDTH, prefix="  stands     "))
    for measure in body["measures"]:
        value = f" = {measure['value']}" if measure["value"] is not None else ""
        reason = f" ({measure['reason']})" if measure["reason"] else ""
        click.echo(f"  {measure['role']:<20} {measure['state']}{value}{one_line(reason)}")
    if body["sealed"]:
        click.echo(folded("Sealed: the benchmark has a ladder, so values, logs and the argument stay withheld.", WIDTH))


def explain(client: Client, run: str, *, as_json: bool) -> None:
    """The argument behind a verdict, as far as it may be known."""
    body = _run(client, run)
    if as_json:
        emit_json(body)
        return
    if not body["explain"]:
        show(client, run, as_json=False)
        return
    click.echo(harmless("\n".join(body["explain"])))
    if body["notes"]:
        click.echo()
        click.echo("How far to trust it")
        for note in body["notes"]:
            click.echo(folded(str(note), WIDTH, "  "))


def logs(client: Client, run: str, measure: str, *, as_json: bool) -> None:
    """The last lines of what one's measures printed."""
    body = _run(client, run)
    if body["sealed"]:
        raise CliError(f"run {body['run']} is sealed: a ladder withholds what its measures printed", ExitCode.REFUSED)
    found = {m["role"]: m["logs"] for m in body["measures"] if not measure or m["role"] == measure}
    if as_json:
        emit_json(found)
        return
    if not any(found.values()):
        raise CliError(f"run {body['run']} has no logs yet; they are published when it has ended", ExitCode.NOT_FOUND)
    for role, streams in found.items():
        for name, text in streams.items():
            click.echo(f"== {role} {name}")
            click.echo(harmless(text).rstrip("\n"))


def cancel(client: Client, run: str, *, as_json: bool) -> None:
    """Ask for the end of one's own run."""
    left = client.cancel(_run(client, run)["run"])
    if as_json:
        emit_json({"submission": left.nonce, "state": "spool"})
    else:
        click.echo(f"the service's next tick ends it (submission {left.nonce})")


def _run(client: Client, name: str) -> dict[str, Any]:
    try:
        return client.run(name)
    except LookupError as error:
        raise CliError(str(error.args[0]), ExitCode.NOT_FOUND) from error

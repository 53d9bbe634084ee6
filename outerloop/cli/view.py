"""`outerloop view`: the record, or one folder, in a browser.

Covered: options, what is missing for it. Not covered: serving and pages (outerloop.viewer).
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from outerloop.cli.common import notes
from outerloop.cli.errors import CliError, ExitCode, explained
from outerloop.cli.numbers import Whole
from outerloop.cli.reading import reading
from outerloop.cli.text import folded

if TYPE_CHECKING:
    from outerloop.viewer.serve import Address

__all__ = ["view"]

PORT = 8765
_NEEDED = ("starlette", "uvicorn", "jinja2", "plotly")
TOKEN_VARIABLE = "OUTERLOOP_VIEW_TOKEN"


@click.command(
    "view",
    help="Show runs, benchmarks, trainings and the queue in a browser. PATH: one training's, slot's or run's folder, or"
    " a report of `outerloop plan --json`, without a record. --demo shows recorded runs, without a cluster.",
)
@click.argument("path", required=False, type=click.Path(path_type=Path))
@click.option("--demo", is_flag=True, help="Show a recorded campaign, climbs and trainings; needs no set-up.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. Another one than this machine's own always asks for a token.",
)
@click.option("--port", type=Whole(0, 65535), default=PORT, show_default=True, help="Port; 0 takes any that is free.")
@click.option("--token", is_flag=True, help="Ask for a token, so that other accounts of this machine see nothing.")
@click.option(
    "--allow-host",
    "names",
    multiple=True,
    metavar="NAME",
    help="Answer under this name too, such as a proxy's; repeatable.",
)
def view(path: Path | None, demo: bool, host: str, port: int, token: bool, names: tuple[str, ...]) -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise CliError(f"the view needs {', '.join(missing)}: pip install 'outerloop-slurm[view]'", ExitCode.BAD_INPUT)
    if path is not None and demo:
        raise CliError("--demo takes no PATH: it shows what comes with outerloop", ExitCode.BAD_INPUT)
    if demo:
        _demo(host, port, token, names)
        return
    if path is not None:
        _one_folder(path, host, port, token, names)
        return
    from outerloop.controller.deployment import account, database_url

    # Opened once the usual way: settings, tables and rights are checked before anything is served.
    with reading() as reader:
        settings, root = reader.settings, reader.root
        reader.record.now()
    from outerloop.viewer.app import record_app
    from outerloop.viewer.serve import serve
    from outerloop.viewer.source import Source

    source = Source(
        # A server that somebody stopped is not started again by looking.
        url=lambda: database_url(settings, root, start=False),
        owner=account(),
        root=root,
        cadence_seconds=settings.wake.cadence_seconds,
    )
    address = _bound(host, port, token, names)
    with explained(), _until_interrupted():
        serve(record_app(source), address, ready=lambda url: _say(url, address, str(root.path)))


@contextlib.contextmanager
def _until_interrupted() -> Iterator[None]:
    """Ctrl-C is how the view ends: no failure."""
    with contextlib.suppress(KeyboardInterrupt):
        yield


def _demo(host: str, port: int, token: bool, names: tuple[str, ...]) -> None:
    from outerloop.viewer.demo import RECORDING, demo_source

    address = _bound(host, port, token, names)
    with explained(), _until_interrupted():
        from outerloop.controller.recording import BadRecording, opened_recording
        from outerloop.viewer.app import record_app
        from outerloop.viewer.serve import serve

        notes(["unpacking the recorded runs and making their record; a few seconds"])
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _leave)  # so that the temporary record goes, too
        try:
            with opened_recording(RECORDING) as recorded:
                app = record_app(demo_source(recorded))
                serve(app, address, ready=lambda url: _say(url, address, "recorded runs"))
        except BadRecording as error:
            raise CliError(str(error)) from error


def _leave(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def _one_folder(path: Path, host: str, port: int, token: bool, names: tuple[str, ...]) -> None:
    from outerloop.viewer.app import folder_app
    from outerloop.viewer.folder import recognised
    from outerloop.viewer.serve import serve

    try:
        folder = recognised(path)
    except ValueError as error:
        raise CliError(str(error), ExitCode.NOT_FOUND) from error
    address = _bound(host, port, token, names)
    with explained(), _until_interrupted():
        serve(folder_app(folder), address, ready=lambda url: _say(url, address, str(folder.path)))


def _bound(host: str, port: int, token: bool, names: tuple[str, ...]) -> Address:
    from outerloop.viewer.serve import bind

    try:
        return bind(host, port, names=names, token=token, given=os.environ.get(TOKEN_VARIABLE, ""))
    except OSError as error:
        raise CliError(
            f"can't listen on {host}:{port}: {error.strerror or error}; --port 0 takes any that is free",
            ExitCode.BAD_INPUT,
        ) from error
    except ValueError as error:
        raise CliError(f"--allow-host: {error}", ExitCode.BAD_INPUT) from error


def _say(url: str, address: Address, place: str) -> None:
    click.echo(url)
    click.echo(folded(f"shows {place}; Ctrl-C ends it"), err=True)
    if not address.token:
        notes(["any account of this machine can read it; --token asks for one"])

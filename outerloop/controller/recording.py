"""A recorded deployment, opened in a temporary folder: its state folder unpacked, its record made anew from it.

Covered: `outerloop view --demo`, which shows real runs of another time without a cluster. The record is folded from the
files by the same code as `outerloop db rebuild`, so a recording outlives changes of the tables. Not covered: making a
recording (docs/tutorial/record_demo.py).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from outerloop.controller.deployment import Deployment, open_deployment
from outerloop.controller.rebuild import rebuild
from outerloop.record import embedded
from outerloop.record.server.processes import alive
from outerloop.settings import Settings
from outerloop.slots import StateRoot

__all__ = ["BadRecording", "opened_recording"]

PREFIX = "outerloop-demo-"


class BadRecording(ValueError):
    """A recording can't be shown."""


@contextlib.contextmanager
def opened_recording(archive: Path, *, database_url: str = "") -> Iterator[Deployment]:
    """The recorded deployment, for reading; everything made for it is gone afterwards. Without the URL
    of an empty database a server of its own is started.

    Raises BadRecording, EmbeddedError where there are no PostgreSQL programs, OSError.
    """
    _sweep()
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
    state = folder / "state"
    try:
        _unpack(archive, state)
        # Nothing of the person's own settings counts here, least of all the database.
        settings = Settings(state=state, database_url=database_url, backend="local", deployment="demo", mode="personal")
        deployment = open_deployment(settings, config=None)
        try:
            made = rebuild(deployment.context)
            if made.problems or not made.runs:
                raise BadRecording(f"{archive} is no whole recording: {'; '.join(made.problems) or 'it has no run'}")
            yield deployment
        finally:
            deployment.close()
    finally:
        _remove(folder)


def _unpack(archive: Path, state: Path) -> None:
    state.mkdir()
    try:
        with tarfile.open(archive) as packed:
            if hasattr(tarfile, "data_filter"):  # Python 3.11.4 and newer: nothing outside `state`, no devices
                packed.extraction_filter = tarfile.data_filter
            packed.extractall(state)
    except (tarfile.TarError, EOFError) as error:
        raise BadRecording(f"{archive} can't be unpacked: {error}") from error


def _remove(folder: Path) -> None:
    embedded.remove(StateRoot(folder / "state").database)
    shutil.rmtree(folder, ignore_errors=True)


def _sweep() -> None:
    """Remove what demos left behind that were killed: a server that nobody stops, and its folder."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*-*"):
        pid = folder.name.removeprefix(PREFIX).partition("-")[0]
        with contextlib.suppress(OSError, embedded.EmbeddedError):
            if pid.isdecimal() and folder.stat().st_uid == os.getuid() and not alive(int(pid)):
                _remove(folder)

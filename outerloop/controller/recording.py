"""A recorded deployment, opened in a temporary folder: its state folder unpacked, its record made anew from it.

Covered: `outerloop view --demo`, which shows real runs of another time without a cluster. The record is folded from the
files by the same code as `outerloop db rebuild`, so a recording outlives changes of the tables. Its database's clock
stands where the recording ended, so that "2 min ago" and the chart of 30 days are in ten years what they were then. Not
covered: making a recording (docs/tutorial/record_demo.py).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from sqlalchemy import func, make_url, select, text

from outerloop.controller.deployment import Deployment, open_deployment
from outerloop.controller.deployment import database_url as url_of
from outerloop.controller.rebuild import rebuild
from outerloop.record import embedded
from outerloop.record.models import Run
from outerloop.record.server.processes import alive
from outerloop.settings import Settings
from outerloop.slots import StateRoot

__all__ = ["BadRecording", "Recorded", "opened_recording"]

PREFIX = "outerloop-demo-"
CLOCK = "outerloop_recorded_clock"
"""The schema of a recording's own now() and clock_timestamp()."""
LOOKED_AFTER = timedelta(minutes=1)
"""The clock stands so long after the last verdict."""


class BadRecording(ValueError):
    """A recording can't be shown."""


@dataclass(frozen=True)
class Recorded:
    """An opened recording."""

    deployment: Deployment
    url: str
    """Of its database, with the clock that stands."""
    now: datetime
    """Where the clock stands."""


@contextlib.contextmanager
def opened_recording(archive: Path, *, database_url: str = "") -> Iterator[Recorded]:
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
            yield _stopped(deployment, url_of(settings, deployment.root, start=False))
        finally:
            deployment.close()
    finally:
        _remove(folder)


def _stopped(deployment: Deployment, url: str) -> Recorded:
    """The same with a clock that stands. Functions of a schema that the search path names before pg_catalog are taken
    before the built-in ones (PostgreSQL manual, "Schemas"). The database is the recording's own."""
    with deployment.record.reading() as session:
        ended = session.scalar(select(func.max(func.coalesce(Run.ended_at, Run.created_at))))
    assert ended is not None  # there are runs
    now: datetime = ended + LOOKED_AFTER
    # Part of making the record anew; one that was killed before is thrown away whole.
    with deployment.record.transaction("tx.rebuild") as session:
        session.execute(text(f"create schema if not exists {CLOCK}"))
        for name in ("now", "clock_timestamp"):
            body = f"select '{now.isoformat()}'::timestamptz"
            made = f"create or replace function {CLOCK}.{name}() returns timestamptz language sql as $${body}$$"
            session.execute(text(made))
    running = make_url(url)
    options = " ".join([str(running.query.get("options", "")), f"-csearch_path={CLOCK},pg_catalog,public"]).strip()
    stopped = running.update_query_dict({"options": options}).render_as_string(hide_password=False)
    return Recorded(deployment, stopped, now)


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

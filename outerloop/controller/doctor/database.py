"""The record: is it there, is it ours, and what time does it have."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

from outerloop.controller.doctor.finding import FAIL, OK, WARN, Finding, Site

__all__ = ["SKEW_SECONDS", "record"]

MOST_DAMAGED = 20
"""Runs that are named one by one: a whole folder that is gone is one thing to repair."""
SKEW_SECONDS = 5.0
"""Times that people see come from both clocks; nothing is decided by the host's."""


def record(site: Site) -> Iterator[Finding]:
    from outerloop.record import embedded
    from outerloop.record.models import REVISION

    settings = site.settings
    url = settings.database_url.get_secret_value()
    where = "the database of database_url"
    if not url:
        try:
            known = embedded.status(site.root.database)
        except embedded.EmbeddedError as error:
            yield Finding("record", FAIL, str(error))
            return
        if not known.exists:
            yield Finding("record", WARN, "there is no record yet", "run `outerloop init`, or submit something")
            return
        if known.host != socket.gethostname():
            yield Finding(
                "record",
                WARN,
                f"the embedded record belongs to host {known.host}: from here, requests only reach its inbox",
                f"work on {known.host}, or set database_url to a Postgres that both reach",
            )
            return
        if not known.running:
            yield Finding(
                "record", OK, f"embedded PostgreSQL {known.version}, stopped; a command that needs it starts it"
            )
            return
        where = f"embedded PostgreSQL {known.version} (process {known.pid})"
        url = embedded.url_of(site.root.database)
    from sqlalchemy import text
    from sqlalchemy.exc import SQLAlchemyError

    from outerloop.record.migrate import connect

    try:
        with connect(url) as connection:
            before = time.time()
            theirs = float(connection.execute(text("select extract(epoch from clock_timestamp())")).scalar_one())
            skew = theirs - (before + time.time()) / 2
            revision = None
            if connection.execute(text("select to_regclass('alembic_version')")).scalar_one() is not None:
                revision = connection.execute(text("select version_num from alembic_version")).scalar_one_or_none()
            version = str(connection.execute(text("show server_version")).scalar_one())
    except SQLAlchemyError as error:
        original = str(getattr(error, "orig", None) or error).strip().splitlines()
        yield Finding("record", FAIL, f"{where}: {original[0] if original else 'no answer'}", "check database_url")
        return
    if where.startswith("the"):
        where = f"PostgreSQL {version} at database_url"
    if revision == REVISION:
        yield Finding("record", OK, f"{where}, revision {revision}")
        yield from _unrecorded(site, url)
    elif revision is None:
        yield Finding("record", WARN, f"{where} has no tables yet", "run `outerloop db upgrade`")
    elif revision < REVISION:
        yield Finding(
            "record", WARN, f"{where} is at revision {revision}, not {REVISION}", "run `outerloop db upgrade`"
        )
    else:
        yield Finding(
            "record",
            FAIL,
            f"{where} is at revision {revision}, newer than this outerloop ({REVISION})",
            "install the version that fits",
        )
    if abs(skew) > SKEW_SECONDS:
        yield Finding(
            "clock",
            WARN,
            f"the database's clock differs from this host's by {skew:+.0f} s",
            "let both follow NTP; decisions use the database's clock alone",
        )
    else:
        yield Finding("clock", OK, f"database and host differ by {abs(skew):.1f} s")


def _unrecorded(site: Site, url: str) -> Iterator[Finding]:
    """Runs that lie on disk and nobody goes on with, and runs that a rebuild would leave out."""
    from outerloop.controller.deployment import account
    from outerloop.controller.unrecorded import damaged_requests, recorded_runs, unrecorded_runs
    from outerloop.record.store import Record

    record = Record(url, owner=account(), slot_root=str(site.root.path))
    try:
        for lost in unrecorded_runs(record, site.root):
            yield Finding(
                "runs",
                FAIL,
                f"run {lost.run_id} is on disk and not in the record: {lost.why}",
                lost.fix,
            )
        for run in damaged_requests(site.root, sorted(recorded_runs(record)), gone=True)[:MOST_DAMAGED]:
            yield Finding(
                "runs",
                FAIL,
                f"run {run.run_id} is in the record, but {run.why}: it can't be verified or archived, and `db rebuild`"
                " would leave it out",
                f"put {site.root.request(run.run_id)} back from a copy",
            )
    finally:
        record.close()

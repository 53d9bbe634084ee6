"""A real server for the session and a fresh database for each test that asks for one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url

from outerloop.record import embedded, migrate

_PREFIX = "ol-pg-"
_TEMPLATE = "outerloop_template"


def open_folder(prefix: str = "ol-test-") -> Path:
    """A temporary folder that the server's account can pass through (pytest's own are closed to it)."""
    folder = Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir="/tmp"))
    folder.chmod(0o711)
    return folder


def _sweep() -> None:
    """Remove the servers of killed test sessions. One worker does; what it can't remove is no fault of a test."""
    with (Path("/tmp") / f".{_PREFIX}sweep-{os.geteuid()}").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return
        for folder in Path("/tmp").glob(f"{_PREFIX}*"):
            pid = folder.name.removeprefix(_PREFIX).split("-")[0]
            with contextlib.suppress(OSError, embedded.EmbeddedError):
                if pid.isdigit() and not Path(f"/proc/{pid}").exists() and folder.stat().st_uid == os.geteuid():
                    embedded.remove(folder)


@pytest.fixture(scope="session")
def pg_url() -> Iterator[str]:
    """URL of a fast server (no fsync) that lives as long as the session."""
    _sweep()
    folder = open_folder(_PREFIX)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(embedded.FAST_VARIABLE, "1")
        patch.delenv("SLURM_JOB_ID", raising=False)
        url = embedded.ensure_running(folder)
    yield url
    embedded.remove(folder)


def _execute(url: str, statement: str) -> None:
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute(statement)  # type: ignore[arg-type]


def _database_url(url: str, name: str) -> str:
    return make_url(url).set(database=name).render_as_string(hide_password=False)


@pytest.fixture(scope="session")
def template_database(pg_url: str) -> str:
    """Name of a database at the newest revision, to be copied."""
    _execute(pg_url, f"create database {_TEMPLATE}")
    migrate.upgrade(_database_url(pg_url, _TEMPLATE))
    return _TEMPLATE


@pytest.fixture
def database(pg_url: str, template_database: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """URL of a fresh database at the newest revision, dropped after the test."""
    name = f"test_{abs(hash(request.node.nodeid)):x}"
    _execute(pg_url, f"create database {name} template {template_database}")
    yield _database_url(pg_url, name)
    _execute(pg_url, f"drop database {name} with (force)")


@pytest.fixture
def empty_database(pg_url: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """URL of a database without any table, dropped after the test."""
    name = f"empty_{abs(hash(request.node.nodeid)):x}"
    _execute(pg_url, f"create database {name}")
    yield _database_url(pg_url, name)
    _execute(pg_url, f"drop database {name} with (force)")

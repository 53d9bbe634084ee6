"""A world of runs in a real Postgres, and the command line called as a user types it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from outerloop.cli import app
from tests.postgres.conftest import database, pg_url, template_database
from tests.rows import World, make_world

__all__ = ["database", "pg_url", "template_database", "world"]


@pytest.fixture
def world(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A fresh realm; commands that run in this process see it."""
    made = make_world(database, tmp_path / "state")
    for name in os.environ:
        if name.startswith("OUTERLOOP_"):
            monkeypatch.delenv(name)
    for name, value in made.environment().items():
        monkeypatch.setenv(name, value)
    import time

    time.tzset()
    yield made
    made.record.close()
    monkeypatch.undo()
    time.tzset()


def outerloop(*arguments: str) -> Result:
    """Call the command line in this process, piped: plain text, 80 columns."""
    return CliRunner().invoke(app, list(arguments), prog_name="outerloop")

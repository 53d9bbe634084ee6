"""A world of runs in a real Postgres, and the command line called as a user types it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from outerloop.cli import app
from tests.rows import World, make_world

Outerloop = Callable[..., Result]


@pytest.fixture
def world(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A fresh realm; commands that run in this process see it."""
    made = make_world(database, tmp_path / "state")
    for name in list(os.environ):
        if name.startswith("OUTERLOOP_"):
            monkeypatch.delenv(name)
    for name, value in made.environment().items():
        monkeypatch.setenv(name, value)
    time.tzset()
    yield made
    made.record.close()
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def outerloop() -> Outerloop:
    """Call the command line in this process, piped: plain text, 80 columns. A defect of ours fails the test."""

    def call(*arguments: str, code: int | None = 0) -> Result:
        result = CliRunner().invoke(app, list(arguments), prog_name="outerloop")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert code is None or result.exit_code == code, result.output
        return result

    return call

"""A fresh world per test, on the session's Postgres."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.controller_rig.world import World
from tests.postgres.conftest import database, pg_url, template_database

__all__ = ["database", "pg_url", "template_database"]


@pytest.fixture
def world(tmp_path: Path, database: str) -> World:
    return World(tmp_path, database)


@pytest.fixture
def make_world(tmp_path: Path, database: str) -> Iterator[Callable[..., World]]:
    yield lambda **dispatch: World(tmp_path / "w", database, **dispatch)

"""A world of runs, and the session's Postgres."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres.conftest import database, pg_url, template_database
from tests.rows import World, make_world

__all__ = ["database", "pg_url", "template_database"]


@pytest.fixture
def world(database: str, tmp_path: Path) -> Iterator[World]:
    made = make_world(database, tmp_path / "state")
    yield made
    made.record.close()

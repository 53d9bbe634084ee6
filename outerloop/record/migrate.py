"""Bring a database's tables to the newest revision, say where it stands, and compare it with the models.

Covered: finding the revisions (in the repository, or shipped in the wheel), upgrades that are safe when two happen at
once, drift. Not covered: the revisions themselves (migrations/versions), deciding what a new one should do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from alembic.config import Config
    from sqlalchemy import Connection

__all__ = [
    "UPGRADE_LOCK",
    "MigrationError",
    "connect",
    "current",
    "drift",
    "head",
    "migrations_folder",
    "new_revision",
    "upgrade",
]

UPGRADE_LOCK = 0x6F6C7501
"""Key of the transaction-level advisory lock around an upgrade ("olu" and a version byte)."""

CONNECT_TIMEOUT_SECONDS = 10


class MigrationError(Exception):
    """The tables can't be brought up to date. The text says why."""


def migrations_folder() -> Path:
    """The folder with env.py: the repository's, else the one shipped in the wheel. Raises MigrationError."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package.parent / "migrations", package / "_shipped" / "migrations"):
        if (folder / "env.py").is_file():
            return folder
    raise MigrationError(f"the migrations are missing beside {package}: the installation is incomplete")


@contextlib.contextmanager
def connect(url: str) -> Iterator[Connection]:
    """One connection to `url`, and no pool left behind."""
    from sqlalchemy import create_engine
    from sqlalchemy.pool import NullPool

    engine = create_engine(
        url,
        poolclass=NullPool,
        connect_args={"connect_timeout": CONNECT_TIMEOUT_SECONDS, "application_name": "outerloop-migrate"},
    )
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def _config(url: str | None = None) -> Config:
    from alembic.config import Config

    config = Config()
    # alembic reads its options through %-interpolation
    config.set_main_option("script_location", str(migrations_folder()).replace("%", "%%"))
    config.attributes["url"] = url  # not an option: it holds a password, and options are printed in errors
    return config


def head() -> str | None:
    """The newest revision that this installation knows, or None when there is none yet."""
    from alembic.script import ScriptDirectory

    return ScriptDirectory.from_config(_config()).get_current_head()


def current(url: str) -> str | None:
    """The revision of the database, or None for one without our tables."""
    from alembic.runtime.migration import MigrationContext

    with connect(url) as connection:
        return MigrationContext.configure(connection).get_current_revision()


def upgrade(url: str) -> tuple[str | None, str | None]:
    """Bring the database to `head()`; returns the revisions before and after.

    Idempotent, and two at once are safe. Raises MigrationError for a database that a newer outerloop has upgraded
    already, and SQLAlchemy's errors when the database is unreachable.
    """
    from alembic import command
    from alembic.script import ScriptDirectory
    from alembic.util import CommandError

    before = current(url)
    config = _config(url)
    known = ScriptDirectory.from_config(config)
    if before is not None and before not in {revision.revision for revision in known.walk_revisions()}:
        raise MigrationError(
            f"the database is at revision {before}, which this installation (newest: {known.get_current_head()}) does"
            " not know: it was upgraded by a newer outerloop; install that version"
        )
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise MigrationError(str(error)) from error
    return before, current(url)


def new_revision(url: str, message: str) -> Path:
    """Write a revision with what differs between the models and the database, which must be at head. For developers."""
    from alembic import command

    written = command.revision(_config(url), message, autogenerate=True)
    if written is None or isinstance(written, list):
        raise MigrationError("alembic wrote no single revision")
    return Path(written.path)


def drift(url: str) -> list[str]:
    """What differs between the database and the models, a sentence each; empty when they agree.

    For the test that a changed model comes with a revision (what `alembic check` does, without its console output).
    """
    from alembic.autogenerate import compare_metadata
    from alembic.runtime.migration import MigrationContext

    from outerloop.record.models import Base

    with connect(url) as connection:
        options: dict[str, Any] = {"compare_type": True, "compare_server_default": True}
        context = MigrationContext.configure(connection, opts=options)
        differences = compare_metadata(context, Base.metadata)
        return [_sentence(difference) for difference in differences]


def _sentence(difference: Any) -> str:
    if isinstance(difference, list):
        return "; ".join(_sentence(part) for part in difference)
    return " ".join(str(part) for part in difference)

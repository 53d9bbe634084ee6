"""Opening the record for people who only look: nothing is migrated, submitted or made.

Covered: the record with the settings and the state folder, and a sentence for each reason why there is none. Not
covered: opening for work (common.opened).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outerloop.cli.common import the_settings
from outerloop.cli.errors import CliError, ExitCode, explained

if TYPE_CHECKING:
    from outerloop.record.store import Record
    from outerloop.settings import Settings
    from outerloop.slots import StateRoot

__all__ = ["NoRecord", "Reader", "reading"]

_INSUFFICIENT_PRIVILEGE = "42501"
"""SQLSTATE of a missing grant (PostgreSQL manual, appendix A)."""


@dataclass(frozen=True)
class Reader:
    """What a command that only looks works with."""

    settings: Settings
    root: StateRoot
    record: Record


class NoRecord(CliError):
    """There is no record yet, so there is nothing to show."""

    def __init__(self, state: str) -> None:
        super().__init__(
            f"there is no record in {state} yet: `outerloop init` starts one, `outerloop submit` fills it",
            ExitCode.NOT_FOUND,
        )


@contextlib.contextmanager
def reading() -> Iterator[Reader]:
    """The record to be read, closed afterwards. Raises NoRecord before the first use, CliError for the rest."""
    with explained():
        from sqlalchemy.exc import DBAPIError

        from outerloop.controller.deployment import account, database_url
        from outerloop.record.models import REVISION
        from outerloop.record.store import Record
        from outerloop.slots import StateRoot

        settings = the_settings()
        if settings.mode == "service":
            from outerloop.cli.service_client import refuse_submitters

            refuse_submitters(settings)
        root = StateRoot(settings.state)
        if not settings.database_url.get_secret_value() and not (root.database / "server.json").exists():
            raise NoRecord(str(root.path))
        record = Record(database_url(settings, root), owner=account(), slot_root=str(root.path))
        try:
            found = record.revision()
            if found is None:
                raise NoRecord(str(root.path))
            if found != REVISION:
                raise CliError(
                    f"the record's tables are at revision {found}, this outerloop reads {REVISION}:"
                    " run `outerloop db upgrade`, or install the version that fits",
                    ExitCode.RECORD_UNAVAILABLE,
                )
            yield Reader(settings, root, record)
        except LookupError as error:
            raise CliError(str(error.args[0] if error.args else error), ExitCode.NOT_FOUND) from error
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) != _INSUFFICIENT_PRIVILEGE:
                raise
            raise CliError(
                f"the role in database_url lacks a right ({str(error.orig).splitlines()[0]}); looking needs SELECT on"
                " all tables",
                ExitCode.RECORD_UNAVAILABLE,
            ) from error
        finally:
            record.close()

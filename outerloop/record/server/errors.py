"""Why the embedded Postgres can't be used.

Covered: the classes, and what is made of system errors and of the programs' output. Not covered: a database that
stopped answering (store.py).
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = [
    "DiskFullError",
    "EmbeddedError",
    "NotRunningError",
    "OtherHostError",
    "classified",
    "explained",
    "is_full",
    "no_room",
]

WAL_SEGMENT_BYTES = 16 << 20
"""The server's log grows by files of this size; without room for one it stops (PostgreSQL manual, wal_segment_size)."""


class EmbeddedError(Exception):
    """The embedded Postgres can't be used. The text says why and what to do."""


class DiskFullError(EmbeddedError):
    """There is no space (or quota) left for the embedded Postgres."""


class OtherHostError(EmbeddedError):
    """The folder's server belongs to another host; two servers on one folder would destroy it."""


class NotRunningError(EmbeddedError):
    """The embedded Postgres is not running and may not be started from here."""


@contextlib.contextmanager
def explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        what = f"{error.filename or folder}: {error.strerror or error}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFullError(f"no space left for the embedded Postgres: {what}") from error
        raise EmbeddedError(f"the embedded Postgres in {folder} can't be used: {what}") from error


def is_full(folder: Path) -> bool:
    """Whether the disk has no room for one more file of the server's log."""
    try:
        facts = os.statvfs(folder)
    except OSError:
        return False
    return facts.f_bavail * facts.f_frsize < WAL_SEGMENT_BYTES


def no_room(folder: Path) -> str:
    """The sentence for a server that stopped, or answers nobody, on a full disk."""
    facts = os.statvfs(folder)
    free = facts.f_bavail * facts.f_frsize >> 10
    return (
        f"no space left for the embedded Postgres: {free} KiB are free in {folder}, and it needs"
        f" {WAL_SEGMENT_BYTES >> 20} MiB; nothing that was recorded is lost, and it starts again when there is room"
    )


def classified(what: str, output: str) -> EmbeddedError:
    telling = [line for line in output.splitlines() if any(word in line for word in ("FATAL", "error:", "PANIC"))]
    lines = (telling or output.strip().splitlines())[-4:]
    text = f"{what}: " + "; ".join(line.strip() for line in lines) if lines else what
    if "No space left on device" in output or "Disk quota exceeded" in output:
        return DiskFullError(text)
    return EmbeddedError(text)

"""Runs that lie on disk and that the record does not know: after a rebuild that could not read them, for instance.

Covered: finding them and saying why each is missing. Not covered: bringing them back (rebuild.py, the inbox).
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from sqlalchemy import select

from outerloop.controller.training_request import read_request
from outerloop.record.models import Run
from outerloop.record.store import Record
from outerloop.slots import StateRoot
from outerloop.slots.files import read_json

__all__ = ["Unrecorded", "unrecorded_runs"]

SETTLED_SECONDS = 60.0
"""A request that is younger may be on its way into the record: the file comes first."""


@dataclass(frozen=True)
class Unrecorded:
    """A run's folder without a row in the record."""

    run_id: str
    why: str


def unrecorded_runs(record: Record, root: StateRoot) -> tuple[Unrecorded, ...]:
    """Runs whose request lies in the state folder and is not in this realm's record. Folders that can't be listed are
    none: who may only read the record sees no files."""
    try:
        names = {entry.name for entry in os.scandir(root.runs) if entry.is_dir()}
    except OSError:
        return ()
    with record.reading() as session:
        known = set(session.scalars(select(Run.id).where(Run.realm_id == record.realm_id)))
    found = []
    for name in sorted(names - known):
        try:
            path = root.request(name)
            if time.time() - path.stat().st_mtime < SETTLED_SECONDS:
                continue
        except (OSError, ValueError):
            continue  # without a request it is a submission that died before it was durable
        found.append(Unrecorded(name, _why(root, name)))
    return tuple(found)


def _why(root: StateRoot, name: str) -> str:
    path = root.request(name)
    body = read_json(path)
    if body is None:
        return f"{path} is torn: it is no JSON object"
    try:
        read_request(body)
    except ValueError as error:
        return f"{path} is no request that this outerloop reads: {str(error).splitlines()[0]}"
    return f"{path} is whole, but the record has no such run: `outerloop db rebuild` reads it again"

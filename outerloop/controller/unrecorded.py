"""Where the state folder and the record disagree about which runs there are.

Covered: runs that lie on disk and that the record does not know (after a rebuild that could not read them, for
instance), runs of the record whose request is torn or gone, and saying why. Not covered: bringing them back
(rebuild.py, the inbox), whether a run's slots agree with its verdict (evidence.py).
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import select

from outerloop.controller.training_request import read_request
from outerloop.printable import one_line
from outerloop.record.models import Run
from outerloop.record.store import Record
from outerloop.slots import StateRoot
from outerloop.slots.files import read_json

__all__ = ["Damaged", "Unrecorded", "damaged_requests", "recorded_runs", "stranger", "unrecorded_runs"]

SETTLED_SECONDS = 60.0
"""A request that is younger may be on its way into the record: the file comes first."""


@dataclass(frozen=True)
class Unrecorded:
    """A folder of a run without a row in the record."""

    run_id: str
    """The folder's name, as a person can be shown it."""
    why: str
    fix: str = ""


@dataclass(frozen=True)
class Damaged:
    """A run of the record whose request on disk can't be read: a rebuild would leave it out."""

    run_id: str
    why: str


def recorded_runs(record: Record) -> set[str]:
    """Ids of all runs of this realm."""
    with record.reading() as session:
        return set(session.scalars(select(Run.id).where(Run.realm_id == record.realm_id)))


def unrecorded_runs(record: Record, root: StateRoot) -> tuple[Unrecorded, ...]:
    """Folders of runs with a request that are not in this realm's record. Folders that can't be listed are none: who
    may only read the record sees no files."""
    try:
        names = {entry.name for entry in os.scandir(root.runs) if entry.is_dir()}
    except OSError:
        return ()
    found = []
    for name in sorted(names - recorded_runs(record)):
        path = root.runs / name / "request.json"
        try:
            if time.time() - path.stat().st_mtime < SETTLED_SECONDS:
                continue
        except OSError:
            continue  # without a request it is a submission that died before it was durable
        found.append(_told(root, name))
    return tuple(found)


def _told(root: StateRoot, name: str) -> Unrecorded:
    strange = stranger(root, name)
    if strange is not None:
        folder = one_line(str(root.runs / name))
        return Unrecorded(one_line(name), strange, f"move {folder} out of {root.runs}; it is not one of outerloop's")
    path = root.request(name)
    fix = f"put {path} back from a copy and run `outerloop db rebuild`, or move the folder away and ask again"
    body = read_json(path)
    if body is None:
        return Unrecorded(name, f"{path} is torn: it is no JSON object", fix)
    try:
        read_request(body)
    except ValueError as error:
        return Unrecorded(
            name, f"{path} is no request that this outerloop reads: {one_line(str(error).splitlines()[0])}", fix
        )
    return Unrecorded(
        name,
        f"{path} is whole, but the record has no such run: `outerloop db rebuild` reads it again",
        "run `outerloop db rebuild`",
    )


def stranger(root: StateRoot, name: str) -> str | None:
    """Why a folder in runs/ is no run's, whatever lies in it: its name, or that it is a copy. None for a run's."""
    if not root.takes(name):
        return "no run has such a name (letters, digits, '.', '_', '-')"
    inside = (read_json(root.request(name)) or {}).get("id")
    if isinstance(inside, str) and inside != name:
        return f"it holds the request of run {one_line(inside)[:80]}, so it is a copy"
    return None


def damaged_requests(root: StateRoot, run_ids: Iterable[str], *, gone: bool = False) -> tuple[Damaged, ...]:
    """Which of these runs of the record have a torn request, and with `gone` one that is not there at all.

    Opens a file a run. Files that may not be read count as whole, and so does everything where runs/ can't be listed.
    """
    if not os.access(root.runs, os.R_OK | os.X_OK):
        return ()
    found = []
    for run_id in run_ids:
        if root.takes(run_id) and (why := _damage(root, run_id, gone=gone)):
            found.append(Damaged(run_id, why))
    return tuple(found)


def _damage(root: StateRoot, run_id: str, *, gone: bool) -> str:
    path = root.request(run_id)
    try:
        # Without O_NONBLOCK a fifo of that name would stop whoever looks, for ever.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return f"{path} is no plain file"
            raw = file.read()
    except FileNotFoundError:
        return f"{path} is gone" if gone else ""
    except IsADirectoryError:
        return f"{path} is no plain file"
    except OSError:
        return ""
    try:
        body = json.loads(raw)
        if not isinstance(body, dict):
            return f"{path} is torn: it is no JSON object"
        read_request(body)
    except RecursionError:
        return f"{path} is torn: it is no JSON object"
    except ValueError as error:
        if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
            return f"{path} is torn: it is no JSON object"
        return f"{path} is no request that this outerloop reads: {one_line(str(error).splitlines()[0])}"
    return ""

"""What entries leave beside their slots, and which of it nothing needs any more: clean tables, sealed rows.

Covered: tables that no open run, champion, young verdict or waiting request trains on; sealed rows of slots that were
collected, and of attempts that were not accepted. Not covered: slots themselves (collect.py), folders of other names,
which are somebody's.

A table is moved first and looked for again after that: who asks for it meanwhile gets it back, from here or, should
this process die in between, from the run itself (entry_data.restore_data). Sealed rows go after their slot, never
before it: a value without its rows could not be judged again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from outerloop.controller.entry_data import DATA_NAME, TABLE, data_folders, trashed_data
from outerloop.controller.entry_work import sealed_root
from outerloop.controller.unrecorded import recorded_runs
from outerloop.effects import effect
from outerloop.record.models import Attempt, Run, Slot
from outerloop.record.store import Record
from outerloop.slots import StateRoot
from outerloop.slots.files import make_folder, read_json, sync_folder

__all__ = ["collect_sealed", "collect_tables", "sealed_trash"]

YOUNGEST_SECONDS = 3600.0
"""Younger folders stay whatever is asked: a submission or a job may be about to say that it needs them."""
DAY = 86400.0
_SEALED = re.compile(r"([0-9a-f]{16})-(\d{1,6})")
"""Rows of one attempt: the beginning of the slot's digest, and the attempt's number."""


def collect_tables(
    record: Record, root: StateRoot, needed: ColumnElement[bool], now: int, *, keep_days: float, dry_run: bool
) -> dict[str, Path]:
    """Move tables that nothing needs to the trash: digest -> where each lies now. `needed` holds of runs that stay,
    `now` is the record's time (Unix seconds).

    Raises OSError.
    """
    candidates = [
        folder
        for folder in _folders(data_folders(root))
        if DATA_NAME.fullmatch(folder.name) and _is_old([folder, folder / TABLE], now, keep_days)
    ]
    wanted = _wanted(record, root, needed) if candidates else set()
    gone = {}
    for folder in candidates:
        if folder.name in wanted:
            continue
        if dry_run:
            gone[folder.name] = folder
            continue
        place = trashed_data(root, now, folder.name)
        _move(folder, place)
        if folder.name in _wanted(record, root, needed) and not folder.exists():
            _move(place, folder)
        else:
            gone[folder.name] = place
    return gone


def _wanted(record: Record, root: StateRoot, needed: ColumnElement[bool]) -> set[str]:
    """Digests of the tables that runs may train on: those of the record, of the inbox, and on disk alone."""
    # the inbox first: a request leaves it when the record has it
    bodies = [read_json(path) for path in _entries(root.inbox) if path.suffix == ".json"]
    known = recorded_runs(record)
    bodies += [read_json(folder / "request.json") for folder in _folders(root.runs) if folder.name not in known]
    with record.reading() as session:
        query = select(Run.candidate_commit).where(Run.realm_id == record.realm_id, Run.kind == "entry", needed)
        found = set(session.scalars(query.distinct()))
    return found | {str(body.get("data_sha256")) for body in bodies if body is not None}


def sealed_trash(root: StateRoot) -> Path:
    """The trash of sealed rows: below their own folder, which only the evaluator's account can enter."""
    return sealed_root(root) / "trash"


def collect_sealed(record: Record, root: StateRoot, now: int, *, keep_days: float, dry_run: bool) -> dict[str, Path]:
    """Move sealed rows that no slot needs to their trash: folder's name -> where each lies now. `now` is the record's
    time (Unix seconds). Raises OSError."""
    gone = {}
    for folder in _folders(sealed_root(root)):
        named = _SEALED.fullmatch(folder.name)
        if named is None or not _is_old([folder, *_entries(folder)], now, keep_days):
            continue
        digest, attempt = named[1], int(named[2])
        with record.transaction("tx.collect") as session:
            # the lock orders us and who asks for the slot again
            slots = session.scalars(
                select(Slot)
                .where(Slot.realm_id == record.realm_id, Slot.digest.startswith(digest))
                .with_for_update()
                .execution_options(populate_existing=True)
            ).all()
            if any(_needs(session, slot, attempt) for slot in slots):
                continue
            if not slots and any((root.slots / digest[:2]).glob(f"{digest}*")):
                continue  # of a run that the record does not know, which a rebuild may bring back
            if dry_run:
                gone[folder.name] = folder
                continue
            place = sealed_trash(root) / f"{now}-{folder.name}"
            make_folder(place.parent)
            _move(folder, place)
            gone[folder.name] = place
    return gone


def _needs(session: Session, slot: Slot, attempt: int) -> bool:
    """Whether a slot needs the rows of this attempt, or may come to need them."""
    if slot.state == "collected":
        return False
    if slot.pinned_attempt is None or slot.pinned_attempt == attempt:
        return True
    live = select(Attempt.id).where(Attempt.slot_id == slot.id, Attempt.state != "settled").limit(1)
    return session.scalar(live) is not None


def _move(folder: Path, place: Path) -> None:
    make_folder(place.parent)
    with effect("gc.trash"):
        folder.rename(place)
        sync_folder(place.parent)


def _entries(folder: Path) -> Sequence[Path]:
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return ()


def _folders(folder: Path) -> list[Path]:
    return [path for path in _entries(folder) if path.is_dir() and not path.is_symlink()]


def _is_old(paths: Iterable[Path], now: int, keep_days: float) -> bool:
    """Whether the newest of them was last written before that many days, and not just now."""
    newest = 0.0
    for path in paths:
        try:
            newest = max(newest, path.lstat().st_mtime)
        except FileNotFoundError:
            continue
    return now - newest > max(keep_days * DAY, YOUNGEST_SECONDS)

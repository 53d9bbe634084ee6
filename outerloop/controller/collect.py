"""Garbage collection: slots that nothing needs go to the trash, old trash goes for good.

Covered: marking from open runs, champions and kept verdicts; renaming under the slot's row lock; folders of arrays none
of whose attempts is left; deleting trash older than the longest walltime. Not covered: what entries leave beside their
slots (collect_entries.py), run folders and mirrors, which are small and are the ledger.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from sqlalchemy import ColumnElement, delete, exists, func, or_, select

from outerloop.controller.collect_entries import collect_sealed, collect_tables, sealed_trash
from outerloop.controller.deployment import Deployment
from outerloop.effects import effect
from outerloop.record.models import Array, Attempt, Champion, Measure, Run, Slot

__all__ = ["Collected", "collect"]

TRASH_DAYS = 30.0
"""Longer than any walltime in practice: a job that still runs in a trashed slot has ended by then."""


@dataclass
class Collected:
    """What went."""

    slots: list[str] = field(default_factory=list)
    arrays: list[str] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)
    """Clean tables of entries, by the digest of their content."""
    sealed: list[str] = field(default_factory=list)
    """Folders of sealed rows."""
    bytes: int = 0
    deleted: int = 0


def collect(deployment: Deployment, *, keep_days: float, dry_run: bool) -> Collected:
    """Trash what nothing needs. Kept: slots of runs that are open, that made a champion, or that ended less than
    `keep_days` ago; all of campaigns; slots with a live attempt; environments of kept slots."""
    context = deployment.context
    record = context.record
    report = Collected()
    # Not this host's clock: one that jumps ahead would delete what was put into the trash an hour ago.
    now = int(record.now().timestamp())
    with record.reading() as session:
        wanted = select(Measure.slot_id).join(Run, Run.id == Measure.run_id).where(_needed(keep_days))
        query = select(Slot.id).where(
            Slot.realm_id == record.realm_id,
            Slot.state != "collected",
            Slot.id.not_in(wanted),
            Slot.created_at < func.now() - timedelta(days=keep_days),
            ~exists().where(Attempt.slot_id == Slot.id, Attempt.state != "settled"),
        )
        unwanted = list(session.scalars(query.order_by(Slot.id)))
    for slot_id in unwanted:
        with record.transaction("tx.collect") as session:
            slot = session.scalars(
                select(Slot).where(Slot.id == slot_id).with_for_update().execution_options(populate_existing=True)
            ).one()
            # Somebody may have asked for it since; the same lock orders intents and us.
            if session.scalar(query.where(Slot.id == slot_id).limit(1)) is None:
                continue
            directory = context.slot(slot.digest)
            report.slots.append(slot.digest)
            report.bytes += _size(directory.path)
            if dry_run:
                continue
            if directory.path.is_dir():
                directory.move_to(context.root.trash / f"{now}-{slot.digest}")
            for attempt in session.scalars(select(Attempt).where(Attempt.slot_id == slot.id)):
                session.delete(attempt)
            slot.state, slot.reason, slot.detail, slot.failure_class = "collected", "", "", None
            slot.pinned_attempt = slot.pinned_restart = slot.result = None
            slot.attempts_counted, slot.next_try_at = 0, None
    _collect_arrays(deployment, report, now, keep_days=keep_days, dry_run=dry_run)
    root = context.root
    tables = collect_tables(record, root, _needed(keep_days), now, keep_days=keep_days, dry_run=dry_run)
    sealed = collect_sealed(record, root, now, keep_days=keep_days, dry_run=dry_run)
    report.tables, report.sealed = list(tables), list(sealed)
    report.bytes += sum(map(_size, [*tables.values(), *sealed.values()]))
    if not dry_run:
        report.deleted = _empty_trash(root.trash, now) + _empty_trash(sealed_trash(root), now)
    return report


def _needed(keep_days: float) -> ColumnElement[bool]:
    """Runs whose slots and data stay."""
    return or_(
        Run.state != "ended",
        # A campaign's checkpoints are what it was for; nobody can train them again.
        Run.kind == "campaign",
        Run.ended_at > func.now() - timedelta(days=keep_days),
        exists().where(Champion.run_id == Run.id, Champion.realm_id == Run.realm_id),
    )


def _collect_arrays(deployment: Deployment, report: Collected, now: int, *, keep_days: float, dry_run: bool) -> None:
    """Task maps and logs of arrays that have no attempts any more: all collected, or refused as a whole."""
    context = deployment.context
    record = context.record
    unneeded = (
        Array.realm_id == record.realm_id,
        Array.created_at < func.now() - timedelta(days=keep_days),
        ~exists().where(Attempt.array_id == Array.id),
    )
    with record.reading() as session:
        names = list(session.scalars(select(Array.name).where(*unneeded).order_by(Array.id)))
    for name in names:
        folder = context.root.array(name)
        report.arrays.append(name)
        report.bytes += _size(folder)
        if dry_run:
            continue
        if folder.is_dir():
            context.root.trash.mkdir(parents=True, exist_ok=True)
            with effect("gc.trash"):
                folder.rename(context.root.trash / f"{now}-{name}")
        with record.transaction("tx.collect") as session:
            session.execute(delete(Array).where(Array.name == name, *unneeded))


def _size(folder: Path) -> int:
    total = 0
    for item in folder.rglob("*"):
        try:
            if item.is_file() and not item.is_symlink():
                total += item.stat().st_size
        except OSError:
            continue
    return total


def _empty_trash(trash: Path, now: int) -> int:
    deleted = 0
    limit = now - TRASH_DAYS * 86400
    for folder in sorted(trash.iterdir()) if trash.is_dir() else []:
        stamp = folder.name.partition("-")[0]
        if stamp.isdecimal() and int(stamp) < limit:
            with effect("gc.delete"):
                shutil.rmtree(folder, ignore_errors=True)
            deleted += 1
    return deleted

"""The record made anew from disk: requests, ledgers and slots.

Covered: filling an empty record of this realm so that runs, verdicts, champions, slots and attempts are what they
were. Not covered: creating the tables (record.migrate). Nothing on disk is changed.

What is not on disk is not needed: leases expire, heartbeats come with the next tick, wakes are doorbells, and a
blocked run finds its block again when it is advanced.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.orm import Session

from outerloop.controller.campaign_ledger import CampaignLedger, insert_events
from outerloop.controller.evidence import Disk, read_run
from outerloop.controller.ledger import fold_events
from outerloop.controller.plan import ensure_slot
from outerloop.controller.submit import insert_run
from outerloop.controller.unrecorded import stranger
from outerloop.dispatch.arrays import member_job
from outerloop.dispatch.budget import hours_asked
from outerloop.dispatch.context import Context
from outerloop.dispatch.evidence import Action
from outerloop.dispatch.settle import change_slot, decision_from_disk, settle_hours, settle_row
from outerloop.dispatch.submit import walltime_minutes
from outerloop.job import layout
from outerloop.printable import one_line
from outerloop.record.models import (
    Array,
    Attempt,
    Await,
    CampaignEvent,
    Champion,
    Event,
    Heartbeat,
    Lease,
    Measure,
    Run,
    Slot,
    Wake,
)
from outerloop.slots import ARRAY_MAP, SlotDirectory
from outerloop.slots.files import read_json

__all__ = ["Rebuilt", "rebuild"]

Tasks = dict[tuple[str, int], tuple[Array, int]]
"""(slot digest, attempt) -> the array that it was last mapped into, and the task there."""


@dataclass
class Rebuilt:
    """What was found on disk."""

    runs: int = 0
    verdicts: int = 0
    champions: int = 0
    slots: int = 0
    attempts: int = 0
    problems: list[str] = field(default_factory=list)


def rebuild(context: Context, *, progress: Any = None) -> Rebuilt:
    """Drop this realm's rows and fold everything that lies in the state folder, in one transaction.

    A run that cannot be read is named in `problems` and left out; its files stay.
    """
    done = Rebuilt()
    realm = context.record.realm_id
    with context.record.transaction("tx.rebuild") as session:
        _forget(session, realm)
        known: dict[str, int] = {}
        tasks = _arrays(context, session, realm, done.problems)
        for run_id in _run_ids(context, done.problems):
            before, seen = replace(done), len(known)
            try:
                disk = read_run(context, run_id)
                with session.begin_nested():
                    _insert(context, session, realm, disk, known, tasks, done)
            except (OperationalError, InterfaceError):
                raise
            except Exception as error:
                done = before
                for digest in list(known)[seen:]:
                    del known[digest]
                done.problems.append(f"run {run_id}: {type(error).__name__}: {one_line(str(error))}")
                continue
            if progress is not None:
                progress(run_id)
        done.champions = (
            session.scalar(select(func.count()).select_from(Champion).where(Champion.realm_id == realm)) or 0
        )
    return done


def _run_ids(context: Context, problems: list[str]) -> Iterator[str]:
    """Runs in the order in which they were asked. Folders with a request that can be no run's are named."""
    try:
        names = sorted(entry.name for entry in os.scandir(context.root.runs) if entry.is_dir())
    except FileNotFoundError:
        return
    strange = {name: stranger(context.root, name) for name in names}
    problems += [
        f"folder {one_line(str(context.root.runs / name))}: {why}"
        for name, why in strange.items()
        if why is not None and (context.root.runs / name / "request.json").exists()
    ]
    names = [name for name in names if strange[name] is None]
    # In the order in which they were asked, so that askings of one question keep their order.
    requests = {name: read_json(context.root.request(name)) for name in names}
    # A folder without a request is a submission that died before it was durable; one that is torn is named.
    yield from sorted(
        (name for name in names if requests[name] is not None or context.root.request(name).exists()),
        key=lambda name: (str((requests[name] or {}).get("created_at")), name),
    )


def _forget(session: Session, realm: int) -> None:
    mine = select(Run.id).where(Run.realm_id == realm)
    for table in (Await, Lease, Event, CampaignEvent, Measure):
        session.execute(delete(table).where(table.run_id.in_(mine)))
    session.execute(delete(Wake).where(Wake.realm_id == realm))
    session.execute(delete(Attempt).where(Attempt.realm_id == realm))
    session.execute(delete(Array).where(Array.realm_id == realm))
    session.execute(delete(Slot).where(Slot.realm_id == realm))
    session.execute(delete(Champion).where(Champion.realm_id == realm))
    session.execute(delete(Heartbeat).where(Heartbeat.realm_id == realm))
    session.execute(delete(Run).where(Run.realm_id == realm))


def _arrays(context: Context, session: Session, realm: int, problems: list[str]) -> Tasks:
    """Every array whose task map lies on disk, and which task of which array each attempt last was."""
    try:
        names = [e.name for e in os.scandir(context.root.arrays) if e.is_dir() and context.root.takes(e.name)]
    except FileNotFoundError:
        return {}
    found: Tasks = {}
    maps = {name: read_json(context.root.array(name) / "map.json") for name in names}
    for name in sorted((n for n in names if maps[n] is not None), key=lambda n: (str((maps[n] or {}).get("at")), n)):
        try:
            entries = [(Path(str(e["slot"])).name, int(e["attempt"])) for e in (maps[name] or {}).get("tasks", [])]
        except (LookupError, TypeError, ValueError):
            problems.append(f"array {name}: {context.root.array(name) / ARRAY_MAP} is no map of tasks")
            continue
        if len(entries) < 2:
            continue
        submitted = read_json(context.root.array(name) / "submitted.json") or {}
        job_id = str(submitted.get("job_id") or "") or None
        row = Array(
            realm_id=realm,
            name=name,
            state="submitted" if job_id else "intent",
            job_id=job_id,
            lane=str((maps[name] or {}).get("lane") or ""),
            count=len(entries),
            map={"tasks": [list(entry) for entry in entries]},
        )
        session.add(row)
        session.flush()
        found |= {entry: (row, task) for task, entry in enumerate(entries)}
    return found


def _insert(
    context: Context,
    session: Session,
    realm: int,
    disk: Disk,
    known: dict[str, int],
    tasks: Tasks,
    done: Rebuilt,
) -> None:
    request = disk.request
    session.execute(insert_run(realm, request))
    for number, planned in sorted(disk.planned.items()):
        for item in planned:
            slot = ensure_slot(session, context, realm, request, item.work)
            if item.work.digest not in known:
                known[item.work.digest] = slot.id
                done.slots += 1
                done.attempts += _attempts(context, session, slot, tasks)
            row = item.row(request.id, slot.id, number)
            session.execute(insert(Measure).values(row).on_conflict_do_nothing())
    if disk.books is not None:
        insert_events(session, request.id, CampaignLedger(context.root, request.id).read())
    run = session.scalars(select(Run).where(Run.id == request.id)).one()
    fold_events(session, run, disk.events, root=context.root)
    session.flush()
    done.runs += 1
    done.verdicts += run.verdict is not None


def _attempts(context: Context, session: Session, slot: Slot, tasks: Tasks) -> int:
    """Replay a slot's attempts in their order; the slot ends up as the live fold left it."""
    directory = context.slot(slot.digest)
    numbers = directory.attempt_numbers()
    newest = max(numbers, default=0) + 1
    if _has_not_begun(context, directory, tasks.get((slot.digest, newest))):
        numbers.append(newest)
    grants = directory.grants()
    for n in numbers:
        # A grant came after the attempt that it names: what exhausted the slot later still stands.
        while grants and int(grants[0].get("attempt") or 0) < n:
            _grant(slot, grants.pop(0))
        _attempt(context, session, slot, directory, n, tasks.get((slot.digest, n)))
    for grant in grants:
        _grant(slot, grant)
    session.flush()
    return len(numbers)


def _has_not_begun(context: Context, directory: SlotDirectory, task: tuple[Array, int] | None) -> bool:
    """Whether an attempt without a folder is a task that has not begun, and not one of this slot's life before its
    collection: the spec of a slot that was collected is newer than the maps of that time."""
    if task is None:
        return False
    try:
        planned = (directory.path / layout.SPEC).stat().st_mtime_ns
        return (context.root.array(task[0].name) / ARRAY_MAP).stat().st_mtime_ns >= planned
    except OSError:
        return False


def _grant(slot: Slot, grant: Mapping[str, Any]) -> None:
    slot.grants += 1
    slot.attempts_allowed = int(grant.get("allowed") or slot.attempts_allowed)
    if slot.state == "exhausted":
        slot.state, slot.failure_class, slot.reason, slot.detail, slot.settled_at = "open", None, "", "", None


def _attempt(
    context: Context,
    session: Session,
    slot: Slot,
    directory: SlotDirectory,
    n: int,
    task: tuple[Array, int] | None,
) -> None:
    order = directory.order(n) or {}
    submitted = directory.submitted(n) or {}
    claim = directory.claim(n)
    settled = directory.settled(n)
    said = str(submitted.get("job_id") or "")
    if submitted and "array" not in submitted:
        # It was a task of an array that the site refused, and went out alone afterwards.
        task = None
    elif task is not None and task[0].job_id and not said:
        said = member_job(task[0].name, task[0].job_id, task[1])
    job_id = claim.job_id if claim else (said or None)
    attempt = Attempt(
        realm_id=slot.realm_id,
        slot_id=slot.id,
        n=n,
        state="submitted" if job_id else "intent",
        job_name=str(submitted.get("job_name") or context.job_name(slot.label, slot.digest, n)),
        array_id=task[0].id if task else None,
        array_task=task[1] if task else None,
        array_name=task[0].name if task else "",
        job_id=job_id,
        cluster=str(submitted.get("cluster") or ""),
        minutes=walltime_minutes(slot.order, context.patience.margin_minutes),
        command_minutes=float(order.get("minutes") or slot.order["minutes"]),
    )
    attempt.gpu_hours_reserved = hours_asked(slot.order, attempt.minutes)
    session.add(attempt)
    session.flush()
    session.refresh(attempt)
    decision = decision_from_disk(settled or {})
    if decision is None:
        if attempt.state == "submitted":
            attempt.submitted_at = attempt.intent_at
        return
    result = directory.value() if decision.action is Action.SUPERSEDED else directory.result(n)
    if decision.action is Action.DONE and result is None:
        return
    at = datetime.fromisoformat(str((settled or {}).get("at")))
    attempt.node = str((settled or {}).get("node") or "")
    attempt.slurm_state = str((settled or {}).get("state") or "")
    settle_row(attempt, decision, at)
    hours = (settled or {}).get("gpu_hours")
    if isinstance(hours, int | float) and not isinstance(hours, bool):
        attempt.gpu_hours_used = min(max(0.0, float(hours)), attempt.gpu_hours_reserved)
    else:  # settled by an earlier version
        settle_hours(attempt, directory, None if decision.action is Action.SUPERSEDED else result, None)
    change_slot(context, slot, attempt, decision, now=at, node=attempt.node, result=result)
    session.flush()

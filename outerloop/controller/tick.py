"""tick and wake: which runs to advance, and what a sweep over everything does besides.

Covered: one listing for all runs, folding it, importing the inbox, doorbells, due runs, heartbeat, metrics.
Not covered: advancing one run (advance.py). One broken run never stops the others.
"""

from __future__ import annotations

import os
import shutil
import socket
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import bindparam, func, select, update
from sqlalchemy.dialects.postgresql import insert

from outerloop.controller.advance import Advanced, advance
from outerloop.controller.campaign_watch import changed
from outerloop.controller.deployment import Deployment
from outerloop.controller.interest import cancel_unwanted
from outerloop.dispatch.live import note_moves, survey
from outerloop.dispatch.outcomes import share_outcomes
from outerloop.dispatch.settle import concerns_all, fold_attempts
from outerloop.dispatch.submit import recover_intents
from outerloop.dispatch.wakes import fold_wakes
from outerloop.record.models import Attempt, Await, Heartbeat, Run, Wake
from outerloop.record.store import RecordUnavailable
from outerloop.slots.files import append_marker

if TYPE_CHECKING:
    from outerloop.controller.training_request import Request

__all__ = ["TickReport", "advance_when_due", "dry_tick", "ring_doorbell", "tick", "wake"]

LOW_DISK_BYTES = 512 << 20
"""Below this much free space in the state folder a tick warns."""
FAILED_RUN_SECONDS = 300
"""A run whose advancing failed with an unexpected error is tried again after so long."""
BUSY_PATIENCE_SECONDS = 30.0
"""How long a wake waits for the process that is advancing its run."""

_DUE = (
    select(Run.id)
    .where(
        Run.realm_id == bindparam("realm"),
        Run.state.in_(["queued", "waiting"]),
        # Not clock_timestamp(): an index cannot be searched for what changes with each row.
        Run.due_at <= func.now(),
    )
    .order_by(Run.priority.desc(), Run.created_at)
)
_BEAT = insert(Heartbeat)
_BEAT = _BEAT.on_conflict_do_update(
    index_elements=["realm_id", "name"],
    set_={"at": func.now(), "host": _BEAT.excluded.host, "body": _BEAT.excluded.body},
)


@dataclass
class TickReport:
    """What a sweep did: effects, not intentions."""

    ran: bool = True
    queue_answered: bool = True
    imported: list[str] = field(default_factory=list)
    settled: int = 0
    adopted: int = 0
    advanced: list[Advanced] = field(default_factory=list)
    would_advance: list[str] = field(default_factory=list)
    broken: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def counters(self) -> dict[str, Any]:
        states: dict[str, int] = {}
        for item in self.advanced:
            states[item.state] = states.get(item.state, 0) + 1
        return {
            "imported": len(self.imported),
            "settled": self.settled,
            "adopted": self.adopted,
            "advanced": len(self.advanced),
            "submitted": sum(item.submitted for item in self.advanced),
            "broken": len(self.broken),
            "queue_answered": self.queue_answered,
            "seconds": round(self.seconds, 3),
            **{f"now_{state}": count for state, count in sorted(states.items())},
        }


def tick(deployment: Deployment) -> TickReport:
    """One sweep over this realm. A second tick at the same time does nothing (`ran` is False).

    Raises RecordUnavailable and OSError (disk full); whatever was committed before stays.
    """
    # Not above: a wake, which must be quick, takes in no requests.
    from outerloop.controller.submit import import_inbox

    report = TickReport()
    started = time.monotonic()
    with deployment.record.tick_lock() as mine:
        if not mine:
            report.ran = False
            report.notes.append("another tick is running")
            return report
        report.imported, problems = import_inbox(
            deployment.record, deployment.root, lambda request: _asked_again(deployment, request)
        )
        report.notes += problems
        _serve(deployment, report)
        _probe_disk(deployment, report)
        _fold(deployment, report)
        for run_id in _due(deployment):
            _advance_one(deployment, run_id, report)
        _tell(deployment, report)
        _study(deployment, report)
        report.notes += deployment.notes
        report.seconds = time.monotonic() - started
        _heartbeat(deployment, report)
        if deployment.settings.notify.urls:
            from outerloop.controller.notify import tell

            report.notes += tell(deployment)
    return report


def _asked_again(deployment: Deployment, request: Request) -> None:
    """A campaign that was submitted once more while the record was away: its setting may be another one. Raises
    Refusal."""
    if request.kind == "campaign":
        from outerloop.controller.submit_campaign import change_setting

        if change_setting(deployment, request.id, request.setting):
            with deployment.record.transaction("tx.operator") as session:
                mine = update(Run).where(Run.id == request.id)
                session.execute(
                    mine.where(Run.state == "blocked").values(state="queued", state_reason="", state_detail="")
                )
                session.execute(mine.where(Run.state != "ended").values(due_at=func.now()))


def _serve(deployment: Deployment, report: TickReport) -> None:
    """What a service does besides: take in what lies in its spool."""
    if deployment.settings.mode == "service":
        from outerloop.controller.service.intake import serve

        try:
            taken = serve(deployment)
        except OSError as error:
            if concerns_all(error):
                raise
            # The runs that are there need no spool.
            report.notes.append(f"the spool could not be read: {error}; the next tick takes in what lies there")
            return
        report.imported += taken.runs
        report.notes += taken.notes


def _tell(deployment: Deployment, report: TickReport, *run_ids: str) -> None:
    """Let submitters know what changed. A spool that is away for a while is told later."""
    if deployment.settings.mode == "service":
        from outerloop.controller.service.intake import tell

        try:
            tell(deployment, *run_ids)
        except OSError as error:
            if concerns_all(error):
                raise
            report.notes.append(f"answers could not be written: {error}; the next tick writes them")


def _study(deployment: Deployment, report: TickReport) -> None:
    """Bring forward the noise studies that a service's submitters asked for."""
    if deployment.settings.mode == "service":
        from outerloop.controller.service.intake import go_on

        report.notes += go_on(deployment)


def _fold(deployment: Deployment, report: TickReport) -> None:
    """The queue first: one listing brings every live attempt and wake up to date."""
    context = deployment.context
    observation = deployment.observation(fresh=True)
    report.queue_answered = observation.complete
    with context.record.reading() as session:
        found = survey(session, context.record.realm_id, observation)
    note_moves(context, observation, found.moved)
    recovered, submitted = recover_intents(context, observation, found.eventful)
    folded = fold_attempts(context, observation, found.eventful)
    report.settled = folded.settled
    report.adopted = recovered.adopted
    report.notes += recovered.notes + folded.notes
    report.notes += [f"submitted again: {job}" for job in submitted.accepted]
    _note_unfolded(deployment, {**recovered.broken, **folded.broken}, report)
    report.notes += cancel_unwanted(context, observation)
    doorbells = _doorbells(deployment)
    # An idle campaign whose candidates were edited is like a run whose bell was rung.
    doorbells += changed(deployment.root)
    rung = fold_wakes(context, observation) | {marker.name for marker in doorbells}
    if rung:
        with context.record.transaction("tx.observe") as session:
            session.execute(update(Run).where(Run.id.in_(rung), Run.state == "waiting").values(due_at=func.now()))
    # Taken down only now: a doorbell that rang twice costs a look, one that is lost costs a day.
    for marker in doorbells:
        marker.unlink(missing_ok=True)


def _doorbells(deployment: Deployment) -> list[Path]:
    """Markers left by wakes that could not reach the record; each is named like its run."""
    try:
        found = sorted(path for path in (deployment.root.path / "doorbells").iterdir() if not path.is_dir())
        return [path for path in found if deployment.root.takes(path.name)]  # no run has any other name
    except FileNotFoundError:
        return []


def _due(deployment: Deployment) -> list[str]:
    record = deployment.record
    with record.reading() as session:
        return list(session.scalars(_DUE, {"realm": record.realm_id}))


def _advance_one(deployment: Deployment, run_id: str, report: TickReport) -> None:
    try:
        report.advanced.append(advance(deployment, run_id))
    except RecordUnavailable:
        raise
    except Exception as error:
        if concerns_all(error):
            raise
        report.broken[run_id] = f"{type(error).__name__}: {error}"
        _note_broken(deployment, run_id, error)


def _note_unfolded(deployment: Deployment, broken: Mapping[int, Exception], report: TickReport) -> None:
    """Say with the runs that wait for it why an attempt could not be looked after; the others go on."""
    if not broken:
        return
    with deployment.record.reading() as session:
        rows = session.execute(
            select(Attempt.id, Attempt.job_name, Await.run_id)
            .outerjoin(Await, Await.attempt_id == Attempt.id)
            .where(Attempt.id.in_(broken))
            .order_by(Attempt.id, Await.run_id)
        ).all()
    for attempt_id, name, run_id in rows:
        error = broken[attempt_id]
        report.broken[run_id or name] = f"{name}: {type(error).__name__}: {error}"
        if run_id is not None:
            _note_broken(deployment, run_id, error)


def _note_broken(deployment: Deployment, run_id: str, error: Exception) -> None:
    with deployment.record.transaction("tx.tick") as session:
        session.execute(
            update(Run)
            .where(Run.id == run_id, Run.state.in_(["queued", "waiting"]))
            .values(
                last_error="".join(traceback.format_exception(error))[-4000:],
                due_at=func.now() + timedelta(seconds=FAILED_RUN_SECONDS),
            )
        )


def _probe_disk(deployment: Deployment, report: TickReport) -> None:
    free = shutil.disk_usage(deployment.root.path).free
    if free < LOW_DISK_BYTES:
        report.notes.append(f"only {free >> 20} MiB are free in {deployment.root.path}")


def _heartbeat(deployment: Deployment, report: TickReport) -> None:
    record = deployment.record
    with record.transaction("tx.tick") as session:
        values = {
            "realm_id": record.realm_id,
            "name": "tick",
            "host": socket.gethostname(),
            "body": report.counters(),
        }
        session.execute(_BEAT, values)


def dry_tick(deployment: Deployment) -> TickReport:
    """What a tick would do now and why it does not: nothing is written."""
    report = TickReport(ran=False)
    observation = deployment.observation(fresh=True)
    report.queue_answered = observation.complete
    context = deployment.context
    with context.record.reading() as session:
        found = survey(session, context.record.realm_id, observation)
        ended = [
            attempt.id
            for attempt in found.eventful
            if attempt.job_id and observation.complete and _looks_ended(observation.listed(attempt.job_id))
        ]
        runs = set(session.scalars(select(Await.run_id).where(Await.attempt_id.in_(ended))))
    runs.update(_due(deployment))
    try:
        waiting = [entry.name for entry in os.scandir(deployment.root.inbox) if entry.name.endswith(".json")]
    except FileNotFoundError:
        waiting = []
    report.would_advance = sorted(runs)
    report.notes.append("dry run: nothing was changed")
    if waiting:
        report.notes.append(f"would import {len(waiting)} requests from the inbox")
    report.notes += deployment.notes
    return report


def _looks_ended(row: Any) -> bool:
    return row is None or row.state.final


def wake(deployment: Deployment, run_id: str, number: int | None) -> TickReport:
    """A doorbell rang: advance this run, then everything else of this owner that is due.

    It believes nothing about why it was woken; it looks.
    """
    report = TickReport()
    started = time.monotonic()
    if number is not None:
        with deployment.record.transaction("tx.wake") as session:
            session.execute(
                update(Wake)
                .where(Wake.run_id == run_id, Wake.number == number, Wake.state.in_(["intent", "submitted"]))
                .values(state="done", reason="rang")
            )
    deadline = time.monotonic() + BUSY_PATIENCE_SECONDS
    _advance_one(deployment, run_id, report)
    # Who holds the lease may have looked at the queue before our jobs ended, and counted on this doorbell.
    while report.advanced and report.advanced[-1].busy and time.monotonic() < deadline:
        time.sleep(0.2)
        report.advanced.pop()
        deployment.forget_observation()
        _advance_one(deployment, run_id, report)
    for other in _due(deployment):
        if other != run_id:
            _advance_one(deployment, other, report)
    _tell(deployment, report, *(item.run_id for item in report.advanced))
    report.notes += deployment.notes
    report.seconds = time.monotonic() - started
    return report


def ring_doorbell(deployment_root: Any, run_id: str) -> None:
    """What a wake does where the record cannot be reached: leave a marker for the tick."""
    append_marker(deployment_root.doorbell(run_id), name="run.marker")


def advance_when_due(deployment: Deployment, run_id: str) -> None:
    """For somebody who waits: fold this run's live attempts, and advance it when something ended or it is due."""
    record = deployment.record
    with record.reading() as session:
        due = session.scalar(select(Run.due_at <= func.clock_timestamp()).where(Run.id == run_id, Run.state != "ended"))
        awaited = select(Await.attempt_id).where(Await.run_id == run_id)
        live = list(
            session.scalars(select(Attempt).where(Attempt.id.in_(awaited), Attempt.state.in_(["intent", "submitted"])))
        )
    deployment.forget_observation()
    unshared = [attempt.array_id for attempt in live if attempt.state == "intent" and attempt.array_id is not None]
    if share_outcomes(deployment.context, unshared):
        # Whoever submitted them died before it could.
        with record.reading() as session:
            live = list(session.scalars(select(Attempt).where(Attempt.id.in_([attempt.id for attempt in live]))))
    if live and not due:
        folded = fold_attempts(deployment.context, deployment.observation(), live)
        folded.raise_first()
        due = folded.settled > 0
    if due:
        advance(deployment, run_id)

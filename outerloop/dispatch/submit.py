"""Submitting exactly once: intent, then job, then outcome; and what to do about outcomes that nobody knows.

Covered: new attempts for slots that need one, budgets at intent, outcomes, adoption and resubmission of old intents.
Not covered: wake jobs (wakes.py), how a job ended (settle.py).
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, exists, func, select, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from outerloop.compute.argv import gpu_options
from outerloop.compute.names import job_name
from outerloop.compute.protocol import Accepted, JobSpec, Lane, Refused, SubmitOutcome, Unknown, When
from outerloop.dispatch.budget import Budget, BudgetExceeded, reserve
from outerloop.dispatch.context import Context
from outerloop.dispatch.evidence import Action, Decision, IntentAction, IntentEvidence, read_intent
from outerloop.dispatch.observe import Observation
from outerloop.dispatch.settle import Folded, apply_decision, ask_about, newest_checkpoint
from outerloop.effects import effect
from outerloop.job.script import job_script
from outerloop.record.models import Attempt, Measure, Run, Slot
from outerloop.record.store import LeaseHandle

__all__ = ["NOBODY_WAITS", "Submission", "SubmitReport", "recover_intents", "submit_ready", "unwanted"]

NOBODY_WAITS = "every run that asked for it has ended"

REFUSED_LATER_SECONDS = 60
"""How soon a submission that met a full queue is tried again; no attempt is spent on it."""


@dataclass(frozen=True)
class Submission:
    """One intent that is ours to carry out."""

    attempt_id: int
    slot_id: int
    digest: str
    n: int
    job_name: str
    minutes: float
    order: Mapping[str, Any]
    excluded: tuple[str, ...]
    token: datetime
    """intent_at: a later resubmission of the same attempt has another one, and then ours no longer counts."""


@dataclass
class SubmitReport:
    """What a round of submitting did."""

    accepted: list[str] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    over_budget: BudgetExceeded | None = None


def submit_ready(
    context: Context,
    lease: LeaseHandle | None,
    slot_ids: Sequence[int],
    budget: Budget,
    *,
    lease_seconds: float,
    exclude: Sequence[str] = (),
) -> SubmitReport:
    """Submit a new attempt for each of these slots that is open, has none, and is due. Raises Fenced.

    Without a lease (slots that belong to no run) the slots' row locks alone keep two processes apart. `exclude` names
    nodes to stay away from besides those that failed.
    """
    report = SubmitReport()
    if not slot_ids:
        return report
    submissions: list[Submission] = []
    try:
        with _intending(context, lease, lease_seconds) as session:
            now = session.scalar(select(func.clock_timestamp()))
            assert now is not None
            # One order of locking for everybody, so that two runs that share slots cannot deadlock.
            query = select(Slot).where(Slot.id.in_(slot_ids)).order_by(Slot.digest).with_for_update()
            for slot in session.scalars(query):
                submission = _intend(context, session, slot, now, budget)
                if submission is not None:
                    submissions.append(submission)
    except BudgetExceeded as exceeded:
        report.over_budget = exceeded
        return report
    for submission in submissions:
        also = tuple(node for node in exclude if node not in submission.excluded)
        _carry_out(context, replace(submission, excluded=(*submission.excluded, *also)), report)
    return report


def _intending(
    context: Context, lease: LeaseHandle | None, lease_seconds: float
) -> contextlib.AbstractContextManager[Session]:
    if lease is None:
        return context.record.transaction("tx.intent")
    return context.record.fenced("tx.intent", lease, seconds=lease_seconds)


def _intend(context: Context, session: Session, slot: Slot, now: datetime, budget: Budget) -> Submission | None:
    if slot.state != "open" or (slot.next_try_at is not None and slot.next_try_at > now):
        return None
    numbers = session.execute(select(Attempt.n, Attempt.state).where(Attempt.slot_id == slot.id)).all()
    if any(row.state != "settled" for row in numbers):
        return None
    n = max((row.n for row in numbers), default=0) + 1
    minutes = walltime_minutes(slot.order, context.patience.margin_minutes)
    attempt = Attempt(
        realm_id=slot.realm_id,
        slot_id=slot.id,
        n=n,
        state="intent",
        job_name=job_name(context.deployment, slot.label, slot.digest, n),
        minutes=minutes,
        command_minutes=float(slot.order["minutes"]),
        gpu_hours_reserved=reserve(session, slot, minutes, budget),
        intent_at=now,
    )
    session.add(attempt)
    session.flush()
    return _submission(slot, attempt)


def _submission(slot: Slot, attempt: Attempt) -> Submission:
    return Submission(
        attempt_id=attempt.id,
        slot_id=slot.id,
        digest=slot.digest,
        n=attempt.n,
        job_name=attempt.job_name,
        minutes=attempt.minutes,
        order=slot.order,
        excluded=tuple(slot.excluded_nodes),
        token=attempt.intent_at,
    )


def walltime_minutes(order: Mapping[str, Any], margin: float) -> float:
    """Slurm's limit: the command's own minutes, once more for scoring, and a margin for setup and our own stop."""
    minutes = float(order["minutes"])
    return math.ceil(minutes + (minutes if order.get("score") else 0.0) + margin)


def _carry_out(context: Context, submission: Submission, report: SubmitReport) -> None:
    """Prepare the attempt's folder, hand the job over, record what came back."""
    order = submission.order
    directory = context.slot(submission.digest)
    script = directory.prepare_attempt(
        submission.n,
        {
            "schema": 1,
            "digest": submission.digest,
            "attempt": submission.n,
            "minutes": float(order["minutes"]),
            "margin_seconds": context.patience.margin_minutes * 60,
            "isolation": order.get("isolation", "none"),
            "image_path": order.get("image_path", ""),
            "cache_seed": order.get("cache_seed", ""),
            "newest_checkpoint": newest_checkpoint(directory.path / "state"),
            **_launch_order(order),
        },
        job_script(
            python=context.python,
            slot=directory.path,
            attempt=submission.n,
            prologue=str(order.get("prologue", "")),
            cache_seed=str(order.get("cache_seed", "")),
        ),
    )
    job = JobSpec(
        name=submission.job_name,
        script=script,
        log=directory.slurm_log(submission.n),
        workdir=directory.attempt(submission.n),
        lane=lane_of(order),
        minutes=submission.minutes,
        cpus=int(order.get("cpus", 1)),
        memory_mb=order.get("memory_mb") or None,
        gpus=int(order.get("gpus", 0)),
        nodes=int(order.get("nodes", 1)),
        requeue=bool(order.get("resumable")),
        exclude=submission.excluded,
    )
    with effect("compute.submit"):
        outcome = context.compute.submit(job)
    _record_outcome(context, submission, outcome, report)


def _launch_order(order: Mapping[str, Any]) -> dict[str, Any]:
    """What a launch is told besides: how to ask for GPUs on several nodes, how long a checkpoint may take at a stop."""
    told: dict[str, Any] = {}
    nodes = int(order.get("nodes", 1))
    if nodes > 1:
        told["gpu_form"] = gpu_options(lane_of(order), int(order.get("gpus", 0)), nodes)
    if order.get("term_grace_seconds"):
        told["term_grace_seconds"] = float(order["term_grace_seconds"])
    return told


def lane_of(order: Mapping[str, Any]) -> Lane:
    """The lane that was frozen into an order."""
    fields = dict(order.get("lane") or {"name": "default"})
    fields["extra"] = tuple(fields.get("extra") or ())
    return Lane(**fields)


def _record_outcome(context: Context, submission: Submission, outcome: SubmitOutcome, report: SubmitReport) -> None:
    directory = context.slot(submission.digest)
    if isinstance(outcome, Accepted):
        directory.write_submitted(
            submission.n,
            {
                "job_id": outcome.job_id,
                "cluster": outcome.cluster,
                "job_name": submission.job_name,
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "notes": outcome.notes,
            },
        )
    with context.record.transaction("tx.outcome") as session:
        slot = session.scalars(select(Slot).where(Slot.id == submission.slot_id).with_for_update()).one()
        attempt = session.scalars(select(Attempt).where(Attempt.id == submission.attempt_id)).one_or_none()
        if attempt is None or attempt.state != "intent" or attempt.intent_at != submission.token:
            # Somebody else took this intent over meanwhile. If our job exists too, the claim decides between them.
            return
        now = session.scalar(select(func.clock_timestamp()))
        assert now is not None
        match outcome:
            case Accepted(job_id=job_id, cluster=cluster):
                attempt.state, attempt.job_id, attempt.cluster = "submitted", job_id, cluster
                attempt.submitted_at, attempt.unknown_at, attempt.absent_at = now, None, None
                report.accepted.append(job_id)
            case Refused(reason=reason, when=When.LATER, detail=detail):
                # Certainly not queued: the number is free again and no attempt is spent.
                session.delete(attempt)
                slot.reason, slot.detail = reason, detail
                slot.next_try_at = now + timedelta(seconds=REFUSED_LATER_SECONDS)
                report.refused.append(outcome)
            case Refused(reason=reason, detail=detail):
                refuse(context, session, slot, attempt, reason, detail)
                report.refused.append(outcome)
            case Unknown(why=why):
                attempt.unknown_at = now
                attempt.reason, attempt.detail = "SUBMIT_UNKNOWN", why
                report.unknown.append(submission.job_name)


def refuse(context: Context, session: Session, slot: Slot, attempt: Attempt, reason: str, detail: str) -> None:
    """The site will never take this job as it is: the slot is exhausted and its runs are blocked with the reason."""
    apply_decision(context, session, slot, attempt, Decision(Action.HOPELESS, reason, detail or "refused by sbatch"))


def recover_intents(context: Context, observation: Observation, attempts: list[Attempt]) -> tuple[Folded, SubmitReport]:
    """Look after submissions whose outcome nobody recorded: adopt, note, or submit the same attempt again."""
    folded, report = Folded(), SubmitReport()
    intents = [attempt for attempt in attempts if attempt.state == "intent"]
    if not intents:
        return folded, report
    ask_about(observation, attempts)
    for intent in intents:
        submission = _recover_one(context, observation, intent.id, folded)
        if submission is not None:
            folded.notes.append(
                f"{submission.job_name}: absent from two complete answers; the same attempt goes out again"
            )
            _carry_out(context, submission, report)
    return folded, report


def _recover_one(context: Context, observation: Observation, attempt_id: int, folded: Folded) -> Submission | None:
    with context.record.transaction("tx.observe") as session:
        slot_id = session.scalar(select(Attempt.slot_id).where(Attempt.id == attempt_id))
        if slot_id is None:
            return None
        slot = session.scalars(select(Slot).where(Slot.id == slot_id).with_for_update()).one()
        attempt = session.scalars(select(Attempt).where(Attempt.id == attempt_id)).one_or_none()
        if attempt is None or attempt.state != "intent":
            return None
        now = session.scalar(select(func.clock_timestamp()))
        assert now is not None
        claim = context.slot(slot.digest).claim(attempt.n)
        sighting = observation.named(attempt.job_name)
        found = sighting.row
        shadow = found is not None and claim is None and "badconstraints" in found.reason.lower()
        action = read_intent(
            IntentEvidence(
                now=now.timestamp(),
                intent_at=attempt.intent_at.timestamp(),
                unknown_at=attempt.unknown_at.timestamp() if attempt.unknown_at else None,
                absent_at=attempt.absent_at.timestamp() if attempt.absent_at else None,
                answered=sighting.answered,
                answer_started=observation.started.timestamp(),
                found_job_id=found.job_id if found else "",
                claimed_job_id=claim.job_id if claim else "",
                shadow=shadow,
                patience_seconds=context.patience.intent,
                grace_seconds=context.patience.grace,
            )
        )
        match action:
            case IntentAction.ADOPT:
                job_id = claim.job_id if claim else (found.job_id if found else "")
                attempt.state, attempt.job_id = "submitted", job_id
                attempt.submitted_at = attempt.intent_at
                attempt.unknown_at = attempt.absent_at = None
                attempt.reason = attempt.detail = ""
                folded.adopted += 1
                folded.notes.append(f"{attempt.job_name}: adopted job {job_id}")
            case IntentAction.NOTE_UNKNOWN:
                attempt.unknown_at = now
                attempt.reason = "SUBMIT_UNKNOWN"
                attempt.detail = "its process ended or stalled before it recorded an outcome"
            case IntentAction.NOTE_ABSENT:
                attempt.absent_at = observation.started
            case IntentAction.REFUSED:
                refuse(context, session, slot, attempt, "BadConstraints", "no node can satisfy the request")
                _due(session, slot.id)
            case IntentAction.RESUBMIT:
                if slot.state != "open":
                    apply_decision(
                        context, session, slot, attempt, Decision(Action.SUPERSEDED, "SUPERSEDED", "no longer needed")
                    )
                    return None
                if session.scalar(select(unwanted(slot.id))):
                    apply_decision(
                        context, session, slot, attempt, Decision(Action.CANCELLED, "CANCELLED", NOBODY_WAITS)
                    )
                    return None
                attempt.intent_at = now
                attempt.unknown_at = attempt.absent_at = None
                attempt.reason = attempt.detail = ""
                session.flush()
                return _submission(slot, attempt)
            case IntentAction.LEAVE:
                pass
    return None


def unwanted(slot_id: int | InstrumentedAttribute[int]) -> ColumnElement[bool]:
    """Whether runs asked for a slot and every one of them has ended. A slot that no run ever asked for (a noise
    study's) is not unwanted."""
    asked = exists().where(Measure.slot_id == slot_id)
    open_run = exists().where(Measure.slot_id == slot_id, Run.id == Measure.run_id, Run.state != "ended")
    return and_(asked, ~open_run)


def _due(session: Session, slot_id: int) -> None:
    runs = select(Measure.run_id).where(Measure.slot_id == slot_id)
    session.execute(update(Run).where(Run.id.in_(runs), Run.state == "waiting").values(due_at=func.now()))

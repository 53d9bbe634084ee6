"""Doorbells: one short job per parked run that starts when the awaited jobs have ended.

Covered: when a wake job is worth submitting, submitting it, noticing that it is dead. Not covered: what a wake does
(controller). A wake is never evidence of anything; with every wake lost, ticks alone finish every run.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import exists, func, select, update
from sqlalchemy.orm import Session

from outerloop.compute.protocol import Accepted, JobSpec, Lane, Refused, SubmitOutcome, Unknown, When
from outerloop.dispatch.context import Context
from outerloop.dispatch.evidence import NEVER_REASONS
from outerloop.dispatch.observe import Observation
from outerloop.dispatch.settle import cancel_jobs
from outerloop.effects import effect
from outerloop.record.models import Heartbeat, Run, Wake
from outerloop.record.store import LeaseHandle
from outerloop.slots.files import replace

__all__ = ["WakePolicy", "fold_wakes", "ring_later", "silence"]

LONGEST_AWAITED = 500
"""Ids in one dependency. 999 were fine on Slurm 22.05 and 24.11; the rest is left to the tick."""

SUPERSEDED = "a newer one rings instead"
ENDED = "its run has ended"


@dataclass(frozen=True)
class WakePolicy:
    """When to submit wake jobs, and where they run."""

    mode: str
    lane: Lane
    minutes: float
    cap: int
    cadence_seconds: float


def ring_later(
    context: Context,
    policy: WakePolicy,
    lease: LeaseHandle,
    job_ids: Sequence[str],
    *,
    begin_seconds: float | None = None,
    gone: Collection[str] = (),
) -> str:
    """Submit the doorbell of a parked run. Returns one word for people: what was done or why nothing was.

    `begin_seconds`: nothing is left to depend on (the awaited jobs have ended and only their files are late, or the
    next attempt waits for its back-off), so the wake comes after so long instead; otherwise a lagging file system
    would make a storm of wakes.

    `gone`: ids that the queue does not list any more. Where such ids are refused as dependencies (Slurm releases
    differ) the others are awaited alone, and when none is left the wake comes after the grace. A wake without either
    would ring at once, and its run would park again for the same jobs.
    """
    if policy.mode == "never":
        return "off"
    if not job_ids and begin_seconds is None:
        return "nothing to await"
    awaited = sorted(job_ids)[:LONGEST_AWAITED]
    with context.record.fenced("tx.wake", lease, seconds=context.patience.lease) as session:
        reason, last = _not_needed(session, context, policy, lease.run_id, awaited)
        if reason:
            return reason
        number = last + 1
        wake = Wake(
            realm_id=context.record.realm_id,
            run_id=lease.run_id,
            number=number,
            job_name=context.job_name("wake", lease.run_id, number),
            awaited=awaited,
        )
        session.add(wake)
        session.flush()
        wake_id, name = wake.id, wake.job_name
    script = _script(context, lease.run_id, number)
    outcome = _submit(context, policy, name, script, awaited, begin_seconds)
    if isinstance(outcome, Refused) and outcome.reason == "Dependency" and begin_seconds is None:
        known = [job_id for job_id in awaited if job_id not in gone]
        if known != awaited:
            outcome = _submit(context, policy, name, script, known, None if known else context.patience.grace)
    # Not flushed: a wake whose job id is lost rings all the same, and is found by its name.
    with context.record.transaction("tx.wake", flushed=False) as session:
        row = session.get(Wake, wake_id)
        if row is None:
            return "gone"
        match outcome:
            case Accepted(job_id=job_id):
                row.state, row.job_id = "submitted", job_id
                older = _silenced(session, lease.run_id, SUPERSEDED, before=number)
            case Refused(reason=why, when=when):
                row.state, row.reason = "dead", why
                return f"refused: {why}" + (" (later)" if when is When.LATER else "")
            case Unknown(why=why):
                row.state, row.reason = "dead", f"unknown: {why}"
                return "unknown"
    if older:
        cancel_jobs(context, older)
    return "rings"


def silence(context: Context, run_id: str, why: str) -> None:
    """Cancel a run's doorbells: nobody waits for them any more. One whose submission is still under way is found and
    cancelled by a tick (fold_wakes)."""
    with context.record.reading() as session:
        if not session.scalar(select(exists().where(Wake.run_id == run_id, Wake.state == "submitted"))):
            return
    with context.record.transaction("tx.wake", flushed=False) as session:
        doomed = _silenced(session, run_id, why)
    if doomed:
        cancel_jobs(context, doomed)


def _silenced(session: Session, run_id: str, why: str, before: int | None = None) -> list[str]:
    """Give up a run's pending wakes, all or those before a number; returns their jobs, which are to be cancelled."""
    mine = [Wake.run_id == run_id, Wake.state == "submitted"]
    if before is not None:
        mine.append(Wake.number < before)
    rows = session.execute(update(Wake).where(*mine).values(state="dead", reason=why).returning(Wake.job_id))
    return sorted(job_id for job_id in rows.scalars() if job_id is not None)


def _not_needed(
    session: Session, context: Context, policy: WakePolicy, run_id: str, awaited: list[str]
) -> tuple[str, int]:
    """(why no wake is needed or "", the number of this run's last wake)."""
    mine = select(func.coalesce(func.max(Wake.number), 0)).where(Wake.run_id == run_id)
    same = exists().where(Wake.run_id == run_id, Wake.state == "submitted", Wake.awaited == awaited)
    living = (
        select(func.count())
        .select_from(Wake)
        .where(
            Wake.realm_id == context.record.realm_id,
            Wake.state.in_(["intent", "submitted"]),
            # This run's own makes room for the next one.
            Wake.run_id != run_id,
        )
    )
    last, rings, live = session.execute(select(mine.scalar_subquery(), same, living.scalar_subquery())).one()
    if rings and awaited:
        return "already rings", last
    if live >= policy.cap:
        return "cap", last
    if policy.mode == "auto" and live >= max(1, policy.cap // 2):
        fresh = session.scalar(
            select(func.now() - Heartbeat.at < func.make_interval(0, 0, 0, 0, 0, 0, policy.cadence_seconds)).where(
                Heartbeat.realm_id == context.record.realm_id, Heartbeat.name == "tick"
            )
        )
        if fresh:
            return "tick is fresh", last
    return "", last


def _script(context: Context, run_id: str, number: int) -> Path:
    path = context.root.wake_script(run_id, number)
    lines = ["#!/bin/sh"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in context.exports]
    lines.append(f"exec {shlex.quote(context.python)} -I -m outerloop.cli wake {shlex.quote(run_id)} --number {number}")
    replace(path, "\n".join(lines) + "\n", name="attempt.prepare", mode=0o700, flushed=False)
    return path


def _submit(
    context: Context, policy: WakePolicy, name: str, script: Path, awaited: Sequence[str], begin_seconds: float | None
) -> SubmitOutcome:
    job = JobSpec(
        name=name,
        script=script,
        log=script.with_suffix(".log"),
        workdir=script.parent,
        lane=policy.lane,
        minutes=policy.minutes,
        after=tuple(awaited) if begin_seconds is None else (),
        begin_seconds=None if begin_seconds is None else max(1, math.ceil(begin_seconds)),
    )
    with effect("compute.wake"):
        return context.compute.submit(job)


def fold_wakes(context: Context, observation: Observation) -> set[str]:
    """Close the rows of wakes that ended and cancel those that can never start or that nobody needs: a run that has
    ended needs none, any other its newest. Returns the runs to look at."""
    if not observation.complete:
        return set()
    rung: set[str] = set()
    doomed: list[str] = []
    with context.record.transaction("tx.observe") as session:
        wakes = session.scalars(
            select(Wake).where(Wake.realm_id == context.record.realm_id, Wake.state.in_(["intent", "submitted"]))
        ).all()
        if not wakes:
            return set()
        runs = {wake.run_id for wake in wakes}
        ended = set(session.scalars(select(Run.id).where(Run.id.in_(runs), Run.state == "ended")))
        newest: dict[str, int] = {}
        for wake in wakes:
            if wake.state == "submitted":
                newest[wake.run_id] = max(newest.get(wake.run_id, 0), wake.number)
        for wake in wakes:
            if wake.created_at >= observation.started:
                continue
            idle = ENDED if wake.run_id in ended else SUPERSEDED if wake.number < newest.get(wake.run_id, 0) else ""
            if wake.job_id is None:
                found = observation.named(wake.job_name).row
                if found is not None:
                    wake.state, wake.job_id = "submitted", found.job_id
                elif (observation.started - wake.created_at).total_seconds() > context.patience.intent:
                    wake.state, wake.reason = "dead", "never submitted"
                    rung.add(wake.run_id)
                continue
            row = observation.listed(wake.job_id)
            if row is None or row.state.final:
                wake.state, wake.reason = "done", row.state.value if row else "gone"
                rung.add(wake.run_id)
            elif row.reason.split(",")[0].strip() in NEVER_REASONS or "held" in row.reason.lower():
                wake.state, wake.reason = "dead", row.reason
                doomed.append(wake.job_id)
                rung.add(wake.run_id)
            elif idle:
                wake.state, wake.reason = "dead", idle
                doomed.append(wake.job_id)
        still = select(Run.id).where(Run.id.in_(rung), Run.state == "waiting")
        waiting = set(session.scalars(still)) if rung else set()
    if doomed:
        cancel_jobs(context, doomed)
    return waiting

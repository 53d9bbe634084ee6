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

from sqlalchemy import exists, func, select, text, update
from sqlalchemy.orm import Session

from outerloop.compute.jobids import is_job_id
from outerloop.compute.protocol import (
    Accepted,
    JobRow,
    JobSpec,
    Lane,
    Refused,
    SubmitOutcome,
    Unknown,
    When,
)
from outerloop.compute.reasons import Clears, pending_reason
from outerloop.dispatch.context import Context
from outerloop.dispatch.observe import Observation
from outerloop.dispatch.settle import cancel_jobs
from outerloop.effects import effect
from outerloop.record.models import Heartbeat, Run, Wake
from outerloop.record.store import as_array
from outerloop.slots.files import replace

__all__ = ["Doorbell", "WakePolicy", "fold_wakes", "hang_doorbell", "ring_later", "silence"]

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


@dataclass(frozen=True)
class Doorbell:
    """A wake whose row is written and that is ours to submit."""

    id: int
    run_id: str
    number: int
    name: str
    awaited: tuple[str, ...]
    begin_seconds: float | None
    has_older: bool
    """Whether the run has an earlier one that is still pending."""


def hang_doorbell(
    session: Session,
    context: Context,
    policy: WakePolicy,
    run_id: str,
    job_ids: Sequence[str],
    *,
    begin_seconds: float | None = None,
) -> Doorbell | str:
    """Write the row of a parked run's wake, in the transaction that parks it; one word for people when it needs none.

    `begin_seconds`: nothing is left to depend on (the awaited jobs have ended and only their files are late, or the
    next attempt waits for its back-off), so the wake comes after so long instead; otherwise a lagging file system
    would make a storm of wakes.
    """
    if policy.mode == "never":
        return "off"
    # A claim is a file, and what somebody else wrote into one may be anything; it is no dependency then.
    awaited = sorted(job_id for job_id in job_ids if is_job_id(job_id))[:LONGEST_AWAITED]
    if not awaited and begin_seconds is None:
        return "nothing to await"
    reason, last, older = _not_needed(session, context, policy, run_id, awaited)
    if reason:
        return reason
    number = last + 1
    name = context.job_name("wake", run_id, number)
    realm = context.record.realm_id
    row = {"realm": realm, "run": run_id, "number": number, "name": name, "awaited": as_array(awaited)}
    made = session.scalar(text(_INSERT_WAKE), row)
    assert made is not None
    return Doorbell(int(made), run_id, number, name, tuple(awaited), begin_seconds, older)


def ring_later(context: Context, policy: WakePolicy, bell: Doorbell, *, gone: Collection[str] = ()) -> str:
    """Submit the wake of a parked run. Returns one word for people: what was done or why nothing was.

    `gone`: ids that the queue does not list any more. Where such ids are refused as dependencies (Slurm releases
    differ) the others are awaited alone, and when none is left the wake comes after the grace. A wake without either
    would ring at once, and its run would park again for the same jobs.
    """
    script = _script(context, bell.run_id, bell.number)
    outcome = _submit(context, policy, bell.name, script, bell.awaited, bell.begin_seconds)
    if isinstance(outcome, Refused) and outcome.reason == "Dependency" and bell.begin_seconds is None:
        known = tuple(job_id for job_id in bell.awaited if job_id not in gone)
        if known != bell.awaited:
            outcome = _submit(context, policy, bell.name, script, known, None if known else context.patience.grace)
    doomed: list[str] = []
    # Not flushed: a wake whose job id is lost is found by its name.
    with context.record.transaction("tx.wake", flushed=False) as session:
        job_id, dead = None, ""
        match outcome:
            case Accepted():
                job_id = outcome.job_id
            case Refused(reason=why):
                dead = why
            case Unknown(why=why):
                dead = f"unknown: {why}"
        state = "submitted" if job_id is not None else "dead"
        told = {"wake": bell.id, "state": state, "job": job_id, "reason": dead}
        # The older ones first, in the order in which a tick locks them.
        if job_id is not None and bell.has_older:
            doomed = _silenced(session, bell.run_id, SUPERSEDED, before=bell.number)
        if session.scalar(text(_WAKE_OUTCOME), told) is None:
            return "gone"
    if doomed:
        cancel_jobs(context, doomed)
    match outcome:
        case Refused(reason=why, when=when):
            return f"refused: {why}" + (" (later)" if when is When.LATER else "")
        case Unknown():
            return "unknown"
    return "rings"


_INSERT_WAKE = """
insert into wakes (realm_id, run_id, number, job_name, awaited)
values (:realm, :run, :number, :name, cast(:awaited as text[]))
returning id
"""
# One that has rung before its submitter knew its id stays as it is: called pending, it would stand for the next
# doorbell, or be cancelled by it in the middle of its work.
_WAKE_OUTCOME = """
update wakes set state = case when state = 'done' then state else :state end, job_id = :job,
                 reason = case when state = 'done' then reason else :reason end
 where id = :wake returning id
"""
_WAKES_BEFORE = """
select coalesce(max(number), 0),
       coalesce(bool_or(awaited = cast(:awaited as text[])) filter (where state = 'submitted'), false),
       coalesce(bool_or(state = 'submitted'), false),
       (select count(*) from wakes
         where realm_id = :realm and state in ('intent', 'submitted') and run_id <> :run)
  from wakes where run_id = :run
"""


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
) -> tuple[str, int, bool]:
    """(why no wake is needed or "", the number of this run's last wake, whether one of its wakes is pending)."""
    # Others' alone count for the cap: this run's own makes room for the next one.
    asked = {"run": run_id, "realm": context.record.realm_id, "awaited": as_array(awaited)}
    last, rings, older, live = session.execute(text(_WAKES_BEFORE), asked).one()
    if rings and awaited:
        return "already rings", last, older
    if live >= policy.cap:
        return "cap", last, older
    if policy.mode == "auto" and live >= max(1, policy.cap // 2):
        fresh = session.scalar(
            select(func.now() - Heartbeat.at < func.make_interval(0, 0, 0, 0, 0, 0, policy.cadence_seconds)).where(
                Heartbeat.realm_id == context.record.realm_id, Heartbeat.name == "tick"
            )
        )
        if fresh:
            return "tick is fresh", last, older
    return "", last, older


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


def _never_starts(row: JobRow) -> bool:
    """Whether a wake waits for what does not come by itself; somebody who holds one means it, too."""
    meaning = pending_reason(row.reason)
    return meaning.held or meaning.clears is Clears.NEVER


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
            elif _never_starts(row):
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

"""Who still wants a job: a run's end cancels only jobs that nobody else waits for.

Covered: dropping a run's interest under the slots' row locks, and the jobs that slipped through: adopted after their
run had ended, or never reached by the scancel. Not covered: an operator's cancel (operate.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import bindparam, delete, exists, select, update
from sqlalchemy.orm import Session, aliased

from outerloop.dispatch.context import Context
from outerloop.dispatch.observe import Observation
from outerloop.dispatch.outcomes import share_outcomes, unshared_arrays
from outerloop.dispatch.settle import cancel_jobs
from outerloop.dispatch.submit import NOBODY_WAITS, unwanted
from outerloop.record.models import Attempt, Await, Measure, Run, Slot

__all__ = ["cancel_unwanted", "drop_interest"]

_ENDED = (
    select(Run.id)
    .where(Run.realm_id == bindparam("realm"), Run.state == "ended", Run.released.is_(False))
    .order_by(Run.id)
)
_HAS_JOBS = select(
    exists().where(
        Measure.run_id == bindparam("run"),
        Attempt.slot_id == Measure.slot_id,
        Attempt.state == "submitted",
        Attempt.cancel_reason.is_(None),
    )
)


def drop_interest(context: Context, run_id: str, why: str) -> list[str]:
    """Cancel the live jobs of an ended run that no open run wants; the reason is recorded before the cancel."""
    doomed: list[str] = []
    with context.record.reading() as session:
        unshared = unshared_arrays(session, run_id)
    share_outcomes(context, unshared)
    with context.record.reading() as session:
        busy = session.scalar(_HAS_JOBS, {"run": run_id})
    if not busy:
        return []
    with context.record.transaction("tx.operator") as session:
        session.execute(delete(Await).where(Await.run_id == run_id))
        mine = select(Measure.slot_id).where(Measure.run_id == run_id)
        slots = session.scalars(select(Slot).where(Slot.id.in_(mine)).order_by(Slot.digest).with_for_update()).all()
        for slot in slots:
            wanted = session.scalar(
                select(
                    exists().where(
                        Measure.slot_id == slot.id,
                        Measure.run_id != run_id,
                        Run.id == Measure.run_id,
                        Run.state != "ended",
                    )
                )
            )
            if wanted:
                continue
            attempts = session.scalars(
                select(Attempt).where(Attempt.slot_id == slot.id, Attempt.state == "submitted")
            ).all()
            for attempt in attempts:
                if attempt.cancel_reason is None and attempt.job_id:
                    attempt.cancel_reason = f"run {run_id}: {why}"
                    doomed.append(attempt.job_id)
        session.flush()
        doomed = _wanted_by_nobody(session, context, doomed)
    if not doomed:
        return []
    refused = cancel_jobs(context, doomed)
    if refused is not None:
        return [f"{len(doomed)} jobs that nobody needs could not be cancelled: {refused.why}"]
    return [f"cancelled {len(doomed)} jobs that nobody needs"]


def _wanted_by_nobody(session: Session, context: Context, job_ids: Sequence[str]) -> list[str]:
    """Those of these jobs in which no attempt is left that somebody wants: a pack ends with the last interest in it."""
    wanted = session.scalars(
        select(Attempt.job_id).where(
            Attempt.realm_id == context.record.realm_id,
            Attempt.job_id.in_(job_ids),
            Attempt.state == "submitted",
            Attempt.cancel_reason.is_(None),
        )
    )
    return sorted(set(job_ids) - set(wanted))


def cancel_unwanted(context: Context, observation: Observation) -> list[str]:
    """Cancel jobs that the queue still lists although every run that asked for them has ended.

    A run's own end cancels its jobs; this is for the ones that it could not: submissions whose outcome was not known
    yet, a process that died or a queue that was silent between the recorded reason and the scancel. An ended run is
    looked at until it is released: until no attempt is live any more that only ended runs want.
    """
    with context.record.reading() as session:
        ended = session.scalars(_ENDED, {"realm": context.record.realm_id}).all()
        if not ended:
            return []
        asked = aliased(Measure)  # `unwanted` has a look of its own at the measures
        query = (
            select(asked.run_id, Attempt)
            .join(Attempt, Attempt.slot_id == asked.slot_id)
            .where(Attempt.state.in_(["intent", "submitted"]), unwanted(Attempt.slot_id))
        )
        held = session.execute(query.where(asked.run_id.in_(ended)).order_by(Attempt.id)).all()
    doomed: list[str] = []
    for attempt in {attempt.id: attempt for _run_id, attempt in held}.values():
        row = observation.listed(attempt.job_id or "")
        if row is None or row.state.final:
            continue
        with context.record.transaction("tx.operator") as session:
            session.scalars(select(Slot.id).where(Slot.id == attempt.slot_id).with_for_update()).one()
            still = session.execute(query.where(Attempt.id == attempt.id).limit(1)).one_or_none()
            if still is None or still.Attempt.job_id is None:
                continue
            again = still.Attempt
            again.cancel_reason = again.cancel_reason or NOBODY_WAITS
            session.flush()
            doomed += _wanted_by_nobody(session, context, [again.job_id])
    quiet = set(ended) - {run_id for run_id, _attempt in held}
    if quiet:
        with context.record.transaction("tx.operator") as session:
            # Locked first, asked once more then: a pass that is still submitting for an ended run marks its row.
            locked = session.scalars(select(Run.id).where(Run.id.in_(quiet)).order_by(Run.id).with_for_update()).all()
            busy = set(session.scalars(query.with_only_columns(asked.run_id).where(asked.run_id.in_(locked))))
            session.execute(update(Run).where(Run.id.in_(quiet - busy)).values(released=True))
    if not doomed:
        return []
    doomed = sorted(set(doomed))
    cancel_jobs(context, doomed)
    return [f"cancelled {len(doomed)} jobs whose runs have ended"]

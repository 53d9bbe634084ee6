"""Who still wants a job: a run's end cancels only jobs that nobody else waits for.

Covered: dropping a run's interest under the slots' row locks, and the jobs that slipped through: adopted after their
run had ended, or never reached by the scancel. Not covered: an operator's cancel (operate.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import delete, exists, select
from sqlalchemy.orm import Session

from outerloop.dispatch.context import Context
from outerloop.dispatch.observe import Observation
from outerloop.dispatch.settle import cancel_jobs
from outerloop.dispatch.submit import NOBODY_WAITS, unwanted
from outerloop.record.models import Attempt, Await, Measure, Run, Slot

__all__ = ["cancel_unwanted", "drop_interest"]


def drop_interest(context: Context, run_id: str, why: str) -> list[str]:
    """Cancel the live jobs of an ended run that no open run wants; the reason is recorded before the cancel."""
    doomed: list[str] = []
    with context.record.reading() as session:
        busy = session.scalar(
            select(
                exists().where(
                    Measure.run_id == run_id,
                    Attempt.slot_id == Measure.slot_id,
                    Attempt.state == "submitted",
                    Attempt.cancel_reason.is_(None),
                )
            )
        )
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
    yet, a process that died or a queue that was silent between the recorded reason and the scancel.
    """
    with context.record.reading() as session:
        query = select(Attempt).where(
            Attempt.realm_id == context.record.realm_id, Attempt.state == "submitted", unwanted(Attempt.slot_id)
        )
        found = session.scalars(query.order_by(Attempt.id)).all()
    doomed: list[str] = []
    for attempt in found:
        row = observation.listed(attempt.job_id or "")
        if row is None or row.state.final:
            continue
        with context.record.transaction("tx.operator") as session:
            session.scalars(select(Slot.id).where(Slot.id == attempt.slot_id).with_for_update()).one()
            again = session.scalar(query.where(Attempt.id == attempt.id))
            if again is None or again.job_id is None:
                continue
            again.cancel_reason = again.cancel_reason or NOBODY_WAITS
            session.flush()
            doomed += _wanted_by_nobody(session, context, [again.job_id])
    if not doomed:
        return []
    doomed = sorted(set(doomed))
    cancel_jobs(context, doomed)
    return [f"cancelled {len(doomed)} jobs whose runs have ended"]

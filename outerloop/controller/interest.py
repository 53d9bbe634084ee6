"""Who still wants a job: a run's end cancels only jobs that nobody else waits for.

Covered: dropping a run's interest under the slots' row locks. Not covered: an operator's cancel (operate.py).
"""

from __future__ import annotations

from sqlalchemy import delete, exists, select

from outerloop.dispatch.context import Context
from outerloop.dispatch.settle import cancel_jobs
from outerloop.record.models import Attempt, Await, Measure, Run, Slot

__all__ = ["drop_interest"]


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
        slots = session.scalars(select(Slot).where(Slot.id.in_(mine)).order_by(Slot.id).with_for_update()).all()
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
    if not doomed:
        return []
    refused = cancel_jobs(context, doomed)
    if refused is not None:
        return [f"{len(doomed)} jobs that nobody needs could not be cancelled: {refused.why}"]
    return [f"cancelled {len(doomed)} jobs that nobody needs"]

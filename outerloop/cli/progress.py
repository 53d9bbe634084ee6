"""How far a run is, in one line: measures done, jobs by state, the pending reason, the deadline.

Covered: reading and wording. Not covered: waiting (submit.py), tables (runs.py).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outerloop.controller.deployment import Deployment
    from outerloop.record.models import Run

__all__ = ["Progress", "progress_line", "run_progress"]


@dataclass(frozen=True)
class Progress:
    """Counts of one run's current round."""

    run_id: str
    state: str
    reason: str
    detail: str
    done: int
    total: int
    jobs: Counter[str] = field(default_factory=Counter)
    pending: tuple[str, ...] = ()
    due_at: datetime | None = None


def run_progress(deployment: Deployment, run: Run) -> Progress:
    """Count what the record knows; asks no cluster."""
    from sqlalchemy import select

    from outerloop.record.models import Attempt, Measure, Slot

    with deployment.record.reading() as session:
        rows = session.execute(
            select(Slot.state, Attempt.state.label("attempt"), Attempt.slurm_state, Attempt.slurm_reason)
            .join(Measure, Measure.slot_id == Slot.id)
            .outerjoin(Attempt, (Attempt.slot_id == Slot.id) & (Attempt.state != "settled"))
            .where(Measure.run_id == run.id, Measure.round == run.round)
        ).all()
    jobs: Counter[str] = Counter()
    pending: set[str] = set()
    for row in rows:
        if row.attempt is None:
            continue
        jobs[row.slurm_state or ("submitted" if row.attempt == "submitted" else "submitting")] += 1
        if row.slurm_state == "pending" and row.slurm_reason:
            pending.add(row.slurm_reason)
    return Progress(
        run_id=run.id,
        state=run.state,
        reason=run.state_reason,
        detail=run.state_detail,
        done=sum(1 for row in rows if row.state in {"done", "failed"}),
        total=len(rows),
        jobs=jobs,
        pending=tuple(sorted(pending)),
        due_at=run.due_at,
    )


def progress_line(progress: Progress) -> str:
    """`c-1234: 3 of 6 measures, 2 running, 1 pending (Priority), looked at again by 14:05`."""
    parts = [f"{progress.done} of {progress.total} measures"]
    for state, count in sorted(progress.jobs.items()):
        why = f" ({', '.join(progress.pending)})" if state == "pending" and progress.pending else ""
        parts.append(f"{count} {state}{why}")
    if not progress.jobs and progress.detail:
        parts.append(progress.detail)
    if progress.due_at is not None:
        parts.append(f"looked at again by {progress.due_at.astimezone():%H:%M:%S}")
    return f"{progress.run_id}: {', '.join(parts)}"

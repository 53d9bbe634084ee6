"""Packs: several short attempts of one shape in one job, one after another; both sides of a pair on one node.

Covered: which intents share a job (`pack`, `colocate`), the request and its outcome, refusals that take a pack apart.
Not covered: executing the members (outerloop.job.pack), looking for packs whose outcome nobody knows and the task map
(arrays.py: a pack is an array row whose tasks share one plain job id), what became of a member (settle.py).

Every member keeps its own attempt, claim, result and evidence; a pack is one queue wait and nothing else.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace as changed
from pathlib import Path

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from outerloop.compute.protocol import Accepted, JobSpec, Refused, SubmitOutcome, Unknown, When
from outerloop.dispatch.arrays import ArraySubmission, fail_whole, free_attempts, lane_is_full, locked_array
from outerloop.dispatch.context import Context
from outerloop.dispatch.submission import Submission, SubmitReport, acceptance, attempt_order, request
from outerloop.effects import effect
from outerloop.job.script import job_script, pack_script
from outerloop.record.models import Attempt, Measure
from outerloop.slots.files import make_folder, publish, replace

__all__ = ["carry_out_pack", "cut_into_packs"]

PAIR = 2
"""Both sides of a pair go into one job even where `pack` would allow fewer."""

_SYSTEM = random.SystemRandom()

Shuffle = Callable[[list[Submission]], None]


def cut_into_packs(
    session: Session,
    alike: Sequence[Submission],
    single: frozenset[int],
    shuffle: Shuffle = _SYSTEM.shuffle,
) -> list[list[Submission]]:
    """Attempts of one shape, put together as their benchmark asks. Lists of one are jobs of their own.

    With `colocate` both sides of a pair are never taken apart and their order is drawn from the OS's entropy; several
    pairs follow one another. A job asks for the sum of its members' minutes and stays below the lane's limit. Slots
    in `single` go alone: the site refused them together.
    """
    alone = [[submission] for submission in alike if submission.slot_id in single]
    rest = [submission for submission in alike if submission.slot_id not in single]
    if not rest:
        return alone
    order = rest[0].order
    most = max(1, int(order.get("pack") or 1))
    colocate = bool(order.get("colocate"))
    units = _pairs(session, rest, shuffle) if colocate else [[submission] for submission in rest]
    limit = (order.get("lane") or {}).get("max_minutes")
    packs: list[list[Submission]] = []
    for unit in units:
        last = packs[-1] if packs else None
        if last is not None and len(last) + len(unit) <= most and _fits(last, unit, limit):
            last += unit
        elif _fits([], unit, limit):
            packs.append(list(unit))
        else:
            packs += [[submission] for submission in unit]
    return [*alone, *packs]


def _fits(pack: Sequence[Submission], more: Sequence[Submission], limit: float | None) -> bool:
    return limit is None or sum(member.minutes for member in (*pack, *more)) <= float(limit)


def _pairs(session: Session, submissions: Sequence[Submission], shuffle: Shuffle) -> list[list[Submission]]:
    """The sides of each pair together, in random order. A side whose partner has its value already stays alone."""
    by_slot = {submission.slot_id: submission for submission in submissions}
    rows = session.execute(
        select(Measure.slot_id, Measure.run_id, Measure.round, Measure.benchmark, Measure.pair)
        .where(Measure.slot_id.in_(by_slot))
        .order_by(Measure.id)
    ).all()
    units: dict[tuple[str, int, str, int], list[Submission]] = {}
    for row in rows:
        submission = by_slot.pop(row.slot_id, None)  # a slot that several runs share goes with the first that asked
        if submission is not None:
            units.setdefault((row.run_id, row.round, row.benchmark, row.pair), []).append(submission)
    found = [*units.values(), *([submission] for submission in by_slot.values())]
    for unit in found:
        shuffle(unit)
    return found


def carry_out_pack(context: Context, batch: ArraySubmission, report: SubmitReport) -> tuple[Refused | None, list[int]]:
    """Prepare every member, hand the pack over as one job, record what came back.

    Returns the refusal of a full queue, and the slots that are free again and must go out one by one, because the
    site refused them together.
    """
    for member in batch.submissions:
        directory, order = context.slot(member.digest), member.order
        directory.prepare_attempt(
            member.n,
            attempt_order(context, member),
            job_script(
                python=context.python,
                slot=directory.path,
                attempt=member.n,
                prologue=str(order.get("prologue", "")),
                cache_seed=str(order.get("cache_seed", "")),
            ),
        )
    folder = context.root.array(batch.name)
    make_folder(folder)
    orders = {(s.digest, s.n): attempt_order(context, s) for s in batch.submissions}
    tasks = [
        {"slot": str(context.root.slot(digest)), "attempt": n, "order": orders.get((digest, n))}
        for digest, n in batch.tasks
    ]
    body = {"schema": 1, "array": batch.name, "lane": batch.lane, "at": batch.token.isoformat(), "tasks": tasks}
    publish(folder / "map.json", json.dumps(body) + "\n", name="array.map")
    script = folder / "job.sh"
    replace(script, pack_script(python=context.python, task_map=folder / "map.json"), name="array.script", mode=0o755)
    with effect("compute.submit"):
        outcome = context.compute.submit(_job(batch, script))
    return _record_outcome(context, batch, outcome, report)


def _job(batch: ArraySubmission, script: Path) -> JobSpec:
    """The request: the shape of its members, the sum of their minutes."""
    first = batch.submissions[0]
    one = request(first, name=batch.name, script=script, log=script.with_name("slurm.log"), workdir=script.parent)
    return changed(one, minutes=sum(member.minutes for member in batch.submissions))


def _record_outcome(
    context: Context, batch: ArraySubmission, outcome: SubmitOutcome, report: SubmitReport
) -> tuple[Refused | None, list[int]]:
    if isinstance(outcome, Accepted):
        told = acceptance(outcome, batch.name)
        replace(context.root.array(batch.name) / "submitted.json", told, name="array.submitted")
        numbers = {task: number for number, task in enumerate(batch.tasks)}
        for member in batch.submissions:
            place = {"job_name": member.job_name, "array": batch.name, "task": numbers[member.digest, member.n]}
            context.slot(member.digest).write_submitted(member.n, {**told, **place})
    with context.record.transaction("tx.outcome") as session:
        slots, row, attempts = locked_array(session, batch.array_id)
        if row.state != "intent" or row.intent_at != batch.token:
            # Somebody else took this intent over meanwhile. If our job exists too, each member's claim decides.
            return None, []
        now = session.scalar(select(func.clock_timestamp()))
        assert now is not None
        match outcome:
            case Accepted(job_id=job_id, cluster=cluster):
                row.state, row.job_id = "submitted", job_id
                session.execute(
                    update(Attempt)
                    .where(Attempt.array_id == row.id, Attempt.state == "intent")
                    .values(
                        state="submitted",
                        job_id=job_id,
                        cluster=cluster,
                        submitted_at=now,
                        unknown_at=None,
                        absent_at=None,
                        reason="",
                        detail="",
                    )
                    .execution_options(synchronize_session=False)
                )
                report.accepted.append(job_id)
            case Refused(when=When.LATER):
                row.state, row.reason, row.detail = "refused", outcome.reason, outcome.detail
                free_attempts(session, slots, attempts, outcome, now)
                report.refused.append(outcome)
                return (outcome if lane_is_full(outcome) else None), []
            case Refused(reason=reason, detail=detail) if len(attempts) > 1:
                # Certainly not queued. It may have been too long or too much only as a pack: each member asks alone.
                row.state, row.reason, row.detail = "refused", reason, detail
                free_attempts(session, slots, attempts, None, now)
                return None, [attempt.slot_id for attempt in attempts]
            case Refused() | Unknown():
                fail_whole(context, session, slots, row, attempts, outcome, report, now)
    return None, []

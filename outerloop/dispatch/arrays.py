"""Job arrays: many attempts of one shape for one request to the cluster.

Covered: which intents go out together, the immutable task map, the request and its outcome, refusals that halve,
arrays whose outcome nobody knows, the ids that a wake depends on. Not covered: single jobs (submit.py), what became
of a task (settle.py: a task is an attempt like any other, and its claim decides who executes it).

All attempts of an array share the outcome of its one request. Only an array that was certainly *refused* is taken
apart; one whose outcome is unknown is looked for by its own name and, when it must, goes out again whole and the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count
from typing import Any

from sqlalchemy import func, or_, select, text
from sqlalchemy.orm import Session

from outerloop.compute.jobids import array_id, task_id
from outerloop.compute.names import ARRAY, PACK, is_pack
from outerloop.compute.protocol import Accepted, Compute, NoAnswer, Refused, SubmitOutcome, Unknown, When
from outerloop.dispatch.context import Context
from outerloop.dispatch.evidence import Action, Decision, IntentAction, IntentEvidence, read_intent
from outerloop.dispatch.observe import Observation
from outerloop.dispatch.settle import Folded, apply_decision, make_due
from outerloop.dispatch.submission import (
    NOBODY_WAITS,
    REFUSED_LATER_SECONDS,
    Submission,
    SubmitReport,
    acceptance,
    attempt_order,
    refuse,
    request,
    unwanted,
)
from outerloop.effects import effect
from outerloop.job.script import array_script
from outerloop.record.models import Array, Attempt, Slot
from outerloop.slots import ARRAY_LOG, ARRAY_MAP
from outerloop.slots.files import Draft, replace

__all__ = [
    "ArraySubmission",
    "carry_out_array",
    "draft_map",
    "free_attempts",
    "group",
    "lane_is_full",
    "largest_array",
    "locked_array",
    "member_job",
    "recover_array",
    "with_attempts",
    "withdraw",
]

SMALLEST_ARRAY = 2
Pack = Callable[[Session, list[Submission]], list[list[Submission]]]
DEFAULT_LARGEST = 1000
"""Slurm ships MaxArraySize=1001 (slurm.conf manual page). Up to here nobody is asked: a site with less refuses, and
then the array is halved."""
CAP_MEMORY_SECONDS = 3600
"""How long a refused size is remembered for its lane."""

_FULL = frozenset({"ArraySize", "QueueFull", "AccountingPolicy"})

_largest: weakref.WeakKeyDictionary[Compute, int] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class ArraySubmission:
    """One array's intent that is ours to carry out."""

    array_id: int
    name: str
    lane: str
    count: int
    tasks: tuple[tuple[str, int], ...]
    """(slot digest, attempt) of each task."""
    submissions: tuple[Submission, ...]
    """What is known of them, in the order of the tasks."""
    token: datetime
    draft: Draft | None = field(default=None, compare=False)
    """Its task map on the way to the disk."""

    @property
    def packed(self) -> bool:
        """One job for all of them (packs.py), not a task for each."""
        return is_pack(self.name)


def member_job(name: str, job_id: str, task: int) -> str:
    """The job id of entry `task` of the map: a task's own id in an array, that of the one job in a pack."""
    return job_id if is_pack(name) else task_id(job_id, task)


def lane_is_full(refused: Refused) -> bool:
    """Whether fewer jobs might have been taken: caps on what is submitted, and the size of an array."""
    return refused.when is When.LATER and (refused.reason in _FULL or "submit" in refused.reason.lower())


def largest_array(compute: Compute, ready: int) -> int:
    """Tasks that one array may have here, 1 where there are no arrays. Asked for once per process, when it matters."""
    if not compute.arrays:
        return 1
    if ready <= DEFAULT_LARGEST:
        return DEFAULT_LARGEST
    known = _largest.get(compute)
    if known is None:
        limits = compute.limits()
        if isinstance(limits, NoAnswer):
            return DEFAULT_LARGEST
        known = _largest[compute] = limits.max_array_size or DEFAULT_LARGEST
    return known


# ------------------------------------------------------------------------------------------------- grouping


def group(
    context: Context,
    session: Session,
    submissions: Sequence[Submission],
    largest: int,
    now: datetime,
    pack: Pack | None = None,
) -> list[Submission | ArraySubmission]:
    """Put intents of one shape together, in the transaction that makes them. The attempts' rows do not exist yet.

    `pack` cuts attempts that may share a job into packs.
    """
    shapes: dict[str, list[Submission]] = {}
    known: dict[tuple[int, float, tuple[str, ...]], str] = {}
    for submission in submissions:
        # Measures of one benchmark share the very object that says what they are given.
        same = (id(submission.order), submission.minutes, submission.excluded)
        shape = known.get(same)
        if shape is None:
            shape = known[same] = _shape(submission)
        shapes.setdefault(shape, []).append(submission)
    batches: list[Submission | ArraySubmission] = []
    for alike in shapes.values():
        if pack is not None and shares_a_job(alike[0].order):
            for chunk in pack(session, alike):
                batches += [_intend_array(context, session, chunk, now, PACK)] if len(chunk) > 1 else chunk
            continue
        size = largest
        if min(size, len(alike)) >= SMALLEST_ARRAY:
            size = min(size, _remembered_cap(context, session, alike[0].lane, now))
        size = max(1, size)
        for first in range(0, len(alike), size):
            chunk = alike[first : first + size]
            if len(chunk) < SMALLEST_ARRAY:
                batches += chunk
            else:
                batches.append(_intend_array(context, session, chunk, now))
    return batches


def shares_a_job(order: Mapping[str, Any]) -> bool:
    """Whether the contract lets attempts with this order share a job with others."""
    return int(order.get("pack") or 1) > 1 or bool(order.get("colocate"))


def _shape(submission: Submission) -> str:
    """What must be equal for two attempts to be tasks of one array: everything that the request or its script says."""
    order = submission.order
    return json.dumps(
        [
            order.get("lane"),
            submission.minutes,
            *(order.get(key) for key in ("cpus", "memory_mb", "gpus", "nodes")),
            bool(order.get("resumable")),
            sorted(submission.excluded),
            order.get("prologue") or "",
            order.get("cache_seed") or "",
            order.get("pack") or 1,
            bool(order.get("colocate")),
        ],
        sort_keys=True,
        default=str,
    )


def _remembered_cap(context: Context, session: Session, lane: str, now: datetime) -> int:
    since = now - timedelta(seconds=CAP_MEMORY_SECONDS)
    cap = session.scalar(text(_NEWEST_CAP), {"realm": context.record.realm_id, "lane": lane, "since": since})
    return cap or DEFAULT_LARGEST * DEFAULT_LARGEST


_NEWEST_CAP = """
select cap from arrays
 where realm_id = :realm and lane = :lane and cap is not null and intent_at > :since
 order by id desc limit 1
"""


def _intend_array(
    context: Context, session: Session, chunk: Sequence[Submission], now: datetime, label: str = ARRAY
) -> ArraySubmission:
    tasks = tuple((submission.digest, submission.n) for submission in chunk)
    lane = chunk[0].lane
    listed = json.dumps(tasks)
    # Named by its content; the same tasks can go out again after a refusal, and then under the next number.
    digest = hashlib.sha256(listed.encode()).hexdigest()
    for number in count():
        name = context.job_name(label, digest, number)
        made = session.scalar(
            text(_INSERT_ARRAY),
            {
                "realm": context.record.realm_id,
                "name": name,
                "lane": lane,
                "count": len(tasks),
                "map": f'{{"tasks": {listed}}}',
                "now": now,
            },
        )
        if made is not None:
            return ArraySubmission(int(made), name, lane, len(tasks), tasks, tuple(chunk), now)
    raise AssertionError("numbers do not end")


_INSERT_ARRAY = """
insert into arrays (realm_id, name, lane, count, map, intent_at)
values (:realm, :name, :lane, :count, cast(:map as jsonb), :now)
on conflict (realm_id, name) do nothing
returning id
"""


def with_attempts(
    batches: Sequence[Submission | ArraySubmission], ids: Mapping[int, int]
) -> list[Submission | ArraySubmission]:
    """The same batches once the attempts of single jobs have rows; `ids`: slot -> attempt. The tasks of an array are
    known by the array."""
    return [b._replace(attempt_id=ids[b.slot_id]) if isinstance(b, Submission) else b for b in batches]


# ----------------------------------------------------------------------------------------------- submitting


def carry_out_array(context: Context, batch: ArraySubmission, report: SubmitReport) -> Refused | None:
    """Write the map and the script, hand the array over, record what came back.

    Returns the refusal when the lane is full and fewer tasks might fit: the attempts are gone then, their slots free.
    """
    first = batch.submissions[0]
    folder = context.root.array(batch.name)
    (batch.draft or draft_map(context, batch)).publish(name="array.map")
    script = folder / "job.sh"
    prologue, seed = str(first.order.get("prologue", "")), str(first.order.get("cache_seed", ""))
    # sbatch copies it, and whoever submits this array again writes it again: it need not outlive the machine.
    replace(
        script,
        array_script(python=context.python, task_map=folder / ARRAY_MAP, prologue=prologue, cache_seed=seed),
        name="array.script",
        mode=0o755,
        flushed=False,
    )
    log = folder / ARRAY_LOG
    job = request(first, name=batch.name, script=script, log=log, workdir=folder)
    with effect("compute.submit"):
        outcome = context.compute.submit_array(job, batch.count, job.lane.array_throttle)
    return _record_outcome(context, batch, outcome, report)


def draft_map(context: Context, batch: ArraySubmission) -> Draft:
    """Begin to write the immutable task map.

    All that the tasks need stands in this one file: each makes its attempt's folder itself when it starts. Two
    hundred folders made here would cost more than everything else that a submission does.
    """
    folder = context.root.array(batch.name)
    lines = _tasks(context, batch)
    body = {
        "schema": 1, "array": batch.name, "lane": batch.lane, "at": batch.token.isoformat(),
        "log": str(folder / ARRAY_LOG),
    }  # fmt: skip
    return Draft(folder / ARRAY_MAP, f'{json.dumps(body)[:-1]}, "tasks": [{", ".join(lines)}]}}\n')


def _tasks(context: Context, batch: ArraySubmission) -> Iterator[str]:
    """Each task of the map as JSON. What is the same for all of a benchmark's measures is written out once."""
    members = {(member.digest, member.n): member for member in batch.submissions}
    slots = json.dumps(f"{context.root.slots}{os.sep}")[:-1]
    same: dict[int, str] = {}
    for digest, n in batch.tasks:
        member = members.get((digest, n))
        if member is None:
            order = "null"
        elif member.order.get("resumable"):
            order = json.dumps(attempt_order(context, member))  # with the checkpoint of this very slot
        else:
            common = same.get(id(member.order))
            if common is None:
                told = attempt_order(context, member)
                del told["digest"], told["attempt"]
                common = same[id(member.order)] = json.dumps(told)[1:]
            order = f'{{"digest": "{digest}", "attempt": {n}, {common}'
        yield f'{{"slot": {slots}{digest[:2]}{os.sep}{digest}", "attempt": {n}, "order": {order}}}'


def _record_outcome(
    context: Context, batch: ArraySubmission, outcome: SubmitOutcome, report: SubmitReport
) -> Refused | None:
    if isinstance(outcome, Accepted):
        told = acceptance(outcome, batch.name)
        # A note for when the record is lost; without it the array is found by its name.
        replace(context.root.array(batch.name) / "submitted.json", told, name="array.submitted", flushed=False)
    # Not flushed: taken back by a crash of the server, it is an outcome that nobody recorded, as if we had died here.
    with context.record.transaction("tx.outcome", flushed=False) as session:
        if isinstance(outcome, Accepted):
            accepted = _accept(session, batch, outcome)
            report.accepted += accepted
            report.arrays += [batch.array_id] if accepted else []
            return None
        slots, row, attempts = locked_array(session, batch.array_id)
        if row.state != "intent" or row.intent_at != batch.token:
            # Somebody else took this intent over meanwhile. If our array exists too, each task's claim decides.
            return None
        now = session.scalar(select(func.clock_timestamp()))
        assert now is not None
        match outcome:
            case Refused(when=When.LATER):
                row.state, row.reason, row.detail = "refused", outcome.reason, outcome.detail
                full = lane_is_full(outcome)
                if full:
                    row.cap = max(1, batch.count // 2)
                else:
                    report.refused.append(outcome)
                free_attempts(session, slots, attempts, None if full else outcome, now)
                return outcome if full else None
            case Refused() | Unknown():
                fail_whole(context, session, slots, row, attempts, outcome, report, now)
    return None


def _accept(session: Session, batch: ArraySubmission, outcome: Accepted) -> list[str]:
    """The outcome, in the array's row. Returns the job ids of the tasks that are ours."""
    still_ours = session.scalar(
        text(_ACCEPT),
        {"array": batch.array_id, "token": batch.token, "job": outcome.job_id, "cluster": outcome.cluster},
    )
    if still_ours is None:
        return []
    numbers = range(batch.count) if len(batch.submissions) == batch.count else _numbers(batch)
    return [task_id(outcome.job_id, number) for number in numbers]


def _numbers(batch: ArraySubmission) -> list[int]:
    """Which tasks of the map are live; the others of an array that goes out again have ended."""
    numbers = {task: number for number, task in enumerate(batch.tasks)}
    return [numbers[member.digest, member.n] for member in batch.submissions]


_ACCEPT = """
update arrays set state = 'submitted', job_id = :job, cluster = :cluster, submitted_at = clock_timestamp()
 where id = :array and state = 'intent' and intent_at = :token
returning id
"""


def fail_whole(
    context: Context,
    session: Session,
    slots: Mapping[int, Slot],
    row: Array,
    attempts: Sequence[Attempt],
    outcome: Refused | Unknown,
    report: SubmitReport,
    now: datetime,
) -> None:
    """Note for every member of one request that it was refused for good, or that nobody knows whether it arrived."""
    if isinstance(outcome, Refused):
        row.state, row.reason, row.detail = "refused", outcome.reason, outcome.detail
        for attempt in attempts:
            refuse(context, session, slots[attempt.slot_id], attempt, outcome.reason, outcome.detail)
        report.refused.append(outcome)
        return
    for attempt in attempts:
        attempt.unknown_at = now
        attempt.reason, attempt.detail = "SUBMIT_UNKNOWN", outcome.why
    report.unknown.append(row.name)


def locked_array(session: Session, which: int) -> tuple[dict[int, Slot], Array, list[Attempt]]:
    """Slots (in the order in which everybody locks them), the array, and those of its attempts that are intents."""
    mine = select(Attempt.slot_id).where(Attempt.array_id == which, Attempt.state == "intent")
    slots = {
        slot.id: slot
        for slot in session.scalars(select(Slot).where(Slot.id.in_(mine)).order_by(Slot.digest).with_for_update())
    }
    row = session.scalars(select(Array).where(Array.id == which).with_for_update()).one()
    attempts = session.scalars(
        select(Attempt)
        .where(Attempt.array_id == which, Attempt.state == "intent")
        .order_by(Attempt.array_task)
        .execution_options(populate_existing=True)
    ).all()
    return slots, row, [attempt for attempt in attempts if attempt.slot_id in slots]


def _adopt(row: Array, attempts: Iterable[Attempt], job_id: str, now: datetime) -> None:
    row.state, row.job_id = "submitted", job_id
    for attempt in attempts:
        attempt.state, attempt.job_id = "submitted", member_job(row.name, job_id, attempt.array_task or 0)
        attempt.submitted_at = now
        attempt.unknown_at = attempt.absent_at = None
        attempt.reason = attempt.detail = ""


def free_attempts(
    session: Session, slots: dict[int, Slot], attempts: Iterable[Attempt], refused: Refused | None, now: datetime
) -> None:
    """Certainly not queued: the attempts' numbers are free again, none is spent. With `refused`, the slots wait."""
    for attempt in attempts:
        session.delete(attempt)
        if refused is not None:
            slot = slots[attempt.slot_id]
            slot.reason, slot.detail = refused.reason, refused.detail
            slot.next_try_at = now + timedelta(seconds=REFUSED_LATER_SECONDS)


def withdraw(context: Context, batches: Sequence[Submission | ArraySubmission], refused: Refused | None) -> list[int]:
    """Take back intents that this process has not handed over; returns the slots that are free again.

    Without `refused` they may go out again at once, in another grouping; with it, after a while.
    """
    if not batches:
        return []
    for batch in batches:
        if isinstance(batch, ArraySubmission) and batch.draft is not None:
            batch.draft.discard()
    single = {batch.attempt_id: batch.token for batch in batches if isinstance(batch, Submission)}
    arrays = {batch.array_id: batch.token for batch in batches if isinstance(batch, ArraySubmission)}
    ours = or_(Attempt.id.in_(single), Attempt.array_id.in_(arrays))
    with context.record.transaction("tx.outcome") as session:
        mine = select(Attempt.slot_id).where(ours)
        slots = {
            slot.id: slot
            for slot in session.scalars(select(Slot).where(Slot.id.in_(mine)).order_by(Slot.digest).with_for_update())
        }
        now = session.scalar(select(func.clock_timestamp()))
        assert now is not None
        taken = set()
        for row in session.scalars(select(Array).where(Array.id.in_(arrays)).order_by(Array.id).with_for_update()):
            if row.state == "intent" and row.intent_at == arrays[row.id]:
                row.state, row.reason = "dropped", "WITHDRAWN"
            else:
                taken.add(row.id)
        attempts = [
            attempt
            for attempt in session.scalars(select(Attempt).where(ours))
            if attempt.state == "intent"
            and attempt.array_id not in taken
            and attempt.intent_at == (single[attempt.id] if attempt.array_id is None else arrays[attempt.array_id])
        ]
        free_attempts(session, slots, attempts, refused, now)
        return [attempt.slot_id for attempt in attempts]


# ------------------------------------------------------------------------------------------------ recovering


def recover_array(context: Context, observation: Observation, which: int, folded: Folded) -> ArraySubmission | None:
    """Look after an array whose outcome nobody recorded: adopt, note, or return it to be submitted again, whole."""
    with context.record.transaction("tx.observe") as session:
        slots, row, attempts = locked_array(session, which)
        if row.state != "intent" or not attempts:
            return None  # somebody was faster: with the outcome, which share_outcomes hands on, or with a settlement
        now = session.scalar(select(func.clock_timestamp()))
        assert now is not None
        claims = {a.id: context.slot(slots[a.slot_id].digest).claim(a.n) for a in attempts}
        claimed = ""
        for attempt in attempts:
            claim = claims[attempt.id]
            if claim is None:
                continue
            if claim.job_id == member_job(row.name, array_id(claim.job_id), attempt.array_task or 0):
                claimed = array_id(claim.job_id)
            else:
                # Some other job executes this attempt: that is certain of this task and says nothing of the array.
                _adopt_task(attempt, claim.job_id)
                folded.adopted += 1
        attempts = [attempt for attempt in attempts if attempt.state == "intent"]
        if not attempts:
            row.state, row.reason = "dropped", "CLAIMED"
            return None
        sighting = observation.named(row.name)
        found = sighting.row
        action = read_intent(
            IntentEvidence(
                now=now.timestamp(),
                intent_at=row.intent_at.timestamp(),
                unknown_at=_latest(attempt.unknown_at for attempt in attempts),
                absent_at=_latest(attempt.absent_at for attempt in attempts),
                answered=sighting.answered,
                answer_started=observation.started.timestamp(),
                found_job_id=array_id(found.job_id) if found else "",
                claimed_job_id=claimed,
                shadow=found is not None and not claimed and "badconstraints" in found.reason.lower(),
                patience_seconds=context.patience.intent,
                grace_seconds=context.patience.grace,
            )
        )
        match action:
            case IntentAction.ADOPT:
                job_id = claimed or array_id(found.job_id if found else "")
                _adopt(row, attempts, job_id, row.intent_at)
                for attempt in attempts:
                    claim = claims[attempt.id]
                    if claim is not None:
                        attempt.job_id = claim.job_id
                folded.adopted += len(attempts)
                what = "job" if is_pack(row.name) else "job array"
                folded.notes.append(f"{row.name}: adopted {what} {job_id}")
            case IntentAction.NOTE_UNKNOWN:
                for attempt in attempts:
                    attempt.unknown_at = now
                    attempt.reason = "SUBMIT_UNKNOWN"
                    attempt.detail = "its process ended or stalled before it recorded an outcome"
            case IntentAction.NOTE_ABSENT:
                for attempt in attempts:
                    attempt.absent_at = observation.started
            case IntentAction.REFUSED:
                row.state, row.reason = "refused", "BadConstraints"
                for attempt in attempts:
                    slot = slots[attempt.slot_id]
                    refuse(context, session, slot, attempt, "BadConstraints", "no node can satisfy the request")
                    make_due(session, slot.id)
            case IntentAction.RESUBMIT:
                return _again(context, session, row, slots, attempts, now)
            case IntentAction.LEAVE:
                pass
    return None


def _adopt_task(attempt: Attempt, job_id: str) -> None:
    attempt.state, attempt.job_id = "submitted", job_id
    attempt.submitted_at = attempt.intent_at
    attempt.unknown_at = attempt.absent_at = None
    attempt.reason = attempt.detail = ""


def _latest(moments: Iterable[datetime | None]) -> float | None:
    """The latest; None while one is missing."""
    known = list(moments)
    return None if None in known else max(moment.timestamp() for moment in known if moment is not None)


def _again(
    context: Context, session: Session, row: Array, slots: dict[int, Slot], attempts: list[Attempt], now: datetime
) -> ArraySubmission | None:
    """The same array once more, unless nobody needs any of its tasks."""
    for attempt in attempts:
        slot = slots[attempt.slot_id]
        if slot.state != "open":
            decision = Decision(Action.SUPERSEDED, "SUPERSEDED", "no longer needed")
            apply_decision(context, session, slot, attempt, decision)
    needed = set(session.scalars(select(Slot.id).where(Slot.id.in_(slots), ~unwanted(Slot.id))))
    wanted = [attempt for attempt in attempts if attempt.state == "intent"]
    if not needed & {attempt.slot_id for attempt in wanted}:
        for attempt in wanted:
            decision = Decision(Action.CANCELLED, "CANCELLED", NOBODY_WAITS)
            apply_decision(context, session, slots[attempt.slot_id], attempt, decision)
        row.state, row.reason = "dropped", "UNWANTED"
        return None
    # It goes out whole: tasks that nobody waits for are cancelled once they have an id.
    row.intent_at = now
    for attempt in wanted:
        attempt.intent_at = now
        attempt.unknown_at = attempt.absent_at = None
        attempt.reason = attempt.detail = ""
    session.flush()
    all_of_it = session.execute(
        select(Slot, Attempt)
        .join(Attempt, Attempt.slot_id == Slot.id)
        .where(Attempt.array_id == row.id)
        .order_by(Attempt.array_task)
    ).all()
    # Whoever is no longer wanted finds its claim or its settlement; the array itself stays what its map says.
    live = [Submission.of(slot, attempt) for slot, attempt in all_of_it if attempt.state == "intent"]
    tasks = tuple((str(digest), int(n)) for digest, n in row.map["tasks"])
    return ArraySubmission(row.id, row.name, row.lane, row.count, tasks, tuple(live), now)

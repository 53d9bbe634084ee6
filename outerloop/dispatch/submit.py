"""Submitting exactly once: intent, then job, then outcome; and what to do about outcomes that nobody knows.

Covered: new attempts for slots that need one, budgets at intent, outcomes, adoption and resubmission of old intents.
Not covered: job arrays (arrays.py), wake jobs (wakes.py), how a job ended (settle.py).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from outerloop.compute.protocol import Accepted, Refused, SubmitOutcome, Unknown, When
from outerloop.dispatch.arrays import (
    ArraySubmission,
    carry_out_array,
    draft_map,
    group,
    lane_is_full,
    largest_array,
    recover_array,
    with_attempts,
    withdraw,
)
from outerloop.dispatch.budget import Budget, BudgetExceeded, reserve
from outerloop.dispatch.context import Context
from outerloop.dispatch.evidence import Action, Decision, IntentAction, IntentEvidence, read_intent
from outerloop.dispatch.live import Live
from outerloop.dispatch.observe import Observation
from outerloop.dispatch.outcomes import share_outcomes
from outerloop.dispatch.packs import carry_out_pack, cut_into_packs
from outerloop.dispatch.settle import Folded, apply_decision, ask_about, concerns_all, make_due
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
    walltime_minutes,
)
from outerloop.effects import effect
from outerloop.job.script import job_script
from outerloop.record.models import Attempt, Slot
from outerloop.record.store import LeaseHandle, as_array
from outerloop.slots.files import Draft

__all__ = [
    "NOBODY_WAITS",
    "Submission",
    "SubmitReport",
    "recover_intents",
    "submit_ready",
    "unwanted",
    "walltime_minutes",
]


# One parameter for each column however many rows there are, each of them written by one call: sending two thousand
# single values takes longer than storing them, and so does the driver's way to write arrays. And when the run was
# cancelled meanwhile, whoever looks after ended runs has to look at it again.
_INSERT_INTENTS = """
with looked_at_again as (update runs set released = false where id = :run and state = 'ended')
insert into attempts (realm_id, slot_id, n, state, job_name, minutes, command_minutes, gpu_hours_reserved, intent_at,
                      array_id, array_task, array_name)
select :realm, slot_id, n, 'intent', job_name, minutes, command_minutes, gpu_hours, :now, array_id, array_task,
       coalesce(array_name, '')
  from unnest(cast(:slots as bigint[]), cast(:numbers as int[]), cast(:names as text[]), cast(:minutes as float8[]),
              cast(:command_minutes as float8[]), cast(:gpu_hours as float8[]), cast(:arrays as bigint[]),
              cast(:tasks as int[]), cast(:array_names as text[]))
       as draft (slot_id, n, job_name, minutes, command_minutes, gpu_hours, array_id, array_task, array_name)
"""
_RETURNING_IDS = "returning slot_id, id"


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
    waiting = list(slot_ids)
    single: set[int] = set()
    largest = largest_array(context.compute, len(waiting))
    while waiting:
        drafts: list[Draft] = []
        try:
            with _intending(context, lease, lease_seconds) as session:
                run_id = lease.run_id if lease is not None else None
                batches = _intend(
                    context, session, waiting, budget, exclude, largest, frozenset(single), drafts, run_id
                )
        except BaseException as error:
            for draft in drafts:
                draft.discard()
            if not isinstance(error, BudgetExceeded):
                raise
            report.over_budget = error
            return report
        waiting, crowded = [], set[str]()
        for place, batch in enumerate(batches):
            if batch.lane in crowded:
                continue
            if isinstance(batch, Submission):
                full = _carry_out(context, batch, report)
            elif batch.packed:
                full, apart = carry_out_pack(context, batch, report)
                single.update(apart)
                waiting += apart
            else:
                full = carry_out_array(context, batch, report)
            if full is None:
                continue
            crowded.add(batch.lane)
            rest = [other for other in batches[place + 1 :] if other.lane == batch.lane]
            if isinstance(batch, Submission) or batch.packed:
                # Not even one more job: the others of this lane need not be told one by one.
                withdraw(context, rest, full)
            else:
                waiting += [submission.slot_id for submission in batch.submissions] + withdraw(context, rest, None)
    return report


def _intending(
    context: Context, lease: LeaseHandle | None, lease_seconds: float
) -> contextlib.AbstractContextManager[Session]:
    if lease is None:
        return context.record.transaction("tx.intent")
    return context.record.fenced("tx.intent", lease, seconds=lease_seconds)


def _intend(
    context: Context,
    session: Session,
    slot_ids: Sequence[int],
    budget: Budget,
    exclude: Sequence[str],
    largest: int,
    single: frozenset[int],
    maps: list[Draft],
    run_id: str | None,
) -> list[Submission | ArraySubmission]:
    """Intents for all of these slots that need an attempt now, those of one shape together. Raises BudgetExceeded.

    The first array's map is on its way to the disk when this returns, beside the commit; `maps` gets what has begun.
    """
    slots = _locked(session, slot_ids)
    numbers: dict[int, int] = {}
    busy = set()
    # By itself, after the locks are ours: what those who had them before wrote has to be seen.
    known = session.execute(text(_KNOWN), {"slots": as_array(slot_ids)}).all()
    now: datetime = known[0].now
    for _, slot_id, n, open_ in known:
        numbers[slot_id] = n
        if open_:
            busy.add(slot_id)
    drafts: list[Submission] = []
    hours: dict[str, float] = {}
    reserved: list[float] = []
    limits: dict[int, float] = {}
    """Minutes by the id of an order, which hundreds of measures share."""
    excluded = tuple(exclude)
    for slot in slots:
        if slot.state != "open" or slot.id in busy or (slot.next_try_at is not None and slot.next_try_at > now):
            continue
        n = numbers.get(slot.id, 0) + 1
        minutes = limits.get(id(slot.order), 0.0)
        if not minutes:
            minutes = limits[id(slot.order)] = walltime_minutes(slot.order, context.patience.margin_minutes)
        reserved.append(reserve(session, slot, minutes, budget, hours.get(slot.target, 0.0)))
        hours[slot.target] = hours.get(slot.target, 0.0) + reserved[-1]
        name = context.job_name(slot.label, slot.digest, n)
        drafts.append(Submission.draft(slot, n, name, minutes, now, excluded))
    if not drafts:
        return []
    batches = group(context, session, drafts, largest, now, partial(cut_into_packs, single=single))
    for place, batch in enumerate(batches):
        # One: the others may be regrouped when this one is refused.
        if isinstance(batch, ArraySubmission) and not batch.packed:
            maps.append(draft_map(context, batch))
            batches[place] = replace(batch, draft=maps[0])
            break
    tasks = {
        member.slot_id: (batch.array_id, task, batch.name)
        for batch in batches
        if isinstance(batch, ArraySubmission)
        for task, member in enumerate(batch.submissions)
    }
    places = [tasks.get(draft.slot_id, (None, None, None)) for draft in drafts]
    alone = any(isinstance(batch, Submission) for batch in batches)
    stored = session.execute(
        text(_INSERT_INTENTS + _RETURNING_IDS if alone else _INSERT_INTENTS),
        {
            "realm": context.record.realm_id,
            "run": run_id,
            "now": now,
            "slots": as_array([draft.slot_id for draft in drafts]),
            "numbers": as_array([draft.n for draft in drafts]),
            "names": as_array([draft.job_name for draft in drafts]),
            "minutes": as_array([draft.minutes for draft in drafts]),
            "command_minutes": as_array([draft.order["minutes"] for draft in drafts]),
            "gpu_hours": as_array(reserved),
            "arrays": as_array([array for array, _, _ in places]),
            "tasks": as_array([task for _, task, _ in places]),
            "array_names": as_array([name for _, _, name in places]),
        },
    )
    return with_attempts(batches, {row.slot_id: row.id for row in stored} if alone else {})


class _Wanted(NamedTuple):
    """What an intent needs of a slot's row."""

    id: int
    realm_id: int
    digest: str
    label: str
    target: str
    submitter: str
    order: Mapping[str, Any]
    state: str
    next_try_at: datetime | None
    excluded_nodes: list[str]


def _locked(session: Session, slot_ids: Sequence[int]) -> list[_Wanted]:
    """Lock these slots, in one order for everybody, so that two runs that share slots cannot deadlock."""
    rows = session.execute(text(_LOCK_SLOTS), {"slots": as_array(slot_ids)})
    # Hundreds of slots of one benchmark have the same order: it is read once.
    orders: dict[str, Mapping[str, Any]] = {}
    found = []
    for id_, realm_id, digest, label, target, submitter, text_, *rest in rows:
        order = orders.get(text_)
        if order is None:
            order = orders[text_] = json.loads(text_)
        found.append(_Wanted._make((id_, realm_id, digest, label, target, submitter, order, *rest)))
    return found


_LOCK_SLOTS = """
select id, realm_id, digest, label, target, submitter, cast("order" as text), state, next_try_at, excluded_nodes
  from slots where id = any(cast(:slots as bigint[]))
 order by digest
   for update
"""
# Slot by slot along the index, whatever the statistics of a table that has just grown make of it.
_KNOWN = """
select clock.now, known.id, known.n, known.open
  from (select clock_timestamp() as now) as clock
  left join (select wanted.id, attempt.n, attempt.open
               from unnest(cast(:slots as bigint[])) as wanted (id)
              cross join lateral (select max(n) as n, bool_or(state <> 'settled') as open
                                    from attempts where slot_id = wanted.id) as attempt
              where attempt.n is not null) as known on true
"""


def _carry_out(context: Context, submission: Submission, report: SubmitReport) -> Refused | None:
    """Prepare the attempt's folder, hand the job over, record what came back. Returns the refusal of a full queue."""
    order = submission.order
    directory = context.slot(submission.digest)
    script = directory.prepare_attempt(
        submission.n,
        attempt_order(context, submission),
        job_script(
            python=context.python,
            slot=directory.path,
            attempt=submission.n,
            prologue=str(order.get("prologue", "")),
            cache_seed=str(order.get("cache_seed", "")),
        ),
    )
    job = request(
        submission,
        name=submission.job_name,
        script=script,
        log=directory.slurm_log(submission.n),
        workdir=directory.attempt(submission.n),
    )
    with effect("compute.submit"):
        outcome = context.compute.submit(job)
    _record_outcome(context, submission, outcome, report)
    return outcome if isinstance(outcome, Refused) and lane_is_full(outcome) else None


def _record_outcome(context: Context, submission: Submission, outcome: SubmitOutcome, report: SubmitReport) -> None:
    directory = context.slot(submission.digest)
    if isinstance(outcome, Accepted):
        directory.write_submitted(submission.n, acceptance(outcome, submission.job_name))
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


def recover_intents(
    context: Context, observation: Observation, attempts: Sequence[Live]
) -> tuple[Folded, SubmitReport]:
    """Look after submissions whose outcome nobody recorded: adopt, note, or submit the same attempt again."""
    folded, report = Folded(), SubmitReport()
    intents = [attempt for attempt in attempts if attempt.state == "intent"]
    if not intents:
        return folded, report
    arrays: dict[int, int] = {intent.array_id: intent.id for intent in intents if intent.array_id is not None}
    # Of most their array's row knows the outcome: nobody need be asked.
    shared = share_outcomes(context, arrays)
    intents = [intent for intent in intents if intent.array_id not in shared]
    arrays = {array: intent for array, intent in arrays.items() if array not in shared}
    if not intents:
        return folded, report
    ask_about(observation, [a for a in attempts if a.state != "intent" or a.array_id not in shared])
    for array, intent_id in sorted(arrays.items()):
        with _contained(folded, intent_id):
            again = recover_array(context, observation, array, folded)
            if again is not None:
                what = "pack" if again.packed else "array"
                folded.notes.append(f"{again.name}: absent from two complete answers; the same {what} goes out again")
                (carry_out_pack if again.packed else carry_out_array)(context, again, report)
    for intent in intents:
        if intent.array_id is not None:
            continue
        with _contained(folded, intent.id):
            submission = _recover_one(context, observation, intent.id, folded)
            if submission is not None:
                folded.notes.append(
                    f"{submission.job_name}: absent from two complete answers; the same attempt goes out again"
                )
                _carry_out(context, submission, report)
    share_outcomes(context, report.arrays)
    return folded, report


@contextlib.contextmanager
def _contained(folded: Folded, attempt_id: int) -> Iterator[None]:
    """Keep what is wrong with one attempt from the others."""
    try:
        yield
    except Exception as error:
        if concerns_all(error):
            raise
        folded.broken[attempt_id] = error


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
                make_due(session, slot.id)
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
                return Submission.of(slot, attempt)
            case IntentAction.LEAVE:
                pass
    return None

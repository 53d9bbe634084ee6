"""From evidence to the record: adopt, settle and pin, under the slot's row lock.

Covered: folding one observation into the attempts of this realm, and what a decision does to its slot. Not covered:
the decision itself (evidence.py), submitting (submit.py), what runs do with it (controller).

The same files that decide are published before the transaction commits, so a process that dies in between leaves
its word on disk, and the next one repeats it instead of deciding anew.
"""

from __future__ import annotations

import errno
import pwd
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, bindparam, func, select, update
from sqlalchemy.orm import Session

from outerloop.compute.names import is_pack
from outerloop.compute.protocol import JobRow, JobState, NoAnswer
from outerloop.dispatch.budget import hours_used
from outerloop.dispatch.context import Context
from outerloop.dispatch.evidence import Action, Decision, Evidence, ResultFacts, read_evidence
from outerloop.dispatch.live import IS_OPEN, Live
from outerloop.dispatch.observe import Observation
from outerloop.dispatch.outcomes import JOB_ID, STATE, SUBMITTED_AT
from outerloop.effects import effect
from outerloop.record.models import Array, Attempt, Await, Measure, Run, Slot
from outerloop.record.parameters import is_among
from outerloop.record.store import Fenced, RecordUnavailable
from outerloop.slots import ARRAY_LOG, Pin, Result, SlotDirectory

__all__ = [
    "Folded",
    "OpenAttempt",
    "apply_decision",
    "ask_about",
    "cancel_jobs",
    "concerns_all",
    "fold_attempts",
    "just_sent",
    "live_attempts",
    "make_due",
    "open_attempts",
    "settle_hours",
]

BACKOFF_CEILING = timedelta(hours=1)
CHECKPOINT_NAME = re.compile(r"step-(\d{10,})")
CHECKPOINT_MANIFEST = "manifest.json"
STAGE_CHECKPOINT, STAGE_MANIFEST = "checkpoint-", "outerloop.json"
"""As `outerloop.torch.store` writes them; a test compares the two."""


@dataclass
class Folded:
    """What folding an observation did."""

    settled: int = 0
    adopted: int = 0
    notes: list[str] = field(default_factory=list)
    broken: dict[int, Exception] = field(default_factory=dict)
    """Attempts that could not be looked after, and why: somebody put something else in their slot's place, say. The
    others are folded all the same."""

    def raise_first(self) -> None:
        """For who looks after one run: its error is told there. Raises what an attempt could not be folded for."""
        for error in self.broken.values():
            raise error


def concerns_all(error: Exception) -> bool:
    """Whether an error is not that of one attempt, run or file: the record is away, the disk full or read-only."""
    if isinstance(error, OSError):
        return error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
    return isinstance(error, RecordUnavailable | Fenced)


def live_attempts(session: Session, realm_id: int, slot_ids: Iterable[int] | None = None) -> list[Attempt]:
    """Attempts that are open, oldest first; of the whole realm or of some slots."""
    if slot_ids is None:
        return list(session.scalars(_LIVE, {"realm": realm_id}))
    return list(session.scalars(_LIVE_OF_SLOTS, {"realm": realm_id, "slots": list(slot_ids)}))


class OpenAttempt(NamedTuple):
    """What parking needs of an open attempt, and no more: a run may wait for hundreds."""

    id: int
    slot_id: int
    state: str
    job_id: str | None
    array_id: int | None
    slurm_state: str
    slurm_reason: str
    submitted_at: datetime | None
    unknown_at: datetime | None
    absent_at: datetime | None


def open_attempts(session: Session, realm_id: int, slot_ids: Iterable[int]) -> list[OpenAttempt]:
    """The open attempts of some slots as light rows, oldest first; tasks of an array as its row knows them."""
    rows = session.execute(_OPEN_OF_SLOTS, {"realm": realm_id, "slots": list(slot_ids)})
    return list(map(OpenAttempt._make, rows))


# Rows are locked in the order of the tables: the slot first, as everywhere.
_SLOT_AND_ATTEMPT = (
    select(Slot, Attempt)
    .join(Attempt, Attempt.slot_id == Slot.id)
    .where(Attempt.id == bindparam("attempt"))
    .with_for_update()
)
_LIVE = select(Attempt).where(*IS_OPEN).order_by(Attempt.id)
_LIVE_OF_SLOTS = _LIVE.where(is_among(Attempt.slot_id, "slots"))
_KNOWN: dict[str, ColumnElement[Any]] = {"state": STATE, "job_id": JOB_ID, "submitted_at": SUBMITTED_AT}
_OPEN_OF_SLOTS = (
    select(*(_KNOWN.get(name, getattr(Attempt, name)) for name in OpenAttempt._fields))
    .outerjoin(Array, Array.id == Attempt.array_id)
    .where(*IS_OPEN, is_among(Attempt.slot_id, "slots"))
    .order_by(Attempt.id)
)
_EARLIER = select(Attempt.n, Attempt.outcome, Attempt.detail).where(
    Attempt.slot_id == bindparam("slot"), Attempt.n < bindparam("before")
)
_AWAITING_DUE = (
    update(Run)
    .where(
        Run.id.in_(select(Await.run_id).where(Await.attempt_id == bindparam("attempt"))),
        Run.state == "waiting",
    )
    .values(due_at=bindparam("at"))
    .execution_options(synchronize_session=False)
)
_NOW = select(func.clock_timestamp())


def ask_about(observation: Observation, attempts: Iterable[Live]) -> None:
    """Ask accounting, in one query, about every live attempt that the listing lacks (jobs by id, intents by name) or
    shows as cancelled by nobody knows whom, or as failed nobody knows how."""
    ids, names, since = [], [], []
    for attempt in attempts:
        listed = observation.listed(attempt.job_id) if attempt.job_id is not None else None
        if attempt.job_id is not None and (listed is None or _untold(listed)):
            ids.append(attempt.job_id)
        elif attempt.job_id is None and not observation.named(attempt.known_as).listed:
            names.append(attempt.known_as)
        else:
            continue
        since.append(attempt.intent_at)
    if since:
        observation.ask_history(min(since), ids, names)


def _untold(row: JobRow) -> bool:
    """Whether the queue leaves something out that accounting knows."""
    if row.state is JobState.CANCELLED:
        return not row.cancelled_by
    return row.state is JobState.FAILED and row.exit_code is None


def fold_attempts(context: Context, observation: Observation, attempts: Sequence[Live]) -> Folded:
    """Bring the record up to date with what the queue and the slots show of these submitted attempts, each of whose
    slots is read. A sweep leaves out those to which nothing happened (live.py)."""
    folded = Folded()
    submitted = [a for a in attempts if a.state == "submitted" and a.job_id is not None]
    if not submitted:
        return folded
    ask_about(observation, submitted)
    for attempt in submitted:
        try:
            _fold_one(context, observation, attempt.id, folded)
        except Exception as error:
            if concerns_all(error):
                raise
            folded.broken[attempt.id] = error
    return folded


def just_sent(observation: Observation, attempt: Attempt, directory: SlotDirectory) -> bool:
    """Whether an attempt was submitted after the queue was looked at and left nothing on disk yet: folding it would
    say nothing, for each of the hundreds of measures that a run has just handed out."""
    if attempt.submitted_at is None or attempt.submitted_at < observation.started or attempt.job_id is None:
        return False
    return (
        observation.listed(attempt.job_id) is None
        and directory.claim(attempt.n) is None
        and directory.settled(attempt.n) is None
        and directory.pinned() is None
    )


def _fold_one(
    context: Context, observation: Observation, attempt_id: int, folded: Folded, *, cancelled: bool = False
) -> None:
    """`cancelled`: the cluster took the request to cancel this attempt's job, which is still queued."""
    to_cancel = ""
    with context.record.transaction("tx.observe") as session:
        slot, attempt = session.execute(_SLOT_AND_ATTEMPT, {"attempt": attempt_id}).one()
        if attempt.state != "submitted" or attempt.job_id is None:
            return
        directory = context.slot(slot.digest)
        claim = directory.claim(attempt.n)
        if claim is not None and claim.job_id != attempt.job_id:
            folded.notes.append(f"{attempt.job_name}: job {claim.job_id} executes it, not {attempt.job_id}")
            attempt.job_id = claim.job_id
        # A listing says nothing about what was submitted after it began, nor of a job that a later one has shown since.
        in_time = attempt.submitted_at is None or attempt.submitted_at < observation.started
        overtaken = attempt.observed_at is not None and attempt.observed_at > observation.started
        sighting = observation.job(attempt.job_id, attempt.known_as)
        answered = sighting.answered and not overtaken and (in_time or sighting.row is not None)
        row = sighting.row if answered else None
        result = directory.result(attempt.n)
        facts = _facts(result, slot.kind)
        reason_before = attempt.slurm_reason
        if answered:
            _note_row(attempt, row, observation.started)
        stalled_before, suspect_before = _said_of_earlier(session, attempt)
        evidence = Evidence(
            answered=answered,
            listed=sighting.listed,
            state=row.state if row else None,
            slurm_reason=row.reason if row else "",
            exit_code=row.exit_code if row else None,
            elapsed_seconds=_elapsed(row),
            node=row.node if row else "",
            cancelled_by=_by_whom(row.cancelled_by) if row else "",
            canceller_open=sighting.canceller_open,
            owner_uid=context.owner_uid,
            result=facts,
            claimed=claim is not None,
            pinned_elsewhere=_pinned_elsewhere(directory, attempt.n),
            ended_for_seconds=_seconds_since(attempt.absent_at, observation.started),
            environment=slot.kind == "environment",
            several_nodes=int(slot.order.get("nodes") or 1) > 1,
            resumable=bool(slot.order.get("resumable")),
            progressed=bool(slot.order.get("resumable")) and _progressed(directory, attempt),
            requeue_marker=(directory.path / "state" / "requeue.json").is_file(),
            stalled_before=stalled_before,
            suspect_before=suspect_before,
            cancel_reason=attempt.cancel_reason or "",
            preempt_cancels=row is not None
            and row.state is JobState.PREEMPTED
            and observation.preemption_cancels(str((slot.order.get("lane") or {}).get("partition") or "")),
            grace_seconds=context.patience.gone if row is None else context.patience.grace,
            preempt_grace_seconds=context.patience.preempt,
        )
        if is_pack(attempt.array_name):
            evidence = _of_a_member(evidence, directory, attempt)
        decision = _said_before(directory, attempt.n, result) or read_evidence(evidence)
        if result is None and decision.settles:
            # Once more, before anything is called lost: it may have become visible meanwhile (reports row 46).
            result = directory.result(attempt.n)
            if result is not None:
                evidence = replace(evidence, result=_facts(result, slot.kind))
                decision = _said_before(directory, attempt.n, result) or read_evidence(evidence)
        if decision.action is Action.WAIT and attempt.absent_at is None:
            attempt.absent_at = observation.started
        elif decision.action is Action.ALIVE:
            attempt.absent_at = None
        if not decision.settles or (decision.action is Action.DONE and result is None):
            return
        still_queued = row is not None and not row.state.final
        if still_queued and not cancelled and decision.action in {Action.HOPELESS, Action.INFRASTRUCTURE}:
            # Settled only when the request was delivered: nobody looks at a settled attempt's job any more. The reason
            # comes first, so that one who dies in between does not leave a job that a user seems to have cancelled.
            attempt.cancel_reason = attempt.cancel_reason or f"{decision.reason}: {decision.detail}"
            attempt.slurm_reason = reason_before  # or a sweep would find nothing new about it
            to_cancel = attempt.job_id
        else:
            node, elapsed = evidence.node, evidence.elapsed_seconds
            apply_decision(context, session, slot, attempt, decision, node=node, result=result, elapsed=elapsed)
            folded.settled += 1
            session.execute(_AWAITING_DUE, {"attempt": attempt.id, "at": observation.started})
    if not to_cancel:
        return
    refused = cancel_jobs(context, [to_cancel])
    if refused is not None:
        folded.notes.append(f"job {to_cancel} can never run and could not be cancelled: {refused.why}")
        return
    _fold_one(context, observation, attempt_id, folded, cancelled=True)


def _of_a_member(evidence: Evidence, directory: SlotDirectory, attempt: Attempt) -> Evidence:
    """The evidence with what the pack noted of this member."""
    noted = directory.member(attempt.n) or {}
    mine = noted.get("job_id") == attempt.job_id
    exit_code, kills = noted.get("exit_code"), noted.get("oom_kills")
    return replace(
        evidence,
        packed=True,
        behind=bool(attempt.array_task),
        member_exit=exit_code if mine and isinstance(exit_code, int) else None,
        member_oom=kills > 0 if mine and isinstance(kills, int) else None,
    )


def apply_decision(
    context: Context,
    session: Session,
    slot: Slot,
    attempt: Attempt,
    decision: Decision,
    *,
    node: str = "",
    result: Result | None = None,
    elapsed: float | None = None,
) -> None:
    """Settle an attempt in an open transaction that holds its slot's row lock. Publishes the pin and settled.json.

    `elapsed`: seconds that the cluster gave to its job, where it says so.
    """
    directory = context.slot(slot.digest)
    now = session.scalar(_NOW)
    if decision.action is Action.DONE and result is not None:
        pin = directory.pin(Pin(attempt.n, result.restart))
        if pin.attempt != attempt.n:
            decision = Decision(Action.SUPERSEDED, "SUPERSEDED", f"attempt {pin.attempt} holds the value")
    if attempt.array_task is not None and not is_pack(attempt.array_name):
        # A task that never began made no folder: its log is then all that there is to read.
        directory.link_log(attempt.n, context.root.array(attempt.array_name) / f"{ARRAY_LOG}.{attempt.array_task}")
    settle_hours(attempt, directory, None if decision.action is Action.SUPERSEDED else result, elapsed)
    directory.settle(
        attempt.n,
        {
            "outcome": decision.action.value,
            "reason": decision.reason,
            "detail": decision.detail,
            "state": attempt.slurm_state,
            "node": node or attempt.node,
            "job_id": attempt.job_id,
            "exclude_node": decision.exclude_node,
            "gpu_hours": attempt.gpu_hours_used,
        },
    )
    if decision.action is Action.SUPERSEDED:
        # A record that is older than the disk: the slot has its value, and no further attempt could replace it.
        result = directory.value()
    settle_row(attempt, decision, now)
    change_slot(context, slot, attempt, decision, now=now, node=node or attempt.node, result=result)


def settle_row(attempt: Attempt, decision: Decision, now: datetime | None) -> None:
    """Write a decision into the attempt's row."""
    attempt.state = "settled"
    attempt.outcome = decision.action.value
    attempt.reason = decision.reason
    attempt.detail = decision.detail
    attempt.settled_at = now
    attempt.counted = decision.action in {Action.INFRASTRUCTURE, Action.SUSPECT}


def change_slot(
    context: Context,
    slot: Slot,
    attempt: Attempt,
    decision: Decision,
    *,
    now: datetime | None,
    node: str,
    result: Result | None,
) -> None:
    """What an attempt's end means for its slot. Pure on the rows; used by live folding and by rebuilding alike."""
    if slot.state == "done":
        return
    match decision.action:
        case Action.SUPERSEDED if result is None:
            pass
        case Action.DONE | Action.SUPERSEDED:
            assert result is not None, "only a result makes a value"
            slot.state = "done"
            slot.pinned_attempt, slot.pinned_restart = result.attempt, result.restart
            slot.result = dict(result.body)
            noted = decision if decision.action is Action.DONE else Decision(Action.DONE)
            slot.reason, slot.detail = noted.reason, noted.detail
            slot.failure_class, slot.settled_at, slot.next_try_at = None, now, None
        case Action.FAILED:
            slot.state = "failed"
            slot.failure_class = "candidate"
            slot.reason, slot.detail = decision.reason, decision.detail
            slot.result = dict(result.body) if result is not None else None
            slot.settled_at, slot.next_try_at = now, None
        case Action.INFRASTRUCTURE | Action.SUSPECT:
            slot.attempts_counted += 1
            slot.reason, slot.detail = decision.reason, decision.detail
            if decision.exclude_node and node and node not in slot.excluded_nodes:
                slot.excluded_nodes = [*slot.excluded_nodes, node]
            if slot.attempts_counted >= slot.attempts_allowed:
                _exhaust(slot, "infrastructure", decision, now)
            elif now is not None:
                slot.next_try_at = now + _backoff(context, slot.attempts_counted)
        case Action.ENVIRONMENT:
            _exhaust(slot, "environment", decision, now)
            slot.result = dict(result.body) if result is not None else None
        case Action.USER:
            _exhaust(slot, "user", decision, now)
        case Action.HOPELESS:
            _exhaust(slot, "infrastructure", decision, now)
        case Action.CONTINUE | Action.CANCELLED:
            slot.reason, slot.detail = decision.reason, decision.detail
            slot.next_try_at = now
        case Action.NOTHING | Action.ALIVE | Action.WAIT:
            pass


def make_due(session: Session, slot_id: int) -> None:
    """Let the runs that want this slot look at it now."""
    runs = select(Measure.run_id).where(Measure.slot_id == slot_id)
    session.execute(update(Run).where(Run.id.in_(runs), Run.state == "waiting").values(due_at=func.now()))


def _exhaust(slot: Slot, failure_class: str, decision: Decision, now: datetime | None) -> None:
    slot.state = "exhausted"
    slot.failure_class = failure_class
    slot.reason = decision.reason or decision.action.value.upper()
    slot.detail = decision.detail
    slot.settled_at, slot.next_try_at = now, None


def _backoff(context: Context, tries: int) -> timedelta:
    return min(timedelta(seconds=context.patience.backoff * 2 ** (tries - 1)), BACKOFF_CEILING)


def settle_hours(attempt: Attempt, directory: SlotDirectory, result: Result | None, elapsed: float | None) -> None:
    """Charge an attempt with what it used of the GPU-hours that it reserved."""
    if attempt.gpu_hours_reserved == 0:
        return
    phases = ("setup", "command", "score")
    measured = None if result is None else sum(result.phase_seconds(phase) or 0.0 for phase in phases)
    began = result is not None or directory.claim(attempt.n) is not None
    reserved = attempt.gpu_hours_reserved
    attempt.gpu_hours_used = hours_used(reserved, attempt.minutes, measured=measured, elapsed=elapsed, began=began)


def _said_before(directory: SlotDirectory, n: int, result: Result | None) -> Decision | None:
    """What a process that died before its commit already published about this attempt.

    Not that it is done when its result was lost since: that would be waited for in vain.
    """
    body = directory.settled(n)
    said = None if body is None else decision_from_disk(body)
    return None if said is not None and said.action is Action.DONE and result is None else said


def decision_from_disk(body: dict[str, Any]) -> Decision | None:
    """The decision in a settled.json; None when its outcome is none that we know."""
    try:
        action = Action(str(body.get("outcome")))
    except ValueError:
        return None
    return Decision(
        action, str(body.get("reason") or ""), str(body.get("detail") or ""), bool(body.get("exclude_node"))
    )


def _pinned_elsewhere(directory: SlotDirectory, n: int) -> bool:
    pin = directory.pinned()
    return pin is not None and pin.attempt != n and directory.result(pin.attempt) is not None


def _facts(result: Result | None, kind: str) -> ResultFacts | None:
    if result is None:
        return None
    return ResultFacts(
        ok=result.ok,
        value_usable=kind == "environment" or result.body.get("metric") is None or result.value is not None,
        reason=result.reason,
        phase=result.phase,
        detail=result.detail,
    )


def _note_row(attempt: Attempt, row: JobRow | None, at: datetime) -> None:
    attempt.observed_at = at
    if row is None:
        return
    attempt.slurm_state = row.state.value
    attempt.slurm_reason = row.reason
    attempt.node = row.node or attempt.node
    attempt.restarts = max(attempt.restarts, row.restarts or 0)


def _elapsed(row: JobRow | None) -> float | None:
    if row is None or row.started is None or row.ended is None:
        return None
    return max(0.0, row.ended - row.started)


def _by_whom(canceller: str) -> str:
    """ "slurm" for the number of Slurm's own account, which differs between sites; all else as it is."""
    try:
        named = pwd.getpwuid(int(canceller)).pw_name
    except (ValueError, KeyError, OverflowError):
        return canceller
    return named if named == "slurm" else canceller


def _seconds_since(then: datetime | None, now: datetime) -> float:
    return 0.0 if then is None else max(0.0, (now - then).total_seconds())


def _progressed(directory: SlotDirectory, attempt: Attempt) -> bool:
    order = directory.order(attempt.n) or {}
    before = str(order.get("newest_checkpoint") or "")
    return _step_of(newest_checkpoint(directory.path / "state")) > _step_of(before)


def newest_checkpoint(state: Path) -> str:
    """Name of the newest complete checkpoint in a folder, empty when there is none.

    As `outerloop.torch.store` publishes them: a folder named by its step, renamed into place, with its manifest. Those
    of a post-training stage (outerloop.posttrain.store) go by the same name here.
    """
    try:
        complete = [entry.name for entry in state.iterdir() if (entry / CHECKPOINT_MANIFEST).is_file()]
        for sealed in state.glob(f"*/checkpoints/{STAGE_CHECKPOINT}*/{STAGE_MANIFEST}"):
            step = sealed.parent.name.removeprefix(STAGE_CHECKPOINT)
            if step.isdecimal():
                complete.append(f"step-{int(step):010d}")
    except OSError:
        return ""
    return max((name for name in complete if _step_of(name) >= 0), key=_step_of, default="")


def _step_of(name: str) -> int:
    found = CHECKPOINT_NAME.fullmatch(name)
    return int(found[1]) if found else -1


def _said_of_earlier(session: Session, attempt: Attempt) -> tuple[bool, bool]:
    """Whether the attempt before this one made no progress, and whether any of its slot was suspected."""
    if attempt.n == 1:
        return False, False
    earlier = session.execute(_EARLIER, {"slot": attempt.slot_id, "before": attempt.n}).all()
    stalled = any(
        n == attempt.n - 1 and outcome == Action.CONTINUE.value and "no newer" in detail
        for n, outcome, detail in earlier
    )
    return stalled, any(outcome == Action.SUSPECT.value for _n, outcome, _detail in earlier)


def cancel_jobs(context: Context, ids: list[str]) -> NoAnswer | None:
    """Ask the cluster to cancel jobs. Their end is believed only when a later answer shows it."""
    with effect("compute.cancel"):
        return context.compute.cancel(ids)

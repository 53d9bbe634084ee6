"""What an operator does to runs: cancel, retry, pause, resume.

Covered: all of them, as facts in the run's ledger before they are in the record. Not covered: advancing afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from outerloop.controller.deployment import Deployment, account
from outerloop.controller.interest import drop_interest
from outerloop.controller.ledger import PAUSED, Behind, Ledger, crowned, effective_cancel, fold_events, paused
from outerloop.dispatch.wakes import ENDED, silence
from outerloop.record.models import Attempt, Measure, Run, Slot
from outerloop.record.store import Record

__all__ = ["OperatorError", "Retried", "cancel", "find_run", "pause", "resume", "retry"]

TRIES = 50
"""Attempts to write the next event while others write too."""


class OperatorError(Exception):
    """The operation makes no sense for this run; the text says why and what would."""


_AGAIN = {
    "climb": "ask again with `outerloop submit climb … --again`",
    "training": "ask again with the same `outerloop submit training …`",
    "campaign": "submit it under another name",
    "entry": "ask again with `outerloop submit entry … --again`",
}
"""What to do when a run of this kind has ended."""


class HasRecord(Protocol):
    """A deployment, or less than one: finding needs the record alone."""

    @property
    def record(self) -> Record: ...


def find_run(deployment: HasRecord, name: str, *, submitter: str | None = None) -> Run:
    """The run whose id is `name` or begins with it. Raises LookupError with the near ones.

    With a `submitter`, those of others are as if they were not there: who asked for what is nobody else's business.
    """
    record = deployment.record
    known = [Run.realm_id == record.realm_id]
    known += [] if submitter is None else [Run.submitter == submitter]
    if not name:
        raise LookupError("a run's name is needed, or the beginning of one; `outerloop status` lists them")
    with record.reading() as session:
        exact = session.scalar(select(Run).where(Run.id == name, *known))
        if exact is not None:
            return exact
        found = list(session.scalars(select(Run).where(Run.id.like(f"{_escaped(name)}%"), *known).limit(5)))
        if len(found) == 1:
            return found[0]
        if found:
            raise LookupError(f"{name} is the beginning of several runs: {', '.join(run.id for run in found)}")
        newest = session.scalars(select(Run.id).where(*known).order_by(Run.created_at.desc()).limit(200)).all()
    import difflib

    near = difflib.get_close_matches(name, newest, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else "; `outerloop status --all` lists them"
    raise LookupError(f"there is no run {name}{hint}")


def _escaped(name: str) -> str:
    return name.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def cancel(deployment: Deployment, run_id: str, why: str) -> list[str]:
    """End a run as cancelled; its jobs go too unless another run wants them. Returns notes for people.

    Raises OperatorError when it has ended, or is being made champion at this very moment.
    """
    context = deployment.context
    ledger = Ledger(context.root, run_id)
    for _ in range(TRIES):
        events = ledger.read()
        with context.record.reading() as session:
            run = session.get(Run, run_id)
        if run is None:
            raise LookupError(f"there is no run {run_id}")
        if any(event.kind == "verdict" for event in events) or (run.state == "ended" and not effective_cancel(events)):
            raise OperatorError(f"run {run_id} has ended already ({run.verdict or 'decided'})")
        if crowned(events) is not None:
            raise OperatorError(f"run {run_id} was accepted and is being made champion: too late to cancel")
        if effective_cancel(events) is None:
            try:
                ledger.append(len(events), "cancel", {"by": account(), "why": why})
            except Behind:
                continue
            events = ledger.read()
        with context.record.transaction("tx.operator") as session:
            row = session.scalars(select(Run).where(Run.id == run_id).with_for_update()).one()
            fold_events(session, row, events, root=context.root)
        silence(context, run_id, ENDED)
        return drop_interest(context, run_id, why)
    raise OperatorError(f"run {run_id} is changing too fast to cancel; try again")


def pause(deployment: Deployment, run_id: str, why: str) -> None:
    """Submit nothing new for a run; jobs that are out go on and their results count. Pausing twice changes nothing.

    Whoever advances the run next sees it; advance it to have it at once. Raises OperatorError, LookupError.
    """
    _say(deployment, run_id, "pause", {"by": account(), "why": why})


def resume(deployment: Deployment, run_id: str) -> None:
    """Take a pause back. Raises OperatorError when there is none, LookupError."""
    _say(deployment, run_id, "resume", {"by": account()})


def _say(deployment: Deployment, run_id: str, word: str, body: dict[str, object]) -> None:
    """Write a pause or a resume into the ledger, then see that somebody looks at the run."""
    context = deployment.context
    ledger = Ledger(context.root, run_id)
    for _ in range(TRIES):
        events = ledger.read()
        with context.record.reading() as session:
            run = session.get(Run, run_id)
        if run is None:
            raise LookupError(f"there is no run {run_id}")
        if run.kind == "campaign":
            other = {"pause": "stop", "resume": "resume"}[word]
            raise OperatorError(f"run {run_id} is a campaign: `outerloop campaign {other} {run_id}`")
        if run.state == "ended" or any(event.kind == "verdict" for event in events) or effective_cancel(events):
            raise OperatorError(f"run {run_id} has ended already ({run.verdict or 'decided'})")
        in_force = paused(events) is not None
        if word == "resume" and not in_force and run.state_reason != PAUSED:
            raise OperatorError(f"run {run_id} is not paused")
        if in_force == (word == "resume"):
            try:
                ledger.append(len(events), word, body)
            except Behind:
                continue
            events = ledger.read()
        with context.record.transaction("tx.operator") as session:
            row = session.scalars(select(Run).where(Run.id == run_id).with_for_update()).one()
            fold_events(session, row, events, root=context.root)
            if row.state in {"queued", "waiting"} or (word == "resume" and row.state_reason == PAUSED):
                row.due_at = func.now()
                if row.state == "blocked":
                    row.state, row.state_reason, row.state_detail = "queued", "", ""
        return
    raise OperatorError(f"run {run_id} is changing too fast to {word}; try again")


@dataclass
class Retried:
    """What a retry reopened."""

    slots: list[str] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)


def retry(deployment: Deployment, name: str) -> Retried:
    """Give the exhausted slots of a run (or one slot, by digest) their attempts again and awaken all blocked runs
    that want them. What an entry trained and whose folder is gone is trained again. Raises LookupError,
    OperatorError."""
    context = deployment.context
    record = context.record
    with record.reading() as session:
        slot_ids = (
            list(
                session.scalars(
                    select(Slot.id).where(Slot.realm_id == record.realm_id, Slot.digest.like(f"{_escaped(name)}%"))
                )
            )
            if len(name) >= 8 and set(name) <= set("0123456789abcdef")
            else []
        )
    run_ids: set[str] = set()
    may_be_lost = False
    if not slot_ids:
        run = find_run(deployment, name)
        if run.state == "ended":
            raise OperatorError(f"run {run.id} has ended ({run.verdict}); {_AGAIN[run.kind]}")
        if run.state_reason == PAUSED:
            raise OperatorError(f"run {run.id} is paused: `outerloop resume {run.id}`")
        run_ids.add(run.id)
        may_be_lost = run.kind == "entry"
        with record.reading() as session:
            slot_ids = list(
                session.scalars(
                    select(Slot.id).join(Measure, Measure.slot_id == Slot.id).where(Measure.run_id == run.id)
                )
            )
    retried = Retried()
    for slot_id in sorted(set(slot_ids)):
        with record.transaction("tx.operator") as session:
            slot = session.scalars(select(Slot).where(Slot.id == slot_id).with_for_update()).one()
            # Also of a slot that is open already: a retry that died after reopening it awakened nobody.
            run_ids.update(session.scalars(select(Measure.run_id).where(Measure.slot_id == slot_id)))
            if may_be_lost and slot.state == "done" and not context.slot(slot.digest).attempt_numbers():
                # A model that an operator threw away: its evaluations need it, so the plan asks for it again.
                slot.state, slot.pinned_attempt, slot.pinned_restart, slot.result = "collected", None, None, None
                slot.attempts_counted, slot.next_try_at = 0, None
                retried.slots.append(slot.digest)
                continue
            if slot.state != "exhausted":
                continue
            allowed = slot.attempts_counted + context.patience.max_attempts
            context.slot(slot.digest).grant_retry(
                slot.grants + 1,
                {"allowed": allowed, "by": account(), "after": slot.reason, "attempt": _newest(session, slot_id)},
            )
            slot.grants += 1
            slot.attempts_allowed = allowed
            slot.state, slot.failure_class, slot.reason, slot.detail = "open", None, "", ""
            slot.next_try_at = slot.settled_at = None
            retried.slots.append(slot.digest)
    for run_id in sorted(run_ids):
        with record.transaction("tx.operator") as session:
            changed = session.scalar(
                update(Run)
                .where(Run.id == run_id, Run.state == "blocked", Run.state_reason != PAUSED)
                .values(state="queued", state_reason="", state_detail="", due_at=func.now())
                .returning(Run.id)
            )
        if changed is not None:
            retried.runs.append(run_id)
    if not retried.slots and not retried.runs:
        raise OperatorError(f"{name}: nothing is blocked or exhausted")
    return retried


def _newest(session: Session, slot_id: int) -> int:
    return session.scalar(select(func.max(Attempt.n)).where(Attempt.slot_id == slot_id)) or 0

"""One pass over one run: what every kind of run shares.

Covered: the run's row and ledger under its lease, its slots, looking after jobs, submitting, parking, blocking, ending,
and the loop that puts a kind's answers into effect. Not covered: which work a run needs and what it decides, which each
kind answers for itself (climbs.py, trainings.py, campaigns.py, entries.py); the lease, and which kind it is (advance).

Killed at any instruction, the next pass goes on from what is committed and on disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Protocol

from sqlalchemy import and_, bindparam, delete, func, or_, select, text
from sqlalchemy.orm import Session

from outerloop.compute.protocol import When
from outerloop.controller.content import changed_image
from outerloop.controller.deployment import Deployment
from outerloop.controller.interest import drop_interest
from outerloop.controller.ledger import PAUSED, Ledger, LedgerEvent, effective_cancel, fold_events, paused
from outerloop.controller.request import Execution
from outerloop.dispatch.awaited import awaited_jobs, with_arrays
from outerloop.dispatch.budget import Budget
from outerloop.dispatch.outcomes import share_outcomes
from outerloop.dispatch.settle import OpenAttempt, fold_attempts, just_sent, live_attempts, open_attempts
from outerloop.dispatch.submit import recover_intents, submit_ready
from outerloop.dispatch.wakes import ENDED, Doorbell, hang_doorbell, ring_later, silence
from outerloop.record.models import Await, CampaignEvent, Event, Measure, Run, Slot
from outerloop.record.store import LeaseHandle, as_array

__all__ = ["MOST_STEPS", "Advanced", "Again", "Blocking", "Ending", "Engine", "Kind", "Next"]

MOST_STEPS = 10_000
"""More steps than any run has; a loop that does not end is our error, not a wait."""


_INSERT_AWAITS = "insert into awaits (run_id, attempt_id) select :run, unnest(cast(:attempts as bigint[]))"

TURN_SECONDS = 60.0
"""After so long a pass hands its turn on, at the next step: a run with endless work must not keep the tick, which is
one process for all of them, nor an operator's word. What is left is due at once, in the next turn."""

_NOW = select(func.clock_timestamp())
_OF_RUN = Event.run_id == bindparam("run")
_TOLD = select(func.count()).select_from(Event).where(_OF_RUN)
_RUN = select(Run).where(Run.id == bindparam("run"))
_RUN_AND_TOLD = _RUN.add_columns(_TOLD.scalar_subquery())
_RUN_LOCKED = _RUN.with_for_update()
_IN_ROUND = select(Measure.slot_id).where(Measure.run_id == bindparam("run"), Measure.round == bindparam("round"))
_SLOTS = select(Slot).where(Slot.id.in_(_IN_ROUND)).order_by(Slot.id)
_TRIED_OR_COLLECTED = select(Slot.digest, Slot.state).where(
    Slot.id.in_(_IN_ROUND), or_(and_(Slot.state == "open", Slot.attempts_counted > 0), Slot.state == "collected")
)
# Asked once the awaits are written: their foreign keys hold the attempts, so that a sweep that settles one of them has
# committed, or waits and finds that we await it. One by one along the index, whatever the statistics make of it.
_TOLD_AND_SETTLED = """
select (select count(*) from events where run_id = :run),
       exists (select 1 from awaits
                cross join lateral (select state from attempts where id = awaits.attempt_id offset 0) as awaited
                where awaits.run_id = :run and awaited.state = 'settled')
"""
_NO_AWAITS = delete(Await).where(Await.run_id == bindparam("run"))


@dataclass
class Advanced:
    """What became of a run in this process."""

    run_id: str
    state: str
    sentence: str = ""
    submitted: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def busy(self) -> bool:
        return self.state == "busy"


class Again(Exception):
    """Something changed under us; read it anew."""


class Blocking(Exception):
    """The run cannot go on until somebody does something. Nobody is charged."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True)
class Ending:
    """A verdict: the body of the ledger's `verdict` event, with `outcome`, `reason` and `sentence` in its `verdict`."""

    body: Mapping[str, Any]

    @property
    def sentence(self) -> str:
        return str(self.body["verdict"]["sentence"])


class Next(Enum):
    """What follows when a run has not ended."""

    MORE = "more"
    """Further work is known: plan it now."""
    WAIT = "wait"
    """What is missing are the ends of jobs."""


class Kind(Protocol):
    """What makes one kind of run differ: which work it needs next, and what its results mean."""

    @property
    def round(self) -> int:
        """Number of the round whose measures count."""

    @property
    def gpu_hours(self) -> float | None:
        """Limit of this run's target, None without one."""

    @property
    def executions(self) -> Sequence[Execution]:
        """How its work runs, as it was frozen."""

    def before_jobs(self) -> Ending | None:
        """What has to be settled before any job. Raises Blocking."""

    def plan(self) -> None:
        """Publish and commit the work that is known to be needed and not there. Raises Blocking."""

    def step(self) -> Ending | Next:
        """What the results mean. Raises Blocking."""


class Engine:
    """One pass over one run under its lease."""

    def __init__(self, deployment: Deployment, lease: LeaseHandle, started: float | None = None) -> None:
        self.started = time.monotonic() if started is None else started
        """When the turn began, by time.monotonic()."""
        self.tells_of_submissions = False
        """Whether this kind of run writes down that a job was handed over: it has to look once more, then."""
        self.campaign_seq: int | None = None
        """Number of the newest event of a campaign's own ledger that this pass has taken in."""
        self.deployment = deployment
        self.context = deployment.context
        self.lease = lease
        self.run_id = lease.run_id
        self.ledger = Ledger(self.context.root, self.run_id)
        self.events: list[LedgerEvent] = []
        self.seen: dict[int, str] = {}
        """State of each slot before the results were last looked at."""
        self.lost_specs = False
        """Whether a slot that waits for a further attempt has no readable spec: the next plan publishes all of them."""
        self.held: set[str] = set()
        """Slots that wait for another one, by digest: a kind may name some in each plan."""
        self.submitted = 0
        self.unshared: list[int] = []
        """Arrays that this pass submitted and whose outcome is not handed on to their attempts yet."""
        self.notes: list[str] = []
        self.idle: tuple[str, str] | None = None
        """Reason word and sentence for a rest without jobs, where the kind knows better than we do."""

    @property
    def turn_over(self) -> bool:
        """Whether what is left should be left to the next turn."""
        return time.monotonic() - self.started >= TURN_SECONDS

    # -- the pass

    def go(self, kinds: Mapping[str, Callable[[Engine, Run], Kind]]) -> Advanced:
        """Bring the run as far as it goes now. Raises Again, Behind, Fenced, RecordUnavailable, OSError."""
        run = self.load()
        if run.state == "ended":
            self._drop()
            return self._done(run.state, run.sentence or "")
        if run.state == "blocked":
            return self._done(run.state, f"{run.state_reason}: {run.state_detail}")
        if (pause := paused(self.events)) is not None:
            return self._block(PAUSED, f"paused by {pause.body.get('by')}: {pause.body.get('why')}")
        try:
            kind = kinds[run.kind](self, run)
            return self._end(ending) if (ending := kind.before_jobs()) is not None else self._until_rest(kind)
        except Blocking as blocking:
            return self._block(blocking.reason, blocking.detail)

    def _until_rest(self, kind: Kind) -> Advanced:
        for _ in range(MOST_STEPS):
            self.lost_specs = self._lost_specs(kind.round)
            kind.plan()
            changed = self._look_after(kind.round)
            step = kind.step()
            if isinstance(step, Ending):
                return self._end(step)
            over = self.turn_over
            if (step is Next.MORE or changed) and not over:
                continue
            # What was handed over says nothing before it ends, as a rule; a refusal for good changes what is known now.
            if not self._submit(kind) or over:
                return self._park(kind.round, again=over)
        raise RuntimeError(f"run {self.run_id} did not come to rest in {MOST_STEPS} steps")

    # -- reading

    def load(self) -> Run:
        """The run's row, with what its ledger on disk says folded in."""
        record = self.context.record
        with record.reading() as session:
            found = session.execute(_RUN_AND_TOLD, {"run": self.run_id}).one_or_none()
            if found is None:
                raise LookupError(f"there is no run {self.run_id}")
            run: Run = found[0]
            known = int(found[1])
        self.events = self.ledger.read()
        if len(self.events) > known or (effective_cancel(self.events) and run.state != "ended"):
            self._fold()
            with record.reading() as session:
                run = session.get_one(Run, self.run_id)
        return run

    def _fold(self, name: str = "tx.fold") -> None:
        with self.context.record.fenced(name, self.lease, seconds=self.context.patience.lease) as session:
            run = session.scalars(_RUN_LOCKED, {"run": self.run_id}).one()
            fold_events(session, run, self.events, root=self.context.root)

    def note(self, kind: str, body: dict[str, object], *, fold: str = "tx.fold") -> LedgerEvent:
        """Write the next event and fold it. Raises Behind when somebody else wrote another one first."""
        event = self.ledger.append(len(self.events), kind, body)
        self.events.append(event)
        self._fold(fold)
        return event

    # -- jobs

    def slots(self, session: Session, round_: int) -> list[Slot]:
        """The slots of a round, each once."""
        return list(session.scalars(_SLOTS, {"run": self.run_id, "round": round_}))

    def _lost_specs(self, round_: int) -> bool:
        """Whether somebody removed or tore the spec of a slot that goes on, or the whole slot: no attempt of it could
        ever run.

        Only slots of which an attempt has failed are looked at, so that this costs nothing as a rule.
        """
        with self.context.record.reading() as session:
            found = session.execute(_TRIED_OR_COLLECTED, {"run": self.run_id, "round": round_}).all()
        return any(row.state == "collected" or self.context.slot(row.digest).spec() is None for row in found)

    def _look_after(self, round_: int) -> bool:
        """Fold what the queue and the files show of this run's open attempts. True when one of them was settled."""
        with self.context.record.reading() as session:
            slots = self.slots(session, round_)
            self.seen = {slot.id: slot.state for slot in slots}
            ids = list(self.seen)
            attempts = live_attempts(session, self.context.record.realm_id, ids)
        if not attempts:
            return False
        observation = self.deployment.observation()
        recovered, report = recover_intents(self.context, observation, attempts)
        if any(attempt.state == "intent" for attempt in attempts):
            with self.context.record.reading() as session:
                attempts = live_attempts(session, self.context.record.realm_id, ids)
        places = {slot.id: self.context.slot(slot.digest) for slot in slots}
        told = [attempt for attempt in attempts if not just_sent(observation, attempt, places[attempt.slot_id])]
        folded = fold_attempts(self.context, observation, told)
        self.notes += recovered.notes + folded.notes
        self.submitted += len(report.accepted)
        recovered.raise_first()
        folded.raise_first()
        return folded.settled > 0

    def _submit(self, kind: Kind) -> bool:
        """Hand out every slot that can go now; environments before the measures that need them. True when that has
        changed what the run knows."""
        with self.context.record.reading() as session:
            slots = self.slots(session, kind.round)
        unbuilt = {slot.digest for slot in slots if slot.kind == "environment" and slot.state != "done"}
        ready = [
            slot.id
            for slot in slots
            if slot.state == "open"
            and slot.digest not in self.held
            and (slot.kind == "environment" or not self._needs_one_of(slot, unbuilt))
        ]
        for execution in kind.executions if ready else ():
            changed = changed_image(execution)
            if changed:
                raise Blocking("IMAGE", changed)
        limits = [self.deployment.settings.budgets.gpu_hours, kind.gpu_hours]
        hours = min((float(limit) for limit in limits if limit is not None), default=None)
        report = submit_ready(
            self.context, self.lease, ready, self._budget(hours), lease_seconds=self.context.patience.lease
        )
        self.submitted += len(report.accepted)
        self.unshared += report.arrays
        self.notes += [f"refused: {refused.reason} {refused.detail}".strip() for refused in report.refused]
        self.notes += [f"no answer to the submission of {name}; it will be looked for" for name in report.unknown]
        if report.over_budget is not None:
            raise Blocking("BUDGET", str(report.over_budget))
        refused_for_good = any(refused.when is not When.LATER for refused in report.refused)
        return refused_for_good or (self.tells_of_submissions and bool(report.accepted))

    def _budget(self, hours: float | None) -> Budget:
        """The target's limit, and in a service deployment that of whoever asked for a slot first, who is charged."""
        settings = self.deployment.settings
        if settings.mode == "personal":
            return Budget(gpu_hours=hours)
        limits = settings.service.limits_of
        return Budget(gpu_hours=hours, submitter_gpu_hours=lambda submitter: limits(submitter).gpu_hours)

    def _needs_one_of(self, slot: Slot, environments: set[str]) -> bool:
        if not environments:
            return False
        spec = self.context.slot(slot.digest).spec() or {}
        return str((spec.get("determinants") or {}).get("environment") or "") in environments

    # -- resting

    def _park(self, round_: int, *, again: bool = False) -> Advanced:
        """Save what is awaited and ask for a doorbell; nothing stays in memory. `again`: the turn is over, the work is
        not, so the run is due at once."""
        with self.context.record.fenced("tx.park", self.lease, seconds=self.context.patience.lease) as session:
            now = session.scalar(_NOW)
            assert now is not None
            slots = self.slots(session, round_)
            attempts = open_attempts(session, self.context.record.realm_id, [slot.id for slot in slots])
            session.execute(_NO_AWAITS, {"run": self.run_id})
            if attempts:
                awaited = {"run": self.run_id, "attempts": as_array(attempt.id for attempt in attempts)}
                session.execute(text(_INSERT_AWAITS), awaited)
            run = session.scalars(_RUN_LOCKED, {"run": self.run_id}).one()
            told, settled = session.execute(text(_TOLD_AND_SETTLED), {"run": self.run_id}).one()
            unread = settled or self._unread(slots)
            if run.state == "ended" or self._overtaken(session, told) or (unread and not again):
                raise Again
            run.state = "waiting"
            run.state_reason, run.state_detail = _why_waiting(slots, attempts)
            if self.idle is not None and not attempts:
                run.state_reason, run.state_detail = self.idle
            if again:
                run.state_reason, run.state_detail = "TURN", f"goes on in its next turn, after {TURN_SECONDS:g} s"
            run.due_at = due = now if again else self._due(now, slots, attempts)
            run.last_error = None
            run.updated_at = now
            job_ids = [] if again else awaited_jobs(session, [slot.id for slot in slots])
            submitted = [attempt for attempt in attempts if attempt.state == "submitted"]
            all_final = not job_ids or (bool(submitted) and all(attempt.absent_at is not None for attempt in submitted))
            bell = hang_doorbell(
                session,
                self.context,
                self.deployment.wakes,
                self.run_id,
                job_ids,
                begin_seconds=max(1.0, (due - now).total_seconds()) if all_final else None,
            )
        reason = f"waiting for {len(attempts)} job{'s' if len(attempts) != 1 else ''}"
        if self.idle is not None and not attempts:
            reason = self.idle[1]
        if again:
            reason = "its turn is over; the next one goes on"
        ring = bell
        if isinstance(bell, Doorbell):
            gone = with_arrays(self._gone(attempts), attempts)
            ring = ring_later(self.context, self.deployment.wakes, bell, gone=gone)
        if ring not in {"rings", "already rings", "off"}:
            self.notes.append(f"no wake job: {ring}; the tick goes on with this run")
        return self._done("waiting", reason)

    def _unread(self, slots: Sequence[Slot]) -> bool:
        """Whether a slot was settled after the results were looked at, by a sweep that knew nobody who awaits it: this
        run, while it was still submitting. Nothing would ring for that."""
        return any(slot.state != "open" and self.seen.get(slot.id, "open") != slot.state for slot in slots)

    def _overtaken(self, session: Session, told: int) -> bool:
        """Whether somebody's word reached the ledgers after they were read: it must not wait for the next look. `told`:
        how many events of the run's ledger the record has."""
        if told > len(self.events):
            return True
        if self.campaign_seq is None:
            return False
        newest = session.scalar(select(func.max(CampaignEvent.seq)).where(CampaignEvent.run_id == self.run_id)) or 0
        return newest > self.campaign_seq

    def _gone(self, attempts: Sequence[OpenAttempt]) -> set[str]:
        """Awaited jobs that this process's listing should have shown and did not."""
        observation = self.deployment.observation()
        if not observation.complete:
            return set()
        return {
            attempt.job_id
            for attempt in attempts
            if attempt.job_id is not None
            and attempt.submitted_at is not None
            and attempt.submitted_at < observation.started
            and observation.listed(attempt.job_id) is None
        }

    def _due(self, now: datetime, slots: Sequence[Slot], attempts: Sequence[OpenAttempt]) -> datetime:
        """When to look again even if nothing rings: what is awaited decides."""
        patience = self.context.patience
        moments = [now + timedelta(hours=patience.park_hours)]
        busy = {attempt.slot_id for attempt in attempts}
        for slot in slots:
            if slot.state == "open" and slot.id not in busy:
                moments.append(slot.next_try_at or now)
        for attempt in attempts:
            if attempt.state == "intent":
                moments.append(now + timedelta(seconds=patience.grace if attempt.unknown_at else patience.intent))
            elif attempt.absent_at is not None:
                moments.append(now + timedelta(seconds=max(patience.grace, 1.0)))
        return min(moments)

    def _block(self, reason: str, detail: str) -> Advanced:
        """Not ended, nobody charged: somebody has to do something, and `detail` says what is wrong."""
        with self.context.record.fenced("tx.block", self.lease, seconds=self.context.patience.lease) as session:
            run = session.scalars(_RUN_LOCKED, {"run": self.run_id}).one()
            if run.state == "ended" or self._overtaken(session, session.scalar(_TOLD, {"run": self.run_id}) or 0):
                raise Again
            run.state, run.state_reason, run.state_detail = "blocked", reason, detail
            run.due_at = None
            run.updated_at = func.now()
            session.execute(_NO_AWAITS, {"run": self.run_id})
        return self._done("blocked", f"{reason}: {detail}")

    def exhausted_because(self, round_: int) -> str:
        """The reason word for a run whose work used up its attempts."""
        with self.context.record.reading() as session:
            classes = {
                slot.failure_class or "infrastructure"
                for slot in self.slots(session, round_)
                if slot.state == "exhausted"
            }
        return "ENVIRONMENT" if "environment" in classes else "CANCELLED" if "user" in classes else "INFRASTRUCTURE"

    def _end(self, ending: Ending) -> Advanced:
        self.note("verdict", dict(ending.body), fold="tx.end")
        self._drop()
        return self._done("ended", ending.sentence)

    def _drop(self) -> None:
        self.notes += drop_interest(self.context, self.run_id, ENDED)
        silence(self.context, self.run_id, ENDED)

    def _done(self, state: str, sentence: str) -> Advanced:
        share_outcomes(self.context, self.unshared)
        return Advanced(self.run_id, state, sentence, self.submitted, self.notes)


def _why_waiting(slots: Sequence[Slot], attempts: Sequence[OpenAttempt]) -> tuple[str, str]:
    """One reason word and a sentence for people: what the run waits for."""
    if any(attempt.state == "intent" for attempt in attempts):
        return "SUBMISSION", "a submission's outcome is not known yet"
    pending = [a.slurm_reason for a in attempts if a.slurm_state == "pending" and a.slurm_reason]
    running = sum(1 for a in attempts if a.slurm_state == "running")
    if attempts:
        parts = [f"{len(attempts)} jobs" if len(attempts) != 1 else "1 job"]
        if running:
            parts.append(f"{running} running")
        if pending:
            parts.append(f"pending: {', '.join(sorted(set(pending)))}")
        return "JOBS", ", ".join(parts)
    due = [slot for slot in slots if slot.state == "open"]
    reasons = sorted({slot.reason for slot in due if slot.reason})
    return "BACKOFF", f"next attempt after {', '.join(reasons)}" if reasons else "nothing is running"

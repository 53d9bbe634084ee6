"""advance(run): take the lease, read what is there, submit what is missing, park or decide.

Covered: the one loop behind submit, wake and tick for climbs. Not covered: which runs to advance (tick.py, wake.py),
making a run (submit.py). Killed at any instruction, the next call goes on from what is committed and on disk.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from outerloop.climb import (
    Blocked,
    ClimbPlan,
    EvidenceError,
    Look,
    NeedMore,
    Reading,
    Step,
    Verdict,
    Waiting,
    next_step,
    plan_measures,
    sequential_bounds,
    superseded_verdict,
)
from outerloop.contract import Contract, ContractError
from outerloop.controller.champions import Crown, champion_now, crown
from outerloop.controller.deployment import Deployment
from outerloop.controller.git import Change, Mirror
from outerloop.controller.interest import drop_interest
from outerloop.controller.ledger import Behind, Ledger, LedgerEvent, crowned, effective_cancel, fold_events
from outerloop.controller.noise_store import noise_sd
from outerloop.controller.plan import (
    ContractGone,
    EnvironmentFilesMissing,
    Prior,
    Round,
    climb_plan,
    commit_measures,
    draw_round,
    planned_work,
    read_contract,
    readings_of,
)
from outerloop.controller.request import ClimbRequest
from outerloop.controller.scope import verdict_on_scope
from outerloop.controller.submit import changed_image
from outerloop.dispatch.arrays import awaited_jobs, with_arrays
from outerloop.dispatch.budget import Budget
from outerloop.dispatch.settle import fold_attempts, live_attempts
from outerloop.dispatch.submit import recover_intents, submit_ready
from outerloop.dispatch.wakes import ring_later
from outerloop.record.models import Attempt, Await, Event, Measure, Run, Slot
from outerloop.record.store import Fenced, LeaseHandle, RecordUnavailable

__all__ = ["MOST_ROUNDS", "Advanced", "advance"]

MOST_ROUNDS = 3
"""How often a climb is measured anew because the champion moved, before it is rejected as superseded."""
UNWEIGHED = frozenset({"operator", "scope", "base-error"})
"""Reasons of endings that weighed no number of the candidate: they use up no share of alpha."""
MOST_STEPS = 10_000
"""More steps than any climb has; a loop that does not end is our error, not a wait."""


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


class _Again(Exception):
    """Something changed under us; read it anew."""


def advance(deployment: Deployment, run_id: str) -> Advanced:
    """Bring a run as far as it goes now. `state` is busy (somebody else has it), queued, waiting, blocked or ended.

    Raises RecordUnavailable, OSError (disk), GitError; nothing that was promised is lost by any of them.
    """
    context = deployment.context
    lease = context.record.take_lease(run_id, seconds=context.patience.lease)
    if lease is None:
        return Advanced(run_id, "busy", "another process is advancing it")
    try:
        for _ in range(MOST_STEPS):
            try:
                advanced = _Climb(deployment, lease).go()
                break
            except (Behind, _Again):
                continue
        else:
            raise RuntimeError(f"run {run_id} did not come to rest in {MOST_STEPS} steps")
    except Fenced:
        return Advanced(run_id, "busy", "another process took it over")
    except Exception:
        # This process may live on; nobody should have to wait until its lease has run out.
        with contextlib.suppress(RecordUnavailable):
            context.record.release_lease(lease)
        raise
    context.record.release_lease(lease)
    return advanced


class _Climb:
    """One pass over one run under its lease."""

    def __init__(self, deployment: Deployment, lease: LeaseHandle) -> None:
        self.deployment = deployment
        self.context = deployment.context
        self.lease = lease
        self.run_id = lease.run_id
        self.ledger = Ledger(self.context.root, self.run_id)
        self.events: list[LedgerEvent] = []
        self.submitted = 0
        self.submitted_now = 0
        self.notes: list[str] = []

    # -- the pass

    def go(self) -> Advanced:
        run = self._load()
        if run.state == "ended":
            self._drop()
            return self._done(run.state, run.sentence or "")
        if run.state == "blocked":
            return self._done(run.state, f"{run.state_reason}: {run.state_detail}")
        self.request = ClimbRequest.model_validate(run.request)
        self.mirror = Mirror(self.context.root.mirror(self.request.target))
        try:
            round_ = self._round()
            contract = read_contract(self.mirror, round_.base_commit)
        except (ContractError, ContractGone) as error:
            return self._block("CONTRACT", str(error))
        if (out_of_scope := self._scope(contract, round_)) is not None:
            return self._end(out_of_scope, round_)
        return self._measure(contract, round_)

    def _measure(self, contract: Contract, round_: Round) -> Advanced:
        plan = climb_plan(contract, self.request, round_)
        for _ in range(MOST_STEPS):
            readings = self._readings(round_)
            try:
                wanted = plan_measures(plan, readings)
                missing = [request for request in wanted if request.role not in readings]
                if missing:
                    planned = planned_work(self.context, self.mirror, contract, self.request, round_, missing)
                    commit_measures(self.context, self.lease, self.request, round_, planned)
                changed = self._look_after(round_)
                readings = self._readings(round_)
                step = next_step(plan, readings)
            except EvidenceError as error:
                return self._block("EVIDENCE", str(error))
            except EnvironmentFilesMissing as error:
                return self._block("ENVIRONMENT", str(error))
            self._note_looks(plan, round_, step)
            if isinstance(step, Verdict):
                return self._decide(step, round_)
            if isinstance(step, Blocked):
                return self._block(*self._why_blocked(round_, step))
            if isinstance(step, NeedMore) or changed:
                continue
            assert isinstance(step, Waiting), step
            over = self._submit(round_)
            if over is not None:
                return over
            if self.submitted_now:
                continue
            return self._park(round_)
        raise RuntimeError(f"run {self.run_id}: measuring did not come to rest")

    # -- reading

    def _load(self) -> Run:
        """The run's row, with what its ledger on disk says folded in."""
        record = self.context.record
        with record.reading() as session:
            run = session.get(Run, self.run_id)
            if run is None:
                raise LookupError(f"there is no run {self.run_id}")
            known = session.scalar(select(func.count()).select_from(Event).where(Event.run_id == self.run_id))
        self.events = self.ledger.read()
        if len(self.events) > (known or 0) or (effective_cancel(self.events) and run.state != "ended"):
            self._fold()
            with record.reading() as session:
                run = session.get(Run, self.run_id)
                assert run is not None
        return run

    def _fold(self, name: str = "tx.fold") -> None:
        with self.context.record.fenced(name, self.lease, seconds=self.context.patience.lease) as session:
            run = session.scalars(select(Run).where(Run.id == self.run_id).with_for_update()).one()
            fold_events(session, run, self.events, root=self.context.root)

    def _append(self, kind: str, body: dict[str, object], *, fold: str = "tx.fold") -> LedgerEvent:
        """Write the next event and fold it. Raises Behind when somebody else wrote another one first."""
        event = self.ledger.append(len(self.events), kind, body)
        self.events.append(event)
        self._fold(fold)
        return event

    def _readings(self, round_: Round) -> dict[str, Reading]:
        with self.context.record.reading() as session:
            return readings_of(session, self.run_id, round_.number)

    # -- the round

    def _round(self) -> Round:
        """The current round; drawn and published when there is none yet."""
        rounds = [event for event in self.events if event.kind == "round"]
        if rounds:
            return Round.of(rounds[-1])
        return self._open_round(
            0, self.request.base_commit, self.request.base_tree, self.request.champion_seq, self.request.promotable
        )

    def _open_round(self, number: int, commit: str, tree: str, champion_seq: int, promotable: bool) -> Round:
        contract = read_contract(self.mirror, commit)
        body = draw_round(
            contract,
            self.request.benchmark,
            number=number,
            base_commit=commit,
            base_tree=tree,
            champion_seq=champion_seq,
            promotable=promotable,
            changed=[change.path for change in self._changes(tree)],
            prior=self._prior(number, tree),
            noise_sd=self._noise(contract),
        )
        return Round.of(self._append("round", body))

    def _noise(self, contract: Contract) -> dict[str, Decimal]:
        """What noise studies found so far, for every benchmark that may be judged; frozen into the round."""
        target = self.request.target
        found = {
            item.name: noise_sd(self.context.root, target, item)
            for item in (contract.benchmark(self.request.benchmark), *contract.siblings(self.request.benchmark))
        }
        return {name: sd for name, sd in found.items() if sd is not None}

    def _prior(self, number: int, base_tree: str) -> Prior:
        """What earlier askings of the same question leave: how many they were, and the pairs on this base."""
        if self.request.ask == 0:
            return Prior()
        with self.context.record.reading() as session:
            earlier = session.execute(
                select(Run.id, Run.verdict, Run.verdict_reason)
                .where(
                    Run.realm_id == self.context.record.realm_id,
                    Run.question == self.request.question,
                    Run.ask < self.request.ask,
                )
                .order_by(Run.ask.desc())
            ).all()
        asking = 1 + sum(verdict is not None and reason not in UNWEIGHED for _id, verdict, reason in earlier)
        if number > 0:
            return Prior(asking)
        for run_id, verdict, _reason in earlier:
            if verdict == "failed":
                continue
            events = Ledger(self.context.root, run_id).read()
            rounds = [Round.of(event) for event in events if event.kind == "round"]
            before = next((r for r in reversed(rounds) if r.base_tree == base_tree), None)
            if before is None:
                continue
            if verdict == "cancelled":
                return Prior(asking, before, unfinished=True)
            return Prior(asking, before, pairs=_pairs_decided(events, before))
        return Prior(asking)

    def _changes(self, base_tree: str) -> list[Change]:
        return self.mirror.changes(base_tree, self.request.candidate_tree)

    def _scope(self, contract: Contract, round_: Round) -> Verdict | None:
        return verdict_on_scope(self.request.benchmark, self._changes(round_.base_tree), contract.scope)

    # -- jobs

    def _slots(self, session: Session, round_: Round) -> list[Slot]:
        return list(
            session.scalars(
                select(Slot)
                .join(Measure, Measure.slot_id == Slot.id)
                .where(Measure.run_id == self.run_id, Measure.round == round_.number)
                .distinct()
                .order_by(Slot.id)
            )
        )

    def _look_after(self, round_: Round) -> bool:
        """Fold what the queue and the files show of this run's open attempts. True when one of them was settled."""
        with self.context.record.reading() as session:
            ids = [slot.id for slot in self._slots(session, round_)]
            attempts = live_attempts(session, self.context.record.realm_id, ids)
        if not attempts:
            return False
        observation = self.deployment.observation()
        recovered, report = recover_intents(self.context, observation, attempts)
        with self.context.record.reading() as session:
            attempts = live_attempts(session, self.context.record.realm_id, ids)
        folded = fold_attempts(self.context, observation, attempts, files=True)
        self.notes += recovered.notes + folded.notes
        self.submitted += len(report.accepted)
        return folded.settled > 0

    def _submit(self, round_: Round) -> Advanced | None:
        """Hand out every slot that can go now; environments before the measures that need them."""
        with self.context.record.reading() as session:
            slots = self._slots(session, round_)
        unbuilt = {slot.digest for slot in slots if slot.kind == "environment" and slot.state != "done"}
        ready = [
            slot.id
            for slot in slots
            if slot.state == "open" and (slot.kind == "environment" or not self._needs_one_of(slot, unbuilt))
        ]
        for execution in self.request.execution.values() if ready else ():
            changed = changed_image(execution)
            if changed:
                return self._block("IMAGE", changed)
        limits = [self.deployment.settings.budgets.gpu_hours, self.request.gpu_hours]
        hours = min((float(limit) for limit in limits if limit is not None), default=None)
        report = submit_ready(
            self.context, self.lease, ready, Budget(gpu_hours=hours), lease_seconds=self.context.patience.lease
        )
        self.submitted_now = len(report.accepted)
        self.submitted += self.submitted_now
        self.notes += [f"refused: {refused.reason} {refused.detail}".strip() for refused in report.refused]
        self.notes += [f"no answer to the submission of {name}; it will be looked for" for name in report.unknown]
        if report.over_budget is not None:
            return self._block("BUDGET", str(report.over_budget))
        if any(refused.when.value != "later" for refused in report.refused):
            self.submitted_now += 1
        return None

    def _needs_one_of(self, slot: Slot, environments: set[str]) -> bool:
        if not environments:
            return False
        spec = self.context.slot(slot.digest).spec() or {}
        return str((spec.get("determinants") or {}).get("environment") or "") in environments

    # -- resting

    def _park(self, round_: Round) -> Advanced:
        """Save what is awaited and ask for a doorbell; nothing stays in memory."""
        observation_final: list[bool] = []
        with self.context.record.fenced("tx.park", self.lease, seconds=self.context.patience.lease) as session:
            now = session.scalar(select(func.clock_timestamp()))
            assert now is not None
            slots = self._slots(session, round_)
            attempts = live_attempts(session, self.context.record.realm_id, [slot.id for slot in slots])
            session.execute(delete(Await).where(Await.run_id == self.run_id))
            session.add_all(Await(run_id=self.run_id, attempt_id=attempt.id) for attempt in attempts)
            run = session.scalars(select(Run).where(Run.id == self.run_id).with_for_update()).one()
            if run.state == "ended":
                raise _Again
            run.state = "waiting"
            run.state_reason, run.state_detail = _why_waiting(slots, attempts)
            run.due_at = due = self._due(now, slots, attempts)
            run.last_error = None
            run.updated_at = now
            job_ids = awaited_jobs(session, attempts, [slot.id for slot in slots])
            observation_final = [a.absent_at is not None for a in attempts if a.state == "submitted"]
        reason = f"waiting for {len(attempts)} job{'s' if len(attempts) != 1 else ''}"
        all_final = not job_ids or (bool(observation_final) and all(observation_final))
        ring = ring_later(
            self.context,
            self.deployment.wakes,
            self.lease,
            job_ids,
            begin_seconds=max(1.0, (due - now).total_seconds()) if all_final else None,
            gone=with_arrays(self._gone(attempts), attempts),
        )
        if ring not in {"rings", "already rings", "off"}:
            self.notes.append(f"no wake job: {ring}; the tick goes on with this run")
        return self._done("waiting", reason)

    def _gone(self, attempts: Sequence[Attempt]) -> set[str]:
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

    def _due(self, now: datetime, slots: Sequence[Slot], attempts: Sequence[Attempt]) -> datetime:
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

    def _why_blocked(self, round_: Round, step: Blocked) -> tuple[str, str]:
        with self.context.record.reading() as session:
            classes = {
                slot.failure_class or "infrastructure"
                for slot in self._slots(session, round_)
                if slot.state == "exhausted"
            }
        reason = "ENVIRONMENT" if "environment" in classes else "CANCELLED" if "user" in classes else "INFRASTRUCTURE"
        return reason, step.reason

    def _block(self, reason: str, detail: str) -> Advanced:
        """Not ended, nobody charged: somebody has to do something, and `detail` says what is wrong."""
        with self.context.record.fenced("tx.block", self.lease, seconds=self.context.patience.lease) as session:
            run = session.scalars(select(Run).where(Run.id == self.run_id).with_for_update()).one()
            if run.state == "ended":
                raise _Again
            run.state, run.state_reason, run.state_detail = "blocked", reason, detail
            run.due_at = None
            run.updated_at = func.now()
            session.execute(delete(Await).where(Await.run_id == self.run_id))
        return self._done("blocked", f"{reason}: {detail}")

    # -- deciding

    def _note_looks(self, plan: ClimbPlan, round_: Round, step: Step) -> None:
        looks: Sequence[Look]
        if isinstance(step, Verdict):
            test = step.findings.climbed.test if step.findings.climbed else None
            looks = test.looks if test else ()
        else:
            looks = step.looks
        bounds = sequential_bounds(plan)
        told = sum(1 for event in self.events if event.kind == "look" and event.body.get("round") == round_.number)
        for look in looks[told:]:
            self._append(
                "look",
                {
                    "round": round_.number,
                    "pairs": look.pairs,
                    "llr": look.llr,
                    "lower": bounds[0],
                    "upper": bounds[1],
                    "mean_gain": str(look.mean_gain),
                    "sd": str(look.sd),
                },
            )

    def _decide(self, verdict: Verdict, round_: Round) -> Advanced:
        if verdict.outcome != "accepted" or not round_.promotable:
            return self._end(verdict, round_)
        seq = round_.champion_seq + 1
        if crowned(self.events) is None:
            self._append("crown", {"round": round_.number, "seq": seq})
        climbed = verdict.findings.climbed
        assert climbed is not None, "an accepted verdict has a climbed finding"
        holder = crown(
            self.context.root,
            self.request.champion_key,
            Crown(
                seq=seq,
                run=self.run_id,
                commit=self.request.candidate_commit,
                tree=self.request.candidate_tree,
                value=str(climbed.mean_candidate),
                gain=str(climbed.gain),
                label=self.request.subject,
                at="",
            ),
            {
                "target": self.request.target,
                "benchmark": self.request.benchmark,
                "definition": self.request.definition,
            },
        )
        if holder.run == self.run_id:
            return self._end(verdict, round_, champion_seq=seq)
        if round_.number + 1 >= MOST_ROUNDS:
            return self._end(superseded_verdict(verdict, round_.number + 1), round_)
        newest = champion_now(self.context.root, self.request.champion_key) or holder
        self.notes.append(f"the champion moved to {newest.commit[:12]}; measured again against it")
        self._open_round(round_.number + 1, newest.commit, newest.tree, newest.seq, True)
        raise _Again

    def _end(self, verdict: Verdict, round_: Round, *, champion_seq: int | None = None) -> Advanced:
        self._append(
            "verdict",
            {"round": round_.number, "verdict": verdict.to_json(), "champion_seq": champion_seq},
            fold="tx.end",
        )
        self._drop()
        return self._done("ended", verdict.sentence)

    def _drop(self) -> None:
        self.notes += drop_interest(self.context, self.run_id, "its run has ended")

    def _done(self, state: str, sentence: str) -> Advanced:
        return Advanced(self.run_id, state, sentence, self.submitted, self.notes)


def _pairs_decided(events: Sequence[LedgerEvent], round_: Round) -> int:
    """How many pairs of a round were weighed: what its verdict or, when the champion moved after it, its looks say."""
    for event in events:
        if event.kind == "verdict" and event.body.get("round") == round_.number:
            climbed = Verdict.from_json(event.body["verdict"]).findings.climbed
            return len(climbed.pairs) if climbed is not None else 0
    looks = [event for event in events if event.kind == "look" and event.body.get("round") == round_.number]
    return int(looks[-1].body["pairs"]) if looks else len(round_.pair_seeds)


def _why_waiting(slots: Sequence[Slot], attempts: Sequence[Attempt]) -> tuple[str, str]:
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

"""Climbs: which measures a candidate needs next, and what their values mean.

Covered: the round, the scope check, the looks of a sequential test, going for champion. Not covered: jobs, parking and
the ledger (engine.py), judging (climb), making a run (submit.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal

from sqlalchemy import select

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
    ladder_verdict,
    next_step,
    plan_measures,
    sequential_bounds,
    superseded_verdict,
)
from outerloop.contract import Contract, ContractError
from outerloop.controller.champions import Crown, champion_now, crown
from outerloop.controller.engine import Again, Blocking, Ending, Engine, Next
from outerloop.controller.git import Change, Mirror
from outerloop.controller.ladders import best_rung, step_up
from outerloop.controller.ledger import Ledger, LedgerEvent, crowned
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
from outerloop.controller.request import ClimbRequest, Execution
from outerloop.controller.scope import verdict_on_scope
from outerloop.record.models import Measure, Run, Slot

__all__ = ["MOST_ROUNDS", "Climb"]

MOST_ROUNDS = 3
"""How often a climb is measured anew because the champion moved, before it is rejected as superseded."""
UNWEIGHED = frozenset({"operator", "scope", "base-error"})
"""Reasons of endings that weighed no number of the candidate: they use up no share of alpha."""


class Climb:
    """The answers of one climb (see `engine.Kind`)."""

    def __init__(self, engine: Engine, run: Run) -> None:
        self.engine = engine
        self.context = engine.context
        self.run_id = engine.run_id
        self.request = ClimbRequest.model_validate(run.request)
        self.mirror = Mirror(self.context.root.mirror(self.request.target))
        self.contract: Contract
        self.current: Round
        self.climb: ClimbPlan

    @property
    def round(self) -> int:
        return self.current.number

    @property
    def gpu_hours(self) -> float | None:
        return self.request.gpu_hours

    @property
    def executions(self) -> Sequence[Execution]:
        return tuple(self.request.execution.values())

    def before_jobs(self) -> Ending | None:
        """Draw or find the round, and refuse what is out of scope."""
        try:
            self.current = self._round()
            self.contract = read_contract(self.mirror, self.current.base_commit)
        except (ContractError, ContractGone) as error:
            raise Blocking("CONTRACT", str(error)) from error
        out_of_scope = self._scope(self.contract, self.current)
        if out_of_scope is not None:
            return self._ending(out_of_scope, self.current)
        self.climb = climb_plan(self.contract, self.request, self.current)
        return None

    def plan(self) -> None:
        """Commit the measures that the readings so far call for."""
        readings = self._readings()
        try:
            wanted = plan_measures(self.climb, readings)
            missing = [request for request in wanted if request.role not in readings or self.engine.lost_specs]
            if missing:
                planned = planned_work(
                    self.context.root, self.mirror, self.contract, self.request, self.current, missing
                )
                commit_measures(self.context, self.engine.lease, self.request, self.current.number, planned)
        except EvidenceError as error:
            raise Blocking("EVIDENCE", str(error)) from error
        except EnvironmentFilesMissing as error:
            raise Blocking("ENVIRONMENT", str(error)) from error

    def step(self) -> Ending | Next:
        """Judge."""
        try:
            step = next_step(self.climb, self._readings())
        except EvidenceError as error:
            raise Blocking("EVIDENCE", str(error)) from error
        self._note_looks(self.climb, self.current, step)
        if isinstance(step, Verdict):
            return self._decide(step, self.current)
        if isinstance(step, Blocked):
            raise Blocking(self.engine.exhausted_because(self.round), step.reason)
        if isinstance(step, NeedMore):
            return Next.MORE
        assert isinstance(step, Waiting), step
        return Next.WAIT

    def _readings(self) -> dict[str, Reading]:
        with self.context.record.reading() as session:
            return readings_of(session, self.run_id, self.round)

    # -- the round

    def _round(self) -> Round:
        """The current round; drawn and published when there is none yet."""
        rounds = [event for event in self.engine.events if event.kind == "round"]
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
        return Round.of(self.engine.note("round", body))

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

    # -- deciding

    def _note_looks(self, plan: ClimbPlan, round_: Round, step: Step) -> None:
        looks: Sequence[Look]
        if isinstance(step, Verdict):
            test = step.findings.climbed.test if step.findings.climbed else None
            looks = test.looks if test else ()
        else:
            looks = step.looks
        bounds = sequential_bounds(plan)
        told = sum(
            1 for event in self.engine.events if event.kind == "look" and event.body.get("round") == round_.number
        )
        for look in looks[told:]:
            self.engine.note(
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

    def _decide(self, verdict: Verdict, round_: Round) -> Ending:
        if self.climb.climbed.rule.ladder:
            verdict = self._up_the_ladder(verdict, round_)
        if verdict.outcome != "accepted" or not round_.promotable:
            return self._ending(verdict, round_)
        seq = round_.champion_seq + 1
        if crowned(self.engine.events) is None:
            self.engine.note("crown", {"round": round_.number, "seq": seq})
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
            return self._ending(verdict, round_, champion_seq=seq)
        if round_.number + 1 >= MOST_ROUNDS:
            return self._ending(superseded_verdict(verdict, round_.number + 1), round_)
        newest = champion_now(self.context.root, self.request.champion_key) or holder
        self.engine.notes.append(f"the champion moved to {newest.commit[:12]}; measured again against it")
        self._open_round(round_.number + 1, newest.commit, newest.tree, newest.seq, True)
        raise Again

    def _up_the_ladder(self, verdict: Verdict, round_: Round) -> Verdict:
        """The verdict with the ladder's word: what a submitter may know of the hidden items. Raises Blocking."""
        told = [e for e in self.engine.events if e.kind == "ladder" and e.body.get("round") == round_.number]
        if not told:
            told = [self.engine.note("ladder", self._ladder_answer(verdict, round_))]
        return ladder_verdict(verdict) if verdict.outcome == "accepted" and not told[0].body["improved"] else verdict

    def _ladder_answer(self, verdict: Verdict, round_: Round) -> dict[str, object]:
        root, key = self.context.root, self.request.champion_key
        losses = self._losses(round_.number)
        if verdict.outcome == "accepted":
            if not losses:
                raise Blocking("LADDER", "the measures of the candidate have no per-item losses")
            try:
                climbed, best = step_up(root, key, self.run_id, losses)
            except ValueError as error:
                raise Blocking("LADDER", f"{error}: the hidden items have changed without a new definition") from error
        else:
            climbed, best = None, best_rung(root, key)[1]
        return {
            "round": round_.number,
            "improved": climbed is not None and climbed.improved,
            "released": None if climbed is None else climbed.released,
            "best": None if best is None else best.released,
            "items": len(losses),
        }

    def _losses(self, number: int) -> list[float]:
        """Mean loss of the candidate on each hidden item, over the pairs of the round."""
        with self.context.record.reading() as session:
            found = session.scalars(
                select(Slot.result)
                .join(Measure, Measure.slot_id == Slot.id)
                .where(
                    Measure.run_id == self.run_id,
                    Measure.round == number,
                    Measure.side == "candidate",
                    Measure.benchmark == self.request.benchmark,
                    Slot.state == "done",
                )
                .order_by(Measure.pair)
            ).all()
        rows = [list(body["items"]) for body in found if body is not None and body.get("items")]
        if not rows or len({len(row) for row in rows}) != 1:
            return []
        return [math.fsum(column) / len(rows) for column in zip(*rows, strict=True)]

    def _ending(self, verdict: Verdict, round_: Round, *, champion_seq: int | None = None) -> Ending:
        return Ending({"round": round_.number, "verdict": verdict.to_json(), "champion_seq": champion_seq})


def _pairs_decided(events: Sequence[LedgerEvent], round_: Round) -> int:
    """How many pairs of a round were weighed: what its verdict or, when the champion moved after it, its looks say."""
    for event in events:
        if event.kind == "verdict" and event.body.get("round") == round_.number:
            climbed = Verdict.from_json(event.body["verdict"]).findings.climbed
            return len(climbed.pairs) if climbed is not None else 0
    looks = [event for event in events if event.kind == "look" and event.body.get("round") == round_.number]
    return int(looks[-1].body["pairs"]) if looks else len(round_.pair_seeds)

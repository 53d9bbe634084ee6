"""Entries: training data for a post-training challenge as one kind of run.

Covered: the rounds (an opponent each), handing out the steps, judging, the reserve, becoming champion; the answers of
one entry (see `engine.Kind`). Not covered: which steps there are (entry_work.py), the rule (outerloop.posttrain),
reading evidence (entry_evidence.py), making the request (submit_entry.py), jobs, parking and the ledger (engine.py).

Contamination first, then per seed one training stage after the other, then the suites; the opponent is evaluated
beside that. The reserve is scored once, after a win without it. What the cluster lost is done again, a training from
its newest checkpoint; a training that fails by itself fails the entry; an evaluation never does: it blocks, and nobody
is charged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import select

from outerloop.controller.champions import Crown, champion_now, crown
from outerloop.controller.engine import Again, Blocking, Ending, Engine, Next
from outerloop.controller.entry_data import data_path, restore_data
from outerloop.controller.entry_evidence import (
    EntryRound,
    MissingEvidence,
    entry_verdict,
    is_above,
    judged,
    rounds_of,
    steps_of,
    training_failure,
)
from outerloop.controller.entry_request import EMPTY_TREE, UNTRAINED, EntryRequest
from outerloop.controller.entry_work import CONTAMINATION, Step
from outerloop.controller.ledger import crowned
from outerloop.controller.plan import commit_measures
from outerloop.controller.request import Execution
from outerloop.posttrain.decision import Verdict
from outerloop.posttrain.evaluate import SealError
from outerloop.posttrain.judging import JudgeError
from outerloop.record.models import Measure, Run, Slot

__all__ = ["MOST_ROUNDS", "Entry"]

MOST_ROUNDS = 3
"""How often an entry is compared anew because the champion moved, before it is rejected as superseded."""


@dataclass(frozen=True)
class _Row:
    """A step's slot as the record has it."""

    state: str
    reason: str
    detail: str
    result: Mapping[str, Any] | None


class Entry:
    """The answers of one entry."""

    def __init__(self, engine: Engine, run: Run) -> None:
        self.engine = engine
        self.context = engine.context
        self.request = EntryRequest.model_validate(run.request)
        self.current: EntryRound
        self.steps: list[Step]

    @property
    def round(self) -> int:
        return self.current.number

    @property
    def gpu_hours(self) -> float | None:
        """No limit of its own: the deployment's counts."""
        return None

    @property
    def executions(self) -> Sequence[Execution]:
        return (self.request.execution,)

    def before_jobs(self) -> Ending | None:
        """Find the round, or open the first one against the champion of now."""
        known = rounds_of(self.engine.events)
        if not known:
            self._open_round(0)
            known = rounds_of(self.engine.events)
        self.current = known[-1]
        self._find_steps()
        return None

    def _find_steps(self) -> None:
        try:
            self.steps = steps_of(self.context, self.request, self.current)
        except MissingEvidence as missing:
            raise Blocking("EVIDENCE", str(missing)) from missing

    def _open_round(self, number: int) -> None:
        champion = champion_now(self.context.root, self.request.champion_key)
        body = {
            "round": number,
            "base_commit": UNTRAINED if champion is None else champion.commit,
            "base_tree": EMPTY_TREE,
            "champion_seq": 0 if champion is None else champion.seq,
            "opponent": "" if champion is None else champion.run,
            "seeds": list(self.request.train_seeds),
        }
        self.engine.note("round", body)

    # -- handing out

    def plan(self) -> None:
        """Commit every step that what it waits for allows."""
        rows = self._rows()
        missing = [
            step.planned(self.request.challenge, position)
            for position, step in enumerate(self.steps)
            if (step.role not in rows or self.engine.lost_specs) and self._ready(step, rows)
        ]
        self._require_data(rows)
        # Asked for already, but what it needs is made once more (`retry` of a model that was thrown away).
        self.engine.held = {
            step.work.digest for step in self.steps if step.role in rows and not self._ready(step, rows)
        }
        if missing:
            commit_measures(self.context, self.engine.lease, self.request, self.round, missing)

    def _require_data(self, rows: Mapping[str, _Row]) -> None:
        """Have the tables there that stages read. Raises Blocking rather than hand out one that would find none."""
        root = self.context.root
        for step in self.steps:
            row = rows.get(step.role)
            due = self._ready(step, rows) if row is None else row.state == "open"
            if step.data and due and not restore_data(root, step.data) and row is None:
                raise Blocking(
                    "DATA",
                    f"the training data, {data_path(root, step.data)}, are gone: submit the same rows again, which puts"
                    " them back, then `outerloop retry`",
                )

    def _ready(self, step: Step, rows: Mapping[str, _Row]) -> bool:
        if not step.needs:
            return True
        before = rows.get(step.needs)
        if before is None or before.state != "done":
            return False
        return step.needs != CONTAMINATION or not is_above(before.result)

    def _rows(self) -> dict[str, _Row]:
        with self.context.record.reading() as session:
            found = session.execute(
                select(Measure.role, Slot.state, Slot.reason, Slot.detail, Slot.result)
                .join(Slot, Slot.id == Measure.slot_id)
                .where(Measure.run_id == self.request.id, Measure.round == self.round)
            ).all()
        return {row.role: _Row(row.state, row.reason, row.detail, row.result) for row in found}

    # -- deciding

    def step(self) -> Ending | Next:
        """Refuse, fail, wait, block, or judge."""
        rows = self._rows()
        check = rows[CONTAMINATION]
        if check.state == "done" and is_above(check.result):
            return self._ending(entry_verdict(self.request, self.current, contaminated=True))
        for step in self.steps:
            row = rows.get(step.role)
            if row is not None and row.state == "failed" and step.kind == "train" and step.side == "candidate":
                failure = training_failure(step.role, row.reason, row.detail)
                return self._ending(entry_verdict(self.request, self.current, failure=failure))
        if any(step.role not in rows and self._ready(step, rows) for step in self.steps):
            return Next.MORE
        if any(row.state in {"open", "collected"} for row in rows.values()):
            return Next.WAIT
        self._block_if_stuck(rows)
        return self._judge()

    def _block_if_stuck(self, rows: Mapping[str, _Row]) -> None:
        """Raise Blocking for what nobody can answer for: lost jobs, and evaluations that did not come to an end."""
        stuck = {role: row for role, row in rows.items() if row.state in {"exhausted", "failed"}}
        if not stuck:
            return
        for step in self.steps:
            if step.role in stuck and step.begin and not (Path(step.begin) / "model").is_dir():
                folder = Path(step.begin).parent.parent
                raise Blocking(
                    "MODEL",
                    f"{step.role} needs the model that {step.needs} left, and it is gone: put it back, or remove all of"
                    f" {folder} to have it trained again; then `outerloop retry {self.request.id}`",
                )
        told = "; ".join(f"{role}: {row.reason}: {row.detail}".rstrip(": ") for role, row in stuck.items())
        if any(row.state == "exhausted" for row in stuck.values()):
            raise Blocking(self.engine.exhausted_because(self.round), told)
        raise Blocking("EVALUATION", f"{told}; cancel, and submit again with more --minutes if it was its time")

    def _judge(self) -> Ending | Next:
        try:
            verdict = judged(self.context, self.request, self.current, self.steps)
        except (JudgeError, SealError) as error:
            raise Blocking("EVIDENCE", str(error)) from error
        if verdict.outcome == "accepted" and self.request.reserve and not self.current.reserve:
            gain = {"round": self.round, "gain": str(verdict.comparison.gain), "p": verdict.comparison.p}
            self.engine.note("reserve", gain)
            self.current = rounds_of(self.engine.events)[-1]
            self._find_steps()
            return Next.MORE
        return self._decide(verdict)

    def _decide(self, verdict: Verdict) -> Ending:
        request, root = self.request, self.context.root
        body = entry_verdict(request, self.current, verdict=verdict, context=self.context, steps=self.steps)
        if verdict.outcome != "accepted":
            return self._ending(body)
        seq = self.current.champion_seq + 1
        if crowned(self.engine.events) is None:
            self.engine.note("crown", {"round": self.round, "seq": seq})
        holder = crown(
            root,
            request.champion_key,
            Crown(
                seq=seq,
                run=request.id,
                commit=request.data_sha256,
                tree=EMPTY_TREE,
                value=str(verdict.comparison.candidate),
                gain=str(verdict.comparison.gain),
                label=request.subject,
                at="",
            ),
            {"target": request.target, "benchmark": request.benchmark, "definition": request.definition},
        )
        if holder.run == request.id:
            return self._ending(body, champion_seq=seq)
        if self.round + 1 >= MOST_ROUNDS:
            return self._ending(
                entry_verdict(
                    request, self.current, verdict=verdict, context=self.context, steps=self.steps, superseded=True
                )
            )
        self.engine.notes.append(f"the champion moved to run {holder.run}; compared again with the newest")
        self._open_round(self.round + 1)
        raise Again

    def _ending(self, verdict: Mapping[str, Any], *, champion_seq: int | None = None) -> Ending:
        return Ending({"round": self.round, "verdict": dict(verdict), "champion_seq": champion_seq})

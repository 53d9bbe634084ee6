"""Trainings: the researcher's own launches as slots, and what came of them.

Covered: a task's work, the answers of one training (see `engine.Kind`), the verdict as a pure function of how each task
ended. Not covered: making the request (submit_training.py), what the processes reported (training_facts.py), jobs,
parking and the ledger (engine.py).

A task that fails by its own program fails the training; a task that the cluster lost is submitted again, it alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select

from outerloop.controller.engine import Blocking, Ending, Engine, Next
from outerloop.controller.git import Mirror
from outerloop.controller.plan import Planned, commit_measures
from outerloop.controller.request import Execution
from outerloop.controller.training_facts import read_facts
from outerloop.controller.training_request import Task, TrainingRequest
from outerloop.controller.work import ARTIFACT_CAP_BYTES, OUTPUT_CAP_BYTES, Work, launch_order, prologue_digest
from outerloop.record.models import Measure, Run, Slot
from outerloop.slots import Determinants

__all__ = ["Outcome", "Training", "training_verdict", "training_work"]

TERM_GRACE_SECONDS = 30.0
"""How long a launch may take to save a checkpoint when it is stopped; `outerloop.torch` warns when it needs longer."""
MOST_NAMED = 3
"""Tasks that a sentence names; all of them stand in the verdict."""
MOST_REPORTED = 64
"""Tasks whose reports go into the ledger: figures come from trainings, not from sweeps of thousands."""


def training_work(request: TrainingRequest, task: Task, mirror: str) -> Work:
    """The work of one launch. Its files are determinants by their content, and given to the job as texts."""
    execution = request.execution
    launch = task.launch
    files: Mapping[str, str] = launch["files"]
    determinants = Determinants(
        tree=request.tree,
        command="",
        launch={
            "argv": list(launch["argv"]),
            "env": dict(launch["env"]),
            "files": {name: hashlib.sha256(text.encode()).hexdigest() for name, text in files.items()},
            "world_size": launch["world_size"],
            "gpus_per_process": launch["gpus_per_process"],
            "rendezvous": launch["rendezvous"],
        },
        image=execution.image_digest,
        prologue=prologue_digest(execution),
        network=True,
        cpus=request.cpus,
        memory_mb=request.memory_mb or 0,
        gpus=request.gpus,
        gpu_type=execution.gpu_type,
        nodes=request.nodes,
        replicate=task.replicate,
    )
    facts = {
        "kind": "measure",
        "mirror": mirror,
        "base_tree": request.tree,
        "label": request.name,
        "resumable": request.resumable,
        "network": True,
        "launch": {"argv": list(launch["argv"]), "env": dict(launch["env"]), "files": dict(files)},
        "input_files": [],
        "environment_slot": "",
        "output_cap_bytes": OUTPUT_CAP_BYTES,
        "artifact_cap_bytes": ARTIFACT_CAP_BYTES,
    }
    order = launch_order(
        execution,
        minutes=request.minutes,
        cpus=request.cpus,
        memory_mb=request.memory_mb,
        gpus=request.gpus,
        nodes=request.nodes,
        resumable=request.resumable,
        grace_seconds=TERM_GRACE_SECONDS,
    )
    return Work(determinants, facts, order, request.name, "measure")


def planned_tasks(request: TrainingRequest, mirror: Mirror) -> list[Planned]:
    """Every task with its work, in the order in which they were asked."""
    path = str(mirror.path)
    return [Planned(task.role, None, training_work(request, task, path)) for task in request.tasks]


@dataclass(frozen=True)
class Outcome:
    """How one task's slot stands: open, done, failed or exhausted, and why."""

    state: str
    reason: str = ""
    detail: str = ""


def training_verdict(outcomes: Mapping[str, Outcome]) -> dict[str, Any] | None:
    """The verdict over all tasks; None while one of them is neither done nor failed. Pure."""
    if not outcomes or any(item.state not in {"done", "failed"} for item in outcomes.values()):
        return None
    failed = {role: item for role, item in outcomes.items() if item.state == "failed"}
    single = len(outcomes) == 1
    if not failed:
        sentence = "the training finished" if single else f"all {len(outcomes)} tasks finished"
        reason = ""
    else:
        reasons = sorted({item.reason for item in failed.values()})
        reason = reasons[0] if len(reasons) == 1 else "TASKS"
        named = list(failed.items())[:MOST_NAMED]
        said = "; ".join(_said(role, item, single) for role, item in named)
        more = f" and {len(failed) - len(named)} more" if len(failed) > len(named) else ""
        sentence = (
            f"the training failed: {said}" if single else f"{len(failed)} of {len(outcomes)} tasks failed: {said}"
        )
        sentence += more
    return {
        "kind": "training",
        "outcome": "failed" if failed else "finished",
        "reason": reason,
        "sentence": sentence,
        "tasks": len(outcomes),
        "done": len(outcomes) - len(failed),
        "failed": {role: {"reason": item.reason, "detail": item.detail} for role, item in failed.items()},
    }


def _said(role: str, item: Outcome, single: bool) -> str:
    where = "" if single else f"{role} "
    return f"{where}{item.reason}" + (f" ({item.detail})" if item.detail else "")


class Training:
    """The answers of one training."""

    round = 0

    def __init__(self, engine: Engine, run: Run) -> None:
        self.engine = engine
        self.context = engine.context
        self.request = TrainingRequest.model_validate(run.request)

    @property
    def gpu_hours(self) -> float | None:
        """No limit of its own: the deployment's counts."""
        return None

    @property
    def executions(self) -> Sequence[Execution]:
        return (self.request.execution,)

    def before_jobs(self) -> Ending | None:
        """Nothing stands between a training and its jobs."""
        return None

    def plan(self) -> None:
        """All launches are known from the beginning."""
        with self.context.record.reading() as session:
            known = set(session.scalars(select(Measure.role).where(Measure.run_id == self.request.id)))
        mirror = Mirror(self.context.root.mirror(self.request.target))
        tasks = planned_tasks(self.request, mirror)
        missing = tasks if self.engine.lost_specs else [item for item in tasks if item.role not in known]
        if missing:
            commit_measures(self.context, self.engine.lease, self.request, self.round, missing)

    def step(self) -> Ending | Next:
        """Wait for every task; then block on those that nobody can answer for, or say how it ended."""
        outcomes = self._outcomes()
        if any(item.state in {"open", "collected"} for item in outcomes.values()):
            return Next.WAIT
        stuck = {role: item for role, item in outcomes.items() if item.state == "exhausted"}
        if stuck:
            single = len(outcomes) == 1
            named = "; ".join(_said(role, item, single) for role, item in list(stuck.items())[:MOST_NAMED])
            more = f" and {len(stuck) - MOST_NAMED} more" if len(stuck) > MOST_NAMED else ""
            raise Blocking(self.engine.exhausted_because(self.round), named + more)
        verdict = training_verdict(outcomes)
        assert verdict is not None, outcomes
        self._note_facts()
        return Ending({"round": self.round, "verdict": verdict, "champion_seq": None})

    def _outcomes(self) -> dict[str, Outcome]:
        with self.context.record.reading() as session:
            rows = session.execute(
                select(Measure.role, Slot.state, Slot.reason, Slot.detail)
                .join(Slot, Slot.id == Measure.slot_id)
                .where(Measure.run_id == self.request.id, Measure.round == self.round)
                .order_by(Measure.role)
            ).all()
        return {row.role: Outcome(row.state, row.reason, row.detail) for row in rows}

    def _note_facts(self) -> None:
        """What the processes reported goes into the ledger once, before the verdict: folders may be collected later."""
        if any(event.kind == "facts" for event in self.engine.events):
            return
        with self.context.record.reading() as session:
            slots = session.execute(
                select(Measure.role, Slot.digest)
                .join(Slot, Slot.id == Measure.slot_id)
                .where(Measure.run_id == self.request.id, Measure.round == self.round)
                .order_by(Measure.role)
                .limit(MOST_REPORTED)
            ).all()
        reports = {row.role: read_facts(self.context.slot(row.digest)) for row in slots}
        body = {
            "round": self.round,
            "lane": str(self.request.execution.lane.get("name") or ""),
            "nodes": self.request.nodes,
            "reports": {role: facts for role, facts in reports.items() if facts is not None},
        }
        self.engine.note("facts", body)

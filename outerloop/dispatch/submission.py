"""What an intent asks of the cluster, and what a round of submitting did. Shared by single jobs and arrays.

Covered: the frozen facts of one intent, the order that its job reads, its request, refusals for good. Not covered:
making intents (submit.py), job arrays (arrays.py).
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from sqlalchemy import ColumnElement, and_, exists
from sqlalchemy.orm import InstrumentedAttribute, Session

from outerloop.compute.argv import gpu_options
from outerloop.compute.protocol import Accepted, JobSpec, Lane, Refused
from outerloop.dispatch.budget import BudgetExceeded
from outerloop.dispatch.context import Context
from outerloop.dispatch.evidence import Action, Decision
from outerloop.dispatch.settle import apply_decision, newest_checkpoint
from outerloop.record.models import Attempt, Measure, Run, Slot

__all__ = [
    "NOBODY_WAITS",
    "REFUSED_LATER_SECONDS",
    "Submission",
    "SubmitReport",
    "acceptance",
    "attempt_order",
    "lane_of",
    "refuse",
    "request",
    "unwanted",
    "walltime_minutes",
]

NOBODY_WAITS = "every run that asked for it has ended"

REFUSED_LATER_SECONDS = 60
"""How soon a submission that met a full queue is tried again; no attempt is spent on it."""


class Needy(Protocol):
    """What an intent needs of a slot."""

    @property
    def id(self) -> int: ...
    @property
    def digest(self) -> str: ...
    @property
    def order(self) -> Mapping[str, Any]: ...
    @property
    def excluded_nodes(self) -> list[str]: ...


class Submission(NamedTuple):
    """One intent that is ours to carry out."""

    attempt_id: int
    slot_id: int
    digest: str
    n: int
    job_name: str
    minutes: float
    order: Mapping[str, Any]
    excluded: tuple[str, ...]
    token: datetime
    """intent_at: a later resubmission of the same attempt has another one, and then ours no longer counts."""

    @staticmethod
    def of(slot: Slot, attempt: Attempt) -> Submission:
        drafted = Submission.draft(slot, attempt.n, attempt.job_name, attempt.minutes, attempt.intent_at)
        return drafted._replace(attempt_id=attempt.id)

    @staticmethod
    def draft(
        slot: Needy, n: int, job_name: str, minutes: float, token: datetime, exclude: tuple[str, ...] = ()
    ) -> Submission:
        """An intent whose row is not written yet. `exclude`: nodes to stay away from besides those that failed."""
        also = tuple(node for node in exclude if node not in slot.excluded_nodes) if exclude else ()
        return Submission(
            attempt_id=0,
            slot_id=slot.id,
            digest=slot.digest,
            n=n,
            job_name=job_name,
            minutes=minutes,
            order=slot.order,
            excluded=(*slot.excluded_nodes, *also),
            token=token,
        )

    @property
    def lane(self) -> str:
        return lane_of(self.order).name


@dataclass
class SubmitReport:
    """What a round of submitting did."""

    accepted: list[str] = field(default_factory=list)
    arrays: list[int] = field(default_factory=list)
    """Those of which an outcome has to be handed on to the attempts (outcomes.py) once nothing is more urgent."""
    refused: list[Refused] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    over_budget: BudgetExceeded | None = None


def walltime_minutes(order: Mapping[str, Any], margin: float) -> float:
    """Slurm's limit: the command's own minutes, once more for scoring, and a margin for setup and our own stop."""
    minutes = float(order["minutes"])
    return math.ceil(minutes + (minutes if order.get("score") else 0.0) + margin)


def attempt_order(context: Context, submission: Submission) -> dict[str, Any]:
    """The content of attempt.json: what this attempt is allowed."""
    order = submission.order
    return {
        "schema": 1,
        "digest": submission.digest,
        "attempt": submission.n,
        "minutes": float(order["minutes"]),
        "margin_seconds": context.patience.margin_minutes * 60,
        "isolation": order.get("isolation", "none"),
        "image_path": order.get("image_path", ""),
        "cache_seed": order.get("cache_seed", ""),
        # Only work that can go on has checkpoints, and an array of hundreds need not look for them.
        "newest_checkpoint": (
            newest_checkpoint(context.slot(submission.digest).path / "state") if order.get("resumable") else ""
        ),
        **_launch_order(order),
    }


def _launch_order(order: Mapping[str, Any]) -> dict[str, Any]:
    """What a launch is told besides: how to ask for GPUs on several nodes, how long a checkpoint may take at a stop."""
    told: dict[str, Any] = {}
    nodes = int(order.get("nodes", 1))
    if nodes > 1:
        told["gpu_form"] = gpu_options(lane_of(order), int(order.get("gpus", 0)), nodes)
    if order.get("term_grace_seconds"):
        told["term_grace_seconds"] = float(order["term_grace_seconds"])
    return told


def request(submission: Submission, *, name: str, script: Path, log: Path, workdir: Path) -> JobSpec:
    """The cluster's view of a submission: the one place where an order becomes a job's resources."""
    order = submission.order
    return JobSpec(
        name=name,
        script=script,
        log=log,
        workdir=workdir,
        lane=lane_of(order),
        minutes=submission.minutes,
        cpus=int(order.get("cpus", 1)),
        memory_mb=order.get("memory_mb") or None,
        gpus=int(order.get("gpus", 0)),
        nodes=int(order.get("nodes", 1)),
        requeue=bool(order.get("resumable")),
        exclude=submission.excluded,
    )


def acceptance(outcome: Accepted, job_name: str) -> dict[str, Any]:
    """The content of submitted.json."""
    return {
        "job_id": outcome.job_id,
        "cluster": outcome.cluster,
        "job_name": job_name,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "notes": outcome.notes,
    }


def refuse(context: Context, session: Session, slot: Slot, attempt: Attempt, reason: str, detail: str) -> None:
    """The site will never take this job as it is: the slot is exhausted and its runs are blocked with the reason."""
    apply_decision(context, session, slot, attempt, Decision(Action.HOPELESS, reason, detail or "refused by sbatch"))


def lane_of(order: Mapping[str, Any]) -> Lane:
    """The lane that was frozen into an order."""
    fields = dict(order.get("lane") or {"name": "default"})
    fields["extra"] = tuple(fields.get("extra") or ())
    return Lane(**fields)


def unwanted(slot_id: int | InstrumentedAttribute[int]) -> ColumnElement[bool]:
    """Whether runs asked for a slot and every one of them has ended. A slot that no run ever asked for (a noise
    study's) is not unwanted."""
    asked = exists().where(Measure.slot_id == slot_id)
    open_run = exists().where(Measure.slot_id == slot_id, Run.id == Measure.run_id, Run.state != "ended")
    return and_(asked, ~open_run)

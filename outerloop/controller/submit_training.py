"""Submitting a training: from a compiled plan and a researcher's clone to a durable request.

Covered: the tree, the lane, the checks that need no job, asking again. Not covered: compiling the plan (strategies),
making the request durable (submit.py), what becomes of it (trainings.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import select

from outerloop.compute.names import check_name
from outerloop.controller.content import content_digest
from outerloop.controller.deployment import account
from outerloop.controller.git import Mirror, Repository
from outerloop.controller.plan import TIME_REASONS
from outerloop.controller.request import Execution, run_name
from outerloop.controller.submit import Refusal, earlier_asks, never_fits, resolve_commit
from outerloop.controller.training_request import Expected, Task, TrainingRequest, training_question
from outerloop.controller.trainings import training_work
from outerloop.controller.work import lane_mapping
from outerloop.dispatch.submit import walltime_minutes
from outerloop.record.models import Run, Slot
from outerloop.record.store import Record
from outerloop.settings import Settings, choose_lane
from outerloop.slots import StateRoot
from outerloop.strategies import StrategyPlan

__all__ = ["DEFAULT_MINUTES", "Asked", "Shape", "ask_again", "prepare_training", "resumes", "shape_of"]

DEFAULT_MINUTES = 60.0
"""Limit of one attempt where nothing else is said. A resumable training goes on in another attempt."""
ARRAYS = ("lease_tasks",)
TASK_DIGITS = 4
MOST_TASKS = 10_000


@dataclass(frozen=True)
class Shape:
    """What one launch takes. GPUs, CPUs and memory are per node."""

    nodes: int = 1
    gpus: int = 0
    cpus: int = 1
    memory_mb: int | None = None


def shape_of(strategy: StrategyPlan, *, cpus: int | None = None, memory_mb: int | None = None) -> Shape:
    """What a plan takes of each node; without `cpus`, what it says itself, else one for each process."""
    per_node = strategy.processes_per_node
    return Shape(
        nodes=strategy.nodes,
        gpus=per_node * strategy.gpus_per_process,
        cpus=cpus or per_node * (strategy.cpus_per_process or 1),
        memory_mb=memory_mb,
    )


def resumes(strategy: StrategyPlan, said: bool | None) -> bool:
    """Whether a lost attempt goes on from its checkpoint: as said, else everything but a task array."""
    return strategy.family not in ARRAYS if said is None else said


@dataclass(frozen=True)
class Asked:
    """A training that can be submitted, and what a person may want to know before."""

    request: TrainingRequest
    notes: tuple[str, ...] = ()


def prepare_training(
    settings: Settings,
    root: StateRoot,
    *,
    repository: Path,
    candidate: str,
    launches: Sequence[dict[str, Any]],
    family: str,
    shape: Shape,
    name: str = "",
    lane: str = "",
    minutes: float | None = None,
    resumable: bool = True,
    expected: Expected | None = None,
    priority: int = 0,
    notes: Sequence[str] = (),
    submitter: str = "",
    revision: str = "",
    nonce: str = "",
) -> Asked:
    """Resolve, check and freeze a training. Pins its commit in the mirror and writes nothing else.

    The last three are a service's: who asked, what the candidate was called there, the name of the submission.

    Raises Refusal with every reason, GitError, LaneError.
    """
    repo = Repository.open(repository)
    mirror = Mirror(root.mirror(repo.identity))
    mirror.ensure()
    commit = repo.seal_worktree() if candidate == "worktree" else resolve_commit(repo, mirror, candidate)
    if not mirror.has(commit):
        mirror.pin(repo, {f"commits/{commit}": commit})
    tree = mirror.tree(commit)
    label = name or "training"
    problems = []
    try:
        check_name(label)
    except ValueError as error:
        problems.append(f"--name: {error}")
    if not 1 <= len(launches) <= MOST_TASKS:
        problems.append(f"the plan has {len(launches)} tasks; one training takes 1 to {MOST_TASKS}")
    unusable = mirror.unusable_entries(tree)
    if unusable:
        problems.append("the tree cannot be materialised on a node: " + "; ".join(unusable))
    lane_name, chosen = choose_lane(settings, lane, shape.gpus)
    granted = DEFAULT_MINUTES if minutes is None else minutes
    walltime = walltime_minutes({"minutes": granted}, settings.dispatch.margin_minutes)
    if chosen.max_minutes is not None and walltime > chosen.max_minutes:
        longest = chosen.max_minutes - settings.dispatch.margin_minutes
        problems.append(
            f"{granted:g} minutes and a margin are {walltime:g} of walltime, lane {lane_name} allows"
            f" {chosen.max_minutes:g}: --minutes {max(longest, 0):g} is the most"
        )
    never = never_fits(settings, lane_name, cpus=shape.cpus, gpus=shape.gpus, nodes=shape.nodes)
    if never:
        problems.append(never)
    isolation = chosen.isolation or settings.isolation
    image = str(chosen.image) if chosen.image and isolation == "apptainer" else ""
    if isolation == "apptainer" and not image:
        problems.append(f"isolation is apptainer, but lane {lane_name} names no image")
    try:
        image_digest = content_digest(Path(image)) if image else ""
    except OSError as error:
        problems.append(f"image {image}: {error.strerror or error}")
        image_digest = ""
    if problems:
        raise Refusal("; ".join(problems))
    execution = Execution(
        lane=lane_mapping(settings.lane(lane_name)),
        prologue=chosen.prologue,
        cache_seed=str(chosen.cache_seed) if chosen.cache_seed else "",
        isolation=isolation,
        image_path=image,
        image_digest=image_digest,
        gpu_type=chosen.gpu_type if shape.gpus else "",
    )
    question = training_question(
        target=repo.identity,
        tree=tree,
        launches=list(launches),
        shape={"nodes": shape.nodes, "gpus": shape.gpus, "cpus": shape.cpus, "memory_mb": shape.memory_mb or 0},
        execution=execution,
    )
    request = TrainingRequest(
        id=run_name(account(), str(root.path), question, 0, prefix="t"),
        question=question,
        target=repo.identity,
        name=label,
        family=family,
        commit=commit,
        tree=tree,
        revision=revision or candidate,
        subject=mirror.subject(commit),
        submitter=submitter or account(),
        nonce=nonce,
        repository=str(repo.top),
        created_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        tasks=tuple(_tasks(launches)),
        nodes=shape.nodes,
        gpus=shape.gpus,
        cpus=shape.cpus,
        memory_mb=shape.memory_mb,
        minutes=granted,
        resumable=resumable,
        execution=execution,
        expected=expected,
        priority=priority,
    )
    return Asked(request, tuple(notes))


def _tasks(launches: Sequence[dict[str, Any]]) -> list[Task]:
    if len(launches) == 1:
        return [Task(role="train", launch=launches[0])]
    digits = max(TASK_DIGITS, len(str(len(launches) - 1)))
    return [Task(role=f"task-{index:0{digits}d}", launch=launch) for index, launch in enumerate(launches)]


def ask_again(record: Record, root: StateRoot, asked: Asked) -> tuple[Asked, Run | None]:
    """The request to submit, or the run that answers it already: one that is open, or that finished.

    After a failed or cancelled one the tasks that failed are executed anew from their beginning, finished ones keep
    their slots, and unfinished ones go on where they were. A time limit that is longer now lets timed-out tasks go on.
    """
    earlier = earlier_asks(record, asked.request.question)
    if not earlier:
        return asked, None
    latest = earlier[0]
    if latest.state != "ended" or latest.verdict == "finished":
        return asked, latest
    before = TrainingRequest.model_validate(latest.request)
    ask = latest.ask + 1
    mirror = str(root.mirror(asked.request.target))
    digests = {task.role: training_work(before, task, mirror).digest for task in before.tasks}
    with record.reading() as session:
        failed = {
            slot.digest: slot
            for slot in session.scalars(
                select(Slot).where(
                    Slot.realm_id == record.realm_id, Slot.digest.in_(digests.values()), Slot.state == "failed"
                )
            )
        }
    longer = asked.request.minutes > before.minutes

    def number(task: Task) -> int:
        slot = failed.get(digests[task.role])
        if slot is None or (longer and slot.reason in TIME_REASONS):
            return task.replicate
        return ask

    request = asked.request.model_copy(
        update={
            "id": run_name(account(), str(root.path), asked.request.question, ask, prefix="t"),
            "ask": ask,
            "tasks": tuple(task.model_copy(update={"replicate": number(task)}) for task in before.tasks),
        }
    )
    return replace(asked, request=request), None

"""A submitter's training: from a plan that somebody sent to a run of the service.

Covered: validating and compiling the plan here, where its submitter can't change what came out; lanes, tasks, asking
again. Not covered: who may ask (intake.py), what becomes of it (controller.trainings).

What the planner expected of the training is not taken: it would teach the service's plans whatever a submitter says.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from outerloop.controller.deployment import Deployment
from outerloop.controller.service.checks import check_budgets, mirror_with, refuse_unsealed
from outerloop.controller.service.replies import watch
from outerloop.controller.service.spool import Left, Submission, SubmissionError, TrainingAsked
from outerloop.controller.submit import earlier_asks, enqueue, leave_in_inbox
from outerloop.controller.submit_training import ask_again, prepare_training, resumes, shape_of
from outerloop.settings_sections import TargetSettings
from outerloop.strategies import CompileError, LaunchSpec, StrategyPlan, compile_plan

__all__ = ["take_training"]


def take_training(
    deployment: Deployment, left: Left, submission: Submission, target: TargetSettings, scratch: Path
) -> str:
    """Make the run, or find the one that answers; returns its id. Raises what says why not (see intake)."""
    asked, root = submission.training, deployment.root
    assert asked is not None, "intake looked"
    if asked.lane and asked.lane not in target.lanes:
        may = ", ".join(target.lanes) or "none"
        raise SubmissionError(f"lane {asked.lane!r} may not be named by trainings of this target (may be: {may})")
    strategy, specs = _compiled(asked, target.max_tasks)
    mirror_with(deployment, target, submission.candidate, scratch)
    prepared = prepare_training(
        deployment.settings,
        root,
        repository=target.repository,
        candidate=submission.candidate,
        launches=[spec.model_dump(mode="json") for spec in specs],
        family=strategy.family,
        shape=shape_of(strategy, cpus=asked.cpus, memory_mb=asked.memory_mb),
        name=asked.name,
        lane=asked.lane,
        minutes=asked.minutes,
        resumable=resumes(strategy, asked.resumable),
        priority=submission.priority,
        submitter=left.owner,
        revision=submission.candidate_revision,
        nonce=submission.nonce,
    )
    refuse_unsealed({prepared.request.name: prepared.request.execution})
    for run in earlier_asks(deployment.record, prepared.request.question):
        if run.request.get("nonce") == submission.nonce:
            return run.id  # taken by a process that died before it said so
    prepared, answered = ask_again(deployment.record, root, prepared)
    if answered is not None:
        return answered.id
    request = prepared.request
    check_budgets(deployment, left.owner, request, gpus=request.gpus > 0)
    leave_in_inbox(root, request)
    watch(root, request.id, submission.reply)
    enqueue(deployment.record, root, request)
    return request.id


def _compiled(asked: TrainingAsked, most: int) -> tuple[StrategyPlan, tuple[LaunchSpec, ...]]:
    try:
        strategy = StrategyPlan.model_validate(asked.plan)
    except ValidationError as error:
        detail = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in detail["loc"])
        raise SubmissionError(f"the plan is not valid: {where}: {detail['msg']}") from error
    if len(strategy.tasks) > most:
        raise SubmissionError(f"the plan has {len(strategy.tasks)} tasks; this target takes at most {most}")
    try:
        return strategy, compile_plan(strategy)
    except (CompileError, LookupError) as error:
        raise SubmissionError(str(error.args[0] if isinstance(error, LookupError) else error)) from error

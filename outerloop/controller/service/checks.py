"""What every submission has to pass, whatever it asks for.

Covered: the candidate's commits in the mirror, the sandbox, a submitter's budgets. Not covered: who may ask and where a
base must lie (intake.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import func, select

from outerloop.controller.deployment import Deployment
from outerloop.controller.git import Mirror, Repository, unbundle
from outerloop.controller.request import Execution
from outerloop.controller.service.spool import SubmissionError
from outerloop.controller.submit import week_budget_problem
from outerloop.controller.training_request import Request
from outerloop.dispatch.budget import spent_by_submitter
from outerloop.record.models import Run
from outerloop.settings_sections import TargetSettings
from outerloop.slots import StateRoot
from outerloop.slots.files import read_json

__all__ = ["check_budgets", "mirror_of", "mirror_with", "open_studies", "refuse_unsealed"]


def mirror_of(deployment: Deployment, target: TargetSettings) -> Mirror:
    """The target's mirror with its registered refs as they are now. Raises GitError."""
    repo = Repository.open(target.repository)
    mirror = Mirror(deployment.root.mirror(repo.identity))
    mirror.ensure()
    mirror.pin(repo, {f"refs/{ref}": repo.commit(ref) for ref in target.refs})
    return mirror


def mirror_with(deployment: Deployment, target: TargetSettings, candidate: str, scratch: Path) -> Mirror:
    """The target's mirror with its registered refs and, from the bundle in `scratch`, the candidate.

    Raises SubmissionError, GitError.
    """
    mirror = mirror_of(deployment, target)
    if (scratch / "bundle").stat().st_size:
        unbundle(scratch / "bundle", scratch / "quarantine.git", mirror, {candidate})
    if not mirror.has(candidate):
        raise SubmissionError(f"the bundle does not bring the candidate {candidate[:12]}")
    return mirror


def refuse_unsealed(executions: Mapping[str, Execution]) -> None:
    """Refuse what would run as the service without a sandbox; by benchmark, or the training's name."""
    open_ones = sorted(name for name, how in executions.items() if how.isolation == "none")
    if open_ones:
        raise SubmissionError(
            f"{', '.join(open_ones)} would run without a sandbox, as the service's own account; a service takes only"
            ' isolation = "bwrap" or "apptainer" (the operator sets it)'
        )


def open_studies(root: StateRoot) -> list[tuple[Path, dict[str, Any]]]:
    """Noise studies that submitters asked for and that are not there yet, with their files."""
    found = sorted((root.path / "studies").glob("*.json"))
    return [(path, body) for path in found if (body := read_json(path)) is not None]


def check_budgets(
    deployment: Deployment, owner: str, request: Request, of_target: int | None = None, *, gpus: bool
) -> None:
    """Refuse what the target's or the submitter's runs or GPU-hours don't allow, with the numbers.

    `of_target` is the contract's own limit of runs per week; `gpus`, whether any of the work asks for GPUs. Work of
    CPUs alone needs no GPU-hours, be they used up or none granted.
    """
    settings, record = deployment.settings, deployment.record
    over = week_budget_problem(record, request, [settings.budgets.runs_per_week, of_target])
    if over is not None:
        raise SubmissionError(over)
    limits = settings.service.limits_of(owner)
    with record.reading() as session:
        mine = select(func.count()).select_from(Run).where(Run.realm_id == record.realm_id, Run.submitter == owner)
        week = session.scalar(mine.where(Run.created_at > func.now() - timedelta(days=7))) or 0
        open_ = session.scalar(mine.where(Run.state != "ended")) or 0
        hours = spent_by_submitter(session, record.realm_id, owner)
    open_ += sum(body.get("owner") == owner for _path, body in open_studies(deployment.root))
    if limits.runs_per_week is not None and week >= limits.runs_per_week:
        raise SubmissionError(f"runs of {owner} this week: {week} of {limits.runs_per_week}, 0 remain")
    if limits.open_runs is not None and open_ >= limits.open_runs:
        raise SubmissionError(
            f"open runs of {owner}: {open_} of {limits.open_runs} (noise studies count); wait for one, or cancel one"
        )
    if gpus and limits.gpu_hours is not None and hours >= limits.gpu_hours:
        raise SubmissionError(f"GPU-hours of {owner}: {hours:.2f} used or reserved of {limits.gpu_hours:g}, 0 remain")

"""Noise studies of a service's submitters: taken from the spool, brought forward by each tick, answered at their end.

Covered: what may be asked, studies/<nonce>.json for as long as one is open, a pass over all of them. Not covered: which
measures, submitting them (controller.noise), what the values say (controller.noise_study).

A study measures the operator's tree alone, so no commit comes with it. Its jobs are charged to whoever asked first.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any

from outerloop.compute.protocol import NoAnswer, SiteLimits
from outerloop.contract import ContractError
from outerloop.controller.deployment import Deployment
from outerloop.controller.git import GitError
from outerloop.controller.noise import NoSeries, Series, SeriesRunner, prepare_series
from outerloop.controller.noise_study import kept, studied
from outerloop.controller.plan import ContractGone, EnvironmentFilesMissing
from outerloop.controller.service.checks import check_budgets, open_studies, refuse_unsealed
from outerloop.controller.service.replies import answer
from outerloop.controller.service.spool import Left, Spool, Submission, SubmissionError
from outerloop.controller.submit import Refusal
from outerloop.effects import effect
from outerloop.record.store import RecordUnavailable
from outerloop.settings import SettingsError
from outerloop.settings_sections import TargetSettings
from outerloop.slots.files import publish, read_json

__all__ = ["go_on", "take_study"]


def take_study(deployment: Deployment, left: Left, submission: Submission, target: TargetSettings) -> dict[str, Any]:
    """Note durably that a study was asked for; returns the answer. Raises what says why not (see intake)."""
    asked = submission.noise
    assert asked is not None, "intake looked"
    try:
        series = _series(deployment, submission, target, left.owner, submission.base)
    except NoSeries as error:
        raise SubmissionError(str(error)) from error
    rule = series.benchmark.parsed_rule()
    if rule.ladder:
        raise SubmissionError(
            f"{submission.benchmark} has a ladder, and a study would tell values of its hidden set; its operator runs"
            " `outerloop noise`"
        )
    refuse_unsealed(series.request.execution)
    path = deployment.root.study(submission.nonce)
    if not path.exists():
        runs_per_week = series.contract.budgets.runs_per_week
        check_budgets(deployment, left.owner, series.request, runs_per_week, gpus=series.benchmark.gpus > 0)
    body = {
        "schema": 1,
        "owner": left.owner,
        "base": series.request.base_commit,
        "base_revision": submission.base_revision or series.request.base_revision,
        "submission": submission.to_json(),
    }
    publish(path, body, name="study.asked", mode=0o600)
    return _measuring(submission, 0, len(series.measures))


def go_on(deployment: Deployment, spool: Spool) -> list[str]:
    """Bring every open study forward once, with the queue as this process saw it; returns what is worth noting."""
    told: list[str] = []
    waiting = open_studies(deployment.root)
    limits = deployment.context.compute.limits() if waiting else None
    for path, body in waiting:
        try:
            told += _one(deployment, spool, body, limits)
        except RecordUnavailable:
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
                raise
            # One study that breaks must not keep the others, or the tick, from going on.
            told.append(f"study {path.stem}: {type(error).__name__}: {error}; the next tick goes on")
    return told


def _one(
    deployment: Deployment, spool: Spool, body: Mapping[str, Any], limits: SiteLimits | NoAnswer | None
) -> list[str]:
    submission = Submission.model_validate(body["submission"])
    owner, asked = str(body["owner"]), submission.noise
    target = deployment.settings.service.targets.get(submission.target)
    try:
        if target is None or asked is None:
            raise NoSeries(f"{submission.target} is no target of this service any more")
        series = _series(deployment, submission, target, owner, str(body["base"]), str(body["base_revision"]))
        hours = deployment.settings.service.limits_of(owner).gpu_hours
        runner = SeriesRunner(deployment, series, nodes=asked.nodes, limits=limits, submitter_gpu_hours=hours)
        runner.enter()
        state = runner.look(fresh=False)
        if not state.rests:
            _answer(spool, submission, _measuring(submission, len(state.measured), state.total))
            return state.notes
        study = kept(deployment.root, series, state, studied(series, state, asked.smallest_gain))
    except (NoSeries, Refusal, GitError, ContractError, ContractGone, EnvironmentFilesMissing, SettingsError) as error:
        _answer(spool, submission, {"state": "refused", "kind": "noise", "why": str(error)})
        _close(deployment, submission)
        return [f"the study of {submission.benchmark} for {owner} ended: {str(error).splitlines()[0]}"]
    _answer(spool, submission, {**_measuring(submission, state.total, state.total), "state": "studied", "study": study})
    _close(deployment, submission)
    return [*state.notes, f"the study of {submission.benchmark} for {owner} is there"]


def _series(
    deployment: Deployment, submission: Submission, target: TargetSettings, owner: str, base: str, revision: str = ""
) -> Series:
    assert submission.noise is not None
    return prepare_series(
        deployment.settings,
        deployment.root,
        repository=target.repository,
        benchmark=submission.benchmark,
        base=base or None,
        repeats=submission.noise.repeats,
        default=target.refs[0],
        submitter=owner,
        revision=revision,
    )


def _measuring(submission: Submission, measured: int, total: int) -> dict[str, Any]:
    return {
        "state": "measuring",
        "kind": "noise",
        "benchmark": submission.benchmark,
        "measured": measured,
        "total": total,
    }


def _answer(spool: Spool, submission: Submission, body: Mapping[str, Any]) -> None:
    before = read_json(spool.reply(submission.reply) / f"{submission.nonce}.json") or {}
    if {key: value for key, value in before.items() if key != "schema"} != body:
        answer(spool, submission.reply, submission.nonce, body)


def _close(deployment: Deployment, submission: Submission) -> None:
    with effect("study.remove"):
        deployment.root.study(submission.nonce).unlink(missing_ok=True)

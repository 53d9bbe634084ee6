"""Taking submissions in: from a file that somebody left to a run, or to a refusal with its reason.

Covered: who may ask, what may be asked of which target, climbs, answers. Not covered: the spool's file format
(spool.py), what every submission has to pass (checks.py), trainings (trainings.py), noise studies (studies.py), what is
told of runs later (replies.py), advancing.

Everything that a submitter sends is a claim. The contract, inputs, lanes and budgets are read on the service's side,
and the base must lie in the history of a ref that the operator registered (or be the champion), because the base is
where the contract and the benchmark's own code come from.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outerloop.contract import ContractError
from outerloop.controller.champions import champion_now
from outerloop.controller.deployment import Deployment
from outerloop.controller.git import GitError, Mirror, Repository
from outerloop.controller.operate import OperatorError, cancel, find_run
from outerloop.controller.plan import ContractGone, read_contract
from outerloop.controller.request import champion_key
from outerloop.controller.service.checks import check_budgets, mirror_of, mirror_with, refuse_unsealed
from outerloop.controller.service.replies import answer, publish_run, publish_runs, watch
from outerloop.controller.service.spool import (
    Left,
    Spool,
    Submission,
    SubmissionError,
    copy_bundle,
    read_request_of,
)
from outerloop.controller.submit import (
    Prepared,
    Refusal,
    earlier_asks,
    enqueue,
    leave_in_inbox,
    prepare_climb,
)
from outerloop.dispatch.settle import concerns_all
from outerloop.settings import Settings, SettingsError
from outerloop.settings_sections import TargetSettings
from outerloop.slots.files import replace

__all__ = ["Taken", "go_on", "serve", "spool_of", "tell", "write_public"]


NAMES = {"climb": "climbs", "noise": "noise studies", "training": "trainings"}


@dataclass
class Taken:
    """What became of the submissions of one sweep."""

    runs: list[str]
    refused: int
    notes: list[str]


def spool_of(settings: Settings) -> Spool:
    """The spool of a service deployment. Raises SettingsError's cousin LookupError where none is set."""
    if settings.service.spool is None:
        raise LookupError("service.spool is not set: it names the folder that submitters and the service share")
    return Spool(settings.service.spool)


def serve(deployment: Deployment) -> Taken:
    """Take in everything that lies in the spool. A submission that breaks stops none of the others."""
    settings = deployment.settings
    spool = spool_of(settings)
    done = Taken([], 0, [f"spool: {problem}" for problem in spool.problems()])
    write_public(settings, spool)
    spool.sweep()
    taken_of: dict[int, int] = {}
    for name in spool.names():
        try:
            _one(deployment, spool, name, taken_of, done)
        except SubmissionError as error:
            # Without a readable request there is nobody to be answered.
            done.refused += 1
            done.notes.append(f"spool: {name}: {error}")
            spool.remove(name)
        except FileNotFoundError:
            continue
        except Exception as error:
            if concerns_all(error):
                raise
            # Somebody's odd file must not keep the others', or the tick, from going on.
            done.notes.append(f"spool: {name}: {type(error).__name__}: {error}; it stays where it is")
    return done


def tell(deployment: Deployment, *run_ids: str) -> None:
    """Write anew what submitters may know: of these runs, or of all that changed."""
    spool = spool_of(deployment.settings)
    if run_ids:
        for run_id in run_ids:
            publish_run(deployment.record, deployment.root, spool, run_id)
    else:
        publish_runs(deployment.record, deployment.root, spool)


def go_on(deployment: Deployment) -> list[str]:
    """Bring the studies of submitters forward; returns what is worth noting."""
    from outerloop.controller.service import studies

    return studies.go_on(deployment, spool_of(deployment.settings))


def write_public(settings: Settings, spool: Spool) -> None:
    """service.json: what a submitter's command needs to know of the service."""
    from outerloop.slots.files import read_json

    targets = {}
    for name, target in sorted(settings.service.targets.items()):
        try:
            repo = Repository.open(target.repository)
            refs = {ref: repo.commit(ref) for ref in target.refs}
            targets[name] = {"identity": repo.identity, "refs": refs, "accept": list(target.accept)}
        except GitError as error:
            targets[name] = {"problem": str(error).splitlines()[0]}
    body: dict[str, Any] = {
        "schema": 1,
        "account": _me(),
        "deployment": settings.deployment,
        "targets": targets,
        "max_bundle_mb": settings.service.max_bundle_mb,
    }
    if read_json(spool.public) != body:
        replace(spool.public, body, name="spool.public")


def _me() -> str:
    from outerloop.controller.deployment import account

    return account()


def _one(deployment: Deployment, spool: Spool, name: str, taken_of: dict[int, int], done: Taken) -> None:
    settings = deployment.settings
    with spool.opened(name) as left:
        taken_of[left.uid] = taken_of.get(left.uid, 0) + 1
        if taken_of[left.uid] > settings.service.max_per_tick and left.uid != os.geteuid():
            return  # the next tick: nobody keeps the others waiting by asking a lot
        limit = settings.service.max_bundle_mb << 20
        with tempfile.TemporaryDirectory(prefix="submission-", dir=_scratch(deployment)) as folder:
            scratch = Path(folder)
            submission = read_request_of(left)
            try:
                # Who may not ask costs a line, not a bundle.
                _check_submitter(settings, left)
                copy_bundle(left, max_bytes=limit, bundle=scratch / "bundle")
                told = _accept(deployment, left, submission, scratch, done)
            except (SubmissionError, Refusal, GitError, ContractError, ContractGone, SettingsError) as error:
                _refuse(spool, left, submission, str(error), done)
            except (LookupError, OperatorError) as error:
                _refuse(spool, left, submission, str(error.args[0] if error.args else error), done)
            else:
                answer(spool, submission.reply, submission.nonce, told)
                if "run" in told:
                    publish_run(deployment.record, deployment.root, spool, str(told["run"]))
    spool.remove(name)


def _scratch(deployment: Deployment) -> Path:
    folder = deployment.root.path / "intake"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _refuse(spool: Spool, left: Left, submission: Submission, why: str, done: Taken) -> None:
    done.refused += 1
    done.notes.append(f"refused what {left.owner} asked: {why.splitlines()[0]}")
    answer(spool, submission.reply, submission.nonce, {"state": "refused", "why": why})


def _check_submitter(settings: Settings, left: Left) -> None:
    allowed = settings.service.submitters
    if "*" not in allowed and left.owner not in allowed and left.uid != os.geteuid():
        raise SubmissionError(f"{left.owner} is not among service.submitters of this service")


def _accept(deployment: Deployment, left: Left, submission: Submission, scratch: Path, done: Taken) -> dict[str, Any]:
    """Carry a submission out; returns what is answered. Raises what says why not."""
    if submission.kind == "cancel":
        return _taken(_cancel(deployment, left, submission))
    target = deployment.settings.service.targets.get(submission.target)
    if target is None:
        known = ", ".join(sorted(deployment.settings.service.targets)) or "none yet"
        raise SubmissionError(f"{submission.target!r} is no target of this service; registered: {known}")
    if submission.kind not in target.accept:
        raise SubmissionError(
            f"{submission.target} takes no {NAMES[submission.kind]} of submitters (it takes:"
            f" {', '.join(target.accept)}); its operator sets service.targets.{submission.target}.accept"
        )
    if submission.kind == "noise":
        if not submission.benchmark or submission.noise is None:
            raise SubmissionError("a noise study names a benchmark and how many values")
        from outerloop.controller.service.studies import take_study

        if submission.base:
            repo = Repository.open(target.repository)
            mirror = mirror_of(deployment, target)
            _check_base(deployment, repo, mirror, submission, target)
        return take_study(deployment, left, submission, target)
    if not submission.candidate:
        raise SubmissionError(f"a {submission.kind} names a candidate")
    if submission.kind == "training":
        if submission.training is None:
            raise SubmissionError("a training brings a plan")
        from outerloop.controller.service.trainings import take_training

        made = take_training(deployment, left, submission, target, scratch)
    else:
        if not submission.benchmark:
            raise SubmissionError("a climb names a benchmark")
        made = _climb(deployment, left, submission, target, scratch)
    watch(deployment.root, made, submission.reply)
    done.runs.append(made)
    return _taken(made)


def _taken(run_id: str) -> dict[str, Any]:
    return {"state": "taken", "run": run_id}


def _cancel(deployment: Deployment, left: Left, submission: Submission) -> str:
    run = find_run(deployment, submission.run, submitter=left.owner)
    if run.state != "ended":
        cancel(deployment, run.id, f"cancelled by its submitter {left.owner}")
    return run.id


def _climb(deployment: Deployment, left: Left, submission: Submission, target: TargetSettings, scratch: Path) -> str:
    settings, root = deployment.settings, deployment.root
    mirror = mirror_with(deployment, target, submission.candidate, scratch)
    if submission.base:
        _check_base(deployment, Repository.open(target.repository), mirror, submission, target)

    def prepared(ask: int) -> Prepared:
        return prepare_climb(
            settings,
            root,
            repository=target.repository,
            benchmark=submission.benchmark,
            base=submission.base or None,
            candidate=submission.candidate,
            ask=ask,
            priority=submission.priority,
            submitter=left.owner,
            default=target.refs[0],
            revisions=(submission.base_revision, submission.candidate_revision),
            nonce=submission.nonce,
        )

    first = prepared(0)
    refuse_unsealed(first.request.execution)
    earlier = earlier_asks(deployment.record, first.request.question)
    for run in earlier:
        if run.request.get("nonce") == submission.nonce:
            return run.id  # taken by a process that died before it said so
    latest = earlier[0] if earlier else None
    if latest is not None and latest.verdict != "cancelled" and not submission.again:
        return latest.id
    if submission.again and latest is not None and latest.state != "ended":
        raise SubmissionError(f"run {latest.id} asks the same and has not ended yet")
    request = first.request if latest is None else prepared(latest.ask + 1).request
    asked = [first.contract.benchmark(name) for name in (submission.benchmark, *first.siblings)]
    gpus = any(benchmark.gpus > 0 for benchmark in asked)
    check_budgets(deployment, left.owner, request, request.runs_per_week, gpus=gpus)
    leave_in_inbox(root, request)
    watch(root, request.id, submission.reply)
    enqueue(deployment.record, root, request)
    return request.id


def _check_base(
    deployment: Deployment, repo: Repository, mirror: Mirror, submission: Submission, target: TargetSettings
) -> None:
    if mirror.has(submission.base):
        if any(mirror.is_ancestor(submission.base, repo.commit(ref)) for ref in target.refs):
            return
        contract = read_contract(mirror, repo.commit(target.refs[0]))
        climbed = contract.benchmark(submission.benchmark)
        key = champion_key(repo.identity, submission.benchmark, climbed.definition_hash())
        champion = champion_now(deployment.root, key)
        if champion is not None and champion.commit == submission.base:
            return
    raise SubmissionError(
        f"the base {submission.base[:12]} is neither the champion nor in the history of {', '.join(target.refs)} of the"
        " registered target: contract and benchmark are read from the base, so a base of one's own is not taken"
    )

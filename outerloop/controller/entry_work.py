"""An entry's work: which pieces there are, what each waits for, and what determines it.

Covered: all steps of an entry and of its opponent as one list, pure in their requests; the work of each. Not covered:
when which is handed out and what comes of it (entries.py), what a stage does (outerloop.posttrain.stage).

Digests determine a slot, paths don't: where the data, the model before and the sealed rows lie stands in the slot's
spec beside the determinants. The untrained model on a suite, and a champion on it, are the same slot for every entry.
"""

from __future__ import annotations

import json
import shlex
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from outerloop.climb import MeasureRequest
from outerloop.controller.entry_request import EMPTY_TREE, EntryRequest, SuiteSpec
from outerloop.controller.plan import Planned
from outerloop.controller.work import ARTIFACT_CAP_BYTES, OUTPUT_CAP_BYTES, Work, launch_order, prologue_digest
from outerloop.job.layout import STATE
from outerloop.posttrain.serve import UNAVAILABLE
from outerloop.posttrain.stage import DONE_FILE, EVALUATION_FILE
from outerloop.slots import Determinants, StateRoot

__all__ = ["CONTAMINATION", "Step", "entry_steps", "sealed_root"]

CONTAMINATION = "contamination"
ABOVE, SCORE = "above", "score"
"""Metrics of a contamination check (0 or 1) and of an evaluation (mean over tasks)."""
STAGE_COMMAND = ("-I", "-m", "outerloop.posttrain.stage")
TERM_GRACE_SECONDS = 60.0
"""How long a training may take to its next checkpoint when it is stopped."""
CONFIG = "entry.toml"
LISTS = "task-lists"
_HERE = '"$OUTERLOOP_OUTPUT_DIR"'
_STATE = '"$OUTERLOOP_CKPT_DIR"'
"""Where an attempt writes is known on its node alone: the wrapper tells the command, and the shell puts it in."""

Side = Literal["base", "candidate"]


@dataclass(frozen=True)
class Step:
    """One piece of work. It can be handed out when the step `needs` is done."""

    role: str
    kind: Literal["contamination", "train", "evaluate"]
    side: Side
    seed: int
    """Of the training that it is or evaluates; 0 for none."""
    needs: str
    """Role of the step before, "" for none."""
    suite: str
    """Id of the suite that is evaluated, "" for none."""
    work: Work
    data: str = ""
    """Digest of the table that it reads, "" for none."""
    begin: str = ""
    """Folder of the model that an earlier stage left and that this one starts with, "" for none."""

    def planned(self, challenge: str, position: int) -> Planned:
        """As the plan's rows have it."""
        measure = MeasureRequest(self.role, challenge, self.side, position, self.seed, self.work.determinants.replicate)
        return Planned(self.role, measure, self.work)


def sealed_root(root: StateRoot) -> Path:
    """Where the rows of evaluations lie: outside the slots, for the evaluator's account alone."""
    return root.path / "sealed"


def entry_steps(
    root: StateRoot,
    request: EntryRequest,
    opponent: EntryRequest | None,
    *,
    reserve: bool,
    done: Callable[[str], bool] = lambda digest: False,
) -> list[Step]:
    """Every step, in the order in which they follow. `reserve`: the suites were won, now the reserve counts.

    `done` says of a slot whether it has its value: a champion is not trained again while its evaluations are there.
    """
    suites = (*request.suites, *(request.reserve if reserve else ()))
    maker = _Maker(root, request)
    steps = [maker.contamination()]
    if opponent is None:
        steps += [maker.untrained(suite) for suite in suites]
    else:
        theirs = _Maker(root, opponent, prefix="champion-", side="base")
        for index in range(len(opponent.train_seeds)):
            training, evaluations = theirs.seed(index, CONTAMINATION, _same(opponent, suites))
            if not all(done(step.work.digest) for step in evaluations):
                steps += training
            else:
                evaluations = [_alone(step) for step in evaluations]
            steps += evaluations
    for index in range(len(request.train_seeds)):
        training, evaluations = maker.seed(index, CONTAMINATION, suites)
        steps += [*training, *evaluations]
    return steps


def _same(opponent: EntryRequest, suites: tuple[SuiteSpec, ...]) -> tuple[SuiteSpec, ...]:
    """The opponent's own account of these suites: it is compared under one definition, so it has them."""
    known = {suite.id: suite for suite in (*opponent.suites, *opponent.reserve)}
    return tuple(known[suite.id] for suite in suites)


def _alone(step: Step) -> Step:
    return replace(step, needs=CONTAMINATION)


class _Maker:
    """Makes the steps of one request."""

    def __init__(self, root: StateRoot, request: EntryRequest, *, prefix: str = "", side: Side = "candidate") -> None:
        self.root, self.request, self.prefix, self.side = root, request, prefix, side

    def contamination(self) -> Step:
        request = self.request
        suites = (*request.suites, *request.reserve)
        files: dict[str, str] = {}
        for position, suite in enumerate(suites):
            files |= {f"suite-{position}.toml": suite.config, f"{LISTS}/{suite.task_list}": suite.tasks}
        names = " ".join(f"{_HERE}/suite-{position}.toml" for position in range(len(suites)))
        words = ["--data", request.data_path, "--data-sha256", request.data_sha256]
        words += ["--limit", request.contamination_limit]
        told = {
            "entry": CONTAMINATION,
            "data": request.data_sha256,
            "suites": sorted(suite.evaluator for suite in suites),
            "limit": request.contamination_limit,
        }
        work = self._work(f"contamination {names}", words, told, files=files, metric=ABOVE, cpus=1)
        return Step(CONTAMINATION, "contamination", "candidate", 0, "", "", work, request.data_sha256)

    def untrained(self, suite: SuiteSpec) -> Step:
        work = self._evaluation(suite, "", self.request.model)
        return Step(f"untrained-{suite.id}", "evaluate", "base", 0, CONTAMINATION, suite.id, work)

    def seed(self, index: int, needs: str, suites: tuple[SuiteSpec, ...]) -> tuple[list[Step], list[Step]]:
        """(trainings, evaluations) with one of the request's seeds."""
        request, number = self.request, index + 1
        seed = request.train_seeds[index]
        training: list[Step] = []
        begin, identity = "", request.model
        for stage in request.stages:
            role = f"{self.prefix}{stage}-{number}"
            work = self._training(stage, seed, begin, identity)
            training.append(Step(role, "train", self.side, seed, needs, "", work, request.data_sha256, begin))
            needs, identity = role, work.digest
            begin = str(self.root.slot(work.digest) / STATE / stage)
        evaluations = [
            Step(
                f"{self.prefix}{suite.id}-{number}",
                "evaluate",
                self.side,
                seed,
                needs,
                suite.id,
                self._evaluation(suite, begin, identity),
                begin=begin,
            )
            for suite in suites
        ]
        return training, evaluations

    def _training(self, stage: str, seed: int, begin: str, identity: str) -> Work:
        request = self.request
        words = ["--stage", stage, "--seed", str(seed), "--data", request.data_path]
        words += ["--data-sha256", request.data_sha256]
        told = {
            "entry": "train",
            "stage": stage,
            "tables": request.tables[stage],
            "data": request.data_sha256,
            "begin": identity,
            "seed": seed,
        }
        command = f"train {_HERE}/{CONFIG} --state {_STATE} --reports {_HERE}"
        return self._work(
            command,
            [*words, *self._begin(begin)],
            told,
            files={CONFIG: request.config},
            outputs=(DONE_FILE,),
            resumable=True,
            replicate=request.replicate,
        )

    def _evaluation(self, suite: SuiteSpec, begin: str, identity: str) -> Work:
        told = {"entry": "evaluate", "evaluator": suite.evaluator, "begin": identity}
        words = ["--evaluator", suite.evaluator, *self._begin(begin)]
        # each attempt seals rows of its own: those of the accepted one are never written again
        place = f"{shlex.quote(str(sealed_root(self.root)))}/@OUTERLOOP_RDZV_ID@"
        command = f"evaluate {_HERE}/{CONFIG} --reports {_HERE} --sealed {place}"
        files = {CONFIG: suite.config, f"{LISTS}/{suite.task_list}": suite.tasks}
        return self._work(command, words, told, files=files, metric=SCORE, outputs=(EVALUATION_FILE,))

    def _begin(self, folder: str) -> list[str]:
        vllm = ["--vllm", self.request.vllm] if self.request.vllm else []
        if folder:
            return [*vllm, "--begin", folder]
        # of a model that has files, the identity ends with the digest of them
        _, found, digest = self.request.model.rpartition(" ")
        return [*vllm, *(["--model-sha256", digest] if found else [])]

    def _work(
        self,
        command: str,
        words: list[str],
        told: dict[str, Any],
        *,
        files: dict[str, str],
        metric: str = "",
        outputs: tuple[str, ...] = (),
        resumable: bool = False,
        replicate: int = 0,
        cpus: int = 0,
    ) -> Work:
        request = self.request
        execution = request.execution
        gpus = 0 if cpus else request.gpus
        count = cpus or request.cpus
        if request.hub:
            words = [*words, "--hub", request.hub]
        line = shlex.join([request.python, *STAGE_COMMAND])
        script = f"exec {line} {command} {shlex.join(words)}"
        told = {**told, "versions": dict(request.versions)}
        label = request.challenge
        determinants = Determinants(
            tree=EMPTY_TREE,
            command="",
            # one text, because a canonical determinant holds no floats
            launch={"entry": json.dumps(told, sort_keys=True, separators=(",", ":"), allow_nan=False)},
            metric=metric,
            outputs=outputs,
            prologue=prologue_digest(execution),
            cpus=count,
            memory_mb=request.memory_mb or 0,
            gpus=gpus,
            gpu_type=execution.gpu_type if gpus else "",
            replicate=replicate,
        )
        facts = {
            "kind": "measure",
            "mirror": str(self.root.mirror(request.target)),
            "base_tree": EMPTY_TREE,
            "label": label,
            "resumable": resumable,
            "network": False,
            # the number of threads changes the order of sums, and so the last bits of every weight
            "launch": {"argv": ["/bin/sh", "-c", script], "env": {"OMP_NUM_THREADS": str(count)}, "files": files},
            # a training fails by itself, unless its server did, or somebody or the kernel killed it
            "infrastructure_exits": [UNAVAILABLE, -signal.SIGKILL, *([] if resumable else [1, 2, 3])],
            "input_files": [],
            "environment_slot": "",
            "output_cap_bytes": OUTPUT_CAP_BYTES,
            "artifact_cap_bytes": ARTIFACT_CAP_BYTES,
        }
        order = launch_order(
            execution,
            minutes=request.minutes,
            cpus=count,
            memory_mb=request.memory_mb,
            gpus=gpus,
            nodes=1,
            resumable=resumable,
            grace_seconds=TERM_GRACE_SECONDS,
        )
        return Work(determinants, facts, order, label, "measure")

"""What job scripts do on the simulated nodes: the claim of the real job, a made-up measurement, a real result file.

Covered: claiming and confirming with the job's own code, results that the controllers see late (NFS), jobs that fail
before they claim, in setup, or by the candidate's own exit code; tasks of arrays, packs that are cut off; resumable
work that saves a checkpoint as it begins; launches (launches.py). Not covered: checkout, sandbox, the command itself
(tests/unit/job has them).

The nodes write into a folder of their own, the server's truth; the controllers' view of a file follows when the lag
has passed. A claim is never seen after its result: one listing of the folder shows both.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outerloop.compute.names import is_pack
from outerloop.compute.simulated import Execution, Outcome, Simulated
from outerloop.job import array, claim, files, layout, pack
from outerloop.job.report import Report, Stopped
from outerloop.slots import ARRAY_MAP
from outerloop.slots.files import read_json
from tests.simulation.launches import exit_code, run_launch, save_checkpoint
from tests.simulation.target import Behaviour

MEASURE_SECONDS = 100.0
WAKE_SECONDS = 2.0


def task_of(job_id: str) -> int | None:
    """The number of an array's task; None for a job of its own."""
    task = job_id.partition("_")[2]
    return int(task) if task else None


def _work(slot: Path) -> dict[str, Any]:
    return dict((read_json(slot / layout.SPEC) or {}).get("work") or {})


class Nodes:
    """The `work` of the simulated cluster."""

    def __init__(self, staging: Path, behaviours: dict[str, Behaviour]) -> None:
        self.staging = staging
        self.behaviours = behaviours
        self.cluster: Simulated | None = None
        self.seconds = MEASURE_SECONDS
        self.lag = 0.0
        self.mishaps: list[str] = []
        """What befalls the next measuring jobs, one each: "early" (dies before it claims), "setup", "oom"."""
        self.rung: list[tuple[str, int]] = []
        """Wakes that ran: (run, number)."""
        self._seen_at: dict[Path, float] = {}
        self.executed: Counter[tuple[str, int, int]] = Counter()
        """Executions by slot, attempt and, for work that goes on where it was, restart."""
        self.repeated: list[str] = []
        """Slots that were executed although they had their value."""

    def __call__(self, run: Execution) -> Outcome:
        if "-wake-" in run.spec.name:
            words = run.spec.script.read_text().split()
            self.rung.append((words[words.index("wake") + 1], int(words[-1])))
            return Outcome(WAKE_SECONDS)
        mishap = self.mishaps.pop(0) if self.mishaps else ""
        if mishap == "early":
            return Outcome(0.5, lambda ended: 1)
        if is_pack(run.spec.name):
            return self._pack(run, mishap)
        task = task_of(run.job_id)
        if task is None:
            slot, attempt = run.spec.script.parent.parent.parent, int(run.spec.script.parent.name)
        else:
            # The task's own code: it finds its attempt in the map and makes the attempt's folder.
            told, attempt = array.assignment(str(run.spec.script.parent / ARRAY_MAP), {array.TASK_VARIABLE: str(task)})
            slot = Path(told)
        turn = self._begin(run, slot, attempt)
        if isinstance(turn, int):
            code = turn
            return Outcome(0.5, lambda ended: code)
        return Outcome(
            self.seconds, lambda ended: self._end(turn, slot, attempt, mishap), out_of_memory=mishap == "oom"
        )

    def _pack(self, run: Execution, mishap: str) -> Outcome:
        """One member after another; what befalls the job befalls its first member."""
        tasks = json.loads((run.spec.script.parent / ARRAY_MAP).read_text())["tasks"]
        members = [(Path(task["slot"]), int(task["attempt"])) for task in tasks]
        turns: dict[int, claim.Identity | int] = {0: self._begin(run, *members[0])}

        def end(number: int) -> None:
            turn, (slot, attempt) = turns[number], members[number]
            fate = mishap if number == 0 else ""
            code = turn if isinstance(turn, int) else self._end(turn, slot, attempt, fate)
            if code == layout.EXIT_NOT_CLAIMANT:
                return
            noted = {"schema": 1, "job_id": run.job_id, "exit_code": code, "oom_kills": int(fate == "oom")}
            folder = self._folder(slot, attempt)
            files.replace(str(folder / pack.MEMBER), files.encode(noted))
            self._show(folder / pack.MEMBER, slot, attempt)

        def change(number: int) -> None:
            end(number - 1)
            turns[number] = self._begin(run, *members[number])

        def finish(ended: float) -> int:
            end(len(members) - 1)
            return layout.EXIT_NOT_CLAIMANT if set(turns.values()) == {layout.EXIT_NOT_CLAIMANT} else 0

        steps = tuple((self.seconds * number, functools.partial(change, number)) for number in range(1, len(members)))
        return Outcome(self.seconds * len(members), finish, steps, out_of_memory=mishap == "oom")

    def _folder(self, slot: Path, attempt: int) -> Path:
        return self.staging / f"{slot.name}-{attempt}"

    def _begin(self, run: Execution, slot: Path, attempt: int) -> claim.Identity | int:
        """Claim the attempt; the exit code when this job may not execute it."""
        folder = self._folder(slot, attempt)
        folder.mkdir(exist_ok=True)
        me = claim.Identity(run.job_id, run.restart, run.node, run.node)
        resumable = bool(_work(slot).get("resumable"))
        try:
            claim.claim(str(folder), slot.name, attempt, me, os.environ, resumable)
        except claim.Refusal as refused:
            return refused.code
        self.executed[(slot.name, attempt, run.restart if resumable else 0)] += 1
        if (slot / "accepted").exists():
            self.repeated.append(f"{slot.name[:8]} attempt {attempt}")
        if resumable:
            save_checkpoint(slot, 100 * attempt + run.restart)
        self._show(folder / layout.CLAIM, slot, attempt)
        return me

    def _end(self, me: claim.Identity, slot: Path, attempt: int, mishap: str) -> int:
        """Write the result; returns the script's exit code."""
        folder = self._folder(slot, attempt)
        try:
            claim.confirm(str(folder), slot.name, attempt, me, os.environ)
        except claim.Refusal as refused:
            return refused.code
        report = Report(str(slot), slot.name, attempt, me, {})
        code = self._measured(report, slot, attempt, mishap)
        files.replace(str(folder / layout.RESULT), files.encode(report.body))
        self._show(folder / layout.RESULT, slot, attempt)
        return code

    def _measured(self, report: Report, slot: Path, attempt: int, mishap: str) -> int:
        """Fill the report; returns the script's exit code."""
        spec = read_json(slot / layout.SPEC)
        assert spec is not None, "a job started before its spec was published"
        if mishap == "setup":
            report.failed(Stopped("setup", "SCRATCH_FULL", "no space left on device"))
            return 1
        if failing := self.own_exit_code(spec):
            report.failed(Stopped("command", f"EXIT_{failing}", "the command failed", exit_code=failing))
            return 1
        work = spec["work"]
        if work.get("launch"):
            run_launch(slot, attempt, report.me.restart, work)
            report.body.update(outcome="ok", exit_code=0)
            return 0
        behaviour = self.behaviours[spec["determinants"]["tree"]]
        metric = spec["determinants"]["metric"]
        # Each attempt measures a little else: which one was pinned can be told from the value.
        value = behaviour.size if metric == "bytes" else behaviour.cost + attempt / 1000
        report.body.update(outcome="ok", metric={"name": metric, "text": str(value)}, exit_code=0)
        return 0

    def own_exit_code(self, spec: Mapping[str, Any]) -> int:
        """How the command of a slot with this spec ends by itself."""
        launch = spec["work"].get("launch")
        return exit_code(launch) if launch else self.behaviours[spec["determinants"]["tree"]].exit_code

    def _show(self, source: Path, slot: Path, attempt: int) -> None:
        assert self.cluster is not None
        target = slot / layout.ATTEMPTS / str(attempt) / source.name
        seen_at = max(self.cluster.now + self.lag, self._seen_at.get(target.parent, 0.0))
        self._seen_at[target.parent] = seen_at

        def appear() -> None:
            if target.parent.is_dir() and source.exists():
                shutil.copy(source, target.with_suffix(".new"))
                target.with_suffix(".new").replace(target)

        if seen_at > self.cluster.now:
            self.cluster.at(seen_at, appear)
        else:
            appear()

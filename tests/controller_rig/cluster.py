"""A cluster made of files: jobs are real scripts, run when the test says so.

Covered: the Compute protocol with everything that a test needs to decide itself: which job starts when, lost replies,
refusals, a queue that gives no answer, jobs that vanish. The job wrapper, the slots and the record are the real ones.
Not covered: time, priorities, limits.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from outerloop.compute.protocol import (
    Accepted,
    History,
    JobRow,
    JobSpec,
    JobState,
    Listing,
    NoAnswer,
    Refused,
    SiteLimits,
    SubmitOutcome,
    Unavailable,
    Unknown,
    When,
)


class FileCluster:
    """Jobs in `folder`/<id>.json. State survives every process; nothing happens by itself."""

    name = "files"

    @property
    def arrays(self) -> bool:
        """Off unless a test asks for them: `set_mode("arrays", "on")`."""
        return self.mode("arrays") == "on"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    # -- the protocol

    def submit(self, job: JobSpec) -> SubmitOutcome:
        return self._submit(job, None)

    def submit_array(self, job: JobSpec, count: int, throttle: int | None) -> SubmitOutcome:
        if throttle is not None:
            with (self.folder / "throttles").open("a") as log:
                log.write(f"{job.name} {throttle}\n")
        return self._submit(job, count)

    def _submit(self, job: JobSpec, count: int | None) -> SubmitOutcome:
        mode = self.mode("submit")
        if "-wake-" not in job.name:
            with (self.folder / "requests").open("a") as log:
                log.write(f"{job.name} {count or 1}\n")
        if mode.startswith("at-most-"):
            free = int(mode.removeprefix("at-most-")) - sum(
                not JobState(body["state"]).final and "-wake-" not in body["name"] for body in self.jobs().values()
            )
            if "-wake-" not in job.name and (count or 1) > free:
                return Refused("AssocMaxSubmitJobLimit", When.LATER, "full")
        if mode == "refuse":
            return Refused("AssocMaxSubmitJobLimit", When.LATER, "full")
        if mode == "never":
            return Refused("QOSMaxWallDurationPerJobLimit", When.NEVER, "too long")
        if mode.startswith("minutes-") and job.minutes > float(mode.removeprefix("minutes-")):
            return Refused("QOSMaxWallDurationPerJobLimit", When.NEVER, "too long")
        if mode == "lost-before":
            return Unknown("timed out")
        if mode == "strict" and any(
            all(body.get("purged") for i, body in self.jobs().items() if _is_of(i, a)) for a in job.after
        ):
            return Refused("Dependency", When.LATER, "Job dependency problem")
        job_id = self._new_id()
        for task in [None] if count is None else range(count):
            self._write(
                job_id if task is None else f"{job_id}_{task}",
                {
                    "name": job.name,
                    "script": str(job.script),
                    "log": str(job.log) if task is None else f"{job.log}.{task}",
                    "after": list(job.after),
                    "begin": job.begin_seconds or 0,
                    "exclude": list(job.exclude),
                    "state": "pending",
                    "submitted": time.time(),
                    "minutes": job.minutes,
                    "gpus": job.gpus,
                },
            )
        if mode == "lost-after":
            return Unknown("timed out")
        return Accepted(job_id)

    def listing(self) -> Listing | NoAnswer:
        if self.mode("listing") == "silent":
            return NoAnswer("Unable to contact slurm controller (connect failure)")
        return Listing(tuple(self._row(i, body) for i, body in self.jobs().items() if not body.get("purged")))

    def history(self, since: float, ids: Iterable[str], names: Iterable[str]) -> History | NoAnswer | Unavailable:
        mode = self.mode("history")
        if mode == "off":
            return Unavailable("Slurm accounting storage is disabled")
        if mode == "silent":
            return NoAnswer("slurmdbd: Unknown error 1021")
        wanted, called = set(ids), set(names)
        rows = [
            self._row(i, body)
            for i, body in self.jobs().items()
            if (i in wanted or i.partition("_")[0] in wanted or body["name"] in called) and not body.get("forgotten")
        ]
        return History(tuple(rows))

    def cancel(self, ids: Iterable[str]) -> NoAnswer | None:
        for job_id in ids:
            body = self.jobs().get(job_id)
            if body and not JobState(body["state"]).final:
                self.change(job_id, state="cancelled")
        return None

    def limits(self) -> SiteLimits | NoAnswer:
        return SiteLimits(version="files")

    # -- what a test does

    def requests(self) -> list[tuple[str, int]]:
        """(name, tasks) of every submission of measuring work, refused ones too."""
        path = self.folder / "requests"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(line.split()[0], int(line.split()[1])) for line in lines]

    def jobs(self) -> dict[str, dict[str, Any]]:
        found = {}
        for path in sorted(self.folder.glob("*.json"), key=lambda p: [int(part) for part in p.stem.split("_")]):
            found[path.stem] = json.loads(path.read_text())
        return found

    def change(self, job_id: str, **facts: Any) -> None:
        self._write(job_id, {**self.jobs()[job_id], **facts})

    def set_mode(self, call: str, mode: str) -> None:
        (self.folder / f"mode-{call}").write_text(mode)

    def mode(self, call: str) -> str:
        path = self.folder / f"mode-{call}"
        return path.read_text() if path.exists() else ""

    def vanish(self, job_id: str) -> None:
        """The job leaves the queue and was never in the accounts."""
        self.change(job_id, purged=True, forgotten=True)

    def copy(self, job_id: str) -> str:
        """Queue the same job once more, as a second submission of it would."""
        body = self.jobs()[job_id]
        new = self._new_id()
        self._write(new, {**body, "state": "pending", "submitted": time.time()})
        return new

    def startable(self) -> list[str]:
        """Pending jobs whose dependencies have ended, in the order of their ids."""
        jobs = self.jobs()
        return [
            i
            for i, body in jobs.items()
            if body["state"] == "pending"
            and not body.get("purged")
            and all(JobState(jobs[j]["state"]).final for a in body["after"] for j in jobs if _is_of(j, a))
        ]

    def execute(self, job_id: str, *, restart: int = 0) -> int:
        """Run a job's script to its end, as Slurm would, and note its exit code."""
        body = self.jobs()[job_id]
        self.change(job_id, state="running", started=time.time())
        env = {
            "PATH": os.environ["PATH"],
            "HOME": "/nonexistent",
            "SLURM_JOB_ID": job_id,
            "SLURMD_NODENAME": "n1",
        }
        array, underscore, task = job_id.partition("_")
        if underscore:
            # Each task has an id of its own besides, as on Slurm.
            env |= {"SLURM_JOB_ID": f"8{array}{task}", "SLURM_ARRAY_JOB_ID": array, "SLURM_ARRAY_TASK_ID": task}
        if body.get("gpus"):
            env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(body["gpus"])))
        if restart:
            env["SLURM_RESTART_COUNT"] = str(restart)
        with Path(body["log"]).open("ab") as log:
            done = subprocess.run(
                ["/bin/bash", body["script"]], env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False
            )
        state = "completed" if done.returncode == 0 else "failed"
        self.change(job_id, state=state, exit=done.returncode, ended=time.time())
        return done.returncode

    # -- files

    def _new_id(self) -> str:
        counter = 900100 + len(list(self.folder.glob("*.id")))
        while True:
            try:
                handle = os.open(self.folder / f"{counter}.id", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            except FileExistsError:
                counter += 1
                continue
            os.close(handle)
            return str(counter)

    def _write(self, job_id: str, body: dict[str, Any]) -> None:
        temporary = self.folder / f".{job_id}.{os.getpid()}"
        temporary.write_text(json.dumps(body))
        temporary.replace(self.folder / f"{job_id}.json")

    def _row(self, job_id: str, body: dict[str, Any]) -> JobRow:
        row = JobRow(
            job_id=job_id,
            name=body["name"],
            state=JobState(body["state"]),
            reason=body.get("reason", ""),
            exit_code=body.get("exit"),
            node=body.get("node", "n1"),
            submitted=body.get("submitted"),
            started=body.get("started"),
            ended=body.get("ended"),
            cancelled_by=body.get("cancelled_by", ""),
            restarts=body.get("restarts"),
        )
        return replace(row, raw_state=body["state"].upper())


def _is_of(job_id: str, awaited: str) -> bool:
    """Whether a dependency on `awaited` is one on this job: its own id, or its array's."""
    return awaited in {job_id, job_id.partition("_")[0]}

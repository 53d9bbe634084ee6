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

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    # -- the protocol

    def submit(self, job: JobSpec) -> SubmitOutcome:
        mode = self.mode("submit")
        if mode == "refuse":
            return Refused("AssocMaxSubmitJobLimit", When.LATER, "full")
        if mode == "never":
            return Refused("QOSMaxWallDurationPerJobLimit", When.NEVER, "too long")
        if mode == "lost-before":
            return Unknown("timed out")
        if mode == "strict" and any(a not in self.jobs() or self.jobs()[a].get("purged") for a in job.after):
            return Refused("Dependency", When.LATER, "Job dependency problem")
        job_id = self._new_id()
        self._write(
            job_id,
            {
                "name": job.name,
                "script": str(job.script),
                "log": str(job.log),
                "after": list(job.after),
                "begin": job.begin_seconds or 0,
                "exclude": list(job.exclude),
                "state": "pending",
                "submitted": time.time(),
                "minutes": job.minutes,
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
            if (i in wanted or body["name"] in called) and not body.get("forgotten")
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

    def jobs(self) -> dict[str, dict[str, Any]]:
        found = {}
        for path in sorted(self.folder.glob("*.json"), key=lambda p: int(p.stem)):
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
            and all(a not in jobs or JobState(jobs[a]["state"]).final for a in body["after"])
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
        counter = 900100 + len(list(self.folder.glob("*.json")))
        while True:
            try:
                handle = os.open(self.folder / f"{counter}.json", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            except FileExistsError:
                counter += 1
                continue
            os.write(handle, json.dumps({"name": "", "state": "pending", "after": [], "submitted": 0}).encode())
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
            node="n1",
            submitted=body.get("submitted"),
            started=body.get("started"),
            ended=body.get("ended"),
            cancelled_by=body.get("cancelled_by", ""),
            restarts=body.get("restarts"),
        )
        return replace(row, raw_state=body["state"].upper())

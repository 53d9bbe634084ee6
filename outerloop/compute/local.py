"""One machine as a cluster: jobs are detached processes, started through submitit's local executor.

Covered: the Compute protocol with the same meaning as on Slurm: jobs wait for CPUs and GPUs, for ids and for a begin
time, survive their submitter, end at their limit, and are known by name; a killed or rebooted job shows as final.
GPUs with too little free memory and a control group with too many processes are waited for (local_admission.py).
Not covered: memory limits (stated, not enforced), several nodes, requeue, lanes (names only). Linux only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from outerloop.compute.argv import check_job
from outerloop.compute.local_admission import FREE_LANE, beyond
from outerloop.compute.local_job import state_of
from outerloop.compute.local_spool import JobFolder, Spool
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
from outerloop.compute.tools import clean_environment

__all__ = ["Local"]

# As Slurm's MinJobAge: how long a finished job stays listed.
LISTED_SECONDS = 300.0
_LAUNCH_SECONDS = 60.0


class Local:
    """The Compute protocol on this machine. Everything is in the spool's folder; the object holds no state."""

    name = "local"
    arrays = False
    """Starting a process costs the same however it is asked for, and there is no controller to spare."""

    def __init__(
        self,
        spool: Path,
        *,
        cpus: int,
        gpus: int = 0,
        listed_seconds: float = LISTED_SECONDS,
        free_lanes: Iterable[str] = (FREE_LANE,),
        gpu_memory_gb: float = 0.0,
        gpu_share: int = 1,
        processes: int = 0,
        parallel: int = 0,
    ) -> None:
        """`cpus` and `gpus` are what all jobs together may hold. `listed_seconds` is how long a finished job stays
        in the listing (the history keeps it). Jobs of `free_lanes` take no CPU: a wake must not wait behind measures.

        A job that wants GPUs starts when each of them has `gpu_memory_gb` GiB free (0: not looked at) and fewer than
        `gpu_share` local jobs. `processes` are set aside for each job below the control group's limit (0: none), and
        at most `parallel` jobs run at once (0: any number). `free_lanes` are held to none of these but the GPUs'.
        """
        self._spool = Spool(spool.absolute())
        self._cpus = cpus
        self._gpus = gpus
        self._listed_seconds = listed_seconds
        self._free_lanes = frozenset(free_lanes)
        self._limits = {
            "gpu_memory_gb": gpu_memory_gb,
            "gpu_share": gpu_share,
            "processes": processes,
            "parallel": parallel,
        }

    # ---------------------------------------------------------------------------------------------- submit

    def submit(self, job: JobSpec) -> SubmitOutcome:
        """Make the job's folder and start its processes. The script is copied: later changes do not reach the job."""
        refused = check_job(job) or self._check(job)
        if refused:
            return refused
        try:
            script = job.script.read_bytes()
            trouble = self._spool.prepare()
            if trouble:
                return Refused("OtherMachine", When.CONFIG, trouble)
            job.log.parent.mkdir(parents=True, exist_ok=True)
            folder = self._spool.add(self._request(job), script)
        except OSError as error:
            return Refused("Spool", When.LATER, str(error))
        return self._launch(folder)

    def submit_array(self, job: JobSpec, count: int, throttle: int | None) -> SubmitOutcome:
        """Always refused: `arrays` says that single jobs are to be submitted instead."""
        return Refused("Array", When.CONFIG, f"{job.name}: the local backend takes single jobs, not {count} at once")

    def _check(self, job: JobSpec) -> Refused | None:
        if sys.platform != "linux":
            return Refused("Platform", When.CONFIG, "the local backend needs Linux: it reads /proc")
        cpus = None if job.lane.name in self._free_lanes else self._cpus
        told = beyond(cpus=job.cpus, gpus=job.gpus, nodes=job.nodes, have_cpus=cpus, have_gpus=self._gpus)
        return Refused("BadConstraints", When.NEVER, told) if told else None

    def _request(self, job: JobSpec) -> dict[str, Any]:
        now = time.time()
        return {
            "name": job.name,
            "script": str(job.script),
            "args": list(job.args),
            "log": str(job.log),
            "workdir": str(job.workdir),
            "minutes": job.minutes,
            "cpus": job.cpus,
            "gpus": job.gpus,
            "free": job.lane.name in self._free_lanes,
            "limits": self._limits,
            "after": list(job.after),
            "not_before": now + job.begin_seconds if job.begin_seconds else 0.0,
            "env": dict(job.env),
            "submitted": now,
        }

    def _launch(self, folder: JobFolder) -> SubmitOutcome:
        log = folder.path / "launch.log"
        with log.open("wb") as sink:
            try:
                launcher = subprocess.Popen(
                    [
                        sys.executable,
                        "-I",
                        "-m",
                        "outerloop.compute.local_job",
                        str(self._spool.path),
                        folder.job_id,
                        str(self._cpus),
                        str(self._gpus),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=sink,
                    stderr=subprocess.STDOUT,
                    cwd=folder.path,
                    env=clean_environment(os.environ),
                    start_new_session=True,
                )
            except OSError as error:
                shutil.rmtree(folder.path, ignore_errors=True)
                return Refused("Launch", When.LATER, f"cannot start {sys.executable}: {error.strerror}")
        try:
            code = launcher.wait(_LAUNCH_SECONDS)
        except subprocess.TimeoutExpired:
            # It goes on without us; the job's own records say what becomes of it.
            return Unknown(f"the launcher of local job {folder.job_id} did not answer within {_LAUNCH_SECONDS:.0f} s")
        if code:
            said = log.read_text(errors="replace").strip().splitlines()
            with folder.lock():
                runs = folder.identity("runner") is not None
                if not runs:
                    folder.finish(JobState.LAUNCH_FAILED, exit_code=0, signal=None, ended=time.time())
            if runs:
                return Unknown(f"the launcher of local job {folder.job_id} failed after the job had started")
            # A refused job leaves no trace that somebody could take for an attempt.
            shutil.rmtree(folder.path, ignore_errors=True)
            return Refused("Launch", When.CONFIG, said[-1] if said else f"the launcher ended with exit code {code}")
        return Accepted(folder.job_id)

    # ------------------------------------------------------------------------------------------- questions

    def listing(self) -> Listing | NoAnswer:
        """Every job that is active or ended within the last `listed_seconds`."""
        rows: list[JobRow] = []
        bad = 0
        try:
            trouble = self._spool.prepare()
            if trouble:
                return NoAnswer(trouble)
            for folder in self._spool.live():
                row = _row(folder)
                if row is None:
                    bad += 1
                elif row.ended is not None and time.time() - row.ended > self._listed_seconds:
                    self._spool.retire(folder)
                else:
                    rows.append(row)
        except OSError as error:
            return NoAnswer(f"local jobs in {self._spool.path}: {error}")
        return Listing(tuple(rows), bad)

    def history(self, since: float, ids: Iterable[str], names: Iterable[str]) -> History | NoAnswer | Unavailable:
        """Jobs of the ids and names that were submitted, or ended, since the epoch second `since`."""
        wanted_ids, wanted_names = set(ids), set(names)
        try:
            trouble = self._spool.prepare()
            if trouble:
                return NoAnswer(trouble)
            folders = {job_id: self._spool.find(job_id) for job_id in wanted_ids}
            if wanted_names:
                for home in (self._spool.ended, self._spool.jobs):
                    folders |= {path.name: JobFolder(path) for path in home.iterdir()}
            rows = []
            for job_id in sorted(folders, key=lambda text: (len(text), text)):
                folder = folders[job_id] and self._spool.find(job_id)
                row = _row(folder) if folder else None
                if row is None or not (row.job_id in wanted_ids or row.name in wanted_names):
                    continue
                if max(row.submitted or 0.0, row.ended or 0.0) >= since or not row.state.final:
                    rows.append(row)
        except OSError as error:
            return NoAnswer(f"local jobs in {self._spool.path}: {error}")
        return History(tuple(rows))

    def limits(self) -> SiteLimits | NoAnswer:
        """What is known of this machine; a single partition called `local`."""
        return SiteLimits(
            version="local",
            cluster=os.uname().nodename,
            min_job_age_seconds=int(self._listed_seconds),
            accounting=True,
            partitions={"local": {"TotalCPUs": str(self._cpus), "TotalGPUs": str(self._gpus)}},
        )

    # ---------------------------------------------------------------------------------------------- cancel

    def cancel(self, ids: Iterable[str]) -> NoAnswer | None:
        """Leave a mark that the job's runner acts on: TERM, and KILL a few seconds later. Finished ids are fine."""
        try:
            trouble = self._spool.prepare()
            if trouble:
                return NoAnswer(trouble)
            for job_id in set(ids):
                folder = self._spool.find(job_id) if job_id.isdigit() else None
                if folder is None or folder.read("final"):
                    continue
                (folder.path / "cancel").write_text(str(os.getuid()))
                script = folder.identity("script")
                if script is not None and script.alive and not folder.alive("runner"):
                    # Nobody is left to act on the mark: the runner was killed, its script lives on.
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(script.pid, signal.SIGKILL)
                state_of(folder)
        except OSError as error:
            return NoAnswer(f"local jobs in {self._spool.path}: {error}")
        return None


def _row(folder: JobFolder) -> JobRow | None:
    """The job as a row, None when its request cannot be read."""
    request = folder.request()
    if request is None:
        return None
    state = state_of(folder)
    final = folder.read("final") or {}
    script = folder.read("script") or {}
    waiting = folder.read("waiting") or {}
    return JobRow(
        job_id=folder.job_id,
        name=request["name"],
        state=state,
        reason=waiting.get("reason", "") if state is JobState.PENDING else "",
        exit_code=final.get("exit_code"),
        signal=final.get("signal"),
        restarts=0,
        node=os.uname().nodename if script else "",
        submitted=request["submitted"],
        started=script.get("started"),
        ended=final.get("ended"),
        cancelled_by=final.get("cancelled_by", ""),
        raw_state=state.value.upper(),
    )

"""A local job's own processes: the launcher that hands it to submitit, and the runner that submitit starts.

Covered: leaving the submitter's session and environment behind, waiting (ids, begin time, tokens), the time limit,
cancelling, ending every descendant, the final record. Not covered: the spool's layout (local_spool.py), the Compute
protocol (local.py). What the script does is its own business; outerloop.job is what it usually starts.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from outerloop.compute.local_admission import Asked, Machine
from outerloop.compute.local_machine import descendants, pids_of_cgroup, read_gpus
from outerloop.compute.local_spool import JobFolder, Spool, boot_id
from outerloop.compute.protocol import JobState
from outerloop.compute.tools import clean_environment

__all__ = ["JOB_ID_VARIABLE", "main", "run_job", "state_of"]

JOB_ID_VARIABLE = "OUTERLOOP_LOCAL_JOB_ID"

_POLL_SECONDS = 0.05
_WAIT_SECONDS = 0.2
# A waiting job looks at GPUs and processes this often: nvidia-smi costs the machine a good part of a second.
_LOOK_SECONDS = 2.0
# As Slurm's KillWait: between TERM and KILL.
_KILL_WAIT_SECONDS = 5.0
# submitit must not end a job that waits for its turn: limits are ours (minutes of the job, counted from its start).
_SUBMITIT_MINUTES = 60 * 24 * 365 * 10
# A submitter that was killed between making the job's folder and starting the launcher leaves a job that nobody runs.
_LAUNCH_GRACE_SECONDS = 60.0
# As Slurm's UnkillableStepTimeout.
_UNKILLABLE_SECONDS = 60.0
# prctl(2), linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36
# The script begins only when its process is on record. If this process is killed before, `read` fails, it never does:
# a job whose runner is gone either never ran or can be seen running.
_GATE = 'read -r go && exec "$0" "$@" </dev/null'


def main(arguments: list[str]) -> int:
    """`python -m outerloop.compute.local_job SPOOL ID CPUS GPUS`: start the job's runner and return.

    The caller has started this process in its own session with a clean environment; both reach the runner, because
    submitit hands on what it finds.
    """
    import submitit

    # Not this module's own name: as __main__ the function would travel by value.
    from outerloop.compute.local_job import run_job as run

    spool, job_id, cpus, gpus = Path(arguments[0]), arguments[1], int(arguments[2]), int(arguments[3])
    folder = JobFolder(spool / "jobs" / job_id)
    folder.write_identity("launcher", os.getpid())
    executor = submitit.LocalExecutor(folder.path / "submitit", python=sys.executable)
    executor.update_parameters(timeout_min=_SUBMITIT_MINUTES, stderr_to_stdout=True)
    job = executor.submit(run, str(spool), job_id, cpus, gpus)
    folder.write_identity("launcher", int(job.job_id))
    # submitit's controller is this process's child and outlives it on purpose.
    os._exit(0)


def run_job(spool_path: str, job_id: str, cpus: int, gpus: int) -> None:
    """The whole life of a job, in the process that submitit started for it."""
    spool = Spool(Path(spool_path))
    folder = JobFolder(spool.jobs / job_id)
    request = folder.request()
    if request is None:
        raise RuntimeError(f"{folder.request_file} cannot be read")
    with folder.lock():
        if folder.read("final"):
            return
        folder.write_identity("runner", os.getpid())
    # Orphaned descendants of the script become our children, so that none outlives the job.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    held = _wait_for_turn(spool, folder, request, cpus, gpus)
    if held is None:
        folder.finish(
            JobState.CANCELLED, exit_code=0, signal=None, ended=time.time(), cancelled_by=folder.cancelled_by or ""
        )
        return
    try:
        _execute(folder, request, held)
    except OSError as error:
        with Path(request["log"]).open("a") as log:
            log.write(f"outerloop: cannot start {request['script']}: {error}\n")
        folder.finish(JobState.FAILED, exit_code=1, signal=None, ended=time.time())


def _wait_for_turn(
    spool: Spool, folder: JobFolder, request: Mapping[str, Any], cpus: int, gpus: int
) -> dict[str, list[tuple[int, int]]] | None:
    """The job's tokens, when it may start; None when it was cancelled before."""
    shown = ""

    def show(reason: str) -> None:
        nonlocal shown
        if reason != shown:
            folder.write("waiting", {"reason": reason})
            shown = reason

    def pending_dependency() -> bool:
        for job_id in request["after"]:
            other = spool.find(job_id)
            if other is not None and not state_of(other).final:
                return True
        return False

    while folder.cancelled_by is None:
        if pending_dependency():
            show("Dependency")
        elif request["not_before"] and time.time() < request["not_before"]:
            show("BeginTime")
        else:
            break
        time.sleep(_WAIT_SECONDS)
    if request["free"] and not request["gpus"]:
        return None if folder.cancelled_by is not None else {}
    limits: Mapping[str, Any] = request.get("limits", {})
    wanted = [] if request["free"] else [("cpu", request["cpus"], cpus)]
    if limits.get("parallel") and not request["free"]:
        wanted.append(("job", 1, limits["parallel"]))
    asked = Asked(request["gpus"], limits.get("gpu_memory_gb", 0.0), limits.get("processes", 0))
    machine, running, next_look = Machine(), 0, 0.0
    with spool.turn(folder.job_id):
        while folder.cancelled_by is None:
            if time.monotonic() >= next_look:
                machine, running = _look(spool, folder, asked)
                next_look = time.monotonic() + _LOOK_SECONDS
            held = spool.take(
                folder.job_id,
                wanted,
                asked=asked,
                machine=machine,
                gpus=gpus,
                share=limits.get("gpu_share", 1),
                running=running,
            )
            if not isinstance(held, str):
                return held
            show(held)
            time.sleep(_WAIT_SECONDS)
    return None


def _look(spool: Spool, folder: JobFolder, asked: Asked) -> tuple[Machine, int]:
    """What the machine has for a job that asks for this, and how many other local jobs run."""
    scripts = {
        other.job_id: identity.pid
        for other in spool.live()
        if other.job_id != folder.job_id and (identity := other.identity("script")) is not None and identity.alive
    }
    if not asked.processes and not (asked.gpus and asked.gpu_memory_gb):
        return Machine(), len(scripts)
    families = descendants(scripts.values())
    group = pids_of_cgroup() if asked.processes else None
    gpus, trouble = None, ""
    if asked.gpus and asked.gpu_memory_gb:
        gpus, trouble = read_gpus(pid for family in families.values() for pid in family)
    return (
        Machine(
            gpus,
            trouble,
            processes=group[0] if group is not None else None,
            limit=group[1] if group is not None else None,
            unborn=sum(max(0, asked.processes - len(family)) for family in families.values()),
        ),
        len(scripts),
    )


def _execute(folder: JobFolder, request: Mapping[str, Any], held: Mapping[str, list[tuple[int, int]]]) -> None:
    devices = [str(token) for token, _ in held.get("gpu", [])]
    environment = clean_environment(
        os.environ,
        {**request["env"], JOB_ID_VARIABLE: folder.job_id, "CUDA_VISIBLE_DEVICES": ",".join(devices)},
    )
    if devices:
        # nvidia-smi's order, in which they were chosen; CUDA's own begins with the fastest.
        environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    # The script holds its tokens too: if this runner alone is killed, they stay taken until the script is dead.
    tokens = [descriptor for taken in held.values() for _, descriptor in taken]
    with Path(request["log"]).open("ab") as log:
        script = subprocess.Popen(
            ["/bin/sh", "-c", _GATE, str(folder.script), *request["args"]],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=request["workdir"],
            env=environment,
            start_new_session=True,
            pass_fds=tokens,
        )
    began = time.time()
    clock = time.monotonic()
    folder.write_identity("script", script.pid, started=began)
    assert script.stdin is not None
    with contextlib.suppress(BrokenPipeError), script.stdin:
        script.stdin.write(b"go\n")
    state: JobState | None = None
    while script.poll() is None:
        if folder.cancelled_by is not None:
            state = JobState.CANCELLED
        elif time.monotonic() - clock > 60 * request["minutes"]:
            state = JobState.TIMEOUT
        if state:
            end_descendants(script.pid, spare=lambda: _other_jobs(folder))
            script.wait()
            break
        time.sleep(_POLL_SECONDS)
        _reap(script.pid)
    end_descendants(script.pid, kill_wait=0.0, spare=lambda: _other_jobs(folder))
    code = script.returncode
    folder.finish(
        state or (JobState.COMPLETED if code == 0 else JobState.FAILED),
        # As sacct shows them: the exit code is 0 beside a signal, and for jobs that were ended from outside.
        exit_code=0 if state or code < 0 else code,
        signal=-code if code < 0 else None,
        ended=time.time(),
        cancelled_by=(folder.cancelled_by or "") if state is JobState.CANCELLED else "",
    )


def state_of(folder: JobFolder, *, now: float | None = None) -> JobState:
    """The job's state now. Ends, in the record too, a job whose processes are all gone."""
    final = folder.read("final")
    if final:
        return JobState(final["state"])
    if folder.alive("script"):
        return JobState.RUNNING
    if folder.alive("runner", "launcher"):
        # The script may have ended this instant, its runner about to say how.
        return JobState.COMPLETING if folder.read("script") else JobState.PENDING
    with folder.lock():
        final = folder.read("final")
        if final:
            return JobState(final["state"])
        if folder.alive("script", "runner", "launcher"):
            return JobState.PENDING
        return _end_of_the_dead(folder, time.time() if now is None else now)


def _end_of_the_dead(folder: JobFolder, now: float) -> JobState:
    """No process is left and nobody said how it ended: a kill, a reboot, or a launch that never was."""
    last = folder.identity("script") or folder.identity("runner") or folder.identity("launcher")
    request = folder.request() or {}
    state: JobState
    sign: int | None
    if folder.cancelled_by is not None:
        state, sign = JobState.CANCELLED, None
    elif last is not None and last.boot != boot_id():
        state, sign = JobState.NODE_FAIL, None
    elif folder.identity("runner") is not None:
        state, sign = JobState.FAILED, int(signal.SIGKILL)
    elif last is None and now - request.get("submitted", 0.0) < _LAUNCH_GRACE_SECONDS:
        return JobState.PENDING
    else:
        state, sign = JobState.LAUNCH_FAILED, None
    folder.finish(state, exit_code=0, signal=sign, ended=now, cancelled_by=folder.cancelled_by or "")
    return state


def _other_jobs(folder: JobFolder) -> set[int]:
    """Processes of other jobs of this spool. A job may submit jobs (a wake does); those are not part of it."""
    return {
        identity.pid
        for other in Spool(folder.path.parents[1]).live()
        if other.job_id != folder.job_id
        for role in ("launcher", "runner", "script")
        if (identity := other.identity(role)) is not None and identity.alive
    }


def end_descendants(leader: int, *, kill_wait: float = _KILL_WAIT_SECONDS, spare: Callable[[], set[int]] = set) -> None:
    """TERM (and CONT) to every descendant of this process, KILL after `kill_wait` seconds to those that are left.

    `leader` is the child whose exit code somebody else waits for. Whoever left the session is still a descendant,
    because this process is a subreaper. What `spare` names is left alone with everything below it.
    """
    clock = time.monotonic()
    doomed = _descendants(spare())
    if kill_wait:
        for pid in doomed:
            _send(pid, signal.SIGTERM)
            _send(pid, signal.SIGCONT)
    while doomed and time.monotonic() < clock + kill_wait:
        time.sleep(_POLL_SECONDS)
        _reap(leader)
        doomed = _descendants(spare())
    # Again and again: they may fork faster than one look. Bounded, because a process in a dead file system cannot die.
    while doomed and time.monotonic() < clock + kill_wait + _UNKILLABLE_SECONDS:
        for pid in doomed:
            _send(pid, signal.SIGKILL)
        time.sleep(_POLL_SECONDS / 10)
        _reap(leader)
        doomed = _descendants(spare())


def _descendants(spared: set[int]) -> set[int]:
    """Every process below this one that is no zombie, without the spared ones and what is below them."""
    children: dict[int, list[int]] = {}
    dead = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(entry.name))
            if fields[0] in "ZX":
                dead.add(int(entry.name))
    found: set[int] = set()
    fresh = [os.getpid()]
    while fresh:
        fresh = [child for pid in fresh for child in children.get(pid, []) if child not in found | spared]
        found.update(fresh)
    return found - dead


def _reap(leader: int) -> None:
    """Take adopted children that ended away; `leader` is left to Popen, which wants its exit code."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None or ended.si_pid == leader:
            return
        os.waitpid(ended.si_pid, os.WNOHANG)


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

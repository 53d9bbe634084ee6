"""Several attempts in one job, one after another: the members of a pack, each by its own job.sh.

Covered: the order of execution, signals, what became of each member. Not covered: executing an attempt (wrapper.py),
choosing what goes together (outerloop.dispatch.packs). Standard library only.

The map is that of an array (`outerloop.job.array`); a pack executes all of its tasks in the map's order. A member is
executed by a process of its own from the very script that it would have had alone, so that scratch, caches, prologue
and claim are those of a job of its own. After each one the pack writes into the member's attempt folder:

member.json
    {"schema": 1, "job_id", "exit_code": 128 + n for a signal, "oom_kills": int | null, "started", "ended"}
    oom_kills: processes that the kernel killed for memory in this job's cgroup while the member ran; null where the
    kernel does not say. The job's one state says of no member how it ended; this does.

A member that is killed does not end the pack. A signal to the pack is passed on, and no further member is begun.
Exit codes: 0 every member had its turn (whatever came of it), 95 another job executes all of them, 128 + n stopped by
signal n, 96 the map is unreadable.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import FrameType
from typing import Any

from outerloop.job import files, layout

MEMBER = "member.json"
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_CGROUP = "/proc/self/cgroup"
_CGROUP_ROOTS = ("/sys/fs/cgroup", "/sys/fs/cgroup/memory")
_OOM_FILES = ("memory.events", "memory.oom_control")
"""cgroup v2 and v1 (kernel documentation, admin-guide/cgroup-v2 and cgroup-v1/memory): a line `oom_kill n` in both."""


class _Members:
    """The member that runs now, and whether anything asked to stop."""

    def __init__(self) -> None:
        self.running: subprocess.Popen[bytes] | None = None
        self.stopped_by = 0

    def pass_on(self, number: int, _frame: FrameType | None) -> None:
        if number != signal.SIGUSR1:
            self.stopped_by = self.stopped_by or number
        member = self.running
        if member is not None and member.poll() is None:
            os.kill(member.pid, number)


def main(path: str, job_id: str) -> int:
    """Execute every task of the map at `path`, in its order. Returns the exit code."""
    try:
        tasks = files.read_object_patiently(path).get("tasks")
        members = [(str(task["slot"]), int(task["attempt"])) for task in tasks] if isinstance(tasks, list) else []
    except (OSError, ValueError, KeyError, TypeError) as error:
        return _refuse(f"the map {path} can't be read: {error}")
    if not members:
        return _refuse(f"the map {path} names no attempt")
    state = _Members()
    for number in _PASSED_ON:
        signal.signal(number, state.pass_on)
    executed = 0
    for slot, attempt in members:
        if state.stopped_by:
            break
        folder = os.path.join(slot, layout.ATTEMPTS, str(attempt))
        try:
            executed += _execute(folder, job_id, state)
        except OSError as error:
            print(f"outerloop: {folder}: {error}", file=sys.stderr, flush=True)
    if state.stopped_by:
        return 128 + state.stopped_by
    return 0 if executed else layout.EXIT_NOT_CLAIMANT


def _execute(folder: str, job_id: str, state: _Members) -> bool:
    """False when another job executes this attempt."""
    started, before = files.utc_now(), oom_kills()
    log = os.path.join(folder, layout.restart_folder(0), layout.SLURM_LOG)
    os.makedirs(os.path.dirname(log), exist_ok=True)
    with open(log, "ab") as stream:
        # A group of its own: what ends this member's processes must not end the next one's.
        state.running = subprocess.Popen(
            ["/bin/bash", os.path.join(folder, layout.SCRIPT)],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            process_group=0,
        )
    code = state.running.wait()
    state.running = None
    if code == layout.EXIT_NOT_CLAIMANT:
        return False  # another job executes it, and says so itself
    after = oom_kills()
    body: dict[str, Any] = {
        "schema": layout.SCHEMA,
        "job_id": job_id,
        "exit_code": code if code >= 0 else 128 - code,
        "oom_kills": None if before is None or after is None else max(0, after - before),
        "started": started,
        "ended": files.utc_now(),
    }
    files.replace(os.path.join(folder, MEMBER), files.encode(body))
    return True


def oom_kills() -> int | None:
    """Processes that the kernel has killed for memory in this process's cgroup; None where it does not say."""
    try:
        with open(_CGROUP) as file:
            lines = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return None
    for _number, controllers, path in (line for line in lines if len(line) == 3):
        if controllers and "memory" not in controllers.split(","):
            continue
        for root in _CGROUP_ROOTS:
            for name in _OOM_FILES:
                found = _oom_kill_line(os.path.join(root, path.lstrip("/"), name))
                if found is not None:
                    return found
    return None


def _oom_kill_line(path: str) -> int | None:
    try:
        with open(path) as file:
            for line in file:
                words = line.split()
                if len(words) == 2 and words[0] == "oom_kill" and words[1].isdecimal():
                    return int(words[1])
    except OSError:
        pass
    return None


def _refuse(why: str) -> int:
    print(f"outerloop: {why}", file=sys.stderr, flush=True)
    return layout.EXIT_SPEC

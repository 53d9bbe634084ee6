"""Imports trl once and forks real pipeline processes on request, so that killing many of them stays cheap.

One JSON request a line on stdin, one JSON answer a line on stdout:
    {"start": [words of the command line], "log": path, "fault": [place, nth, signal]}  ->  {"pid": n}
    {"wait": pid, "seconds": s}                                                         ->  {"code": code or -signal}
A fault sends the process a signal just before or just after its nth checkpoint becomes valid; SIGSTOP is answered by
the wait with "stopped". A process that outlives its wait is killed and reported as null.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from typing import Any

from outerloop.posttrain.offline import offline

offline()

import torch  # noqa: E402 - what offline() sets must stand before these are imported
from trl import DPOTrainer, GRPOTrainer, SFTTrainer  # noqa: E402

import outerloop.posttrain.__main__ as command  # noqa: E402
from outerloop.posttrain import training  # noqa: E402

TRAINERS = (DPOTrainer, GRPOTrainer, SFTTrainer)
"""trl imports them when they are named."""


def armed(place: str, nth: int, name: str) -> None:
    """Send this process a signal around the nth checkpoint."""
    whole, count = training.seal_checkpoint, 0

    def seal(folder: Any) -> None:
        nonlocal count
        count += 1
        if place == "before" and count == nth:
            os.kill(os.getpid(), getattr(signal, name))
        whole(folder)
        if place == "after" and count == nth:
            os.kill(os.getpid(), getattr(signal, name))

    training.seal_checkpoint = seal


def start(words: list[str], log: str, fault: list[Any] | None) -> int:
    pid = os.fork()
    if pid:
        return pid
    os.setpgid(0, 0)
    sink = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    code = 1
    try:
        if fault:
            armed(*fault)
        code = command.main(words)
    except SystemExit as stop:
        code = int(stop.code or 0)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def wait(pid: int, seconds: float) -> int | str | None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
        if done and os.WIFSTOPPED(status):
            return "stopped"
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


if __name__ == "__main__":
    torch.set_num_threads(1)
    for line in sys.stdin:
        request = json.loads(line)
        if "start" in request:
            answer: dict[str, Any] = {"pid": start(request["start"], request["log"], request.get("fault"))}
        else:
            answer = {"code": wait(request["wait"], request["seconds"])}
        print(json.dumps(answer), flush=True)

"""Imports torch once and forks real training processes on request, so that killing many of them stays cheap.

One JSON request a line on stdin, one JSON answer a line on stdout:
    {"start": config, "ranks": n, "env": {}, "log": path, "alarm": seconds}   ->  {"pids": [...]}
    {"wait": [pids], "seconds": s}                                           ->  {"codes": [code or -signal, ...]}
A process that outlives its wait is killed and reported as null. Each process leads its own process group.
"""

from __future__ import annotations

import importlib.util
import json
import os
import runpy
import signal
import socket
import sys
import time
import traceback
import warnings
from typing import Any

import training

import outerloop.torch.session as _session
import outerloop.torch.sharded as _sharded


def start(config: dict[str, Any], ranks: int, env: dict[str, str], log: str, alarm: float | None) -> list[int]:
    """Fork `ranks` processes that run the training script."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    pids = []
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            sink = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(sink, 1)
            os.dup2(sink, 2)
            os.environ.update(env)
            if ranks > 1:
                os.environ.update(
                    RANK=str(rank),
                    LOCAL_RANK=str(rank),
                    WORLD_SIZE=str(ranks),
                    MASTER_ADDR="127.0.0.1",
                    MASTER_PORT=str(port),
                )
            if alarm:
                # The default action of SIGALRM ends the process wherever it is, in the middle of a save too.
                signal.setitimer(signal.ITIMER_REAL, alarm)
            run_and_exit(config)
        pids.append(pid)
    return pids


def run_and_exit(config: dict[str, Any]) -> None:
    """What the interpreter does with a script, in a forked child."""
    import atexit

    code = 0
    try:
        if "script" in config:
            warnings.simplefilter("error")
            runpy.run_path(config["script"], run_name="__main__")
        else:
            training.main(config)
    except SystemExit as stop:
        code = int(stop.code or 0)
    except BaseException as error:
        traceback.print_exc()
        sys.last_value = error
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def wait(pids: list[int], seconds: float) -> list[int | None]:
    """Exit codes in order, negative for a signal."""
    codes: dict[int, int | None] = {}
    deadline = time.monotonic() + seconds
    pause = 0.002
    while len(codes) < len(pids):
        for pid in pids:
            if pid in codes:
                continue
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                codes[pid] = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > deadline:
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                codes[pid] = None
        time.sleep(pause)
    return [codes[pid] for pid in pids]


def warm_up() -> None:
    """Import what torch imports late. No backward: autograd's threads do not survive a fork."""
    import torch.distributed.fsdp  # noqa: F401

    assert _session.Session and _sharded.save_sharded
    model = training.model_of(training.DEFAULTS)
    for parameter in model.parameters():
        parameter.grad = training.torch.zeros_like(parameter)
    training.torch.optim.AdamW(model.parameters()).step()
    if importlib.util.find_spec("torchdata") is not None:
        import torchdata.stateful_dataloader  # noqa: F401


def serve() -> None:
    """Answer requests until stdin closes."""
    running: set[int] = set()
    for line in sys.stdin:
        request = json.loads(line)
        if "start" in request:
            pids = start(request["start"], request["ranks"], request["env"], request["log"], request.get("alarm"))
            running.update(pids)
            answer: dict[str, Any] = {"pids": pids}
        else:
            answer = {"codes": wait(request["wait"], request["seconds"])}
            running.difference_update(request["wait"])
        print(json.dumps(answer), flush=True)
    # What a failed test did not wait for.
    wait(list(running), 0.0)


if __name__ == "__main__":
    training.torch.set_num_threads(1)
    warm_up()
    serve()

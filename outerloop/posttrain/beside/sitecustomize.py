"""Python imports this at its start wherever this folder is on PYTHONPATH: in the processes that a vLLM server spawns.

vLLM's engine and its workers outlive a server that was killed with kill -9 (seen with 0.31.0 on a CPU: both were still
there three minutes later). Each of them therefore watches its own parent, and ends when that is gone. A thread that
looks, because the kernel's parent-death signal also fires when only the thread that forked ends.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import signal
import sys
import threading
import time
from pathlib import Path

TIED = "OUTERLOOP_TIED"
"""Set by vllm_server.py; other Pythons on the same path are left alone."""
LOOK_SECONDS = 1.0


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


def tie() -> None:
    """End this process soon after its parent ends; and so each process that it forks."""
    threading.Thread(target=_watch, args=(os.getppid(),), daemon=True, name="outerloop-tied").start()


def watched_forks() -> None:
    """Forked children have no threads: each starts its own."""
    os.register_at_fork(after_in_child=tie)


def _next() -> None:
    """Run the sitecustomize that this one hides, if there is one."""
    here = Path(__file__).resolve().parent
    others = [path for path in sys.path if Path(path).resolve() != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if os.environ.get(TIED) == "1":
    tie()
    watched_forks()
    _next()

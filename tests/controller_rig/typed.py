"""A command line in a process of its own that is forked, not started anew: what importing costs is paid once.

A second of processor time is saved on each. Covered: working folder, environment, exit code, both outputs, a deadline,
signals, the real backend. Not covered: what an interpreter does before `main` (tests/unit/cli starts real ones), and a
terminal.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

from outerloop.controller import deployment as deployment_module
from tests.controller_rig import engines
from tests.controller_rig.world import REAL_OPEN_COMPUTE

_POLL_SECONDS = 0.01


class Typed:
    """A running command, with what these tests need of subprocess.Popen."""

    def __init__(self, words: Sequence[str], *, cwd: Path, env: Mapping[str, str]) -> None:
        self.words = tuple(words)
        self._out, self._err = (tempfile.TemporaryFile() for _ in range(2))  # noqa: SIM115
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _become(self.words, cwd, env, self._out.fileno(), self._err.fileno())

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Wait for its end. Raises subprocess.TimeoutExpired."""
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self.words, timeout)
            time.sleep(_POLL_SECONDS)
        return code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Wait for its end: what it wrote. A command that takes longer is killed, and TimeoutExpired is raised."""
        try:
            self.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        told = []
        for stream in (self._out, self._err):
            stream.seek(0)
            told.append(stream.read().decode())
            stream.close()
        return told[0], told[1]


def _become(words: tuple[str, ...], cwd: Path, env: Mapping[str, str], out: int, err: int) -> None:
    """The child: never returns."""
    code = 1
    try:
        gc.freeze()  # looking at what the parent has would copy it
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(env)
        null = os.open(os.devnull, os.O_RDONLY)
        for source, place in ((null, 0), (out, 1), (err, 2)):
            os.dup2(source, place)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        sys.argv = ["outerloop", *words]
        warnings.resetwarnings()
        warnings.simplefilter("ignore")
        deployment_module.open_compute = REAL_OPEN_COMPUTE
        engines.use_here()
        from outerloop.cli import main

        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)

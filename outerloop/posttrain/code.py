"""The scorer `code`: a completion's program together with the task's checks, run in a sandbox.

Covered: bubblewrap without network, own limits of time, memory and files; a program that ends before the checks have
run does not pass. Not covered: a program that looks for the checker's secret in its own process's frames: whoever needs
that much writes checks that call the program from outside.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from outerloop.job.sandbox import INSIDE, Room, bwrap_argv, bwrap_started
from outerloop.posttrain.scorers import ScorerError

__all__ = ["SECONDS", "code_scorer", "program_of"]

SECONDS = 10.0
"""Limit of one program with its checks; more is a wrong answer."""
MEMORY_BYTES = 1024 * 1024 * 1024
FILE_BYTES = 1024 * 1024
_MOST_SAID = 65536

_FENCED = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)

_HARNESS = f"""
import os, resource, sys
secret = sys.stdin.readline().strip()
said = os.dup(1)
for number in (0, 1, 2):
    os.dup2(os.open(os.devnull, os.O_RDWR), number)
for limit, value in ((resource.RLIMIT_AS, {MEMORY_BYTES}), (resource.RLIMIT_FSIZE, {FILE_BYTES}),
                     (resource.RLIMIT_CORE, 0)):
    resource.setrlimit(limit, (value, value))
with open("program.py") as program, open("checks.py") as checks:
    program, checks = program.read(), checks.read()
os.unlink("checks.py")
space = {{"__name__": "program"}}
exec(compile(program, "program.py", "exec"), space)
exec(compile(checks, "checks.py", "exec"), space)
os.write(said, secret.encode())
os._exit(0)
"""


def program_of(completion: str) -> str:
    """The last fenced block of a completion, or all of it."""
    blocks = _FENCED.findall(completion)
    return str(blocks[-1]) if blocks else completion


def code_scorer(*, seconds: float = SECONDS, python: str = sys.executable) -> Callable[[str, str], float]:
    """A scorer of (completion, checks): 1 when all checks ran without an exception.

    It raises ScorerError when there is no sandbox on this machine, never running anything without one.
    """

    def score(completion: str, answer: str) -> float:
        bwrap = shutil.which("bwrap")
        if bwrap is None:
            raise ScorerError("bwrap is not installed on this node")
        with tempfile.TemporaryDirectory(prefix="ol-code-") as folder:
            Path(folder, "program.py").write_text(program_of(completion), encoding="utf-8", errors="replace")
            Path(folder, "checks.py").write_text(answer, encoding="utf-8")
            Path(folder, "harness.py").write_text(_HARNESS, encoding="utf-8")
            return _run(bwrap, folder, python, seconds)

    return score


def _run(bwrap: str, folder: str, python: str, seconds: float) -> float:
    home = f"{INSIDE}/home"
    room = Room(writable=((folder, home),), home=folder, cwd=home, path=os.path.dirname(python))
    reader, writer = os.pipe()
    secret = secrets.token_hex(16)
    try:
        argv = bwrap_argv(bwrap, room, (python, "-I", "-S", "harness.py"), writer)
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"},
            pass_fds=(writer,),
            start_new_session=True,
        )
        os.close(writer)
        writer = -1
        timed_out = False
        try:
            said, _ = process.communicate(f"{secret}\n".encode(), timeout=seconds)
        except subprocess.TimeoutExpired:
            timed_out = True
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            said = b""
        with os.fdopen(reader, "rb") as stream:
            reader = -1
            started = bwrap_started(stream.read(_MOST_SAID))
    except OSError as error:
        raise ScorerError(f"the sandbox could not be started: {error.strerror}") from None
    finally:
        for descriptor in (reader, writer):
            if descriptor >= 0:
                os.close(descriptor)
    if not started and not timed_out:
        raise ScorerError("the kernel refused the sandbox")
    return float(said == secret.encode())

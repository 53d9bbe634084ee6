"""Runs one command for as long as its parent lives: keeper.py PIPE PARENT GRACE SCRATCH COMMAND…

Covered: ending the command and everything that it started, by SIGTERM and after GRACE seconds by SIGKILL, when the
parent asks for it or is gone, kill -9 included; the folder SCRATCH goes with it. Not covered: machines without /proc.

PIPE is a descriptor whose other end only PARENT (a process id) holds: its end is the parent's end, or its request. A
forked child of the parent may hold that end too, so the kernel's parent-death signal and the parent's id are watched
as well. The command in turn dies with the keeper, by the same signal. Standard library only, and run with -I -S: it
has to start in any environment. The exit code is the command's.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
"""linux/prctl.h"""
LOOK_SECONDS = 1.0
"""How often the parent's id is looked at, should both the pipe and the signal be late."""


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _others() -> list[int]:
    """Processes of this session, and orphans that the kernel handed to the keeper."""
    me, found = os.getpid(), []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == me:
            continue
        try:
            # the name in brackets may hold blanks and brackets: fields are counted from the last one
            state, parent, _, session = entry.joinpath("stat").read_text().rpartition(")")[2].split()[:4]
        except (OSError, ValueError):
            continue
        if state != "Z" and me in (int(parent), int(session)):
            found.append(int(entry.name))
    return found


def _send(number: int) -> None:
    for pid in _others():
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _reaped(child: int, status: int | None) -> int | None:
    """Collect what ended; the command's wait status once it is known."""
    while True:
        try:
            pid, found = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status
        if pid == 0:
            return status
        if pid == child:
            status = found


def _start(argv: list[str]) -> int:
    keeper = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        if os.getppid() == keeper:  # else the keeper died before the line above
            os.execvp(argv[0], argv)
    except OSError as error:
        print(f"{argv[0]}: {error.strerror}", file=sys.stderr, flush=True)
    os._exit(127)


def main(pipe: int, parent: int, grace: float, scratch: str, argv: list[str]) -> int:
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    signal.signal(signal.SIGINT, lambda number, frame: asked.append(number))
    signal.signal(signal.SIGUSR2, lambda number, frame: None)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    # a signal that comes between a look and the wait ends the wait
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    # it comes when the thread that started the keeper ends, too: a reason to look, no more
    _prctl(PR_SET_PDEATHSIG, signal.SIGUSR2)
    child = _start(argv)
    status = None
    while status is None and not asked and os.getppid() == parent:
        ready, _, _ = select.select([pipe, reader], [], [], LOOK_SECONDS)
        if reader in ready:
            os.read(reader, 4096)
        if pipe in ready:
            break
        status = _reaped(child, status)
    _send(signal.SIGTERM)
    deadline = time.monotonic() + grace
    while _others() and time.monotonic() < deadline:
        status = _reaped(child, status)
        select.select([reader], [], [], 0.05)
    while _others():
        _send(signal.SIGKILL)
        status = _reaped(child, status)
        time.sleep(0.02)
    status = _reaped(child, status)
    shutil.rmtree(scratch, ignore_errors=True)
    code = 1 if status is None else os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4], sys.argv[5:]))

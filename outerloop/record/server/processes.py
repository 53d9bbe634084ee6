"""The processes of a server: which run, and what a killed one left behind.

Covered: Linux, through /proc; elsewhere process numbers alone are believed. Not covered: starting one (launch.py).
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

from outerloop.record.server.errors import EmbeddedError
from outerloop.record.server.place import PORT, Place

__all__ = ["POLL_SECONDS", "alive", "clear_the_dead", "postmaster", "says_ready", "until", "works_in"]

ORPHAN_SECONDS = 10.0
"""Backends notice the death of their postmaster within a second unless they compute; then they are asked to quit."""
POLL_SECONDS = 0.05
_PROBE_SECONDS = 5.0


def alive(pid: int) -> bool:
    """Whether process `pid` runs; a zombie does not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return False
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True
    except ProcessLookupError:
        return False
    return text.rpartition(")")[2].split()[0] not in ("Z", "X")


def works_in(pid: int, data: Path) -> bool:
    """Whether the working directory of process `pid` is `data`: true for every process of a server, none other."""
    try:
        return Path(f"/proc/{pid}/cwd").samefile(data)
    except OSError:
        return False


def postmaster(place: Place) -> int | None:
    """Process id of the running server, or None. A pid that was given to another program since counts as None."""
    try:
        first = (place.data / "postmaster.pid").read_text(encoding="ascii", errors="replace").split("\n", 1)[0]
        pid = abs(int(first))
    except (FileNotFoundError, ValueError):
        return None
    if not alive(pid):
        return None
    if Path("/proc/self/cwd").exists() and not works_in(pid, place.data):
        return None
    return pid


def says_ready(place: Place) -> bool:
    """Whether the server has written that it accepts connections (line 8 of postmaster.pid)."""
    try:
        lines = (place.data / "postmaster.pid").read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return False
    return len(lines) > 7 and lines[7].strip() == "ready"


def _somebody_listens(place: Place) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_PROBE_SECONDS)
        try:
            probe.connect(str(place.run / f".s.PGSQL.{PORT}"))
        except OSError:
            return False
        return True


def clear_the_dead(place: Place) -> None:
    """Wait for what a killed server left behind, so that a new one may start.

    Backends of a dead postmaster end by themselves within a second or so; until then the new one would refuse to
    start. Lock files whose number another program has by now would stop it too; they are removed once no process
    works in the data folder. The socket folder is ours alone, so its lock is too.
    """

    def orphans() -> list[int]:
        numbers = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
        return [pid for pid in numbers if works_in(pid, place.data) and alive(pid)]

    if not until(lambda: not orphans(), ORPHAN_SECONDS):
        for pid in orphans():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGQUIT)
        if not until(lambda: not orphans(), ORPHAN_SECONDS):
            left = ", ".join(str(pid) for pid in orphans())
            raise EmbeddedError(f"processes of a killed Postgres still work in {place.data}: {left}; end them first")
    if _somebody_listens(place):
        # processes of another container have no number here
        raise EmbeddedError(
            f"a server that can't be seen from here holds the socket in {place.run} and lets nobody in;"
            " if it is in another container, stop it there"
        )
    if Path("/proc/self/cwd").exists():
        # a zombie keeps its number: where nobody reaps, Postgres itself would take the dead for running
        locks = (place.data / "postmaster.pid", place.run / f".s.PGSQL.{PORT}.lock", place.run / f".s.PGSQL.{PORT}")
        for lock in locks:
            lock.unlink(missing_ok=True)


def until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True

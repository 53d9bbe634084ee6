"""Controllers that die or are paused at any point between two effects, in this process.

A crash is `Crash`, a BaseException raised at a point of outerloop.effects. Why that is as good as SIGKILL here:
* a transaction that is open rolls back when the exception leaves it, as the server does when a client is gone;
* the tick's advisory lock is given back when its connection is closed by the exception, as it is when a client dies;
* the lease stays: `advance` gives it back on its straight path and for an Exception, which a Crash is not. Whether its
  holder is known to be dead is up to the schedule (`dies_here`): a process of this host, or one of another host, whose
  lease has to run out;
* a temporary file beside a published one is removed by the exception and stays after a kill: nobody reads its name.
No other `finally` or `except BaseException` of the rooms between command and effect writes anything.
tests/e2e/test_crash_points.py kills real processes at each of the same points.

A pause parks a thread at a point outside of any transaction (inside one it would hold row locks, and whoever wants
them would wait, which is no other outcome than being slow), until the schedule lets it go on.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from outerloop import effects
from outerloop.controller.deployment import Deployment

HANDOVER_SECONDS = 60


class Crash(BaseException):
    """The process is no more."""


@dataclass(frozen=True)
class Strike:
    """What happens to a process that handed an array over, after the next effect of this name."""

    after: str
    pauses: bool
    dies_here: bool


class Process:
    """One command of a controller. `crash_at` and `pause_at` count the points that it comes by."""

    def __init__(
        self,
        body: Callable[[Deployment], Any],
        crash_at: int | None,
        pause_at: int | None,
        strike: Strike | None = None,
    ) -> None:
        self.body = body
        self.crash_at = crash_at
        self.pause_at = pause_at
        self.strike = strike
        self.struck = False
        self._array_is_out = False
        self.points = 0
        self.transactions = 0
        self.last = ""
        self.result: Any = None
        self.error: BaseException | None = None
        self.crashed = False
        self.paused = False
        self.deployment: Deployment | None = None
        self._go = threading.Semaphore(0)
        self._stopped = threading.Semaphore(0)
        self._thread: threading.Thread | None = None

    @property
    def over(self) -> bool:
        return self._thread is None and not self.paused

    def run(self, deployment: Deployment, *, threaded: bool) -> None:
        """Until the end, the crash or the pause."""
        self.deployment = deployment
        if not threaded:
            self._execute()
            return
        self._thread = threading.Thread(target=self._in_thread, daemon=True)
        self._thread.start()
        self._wait()

    def go_on(self) -> None:
        """Let a paused process run to its end or its crash."""
        assert self.paused
        self.paused = False
        self._go.release()
        self._wait()

    def _wait(self) -> None:
        assert self._stopped.acquire(timeout=HANDOVER_SECONDS), f"a process hangs after {self.last}"
        if not self.paused and self._thread is not None:
            self._thread.join()
            self._thread = None

    def _in_thread(self) -> None:
        self._execute()
        self._stopped.release()

    def _execute(self) -> None:
        current.process = self
        try:
            self.result = self.body(self.deployment)  # type: ignore[arg-type]
        except Crash:
            self.crashed = True
        except BaseException as error:
            self.error = error
        finally:
            current.process = None

    def point(self, place: str, name: str) -> None:
        """Called by outerloop.effects at each point."""
        transaction = name.startswith("tx.")
        if transaction and place == "after":
            self.transactions = max(0, self.transactions - 1)
        self.points += 1
        self.last = f"{place}:{name}"
        if place == "after":
            self._array_is_out |= name == "array.submitted"
            if self.strike is not None and self._array_is_out and name == self.strike.after and not self.struck:
                self.struck = True
                if not self.strike.pauses:
                    raise Crash
                self.pause_at = self.points
        if self.points == self.crash_at:
            raise Crash
        if self.pause_at is not None and self.points >= self.pause_at and self.transactions == 0:
            self.pause_at = None
            self.paused = True
            self._stopped.release()
            assert self._go.acquire(timeout=HANDOVER_SECONDS), "a paused process was forgotten"
            if self.points + 1 == self.crash_at:
                raise Crash
        if transaction and place == "before":
            self.transactions += 1


class _Current(threading.local):
    process: Process | None = None


current = _Current()
_real_point = effects._point


def point(place: str, name: str) -> None:
    """What stands in for outerloop.effects._point."""
    if current.process is not None:
        current.process.point(place, name)
    else:
        _real_point(place, name)


def holder(number: int, *, dies_here: bool) -> str:
    """A lease holder's name: of this host and surely dead once somebody looks, or of another host."""
    host = socket.gethostname() if dies_here else "elsewhere"
    # Above the largest pid that Linux gives (proc(5), pid_max), so no living process bears it.
    return f"{host}:{(1 << 22) + 1 + number}:1:{number:06x}"

"""Stopping on SIGTERM or SIGUSR1 at a step that all ranks agree on.

Covered: noting the signal, and the agreement. Not covered: saving and leaving, which the session does.

Signals reach ranks at different instants, possibly only some of them. So each call exchanges "was I asked?" in the
background and acts on the exchange that the call before it began: all ranks see the same answer at the same step, and
no step waits for the network. The price is one step.
"""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType
from typing import Any

import torch

from outerloop.torch.world import World

EXIT_STOPPED = 75
"""EX_TEMPFAIL of sysexits.h: try again later."""
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
_log = logging.getLogger("outerloop.torch")


class Stop:
    """Whether this launch was asked to stop."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._asked: signal.Signals | None = None
        self._exchange: tuple[Any, torch.Tensor] | None = None
        self._answer = 0

    @property
    def signal_name(self) -> str | None:
        """Name of the signal that any rank received, once agreed."""
        return signal.Signals(self._answer).name if self._answer else None

    def listen(self) -> None:
        """Note SIGTERM and SIGUSR1 instead of ending. Only possible in the main thread; elsewhere it is logged."""
        if threading.current_thread() is not threading.main_thread():
            _log.warning(
                "prepare() ran outside the main thread: SIGTERM and SIGUSR1 end the process without a checkpoint"
            )
            return
        for number in SIGNALS:
            before = signal.getsignal(number)
            if callable(before) and getattr(before, "__func__", None) is not Stop._note:
                _log.warning("the script's own handler of %s is replaced", signal.Signals(number).name)
            signal.signal(number, self._note)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self._asked = signal.Signals(signum)

    def agreed(self) -> bool:
        """True on every rank at the same call when any rank was asked before the previous one."""
        own = int(self._asked or 0)
        if self._world.size == 1:
            self._answer = own
            return own != 0
        self.settle()
        if self._answer == 0:
            asked = torch.tensor([own], dtype=torch.int64)
            work = torch.distributed.all_reduce(
                asked, torch.distributed.ReduceOp.MAX, group=self._world.control, async_op=True
            )
            self._exchange = (work, asked)
        return self._answer != 0

    def settle(self) -> None:
        """Finish the exchange in flight."""
        if self._exchange is not None:
            work, asked = self._exchange
            self._exchange = None
            work.wait()
            self._answer = int(asked.item())

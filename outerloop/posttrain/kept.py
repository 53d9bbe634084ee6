"""A process that does not outlive this one, kill -9 included: the side of it that starts, watches and ends it.

Covered: starting a command below beside/keeper.py, how it ended, ending it and all that it started. Not covered: what
it is for (serve.py, agents.py).
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["BESIDE", "Kept", "said"]

BESIDE = Path(__file__).parent / "beside"
"""What runs in other environments: vLLM's, inspect's. It imports nothing of ours."""
_KEEPER = BESIDE / "keeper.py"
_KEEPER_SECONDS = 10.0
"""What the keeper may take beyond the grace, until it is killed itself."""
_LOOK_SECONDS = 0.01


class Kept:
    """A command, started with its output appended to `log`. The folder `scratch` is deleted when it ends."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], *, log: Path, scratch: str, grace: float
    ) -> None:
        self._grace, self._scratch = grace, scratch
        reader, self._pipe = os.pipe()
        words = [str(_KEEPER), str(reader), str(os.getpid()), str(grace), scratch]
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self._keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", *words, *command],
                stdin=subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                env=dict(environment),
                pass_fds=(reader,),
                start_new_session=True,
            )
        except BaseException:
            os.close(self._pipe)
            raise
        finally:
            os.close(reader)
            os.close(descriptor)

    @property
    def pid(self) -> int:
        """Process id of the keeper, which is also the id of the command's session."""
        return self._keeper.pid

    def ended(self) -> int | None:
        """Exit code of the keeper, negative for a signal; None while it runs. It stays a zombie until `stop`.

        Otherwise its id, which is the group's, could be another process's by the time that the group is killed.
        """
        found = os.waitid(os.P_PID, self._keeper.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    def wait(self, seconds: float) -> int | None:
        """Its exit code once it ended; None after so many seconds."""
        deadline = time.monotonic() + seconds
        while (code := self.ended()) is None and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        return code

    def stop(self) -> None:
        """End it: the group gets SIGTERM, then SIGKILL. Returns when nothing of it is left. To be called once."""
        os.close(self._pipe)
        self.wait(self._grace + _KEEPER_SECONDS)
        # nothing is left of the group, unless the keeper was killed itself
        os.killpg(self._keeper.pid, signal.SIGKILL)
        self._keeper.wait()
        shutil.rmtree(self._scratch, ignore_errors=True)  # a keeper that was killed left it


def said(code: int | None) -> str:
    """The exit code of a keeper, in words that go behind "ended"."""
    if code is None:
        return ""
    if code < 0:
        return f" with its keeper ({signal.Signals(-code).name})"
    if code > 128 and code - 128 in {number.value for number in signal.Signals}:
        return f" by {signal.Signals(code - 128).name}"
    return f" with exit code {code}"

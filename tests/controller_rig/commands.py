"""Commands as a user types them, in a forked process: exit code, output, and a fault at any named point."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from outerloop.record import embedded
from tests.controller_rig import engines
from tests.controller_rig.world import World
from tests.postgres.conftest import open_folder


@dataclass(frozen=True)
class Told:
    """What a command left its caller with: exit code (negative: the signal that ended it) and what it printed."""

    code: int
    text: str


def start_command(world: World, *arguments: str, fault: str = "") -> int:
    """Fork a command line on the world's own settings and cluster; returns the pid."""
    world.open().close()  # the rig's cluster takes the place of the backend, in the child too
    config = world.folder / "config.toml"
    dispatch = "\n".join(f"{name} = {value}" for name, value in world.settings.dispatch.model_dump().items())
    config.write_text(
        f'state = "{world.settings.state}"\nbackend = "local"\ndeployment = "rig"\npython = "{world.settings.python}"\n'
        f'database_url = "{world.settings.database_url.get_secret_value()}"\n[dispatch]\n{dispatch}\n'
    )
    config.chmod(0o600)
    output = world.folder / "output"
    output.write_text("")
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        for name in [name for name in os.environ if name.startswith("OUTERLOOP_")]:
            del os.environ[name]
        os.environ["OUTERLOOP_CONFIG"] = str(config)
        if fault:
            os.environ["OUTERLOOP_FAULT"] = fault
        handle = os.open(output, os.O_WRONLY | os.O_APPEND)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        import sys

        sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        engines.use_here()
        from outerloop.cli import app

        try:
            app(args=list(arguments), prog_name="outerloop")
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        except BaseException:
            import traceback

            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def told(world: World, pid: int) -> Told:
    """Wait for a command's end."""
    _pid, status = os.waitpid(pid, 0)
    return Told(os.waitstatus_to_exitcode(status), (world.folder / "output").read_text())


def command(world: World, *arguments: str, fault: str = "") -> Told:
    return told(world, start_command(world, *arguments, fault=fault))


def await_stop(pid: int, point: str) -> None:
    """Wait until a child has stopped itself; it must not end without coming by the point."""
    _pid, status = os.waitpid(pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), f"the command ended ({os.waitstatus_to_exitcode(status)}) and never came by {point}"


def interrupted(world: World, *arguments: str, point: str, what: Callable[[], object], number: int = 1) -> Told:
    """A command that is stopped when it comes by a point for the `number`-th time; `what` happens, and it goes on."""
    pid = start_command(world, *arguments, fault=f"{point}:stop:{number}")
    await_stop(pid, point)
    what()
    os.kill(pid, signal.SIGCONT)
    return told(world, pid)


class PrivateServer:
    """A Postgres of one test, to be shut down, killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = embedded.ensure_running(folder)

    def start(self) -> None:
        assert embedded.ensure_running(self.folder) == self.url

    def stop(self) -> None:
        assert embedded.stop(self.folder)

    def kill(self) -> None:
        """kill -9 of the postmaster and its children, as a host that dies."""
        pid = embedded.status(self.folder).pid
        assert pid is not None
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        for victim in (pid, *children):
            os.kill(victim, signal.SIGKILL)
        deadline = time.monotonic() + 60
        while any(_lives(victim) for victim in (pid, *children)):
            assert time.monotonic() < deadline, "a killed server lives on"
            time.sleep(0.01)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@contextmanager
def private_server() -> Iterator[PrivateServer]:
    folder = open_folder("ol-outage-")
    before = os.environ.get(embedded.FAST_VARIABLE)
    os.environ[embedded.FAST_VARIABLE] = "1"
    try:
        yield PrivateServer(folder)
    finally:
        if before is None:
            del os.environ[embedded.FAST_VARIABLE]
        embedded.remove(folder)

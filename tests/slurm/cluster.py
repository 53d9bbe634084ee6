"""The development cluster as a Python object: a real Slurm in a folder of its own, for one test session.

Covered: start, stop, outages of the controller, waiting for a condition. Not covered: what the scripts do
(slurm/devcluster/up.sh explains the knobs).
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

__all__ = ["ClusterError", "DevCluster", "missing_programs"]

SCRIPTS = Path(__file__).resolve().parents[2] / "slurm" / "devcluster"

_START_SECONDS = 180
_STOP_SECONDS = 60
_POLL_SECONDS = 0.1

# OUTERLOOP_DEV_PREFIX (see get-slurm.sh) and OUTERLOOP_DEV_SLURM run the whole folder of tests against another release.
_CLEAN = ("HOME", "USER", "LOGNAME", "LANG", "TMPDIR", "OUTERLOOP_DEV_PREFIX", "OUTERLOOP_DEV_SLURM")


class ClusterError(RuntimeError):
    """A script of the development cluster failed; the message carries what it printed."""


def missing_programs() -> str:
    """What install.sh would install, as a sentence; empty when everything is there."""
    check = subprocess.run(
        [str(SCRIPTS / "install.sh"), "--check"], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    return "" if check.returncode == 0 else (check.stderr.strip() or "install.sh --check failed")


class DevCluster:
    """A cluster in `folder` (at most 64 characters, it holds unix sockets). A context manager: up inside, gone after.

    `knobs` are those of up.sh, lower case and without their prefix: `DevCluster(folder, min_job_age=2)`.
    """

    def __init__(self, folder: Path, *, nodes: int = 4, accounting: bool = False, **knobs: str | int) -> None:
        self.folder = folder
        settings = {"dir": str(folder), "nodes": nodes, "accounting": "dbd" if accounting else "none", **knobs}
        # Taken now: a test may clean its environment, and a daemon of another release must not come up in its place.
        self._inherited = {name: os.environ[name] for name in _CLEAN if name in os.environ}
        self._knobs = {f"OUTERLOOP_DEV_{name.upper()}": str(value) for name, value in settings.items()}

    def __enter__(self) -> DevCluster:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # ------------------------------------------------------------------------------------------ life

    def start(self) -> None:
        """Start whatever does not run. Raises ClusterError with the script's last words and the daemons' logs."""
        try:
            self._script("up.sh", timeout=_START_SECONDS)
        except ClusterError as error:
            raise ClusterError(f"{error}\n{self.log_tail()}") from None

    def stop(self) -> None:
        """Kill every daemon and every job and remove the folder."""
        self.resume()
        self._script("down.sh", "--purge", timeout=_STOP_SECONDS)

    def stop_controller(self) -> None:
        """slurmctld is shut down cleanly: clients are refused at once, jobs run on."""
        pid = self._pid("slurmctld")
        os.kill(pid, signal.SIGCONT)
        os.kill(pid, signal.SIGTERM)
        self.wait(lambda: not _runs(pid), 60)

    def start_controller(self) -> None:
        """The opposite of `stop_controller`."""
        self.start()

    def pause(self) -> None:
        """slurmctld is suspended: requests are taken by the kernel and answered by nobody."""
        os.kill(self._pid("slurmctld"), signal.SIGSTOP)

    def resume(self) -> None:
        """The opposite of `pause`; harmless when it was not paused or does not run."""
        try:
            os.kill(self._pid("slurmctld"), signal.SIGCONT)
        except (OSError, ValueError):
            return

    @contextmanager
    def paused(self) -> Iterator[None]:
        """`pause` for the enclosed lines."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    # ---------------------------------------------------------------------------------------- clients

    @property
    def bin(self) -> Path:
        """The folder with this cluster's sbatch, squeue and so on."""
        return self.folder / "bin"

    @property
    def slurm_conf(self) -> Path:
        return self.folder / "etc" / "slurm.conf"

    @property
    def env(self) -> dict[str, str]:
        """This process's environment with the cluster's SLURM_CONF and its tools first on PATH."""
        path = f"{self.bin}:{os.environ.get('PATH', '/usr/bin:/bin')}"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
        return {**inherited, "SLURM_CONF": str(self.slurm_conf), "PATH": path}

    def run(self, *argv: str, check: bool = True) -> str:
        """Run one of the cluster's tools, its stdout."""
        result = subprocess.run(
            [str(self.bin / argv[0]), *argv[1:]],
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=60,
        )
        if check and result.returncode:
            raise ClusterError(f"{' '.join(argv)}: exit code {result.returncode}: {result.stderr.strip()}")
        return result.stdout

    def wait(
        self, condition: Callable[[], object], seconds: float, what: str = "", *, every: float = _POLL_SECONDS
    ) -> None:
        """Until `condition()` is true, looking `every` so many seconds.

        Raises AssertionError with the queue when it is not within `seconds`.
        """
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                queue = self.run("squeue", "-a", "-t", "all", "-o", "%i %T %r %j", check=False)
                raise AssertionError(f"gave up after {seconds} s: {what or condition}\n{queue}")
            time.sleep(every)

    def cancel_all(self) -> None:
        """Cancel every job and wait until none is active, so that the next test starts with free nodes."""
        self.run("scancel", f"--user={os.getuid()}", check=False)
        self.wait(lambda: not self.run("squeue", "-h", "-a", "-o", "%i").strip(), 60, "jobs to end")

    def log_tail(self, lines: int = 15) -> str:
        """The last lines of every log of the cluster."""
        tails = []
        for path in sorted((self.folder / "log").glob("*")):
            text = path.read_text(errors="replace").splitlines()[-lines:]
            tails.append(f"--- {path.name}\n" + "\n".join(text))
        return "\n".join(tails)

    # ---------------------------------------------------------------------------------------- helpers

    def _pid(self, daemon: str) -> int:
        return int((self.folder / "run" / f"{daemon}.pid").read_text())

    def _script(self, name: str, *arguments: str, timeout: float) -> None:
        environment: Mapping[str, str] = {
            **self._inherited,
            # PATH of a shell that sourced another cluster's env would do no harm, but a plain one cannot.
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            **self._knobs,
        }
        # To a file, not a pipe: daemons inherit it and would hold a pipe open.
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        output = self.folder.parent / f"{self.folder.name}.{name}.log"
        with output.open("wb") as sink:
            code = subprocess.run(
                [str(SCRIPTS / name), *arguments],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                timeout=timeout,
                check=False,
            ).returncode
        text = output.read_text(errors="replace")
        output.unlink()
        if code:
            raise ClusterError(f"{name}: exit code {code}: {text.strip()}")


def _runs(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"

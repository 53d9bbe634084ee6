"""Running a cluster's command-line tool: absolute path, clean environment, deadline, never a shell.

Covered: the environment allow-list, the deadline, decoding, tools that are missing or cannot be executed, children
that keep the pipes open after their parent is dead. Not covered: what the output means.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

__all__ = ["ALLOWED", "ToolEnd", "ToolResult", "acts_as_option", "clean_environment", "run_tool"]

ALLOWED = ("HOME", "USER", "LOGNAME", "SHELL", "PATH")
"""The caller's variables that reach a tool, and with sbatch's --export=ALL the job. Nothing else does: not LD_*, no
credential, and none of the submitting job's own SLURM_* (every wake submits from inside a job)."""

_OPTION_PREFIXES = (
    "SLURM_",
    "SLURMD_",
    "SBATCH_",
    "SRUN_",
    "SALLOC_",
    "SQUEUE_",
    "SACCT_",
    "SCANCEL_",
    "SCONTROL_",
    "SINFO_",
    "PMI_",
    "PMIX_",
)

_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
_LOCALE = "C.UTF-8"

# How long a killed tool's leftovers may keep its pipes open before they are abandoned.
_DRAIN_SECONDS = 2.0


class ToolEnd(StrEnum):
    """How a call ended."""

    EXITED = "exited"
    KILLED = "killed"
    TIMED_OUT = "timed out"
    MISSING = "missing"
    TOO_LONG = "argument list too long"


@dataclass(frozen=True)
class ToolResult:
    """`rc` is the exit code when `end` is EXITED, the negative signal when KILLED, else None."""

    end: ToolEnd
    rc: int | None
    stdout: str
    stderr: str
    seconds: float

    @property
    def succeeded(self) -> bool:
        return self.end is ToolEnd.EXITED and self.rc == 0

    def what_happened(self) -> str:
        """One line for people: how it ended and the first line that it complained with."""
        complaint = next((line.strip() for line in self.stderr.splitlines() if line.strip()), "")
        if self.end is ToolEnd.EXITED:
            how = f"exit code {self.rc}"
        elif self.end is ToolEnd.TIMED_OUT:
            how = f"no answer within {self.seconds:.0f} s"
        elif self.end is ToolEnd.KILLED:
            how = f"killed by signal {-(self.rc or 0)}"
        else:
            how = self.end.value
        return f"{how}: {complaint}" if complaint else how


def acts_as_option(variable: str) -> bool:
    """Whether Slurm's tools or MPI would read this environment variable as an option of ours."""
    return variable.startswith(_OPTION_PREFIXES)


def clean_environment(environ: Mapping[str, str], extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The allow-listed part of `environ`, a fixed locale, and `extra` (which the caller has checked) on top."""
    clean = {name: environ[name] for name in ALLOWED if name in environ}
    clean.setdefault("PATH", _DEFAULT_PATH)
    clean["LC_ALL"] = _LOCALE
    clean.update(extra or {})
    return clean


def run_tool(argv: Sequence[str], *, timeout: float, env: Mapping[str, str], cwd: Path | None = None) -> ToolResult:
    """Run one tool to its end or its deadline (seconds). Never raises for what the tool or its absence does.

    Raises ValueError when argv[0] is not an absolute path: cron's PATH finds other tools than a login shell's.
    """
    if not Path(argv[0]).is_absolute():
        raise ValueError(f"tool {argv[0]!r} must be given by its absolute path")
    began = time.monotonic()

    def result(end: ToolEnd, rc: int | None = None, out: bytes = b"", err: bytes = b"") -> ToolResult:
        return ToolResult(
            end, rc, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"), time.monotonic() - began
        )

    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,
        )
    except OSError as error:
        end = ToolEnd.TOO_LONG if error.errno == errno.E2BIG else ToolEnd.MISSING
        return result(end, err=f"{argv[0]}: {error.strerror}".encode())
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        _kill_group(process)
        try:
            out, err = process.communicate(timeout=_DRAIN_SECONDS)
        except subprocess.TimeoutExpired as left:
            out, err = left.output or b"", left.stderr or b""
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
            process.wait()
        return result(ToolEnd.TIMED_OUT, None, out, err)
    except BaseException:
        _kill_group(process)
        process.communicate()
        raise
    rc = process.returncode
    return result(ToolEnd.KILLED if rc < 0 else ToolEnd.EXITED, rc, out, err)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        process.kill()

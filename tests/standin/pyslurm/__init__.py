"""A stand-in for pyslurm 25.11, with what was measured of the real one and nothing besides.

It is copied into a folder of its own beside a `standin.json` that says what it does:

    bin       the tools of a real cluster: submissions, look-ups and cancels really happen there
    records   a file of recorded jobs (tests/fixtures/pyslurm): `Job.load` answers from it
    log       a file that every submitted description is appended to, as JSON
    faults    {"import" | "submit" | "cancel" | "load": what happens there}, see `_misbehave`

Its traps are those of the real one: defaults that differ from sbatch, the leak of SLURM_*, arguments dropped after an
empty one, exit codes with 128 taken off, task 0 that reads None, errors that do not name the limit. Not covered: what
outerloop never asks pyslurm for.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

__version__ = "25.11.2"

_HERE = Path(__file__).resolve().parent.parent
_SAID: dict[str, Any] = json.loads((_HERE / "standin.json").read_text())
__version__ = _SAID.get("version", __version__)


class PyslurmError(Exception):
    pass


class RPCError(PyslurmError):
    def __init__(self, errno: int, msg: str) -> None:
        super().__init__(msg)
        self.errno, self.msg = errno, msg


def _misbehave(place: str) -> None:
    """What the fault at `place` does: a word, or {"errno", "text", "printed"} for an error of the controller."""
    fault = _SAID.get("faults", {}).get(place)
    if fault is None:
        return
    if isinstance(fault, dict):
        # libslurm writes to the descriptor, past sys.stderr
        os.write(2, fault.get("printed", "").encode())
        raise RPCError(fault["errno"], fault["text"])
    if fault == "exit":
        os.write(2, b"python: fatal: Could not establish a configuration source\n")
        os._exit(1)
    elif fault == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif fault == "raise":
        raise ImportError("libslurmfull.so: cannot open shared object file: No such file or directory")
    elif fault == "hang":
        while True:
            time.sleep(60)
    elif fault == "hold the lock":
        # PyDLL, unlike CDLL, keeps the interpreter's lock during the call, as every call of pyslurm does.
        ctypes.PyDLL(None).sleep(3600)
    elif fault == "chatter":
        os.write(1, b"a line on stdout that is no answer\n")
        print("and another one", flush=True)
    elif fault == "wrong id":
        pass
    else:
        raise AssertionError(f"no such fault: {fault}")


_misbehave("import")


def _tool(name: str, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [f"{_SAID['bin']}/{name}", *arguments],
        env=env if env is not None else {"PATH": "/usr/bin:/bin", "TZ": "UTC0"},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
        # sbatch overwrites these two of its environment, which libslurm leaves alone.
        cwd=(env or {}).get("SLURM_SUBMIT_DIR"),
        umask=int((env or {}).get("SLURM_UMASK", "-1"), 8),
    )


# The closing sentences of slurm_errno.c, as far as a test meets them.
_ERRNO = {
    "Invalid partition name specified": 2000,
    "Requested node configuration is not available": 2014,
    "Invalid feature specification": 2029,
    "Job dependency problem": 2038,
    "Job violates accounting/QOS policy": 2050,
    "Requested reservation is invalid": 2053,
    "Invalid generic resource (gres) specification": 2072,
    "Invalid job array specification": 2081,
    "Pathname of a file, directory or other parameter too long": 2012,
    "Unable to contact slurm controller (connect failure)": 1800,
    "Socket timed out on send/recv operation": 5004,
    "Protocol authentication error": 1007,
}

_ATTRIBUTES = {
    *("name", "script", "script_args", "working_directory", "standard_output", "log_files_open_mode", "time_limit"),
    *("nodes", "ntasks", "ntasks_per_node", "cpus_per_task", "is_requeueable", "environment", "memory_per_cpu"),
    *("memory_per_node", "gpus", "gres_per_node", "constraints", "partitions", "account", "qos", "reservations"),
    *("array", "dependencies", "begin_time", "excluded_nodes"),
}


class JobSubmitDescription:
    def __init__(self, **attributes: Any) -> None:
        for name, value in attributes.items():
            if name not in _ATTRIBUTES:
                raise AttributeError(f"'JobSubmitDescription' object has no attribute '{name}'")
            setattr(self, name, value)

    def __getattr__(self, name: str) -> Any:
        if name in _ATTRIBUTES:
            return None
        raise AttributeError(name)

    def submit(self) -> int:
        arguments, environment = self._arguments(), self._environment()
        if "log" in _SAID:
            with Path(_SAID["log"]).open("a") as log:
                log.write(json.dumps({**vars(self), "job_environment": environment}) + "\n")
        if _SAID.get("faults", {}).get("submit") == "after":
            # The controller took the job; only the answer is lost.
            _tool("sbatch", *arguments, env=environment)
            _SAID["faults"]["submit"] = "hold the lock"
        _misbehave("submit")
        if "bin" not in _SAID:
            return -1 if _SAID.get("faults", {}).get("submit") == "wrong id" else 4711
        done = _tool("sbatch", *arguments, env=environment)
        if done.returncode:
            lines = [line.partition("error: ")[2] for line in done.stderr.splitlines() if "error: " in line]
            closing = lines[-1].removeprefix("Batch job submission failed: ") if lines else "Unspecified error"
            for line in lines[:-1]:
                os.write(2, f"python: error: {line}\n".encode())
            errno = next((number for text, number in _ERRNO.items() if closing.startswith(text)), -1)
            raise RPCError(errno, closing)
        return int(done.stdout)

    def _arguments(self) -> list[str]:
        """The sbatch command that asks for the same, with pyslurm's own defaults."""
        text = Path(self.script).read_text() if Path(self.script).is_file() else str(self.script)
        if not text.startswith("#!") or "\r\n" in text or "\0" in text or text.isspace():
            raise ValueError("Not a valid Batch script. First line must start with '#!'")
        # `#SBATCH` lines of the script are not read.
        said = ["--parsable", "--ignore-pbs", "--export=ALL"]
        if isinstance(self.time_limit, str) and self.time_limit.isdigit():
            raise TypeError("an integer is required")
        if self.memory_per_node and self.memory_per_cpu:
            raise ValueError("Only one of memory_per_cpu, memory_per_node or memory_per_gpu can be set.")
        gres = self.gres_per_node or {}
        if any(len(kind.split(":")) > 2 for kind in gres):
            raise ValueError("Invalid specifier")
        gpus = self.gpus if not isinstance(self.gpus, dict) else ",".join(f"{k}:{n}" for k, n in self.gpus.items())
        options = {
            "job-name": self.name or "unnamed",
            "nodes": self.nodes or "1-1",
            "ntasks": self.ntasks or 1,
            "ntasks-per-node": self.ntasks_per_node,
            "cpus-per-task": self.cpus_per_task or 1,
            "chdir": self.working_directory or str(Path.cwd()),
            "output": self.standard_output,
            "open-mode": self.log_files_open_mode,
            "time": self.time_limit,
            "mem": f"{self.memory_per_node}M" if self.memory_per_node else None,
            "mem-per-cpu": f"{self.memory_per_cpu}M" if self.memory_per_cpu else None,
            "gpus": gpus,
            "gres": ",".join(f"{kind}:{count}" for kind, count in gres.items()),
            "constraint": self.constraints,
            "partition": self.partitions,
            "account": self.account,
            "qos": self.qos,
            "reservation": self.reservations,
            "array": self.array,
            "dependency": self.dependencies,
            "begin": self.begin_time,
            "exclude": self.excluded_nodes,
        }
        said += [f"--{option}={value}" for option, value in options.items() if value]
        if self.is_requeueable is not None:
            said.append("--requeue" if self.is_requeueable else "--no-requeue")
        arguments = list(self.script_args or [])
        if any(not isinstance(argument, str) for argument in arguments):
            raise TypeError("script_args")
        if arguments and arguments[0] == self.script:
            arguments = arguments[1:]
        if "" in arguments:
            arguments = arguments[: arguments.index("")]
        return [*said, self.script, *arguments]

    def _environment(self) -> dict[str, str]:
        mine = self.environment
        if not mine or mine == "ALL":
            return dict(os.environ)
        if isinstance(mine, str):
            raise AssertionError("a text loads the login environment; nobody should say one")
        leaked = {name: value for name, value in os.environ.items() if name.startswith("SLURM_")}
        return {**leaked, **{str(name): str(value) for name, value in mine.items()}}


class Job:
    def __init__(self, job_id: int, **known: Any) -> None:
        if not isinstance(job_id, int):
            raise TypeError("an integer is required")
        self.id = job_id
        self.__dict__.update(known)

    @staticmethod
    def load(job_id: int) -> Job:
        _misbehave("load")
        known = _recorded(job_id) if "records" in _SAID else _shown(job_id)
        if known is None:
            raise RPCError(2017, "Invalid job id specified")
        return Job(job_id, **known)

    def cancel(self) -> None:
        _misbehave("cancel")
        if "bin" in _SAID:
            done = _tool("scancel", str(self.id))
            if done.returncode and "Unable to contact" in done.stderr:
                raise RPCError(1800, "Unable to contact slurm controller (connect failure)")


def _recorded(job_id: int) -> dict[str, Any] | None:
    recorded = json.loads(Path(_SAID["records"]).read_text())["records"]
    found = [record["Job.load"] for record in recorded if record.get("job_id") == job_id and record.get("Job.load")]
    return next((known for known in found if known["id"] == job_id), None)


def _shown(job_id: int) -> dict[str, Any] | None:
    """What `scontrol show job` says, as the real one's attributes show it."""
    done = _tool("scontrol", "-o", "show", "job", str(job_id))
    if "Unable to contact" in done.stderr:
        raise RPCError(1800, "Unable to contact slurm controller (connect failure)")
    if done.returncode:
        return None
    said = dict(re.findall(r"(\w+)=(\S*)", done.stdout.splitlines()[0]))
    code, _, killed = said["ExitCode"].partition(":")
    # scontrol prints what is left after a division; the attribute subtracts.
    exit_code = int(code) - 128 if int(code) >= 128 else int(code)

    def instant(text: str) -> int | None:
        return None if not text[:1].isdigit() else int(time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S")))

    task = said.get("ArrayTaskId", "")
    return {
        "array_id": int(said["ArrayJobId"]) if "ArrayJobId" in said else None,
        "array_task_id": int(task) if task.isdigit() and task != "0" else None,
        "array_tasks_waiting": task.partition("%")[0] if task and not task.isdigit() else None,
        "name": said["JobName"],
        "state": said["JobState"],
        "state_reason": said["Reason"],
        "exit_code": exit_code,
        "exit_code_signal": int(killed),
        "requeue_count": int(said["Restarts"]),
        "submit_time": instant(said["SubmitTime"]),
        "start_time": instant(said["StartTime"]),
        "end_time": instant(said["EndTime"]) or 6090930523,
        "allocated_nodes": None if "null" in said["NodeList"] else said["NodeList"],
    }


slurmctld = SimpleNamespace()
sys.setdlopenflags(sys.getdlopenflags() | os.RTLD_GLOBAL | os.RTLD_DEEPBIND)

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

# Every attribute of the real one (submission.pxd, `cdef public`); any other raises AttributeError.
_NAMES = """
name account user_id group_id priority site_factor wckey array batch_constraints begin_time clusters
cluster_constraints comment admin_comment requires_contiguous_nodes cores_reserved_for_system
threads_reserved_for_system working_directory cpu_frequency nodes deadline delay_boot_time dependencies
excluded_nodes required_nodes constraints kill_on_node_fail licenses mail_user mail_types mcs_label memory_per_cpu
memory_per_node memory_per_gpu network nice log_files_open_mode overcommit partitions profile_types
accounting_gather_frequency qos requires_node_reboot is_requeueable reservations script script_args environment
resource_sharing distribution time_limit time_limit_min container container_id cpus_per_task cpus_per_gpu
sockets_per_node cores_per_socket threads_per_core gpus gpus_per_socket gpus_per_task gres_per_node gpu_binding
ntasks ntasks_per_node ntasks_per_socket ntasks_per_core ntasks_per_gpu switches signal standard_in
standard_output standard_error kill_on_invalid_dependency spreads_over_nodes use_min_nodes gres_binding
gres_tasks_per_sharing temporary_disk_per_node get_user_environment min_cpus_per_node wait_all_nodes
selinux_context segment_size reserved_ports extra
"""
_ATTRIBUTES = frozenset(_NAMES.split())

# Those that the stand-in can hand to sbatch. The rest exists and would be sent by the real one; nobody should say it.
_HANDED_ON = {
    *("name", "script", "script_args", "working_directory", "standard_output", "log_files_open_mode", "time_limit"),
    *("nodes", "ntasks", "ntasks_per_node", "cpus_per_task", "is_requeueable", "environment", "memory_per_cpu"),
    *("memory_per_node", "gpus", "gres_per_node", "constraints", "partitions", "account", "qos", "reservations"),
    *("array", "dependencies", "begin_time", "excluded_nodes", "standard_in", "profile_types"),
}


def _text(value: Any) -> str | None:
    """A C string: text up to its first NUL, nothing for what is empty. Raises TypeError for anything else."""
    if not value:
        return None
    if not isinstance(value, str):
        raise TypeError(f"expected str, got {type(value).__name__}")
    value.encode()  # UnicodeEncodeError for what is no UTF-8
    return value.partition("\0")[0] or None


def _joined(value: Any) -> str | None:
    return _text(value if not value or isinstance(value, str) else ",".join(value))


def _number(value: Any, bits: int) -> int | None:
    """An unsigned number; zero means "not set". Raises OverflowError and TypeError as the conversion to C does."""
    if value is None or value == 0:
        return None
    if isinstance(value, str) and value.isdigit():
        value = int(value)
    if not isinstance(value, int):
        raise TypeError("an integer is required")
    if not 0 <= value < 1 << bits:
        raise OverflowError(f"value too large to convert to uint{bits}_t")
    return value


def _mebibytes(value: Any) -> int | None:
    if not value:
        return None
    split = re.split(r"([KMGTPEZ ])", str(value))
    if len(split) == 1:
        return _number(int(value), 64)
    return _number(round(float(split[0]) * 1024.0 ** ("KMGTPEZ".index(split[1]) - 1)), 64)


def _minutes(value: Any) -> str | None:
    if value is None:
        return None
    if str(value).isdigit():
        if isinstance(value, str):
            raise TypeError("an integer is required")
        return str(value)
    if not re.fullmatch(r"(?i)unlimited|(\d+-)?\d+(:\d+){0,2}", value):
        raise ValueError(f"Invalid Time Specification: {value}.")
    return str(value)


def _node_range(value: Any) -> str:
    if value is None:
        return "1-1"
    least, dash, most = str(value).partition("-")
    first = max(int(least), 1)
    last = int(most) if dash else first
    if last < first:
        raise ValueError("Max Nodecount cannot be less than minimum nodecount.")
    return f"{first}-{last}"


def _gres(value: Any, kind: str = "") -> str | None:
    if not value:
        return None
    if isinstance(value, str) and not value.isdigit():
        pairs = (item.rsplit(":", 1) for item in value.replace("gres:", "").split(","))
        value = {name: int(count) for name, count in pairs}
    elif not isinstance(value, dict):
        return f"gres:{kind}:{int(value)}"
    said = []
    for name, count in value.items():
        if name.count(":") > 1:
            raise ValueError(f"Invalid specifier: '{name}'")
        # A bare type that has the kind in it is taken for the whole name.
        whole = name if kind in name else f"{kind}:{name}"
        said.append(f"gres:{whole}:{int(count)}")
    return ",".join(said)


def _profile(value: Any) -> list[str]:
    """The kinds of profiling that are asked for. Unset is not none: NO_VAL has every bit but that of NONE."""
    if not value:
        return ["energy", "lustre", "network", "task"]
    kinds = [kind.casefold() for kind in (value.split(",") if isinstance(value, str) else value)]
    if not set(kinds) <= {"energy", "task", "lustre", "network", "none", "all"}:
        raise ValueError("Invalid profile type: {typ}.")
    return kinds


class JobSubmitDescription:
    def __init__(self, **attributes: Any) -> None:
        for name, value in attributes.items():
            setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _ATTRIBUTES:
            raise AttributeError(f"'pyslurm.core.job.submission.JobSubmitDescription' object has no attribute '{name}'")
        assert name in _HANDED_ON, f"{name}: the stand-in does not know what becomes of it"
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name in _ATTRIBUTES:
            return None
        raise AttributeError(name)

    def submit(self) -> int:
        profile = _profile(self.profile_types)
        arguments, environment = self._arguments(), self._environment()
        if "log" in _SAID:
            said = {name: value for name, value in vars(self).items() if name != "profile_types"}
            with Path(_SAID["log"]).open("a") as log:
                log.write(json.dumps({**said, "job_environment": environment, "profile": profile}) + "\n")
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
        if not self.script:
            raise ValueError("You need to provide a batch script.")
        if self.memory_per_node and self.memory_per_cpu:
            raise ValueError("Only one of memory_per_cpu, memory_per_node or memory_per_gpu can be set.")
        per_node, per_cpu = _mebibytes(self.memory_per_node), _mebibytes(self.memory_per_cpu)
        begin = self.begin_time
        if begin and not re.fullmatch(r"now\+\d+|\d+|\d{4}-\d\d-\d\dT[\d:]+", str(begin)):
            raise ValueError(f"Invalid Time Specification: {begin}")
        # `#SBATCH` lines of the script are not read.
        said = ["--parsable", "--ignore-pbs", "--export=ALL"]
        options = {
            "job-name": _text(self.name) or "unnamed",
            "nodes": _node_range(self.nodes),
            "ntasks": _number(self.ntasks or 1, 32),
            "ntasks-per-node": _number(self.ntasks_per_node, 16),
            "cpus-per-task": _number(self.cpus_per_task or 1, 16),
            "chdir": _text(self.working_directory) or str(Path.cwd()),
            "input": _text(self.standard_in),
            "output": _text(self.standard_output),
            "open-mode": self.log_files_open_mode if self.log_files_open_mode in ("append", "truncate") else None,
            "time": _minutes(self.time_limit),
            "mem": f"{per_node}M" if per_node else None,
            "mem-per-cpu": f"{per_cpu}M" if per_cpu and not per_node else None,
            "gpus": (_gres(self.gpus, "gpu") or "").replace("gres:gpu:", ""),
            "gres": (_gres(self.gres_per_node) or "").replace("gres:", ""),
            "constraint": _text(self.constraints),
            "partition": _joined(self.partitions),
            "account": _text(self.account),
            "qos": _text(self.qos),
            "reservation": _joined(self.reservations),
            "array": _text(self.array),
            "dependency": _text(self.dependencies),
            "begin": begin,
            "exclude": _joined(self.excluded_nodes),
        }
        said += [f"--{option}={value}" for option, value in options.items() if value]
        if self.is_requeueable is not None:
            said.append("--requeue" if self.is_requeueable else "--no-requeue")
        return [*said, self._script(), *self._script_args()]

    def _script(self) -> str:
        """The path of what is really sent: the script's text as Python reads it, carriage returns gone."""
        path = Path(self.script)
        if not path.is_file() and self.script_args:
            raise ValueError("Passing arguments to a script is only allowed if it was loaded from a file.")
        text = path.read_text() if path.is_file() else str(self.script)
        if not text or text.isspace() or not text.startswith("#!") or "\0" in text or "\r\n" in text:
            raise ValueError("Not a valid Batch script. First line must start with '#!'")
        if path.is_file() and path.read_bytes() == text.encode():
            return str(path)
        sent = _HERE / f"sent-{os.getpid()}-{time.monotonic_ns()}"
        sent.write_text(text)
        return str(sent)

    def _script_args(self) -> list[str]:
        if isinstance(self.script_args, str):
            raise AssertionError("a text is split as a shell does; nobody should say one")
        arguments = list(self.script_args or [])
        if any(not isinstance(argument, str) for argument in arguments):
            raise TypeError("script_args")
        for argument in arguments:
            argument.encode()
        if arguments and arguments[0] == self.script:
            arguments = arguments[1:]
        if "" in arguments:
            arguments = arguments[: arguments.index("")]
        return arguments

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
        if not 0 <= job_id < 1 << 32:
            raise OverflowError("value too large to convert to uint32_t")
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

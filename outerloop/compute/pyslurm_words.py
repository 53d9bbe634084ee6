"""Between our jobs and pyslurm's words: requests, errors and job records. Pure; never imports pyslurm.

Covered: a JobSpec as the attributes of `pyslurm.JobSubmitDescription`, or why they cannot say it; what an error of a
submission means; job records with their quirks; whose release fits whose. Not covered: asking (pyslurm_child.py), when
to ask (slurm_api.py).

Every quirk named here was measured with pyslurm 25.11.2 on Slurm 25.11.7.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from outerloop.compute.argv import ArrayRange
from outerloop.compute.jobids import expand_ids, task_id
from outerloop.compute.protocol import JobRow, JobSpec, Lane, Refused, Unknown
from outerloop.compute.reasons import classify_refusal
from outerloop.compute.states import parse_state
from outerloop.compute.walltime import format_minutes

__all__ = ["PYSLURM_RELEASE", "RECORD_FIELDS", "CannotSay", "describe", "fits", "read_error", "read_records"]

PYSLURM_RELEASE = "25.11"
"""The Slurm release whose pyslurm this was measured with; it is built against exactly one."""

RECORD_FIELDS = (
    "id",
    "array_id",
    "array_task_id",
    "array_tasks_waiting",
    "name",
    "state",
    "state_reason",
    "exit_code",
    "exit_code_signal",
    "requeue_count",
    "submit_time",
    "start_time",
    "end_time",
    "allocated_nodes",
)
"""Attributes of `pyslurm.Job` that a row is read from."""

# ESLURM_* of slurm_errno.h: the controller looked at the request and said no.
_FIRST_REFUSAL, _LAST_REFUSAL = 2000, 2999
_CONNECT_FAILURE = 1800
"""The connection was refused: nothing was sent. 1801 to 1803, 1007, 5004 and the rest say less."""

# 25.11.2, 25.11.0-1, 25.11.0rc1, slurm-wlm 25.11.2
_RELEASE = re.compile(r"(?<![\d.])(\d{2})\.(\d{1,2})(?!\d)")

_LIBRARY_PREFIX = re.compile(r"^\S+: (?:error|fatal): ")


class CannotSay(Exception):
    """pyslurm has no right words for this job, and the command line does. Nothing was sent."""


def fits(library: str, cluster: str) -> bool:
    """Whether a pyslurm of this version is for a Slurm of that one, in any spelling: year and month must agree.

    As numbers, for pyslurm leaves out a zero that Slurm writes (26.5.0 is for 26.05.5). Without a version nothing fits.
    """
    built, runs = _RELEASE.search(library), _RELEASE.search(cluster)
    return built is not None and runs is not None and [*map(int, built.groups())] == [*map(int, runs.groups())]


def describe(job: JobSpec, tasks: ArrayRange | None, environment: Mapping[str, str]) -> dict[str, Any]:
    """The attributes of a JobSubmitDescription that mean what `sbatch_argv` means, for a job that passed `check_job`.

    `environment` is the clean one that sbatch would be given, with what sbatch adds by itself and pyslurm does not; the
    job's own variables come on top. Everything that pyslurm would fill in differently is stated. Raises CannotSay.
    """
    lane = job.lane
    said: dict[str, Any] = {
        # Unset, the job would have no name at all.
        "name": job.name,
        "script": str(job.script),
        # Without the script's path in front the record names no command, and a first argument like it would be lost.
        "script_args": [str(job.script), *_arguments(job)],
        "working_directory": str(job.workdir),
        "standard_output": str(job.log).replace("%", "%%") + (".%a" if tasks else ""),
        "log_files_open_mode": "append",
        # Unset, the job's record names no input where sbatch's names this.
        "standard_in": "/dev/null",
        # A text of digits alone raises TypeError; D-HH:MM:SS works.
        "time_limit": format_minutes(job.minutes),
        # Unset, both would be one, and sbatch makes one task on each node.
        "nodes": str(job.nodes),
        "ntasks": job.nodes,
        "ntasks_per_node": 1,
        "cpus_per_task": job.cpus,
        "is_requeueable": job.requeue,
        # A dictionary is taken as it is; any text with "=" in it, and "NONE", also load the login environment.
        "environment": {**environment, **job.env, **_told(job)},
        **_memory(job),
        **_gpus(lane, job.gpus, job.nodes),
        **_extra(lane),
    }
    for attribute, value in (
        ("partitions", lane.partition),
        ("account", lane.account),
        ("qos", lane.qos),
        ("reservations", lane.reservation),
    ):
        if value:
            said[attribute] = value
    if tasks is not None:
        said["array"] = f"0-{tasks.count - 1}" + (f"%{tasks.throttle}" if tasks.throttle else "")
    if job.after:
        said["dependencies"] = "afterany:" + ":".join(job.after)
    if job.begin_seconds is not None:
        said["begin_time"] = f"now+{max(0, job.begin_seconds)}"
    if job.exclude:
        said["excluded_nodes"] = ",".join(job.exclude)
    return said


def _told(job: JobSpec) -> dict[str, str]:
    """What sbatch tells a job of its request (sbatch(1), OUTPUT ENVIRONMENT VARIABLES) and the library does not.

    Scripts take their number of threads from it, and the last six tell mpirun and mpiexec how to start. Both 24.11 and
    26.05 set all of them.
    """
    cpus = str(job.cpus)
    told = {
        "SLURM_JOB_NAME": job.name,
        "SLURM_CPUS_PER_TASK": cpus,
        "SLURM_TRES_PER_TASK": f"cpu={cpus}",
        "SLURM_NTASKS_PER_NODE": "1",
        "HYDRA_BOOTSTRAP": "slurm",
        "HYDRA_LAUNCHER_EXTRA_ARGS": "--external-launcher",
        "I_MPI_HYDRA_BOOTSTRAP": "slurm",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": "--external-launcher",
        "OMPI_MCA_plm_slurm_args": "--external-launcher",
        "PRTE_MCA_plm_slurm_args": "--external-launcher",
    }
    typed = f"{job.lane.gpu_type}:" if job.lane.gpu_type else ""
    if job.gpus and job.lane.gpu_flag == "gpus":
        told["SLURM_GPUS"] = f"{typed}{job.gpus * job.nodes}"
    if job.gpus and job.lane.gpu_flag == "gpus-per-node":
        told["SLURM_GPUS_PER_NODE"] = f"{typed}{job.gpus}"
    return told


def _arguments(job: JobSpec) -> tuple[str, ...]:
    if not all(job.args):
        raise CannotSay("an empty argument, and pyslurm drops it with all that follow")
    return job.args


def _memory(job: JobSpec) -> dict[str, Any]:
    # Numbers are MiB. Zero and small amounts in K would mean "no limit asked".
    if job.memory_mb is None or job.lane.memory_flag == "none":
        return {}
    if job.lane.memory_flag == "mem-per-cpu":
        return {"memory_per_cpu": math.ceil(job.memory_mb / job.cpus)}
    return {"memory_per_node": job.memory_mb}


def _gpus(lane: Lane, gpus: int, nodes: int) -> dict[str, Any]:
    if not gpus or lane.gpu_flag == "none":
        return {}
    if lane.gpu_flag == "gpus":
        # With its prefix: the library takes a bare type with "gpu" in it for a whole name.
        return {"gpus": {f"gpu:{lane.gpu_type}": gpus * nodes} if lane.gpu_type else gpus * nodes}
    # sbatch's --gpus-per-node and --gres=gpu end in the same request.
    return {"gres_per_node": {f"gpu:{lane.gpu_type}" if lane.gpu_type else "gpu": gpus}}


def _extra(lane: Lane) -> dict[str, Any]:
    said: dict[str, Any] = {}
    for option in lane.extra:
        name, equals, value = option.partition("=")
        if name != "--constraint" or not equals or "constraints" in said:
            raise CannotSay(f"the lane's option {option}")
        said["constraints"] = value
    return said


def read_error(errno: int, text: str, printed: str) -> Refused | Unknown:
    """What `pyslurm.RPCError(errno, text)` means for a submission, with what the library printed meanwhile.

    The error itself does not name the limit that a policy refusal is about; the library's line on stderr does. An
    error outside the controller's own refusals proves nothing: with 5004 (timed out) the job was queued three times
    out of three.
    """
    lines = [_LIBRARY_PREFIX.sub("", line.strip()) for line in printed.splitlines() if line.strip()]
    told = "\n".join(lines)
    if errno == _CONNECT_FAILURE or _FIRST_REFUSAL <= errno <= _LAST_REFUSAL:
        refused = classify_refusal(1, "\n".join([*lines, f"Batch job submission failed: {text}"]))
        if refused is not None:
            return refused
    why = f"pyslurm: {text} (errno {errno})"
    return Unknown(f"{why}: {told}" if told else why)


def read_records(records: Iterable[Mapping[str, Any]]) -> list[JobRow]:
    """Rows of job records with RECORD_FIELDS, one row per array task.

    A pending array is one record with its tasks as a text. A task that runs or ended has a record of its own, with
    another id; 0 is not kept apart from "not set", so a record of an array with neither task nor tasks is task 0. A
    task that was cancelled while it was folded has no record anywhere.
    """
    rows = []
    for record in records:
        state = parse_state(str(record["state"]))
        reason = str(record["state_reason"] or "")
        code, signal = _exits(record)
        for job_id in _ids(record):
            rows.append(
                JobRow(
                    job_id=job_id,
                    name=str(record["name"] or ""),
                    state=state.state,
                    reason="" if reason == "None" else reason,
                    exit_code=code,
                    signal=signal,
                    restarts=record["requeue_count"],
                    node=str(record["allocated_nodes"] or ""),
                    submitted=_instant(record["submit_time"]),
                    started=_instant(record["start_time"]),
                    # Until a job has ended this is a forecast, or nonsense.
                    ended=_instant(record["end_time"]) if state.state.final else None,
                    raw_state=str(record["state"]),
                )
            )
    return rows


def _ids(record: Mapping[str, Any]) -> tuple[str, ...]:
    array, task, waiting = record["array_id"], record["array_task_id"], record["array_tasks_waiting"]
    if array is None:
        return (str(record["id"]),)
    if waiting:
        return expand_ids(f"{array}_[{waiting}]")
    return (task_id(str(array), int(task or 0)),)


def _exits(record: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """(exit code, signal), None where the record does not tell.

    128 is taken off codes from 128 up (255 shows 127, 128 shows 0), so that no code of a failed job can be believed.
    The signals of jobs that were ended by Slurm (NODE_FAIL 1, OUT_OF_MEMORY 125) are none that a process got.
    """
    if record["state"] == "COMPLETED":
        return 0, None
    if record["state"] == "FAILED" and record["exit_code_signal"]:
        return 0, int(record["exit_code_signal"])
    return None, None


def _instant(value: Any) -> float | None:
    return None if value is None else float(value)

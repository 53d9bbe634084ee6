"""The one builder of sbatch's command line: measuring jobs, wakes and retries all pass through it.

Covered: options as arguments, GPU and memory spellings, what a lane's extra options may say, checks that keep a
nonsense job from leaving the house. Not covered: running sbatch (slurm.py) and reading its answer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from outerloop.compute.jobids import is_job_id
from outerloop.compute.names import check_name
from outerloop.compute.protocol import JobSpec, Lane, Refused, When
from outerloop.compute.tools import acts_as_option
from outerloop.compute.walltime import format_minutes

__all__ = ["MAX_SCRIPT_BYTES", "ArrayRange", "check_extra", "check_job", "sbatch_argv"]

MAX_SCRIPT_BYTES = 4 * 1024 * 1024
"""slurmctld's default cap on a job script (SchedulerParameters=max_script_size)."""


@dataclass(frozen=True)
class ArrayRange:
    """Tasks 0 to count-1 of an array; at most `throttle` of them at once, None for no such limit."""

    count: int
    throttle: int | None = None


_MEMORY_OPTIONS = frozenset({"--mem", "--mem-per-cpu", "--mem-per-gpu"})
# Stated by the job's own request, or by this builder for reasons of its own.
_OURS = frozenset(
    {
        "--array",
        "-a",
        "--begin",
        "-b",
        "--chdir",
        "-D",
        "--cpus-per-task",
        "-c",
        "--dependency",
        "-d",
        "--error",
        "-e",
        "--export",
        "--export-file",
        "--gpus",
        "-G",
        "--gpus-per-node",
        "--gres",
        "--job-name",
        "-J",
        "--nodes",
        "-N",
        "--ntasks",
        "-n",
        "--ntasks-per-node",
        "--no-requeue",
        "--open-mode",
        "--output",
        "-o",
        "--parsable",
        "--partition",
        "-p",
        "--account",
        "-A",
        "--qos",
        "-q",
        "--reservation",
        "--requeue",
        "--test-only",
        "--time",
        "-t",
        "--wait",
        "-W",
        "--wrap",
        "--exclude",
        "-x",
        "--get-user-env",
        "--quiet",
        "-Q",
        "--help",
        "-h",
        "--usage",
        "--version",
        "-V",
    }
)


def check_extra(lane: Lane) -> Refused | None:
    """Whether the lane's extra options say something that the job's own request must say, such as a second memory
    form. A mistake of the configuration, so found before anything is submitted."""
    for option in lane.extra:
        name = _option_name(option)
        if name in _MEMORY_OPTIONS:
            return Refused(
                "MEMORY_FORM",
                When.CONFIG,
                f"lane {lane.name!r}: extra option {option!r} is a second memory form; set the lane's memory_flag",
            )
        if name in _OURS:
            return Refused(
                "EXTRA_OPTION",
                When.CONFIG,
                f"lane {lane.name!r}: extra option {option!r} repeats what the lane or the job says itself",
            )
        if not option.startswith("-") or option == "--":
            return Refused(
                "EXTRA_OPTION",
                When.CONFIG,
                f"lane {lane.name!r}: extra option {option!r} is not an option; write it as --name=value",
            )
    return None


def _option_name(option: str) -> str:
    if option.startswith("--"):
        name = option.partition("=")[0]
        # getopt takes any unambiguous beginning: --part=gpu is --partition.
        fits = [ours for ours in _OURS | _MEMORY_OPTIONS if ours.startswith("--") and ours.startswith(name)]
        return name if name in fits or len(fits) != 1 else fits[0]
    return option[:2]


def check_job(
    job: JobSpec, tasks: ArrayRange | None = None, *, max_script_bytes: int = MAX_SCRIPT_BYTES
) -> Refused | None:
    """What would make the submission nonsense, as the refusal that it would earn; None for a sane job."""

    def config(reason: str, detail: str) -> Refused:
        return Refused(reason, When.CONFIG, detail)

    try:
        check_name(job.name)
    except ValueError as error:
        return config("JobName", str(error))
    try:
        format_minutes(job.minutes)
    except ValueError as error:
        return config("TimeLimit", str(error))
    if job.lane.max_minutes is not None and job.minutes > job.lane.max_minutes:
        return Refused(
            "LaneTimeLimit",
            When.NEVER,
            f"{job.minutes:g} minutes are more than the {job.lane.max_minutes:g} of lane {job.lane.name!r}",
        )
    for label, amount in (("cpus", job.cpus), ("nodes", job.nodes)):
        if amount < 1:
            return config("Resources", f"{label} = {amount} is less than one")
    if tasks is not None and (tasks.count < 1 or (tasks.throttle is not None and tasks.throttle < 1)):
        return config("Array", f"{tasks.count} tasks, {tasks.throttle} at once: not an array")
    if job.gpus < 0 or (job.memory_mb is not None and job.memory_mb < 1):
        return config("Resources", f"gpus = {job.gpus}, memory_mb = {job.memory_mb}: not an amount")
    for label, path in (("script", job.script), ("log", job.log), ("workdir", job.workdir)):
        if not path.is_absolute():
            return config("Path", f"{label} {str(path)!r} is not an absolute path")
    for job_id in job.after:
        if not is_job_id(job_id):
            return config("Dependency", f"{job_id!r} is not a job id")
    if "," in "".join(job.exclude) or any(not node for node in job.exclude):
        return config("Exclude", f"exclude = {job.exclude!r} is not a list of node names")
    bad = next((name for name in job.env if acts_as_option(name) or not name or "=" in name), None)
    if bad is not None:
        return config("Environment", f"variable {bad!r} would be read by Slurm as an option of the submission")
    for text in (*job.args, *job.env, *job.env.values(), str(job.script), str(job.log), str(job.workdir)):
        if "\0" in text:
            return config("Environment", f"{text!r} holds a NUL")
    extra = check_extra(job.lane)
    if extra:
        return extra
    try:
        size = job.script.stat().st_size
        with job.script.open("rb") as script:
            shebang = script.read(2)
    except OSError as error:
        return config("SCRIPT_MISSING", f"{job.script}: {error.strerror}")
    if shebang != b"#!":
        return config("SCRIPT_SHEBANG", f"script {job.script} does not begin with #!")
    if size > max_script_bytes:
        return Refused(
            "SCRIPT_TOO_LARGE",
            When.NEVER,
            f"script {job.script} has {size} bytes, the site takes {max_script_bytes}; payload belongs into a file",
        )
    return None


def sbatch_argv(sbatch: Path, job: JobSpec, tasks: ArrayRange | None = None) -> list[str]:
    """sbatch's arguments for a job (or an array of them) that `check_job` let pass.

    `gpus` and `memory_mb` are per node.
    """
    lane = job.lane
    argv = [
        str(sbatch),
        "--parsable",
        f"--job-name={job.name}",
        f"--output={_literal(job.log)}" + (".%a" if tasks else ""),
        "--open-mode=append",
        f"--chdir={job.workdir}",
        f"--time={format_minutes(job.minutes)}",
        f"--nodes={job.nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={job.cpus}",
        *_memory(job),
        *gpu_options(job.lane, job.gpus, job.nodes),
        *(f"--{option}={value}" for option, value in _where(lane).items() if value),
        "--requeue" if job.requeue else "--no-requeue",
        # NONE and lists of names load the user's login environment, secrets included. ALL hands over sbatch's own,
        # which is the clean one that we gave it.
        "--export=ALL",
    ]
    if tasks is not None:
        argv.append(f"--array=0-{tasks.count - 1}" + (f"%{tasks.throttle}" if tasks.throttle else ""))
    if job.after:
        argv.append("--dependency=afterany:" + ":".join(job.after))
    if job.begin_seconds is not None:
        argv.append(f"--begin=now+{max(0, job.begin_seconds)}")
    if job.exclude:
        argv.append("--exclude=" + ",".join(job.exclude))
    return [*argv, *lane.extra, str(job.script), *job.args]


def srun_options(lane: Lane, *, minutes: float, cpus: int, memory_mb: int | None, gpus: int) -> list[str]:
    """srun's options for one task on one node, asked for as `sbatch_argv` asks for a job of this lane."""
    memory = [] if memory_mb is None else [f"--mem={memory_mb}M"]
    if memory_mb is not None and lane.memory_flag != "mem":
        per_cpu = lane.memory_flag == "mem-per-cpu"
        memory = [f"--mem-per-cpu={math.ceil(memory_mb / cpus)}M"] if per_cpu else []
    return [
        f"--time={format_minutes(minutes)}",
        "--nodes=1",
        "--ntasks=1",
        f"--cpus-per-task={cpus}",
        *memory,
        *gpu_options(lane, gpus, 1),
        *(f"--{option}={value}" for option, value in _where(lane).items() if value),
        *lane.extra,
    ]


def _where(lane: Lane) -> Mapping[str, str]:
    return {
        "partition": lane.partition,
        "account": lane.account,
        "qos": lane.qos,
        "reservation": lane.reservation,
    }


def _literal(log: Path) -> str:
    # sbatch replaces %j, %x and the like in file names; %% is a per cent sign.
    return str(log).replace("%", "%%")


def _memory(job: JobSpec) -> list[str]:
    if job.memory_mb is None or job.lane.memory_flag == "none":
        return []
    if job.lane.memory_flag == "mem-per-cpu":
        return [f"--mem-per-cpu={math.ceil(job.memory_mb / job.cpus)}M"]
    return [f"--mem={job.memory_mb}M"]


def gpu_options(lane: Lane, gpus: int, nodes: int) -> list[str]:
    """How this lane spells `gpus` GPUs on each of `nodes` nodes, for sbatch and srun alike."""
    if not gpus or lane.gpu_flag == "none":
        return []
    typed = f"{lane.gpu_type}:" if lane.gpu_type else ""
    if lane.gpu_flag == "gres":
        return [f"--gres=gpu:{typed}{gpus}"]
    if lane.gpu_flag == "gpus":
        return [f"--gpus={typed}{gpus * nodes}"]
    return [f"--gpus-per-node={typed}{gpus}"]

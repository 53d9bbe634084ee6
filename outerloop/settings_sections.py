"""The sections of config.toml, a model each, with a description per field and the checks inside one section.

Covered: kinds of values (paths, options) and defaults. Not covered: the whole file and the environment (settings.py).
"""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
)

from outerloop.compute.names import NAME, check_template

__all__ = [
    "BudgetSettings",
    "DispatchSettings",
    "Isolation",
    "LaneSettings",
    "LocalPath",
    "LocalSettings",
    "NotifySettings",
    "SlurmSettings",
    "WakeSettings",
    "asks_for_gpus",
    "home",
]

Isolation = Literal["none", "bwrap", "apptainer"]

_MEMORY_OPTIONS = frozenset({"--mem", "--mem-per-cpu", "--mem-per-gpu"})
_GPU_OPTIONS = frozenset(
    {"--gres", "--gpus", "-G", "--gpus-per-node", "--gpus-per-task", "--gpus-per-socket", "--tres-per-node"}
)
_FIELD_OF_OPTION = {
    "--partition": "partition",
    "-p": "partition",
    "--account": "account",
    "-A": "account",
    "--qos": "qos",
    "-q": "qos",
    "--reservation": "reservation",
}
_OURS = frozenset(
    {
        "--job-name",
        "-J",
        "--output",
        "-o",
        "--error",
        "-e",
        "--dependency",
        "-d",
        "--array",
        "-a",
        "--time",
        "-t",
        "--export",
        "--export-file",
        "--parsable",
        "--wrap",
        "--requeue",
        "--no-requeue",
        "--open-mode",
        "--chdir",
        "-D",
        "--begin",
        "-b",
        "--nodes",
        "-N",
        "--ntasks",
        "-n",
        "--cpus-per-task",
        "-c",
        "--exclude",
        "-x",
        "--test-only",
        "--wait",
        "-W",
        "--hold",
        "-H",
    }
)
"""sbatch options that the job builder sets itself, per job; a lane that sets them too would break exactly-once."""


_SHORTEST_ABBREVIATION = len("--no")


def _meant(name: str, known: Iterable[str]) -> str | None:
    """The option of `known` that sbatch would take `name` for, or None."""
    for option in known:
        abbreviated = name.startswith("--") and len(name) >= _SHORTEST_ABBREVIATION and option.startswith(name)
        if name == option or abbreviated:
            return option
    return None


def asks_for_gpus(options: Iterable[str]) -> bool:
    """Whether one of these sbatch options asks for GPUs."""
    return any(_meant(option.split("=", 1)[0], _GPU_OPTIONS) for option in options)


def home() -> Path:
    # HOME may be unset or unwritable in a job; the account's own folder is then in the password database
    try:
        return Path.home()
    except RuntimeError:
        return Path("/")  # an account without a password entry; nothing is written there, `state` must be set


def _local_path(value: Any) -> Any:
    """`~` is the account's home. Relative paths are refused: cron, a shell and a job start in different folders."""
    if isinstance(value, (str, Path)) and str(value):
        if "\0" in str(value):
            raise ValueError("contains a null byte")
        try:
            expanded = Path(value).expanduser()
        except RuntimeError:
            raise ValueError("~ can't be expanded: there is no such account or it has no home folder") from None
        if not expanded.is_absolute():
            raise ValueError("must be an absolute path (or begin with ~/)")
        return expanded
    if value == "":
        raise ValueError("must not be empty")
    return value


def _optional_path(value: Any) -> Any:
    return None if value == "" else _local_path(value)


def _options(value: Any) -> Any:
    # an environment variable holds one string
    if isinstance(value, str):
        try:
            return json.loads(value) if value.lstrip().startswith("[") else shlex.split(value)
        except ValueError as error:
            raise ValueError(f"can't be split into options: {error}") from None
    return value


LocalPath = Annotated[Path, BeforeValidator(_local_path)]
OptionalPath = Annotated[Path | None, BeforeValidator(_optional_path)]


MOST = 2**31 - 1
"""Bound of every number of the settings: as seconds or minutes no date overflows, as a count an `integer` holds it."""


def bounded(value: Any) -> Any:
    """A value of any kind; numbers are finite and none is beyond `MOST`. Raises ValueError."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError("must be a finite number")
        if abs(value) > MOST:
            raise ValueError(f"must be at most {MOST}")
    return value


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, defer_build=True)

    _bounded = field_validator("*", mode="after")(bounded)


class SlurmSettings(_Section):
    """How the Slurm command line is reached."""

    bin_dir: OptionalPath = Field(
        default=None, description="Folder of sbatch, squeue, sacct and scancel. Empty: looked up in PATH."
    )
    conf: OptionalPath = Field(
        default=None, description="slurm.conf, given to the tools as SLURM_CONF. Empty: the site's own default."
    )
    user: str = Field(default="", description="Account whose jobs are listed. Empty: the one that runs outerloop.")
    sbatch_timeout_seconds: float = Field(
        default=60.0, gt=0, description="A submission without an answer for so long has an unknown outcome."
    )
    query_timeout_seconds: float = Field(
        default=60.0, gt=0, description="squeue, sacct and scontrol count as not answering after so long."
    )
    max_script_bytes: int = Field(
        default=4 * 1024 * 1024,
        ge=4096,
        description="Largest job script that the site takes: max_script_size of its SchedulerParameters.",
    )
    accounting: Literal["auto", "on", "off"] = Field(
        default="auto", description="Whether sacct is asked. auto: unless the site turned out to have none."
    )
    api: Literal["auto", "cli", "pyslurm"] = Field(
        default="auto",
        description="Command line or pyslurm. auto: pyslurm where it loads and fits the cluster, for many requests.",
    )
    pyslurm_path: OptionalPath = Field(
        default=None, description="Folder with the site's pyslurm, where outerloop's own environment has none."
    )
    job_name: Annotated[str, AfterValidator(check_template)] = Field(
        default=NAME,
        description="Job names as the site wants them, with {name} where ours goes. Change it while no job is open.",
    )
    submit_from_jobs: Literal["auto", "yes", "no"] = Field(
        default="auto", description="Whether compute nodes may run sbatch and reach the record (wake jobs need both)."
    )


class LocalSettings(_Section):
    """The local backend: jobs as processes of this machine."""

    cpus: int = Field(
        default_factory=lambda: os.cpu_count() or 1, ge=1, description="CPUs that local jobs may use together."
    )
    gpus: int = Field(default=0, ge=0, description="GPUs that local jobs may use together.")
    gpu_memory_gb: float = Field(
        default=0.0, ge=0, description="GiB that must be free on each GPU before a job starts on it. 0: not looked at."
    )
    gpu_share: int = Field(default=1, ge=1, description="Local jobs that may hold one GPU at the same time.")
    processes: int = Field(
        default=0,
        ge=0,
        description="Processes and threads set aside for a job below the control group's limit. 0: not looked at.",
    )
    parallel: int = Field(default=0, ge=0, description="Local jobs that may run at once. 0: as the CPUs allow.")

    @field_validator("gpu_share")
    @classmethod
    def _memory_is_known_where_gpus_are_shared(cls, share: int, info: ValidationInfo) -> int:
        if share > 1 and not info.data.get("gpu_memory_gb"):
            raise ValueError("needs gpu_memory_gb: what each of the jobs on a GPU may use")
        return share


class LaneSettings(_Section):
    """One named place to run. Empty text says nothing to Slurm about it."""

    partition: str = Field(default="", description="Slurm partition. Empty: the cluster's default.")
    account: str = Field(default="", description="Slurm account. Empty: the default lane's.")
    qos: str = Field(default="", description="Quality of service.")
    reservation: str = Field(default="", description="Reservation to run in.")
    gpu_flag: Literal["gpus-per-node", "gres", "gpus", "none"] = Field(
        default="gpus-per-node", description="How this site wants GPUs to be asked for."
    )
    gpu_type: str = Field(default="", description="GPU type, as the site spells it, for work that names none.")
    node_gpus: int = Field(
        default=0, ge=0, description="GPUs of one node. Challenges may then name the lane as their flavor. 0: not said."
    )
    memory_flag: Literal["mem", "mem-per-cpu", "none"] = Field(
        default="mem", description="The one form in which memory is asked for. none: the site refuses memory requests."
    )
    max_minutes: float | None = Field(
        default=None, gt=0, description="Longest walltime of this lane. Longer work is refused before it is submitted."
    )
    array_throttle: int | None = Field(
        default=None, ge=1, description="Tasks of one job array that may run at once. Unset: as many as the site lets."
    )
    prologue: str = Field(
        default="", description="Shell lines before the work: module loads, extra PATH. Part of a result's identity."
    )
    cache_seed: OptionalPath = Field(
        default=None, description="Folder copied into each job's scratch caches: warmed kernels, wheels."
    )
    extra: Annotated[tuple[str, ...], BeforeValidator(_options)] = Field(
        default=(), description='Further sbatch options, such as ["--constraint=a100"].'
    )
    isolation: Isolation | None = Field(default=None, description="Overrides the deployment's isolation in this lane.")
    image: OptionalPath = Field(
        default=None, description="Container image for apptainer, unless the benchmark names one."
    )

    @field_validator("extra")
    @classmethod
    def _options_fit(cls, options: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        for option in options:
            if not option.strip() or "\0" in option or "\n" in option:
                raise ValueError("an option must be one non-empty line")
            # getopt takes -pgpu for -p gpu, and any unique beginning of a long option
            name = option.split("=", 1)[0].split()[0] if option.startswith("--") else option[:2]
            owned = _meant(name, _FIELD_OF_OPTION)
            if owned:
                raise ValueError(f"{option} has a setting of its own: {_FIELD_OF_OPTION[owned]}")
            memory_flag = info.data.get("memory_flag", "none")
            if _meant(name, _MEMORY_OPTIONS) and memory_flag != "none":
                raise ValueError(
                    f'{option} asks for memory a second time beside memory_flag = "{memory_flag}";'
                    ' Slurm refuses that. Remove it, or set memory_flag = "none"'
                )
            gpu_flag = info.data.get("gpu_flag", "none")
            if _meant(name, _GPU_OPTIONS) and gpu_flag != "none":
                raise ValueError(
                    f'{option} asks for GPUs a second time beside gpu_flag = "{gpu_flag}";'
                    ' remove it, or set gpu_flag = "none"'
                )
            if _meant(name, _OURS):
                raise ValueError(f"{option} is set by outerloop for each job and can't be set for a lane")
        return options


class WakeSettings(_Section):
    """Jobs that resume a parked run when what it waits for has ended."""

    mode: Literal["auto", "always", "never"] = Field(
        default="auto", description="auto: beyond half the cap, a wake job only while the tick's heartbeat is stale."
    )
    lane: str = Field(default="", description='Lane of wake jobs. Empty: "wake" if there is such a lane, else default.')
    minutes: float = Field(default=10.0, gt=0, description="Walltime of a wake job.")
    cap: int = Field(default=20, ge=0, description="Live wake jobs per owner; runs beyond it wait for the tick.")
    cadence_seconds: float = Field(default=300.0, gt=0, description="How often the tick runs (cron, or tick --loop).")


class NotifySettings(_Section):
    """Who is told of verdicts, new champions and blocked runs. The tick tells them."""

    urls: tuple[SecretStr, ...] = Field(
        default=(),
        description='Apprise URLs, such as ["mailto://…", "slack://…", "json://localhost:8000"]. Empty: nobody.',
    )
    on: tuple[Literal["verdict", "champion", "blocked"], ...] = Field(
        default=("champion", "blocked"), description="What is told: verdict (every ending), champion, blocked."
    )


class DispatchSettings(_Section):
    """Patience, in seconds by the database's clock, and the number of tries."""

    grace_seconds: float = Field(
        default=60.0, ge=0, description="How long files may lag behind the queue before their absence means anything."
    )
    intent_patience_seconds: float = Field(
        default=180.0, ge=0, description="Age at which an unanswered submission is looked for in queue and history."
    )
    max_attempts: int = Field(
        default=3, ge=1, description="Attempts of a slot that infrastructure may use up before its runs are blocked."
    )
    backoff_seconds: float = Field(default=60.0, ge=0, description="Wait before the second attempt; then doubled.")
    lease_seconds: float = Field(
        default=300.0, gt=0, description="How long a process may work on a run before another may take over."
    )
    margin_minutes: float = Field(
        default=5.0, ge=0, description="Walltime beyond a benchmark's minutes, for setup, scoring and our own stop."
    )
    gone_grace_seconds: float = Field(
        default=120.0,
        ge=0,
        description="How long a job is absent from queue and history before it counts as lost.",
    )
    preempt_grace_seconds: float = Field(
        default=300.0, ge=0, description="How long a preempted job may be unlisted before a new attempt is made."
    )


class BudgetSettings(_Section):
    """Limits of this deployment, on top of each target's own."""

    gpu_hours: float | None = Field(default=None, ge=0, description="GPU-hours per target. Unset: no limit.")
    runs_per_week: int | None = Field(default=None, ge=0, description="Runs per target and week. Unset: no limit.")


class SubmitterLimits(_Section):
    """What one submitter may use of a service."""

    gpu_hours: float | None = Field(default=None, ge=0, description="GPU-hours. Unset: no limit.")
    runs_per_week: int | None = Field(default=None, ge=0, description="Runs per week. Unset: no limit.")
    open_runs: int | None = Field(default=None, ge=0, description="Runs open at one time. Unset: no limit.")


class TargetSettings(_Section):
    """A target that a service takes submissions for."""

    repository: LocalPath = Field(
        description="The operator's clone: where refs, contract and inputs are read. No submitter may write it."
    )
    refs: Annotated[tuple[str, ...], BeforeValidator(_options)] = Field(
        default=("main",),
        min_length=1,
        description="A base must lie in the history of one of these; the first is the default.",
    )
    accept: Annotated[tuple[Literal["climb", "noise", "training"], ...], BeforeValidator(_options)] = Field(
        default=("climb", "noise"),
        min_length=1,
        description="What submitters may ask: climb, noise; training runs a command of their own, in the sandbox.",
    )
    lanes: Annotated[tuple[str, ...], BeforeValidator(_options)] = Field(
        default=(), description="Lanes that a training may name. Empty: it runs in gpu or default and names none."
    )
    max_tasks: int = Field(default=100, ge=1, description="Tasks of one training.")


class ServiceSettings(_Section):
    """A service deployment: one account dispatches what others submit."""

    account: str = Field(default="", description="Account that dispatches. Empty: the owner of the spool.")
    spool: OptionalPath = Field(
        default=None, description="Folder that submitters and the service share: submissions and answers."
    )
    submitters: Annotated[tuple[str, ...], BeforeValidator(_options)] = Field(
        default=(), description='Accounts that may submit; ["*"] is every account of this host.'
    )
    max_bundle_mb: int = Field(default=256, ge=1, description="Largest submission that is taken.")
    max_per_tick: int = Field(default=50, ge=1, description="Submissions of one account that one tick takes in.")
    gpu_hours: float | None = Field(default=None, ge=0, description="GPU-hours per submitter. Unset: no limit.")
    runs_per_week: int | None = Field(default=None, ge=0, description="Runs per submitter and week. Unset: no limit.")
    open_runs: int | None = Field(default=None, ge=0, description="Open runs per submitter. Unset: no limit.")
    limits: dict[str, SubmitterLimits] = Field(default_factory=dict, description="Other limits of some submitters.")
    targets: dict[str, TargetSettings] = Field(default_factory=dict, description="Targets that may be asked about.")

    def limits_of(self, submitter: str) -> SubmitterLimits:
        """The limits of one account: its own, and the common ones where it has none."""
        own = self.limits.get(submitter) or SubmitterLimits()
        common = {name: getattr(self, name) for name in SubmitterLimits.model_fields}
        return SubmitterLimits(**(common | own.model_dump(exclude_none=True)))

"""What a cluster must be able to do for us, and the answers it may give. Types only, no behaviour.

Covered: the Compute protocol, job requests, the three outcomes of a submit, listings and histories, job states.
Not covered: how states are spelled by Slurm (states.py), why a submission was refused (reasons.py), backends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

__all__ = [
    "Accepted",
    "Compute",
    "History",
    "JobRow",
    "JobSpec",
    "JobState",
    "Lane",
    "Listing",
    "LooksUp",
    "NoAnswer",
    "Refused",
    "Sights",
    "SiteLimits",
    "SubmitOutcome",
    "Unavailable",
    "Unknown",
    "When",
]


class JobState(StrEnum):
    """The small enum behind Slurm's many spellings. `UNKNOWN` is active: silence is never an ending."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETING = "completing"
    SUSPENDED = "suspended"
    COMPLETED = "completed"
    FAILED = "failed"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    NODE_FAIL = "node_fail"
    BOOT_FAIL = "boot_fail"
    LAUNCH_FAILED = "launch_failed"
    DEADLINE = "deadline"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    UNKNOWN = "unknown"

    @property
    def final(self) -> bool:
        """True when Slurm will not change it without a requeue. PREEMPTED counts: whoever reads a *listing* must
        still treat a listed PREEMPTED job as alive."""
        return self not in _ACTIVE


_ACTIVE = frozenset({JobState.PENDING, JobState.RUNNING, JobState.COMPLETING, JobState.SUSPENDED, JobState.UNKNOWN})


@dataclass(frozen=True)
class Lane:
    """A named place to run. Empty strings mean "say nothing to Slurm about it"."""

    name: str
    partition: str = ""
    account: str = ""
    qos: str = ""
    reservation: str = ""
    gpu_flag: Literal["gpus-per-node", "gres", "gpus", "none"] = "gpus-per-node"
    gpu_type: str = ""
    memory_flag: Literal["mem", "mem-per-cpu", "none"] = "mem"
    max_minutes: float | None = None
    array_throttle: int | None = None
    """Tasks of one array that may run at once; None for any number. Other jobs know no such limit."""
    extra: tuple[str, ...] = ()


@dataclass(frozen=True)
class JobSpec:
    """One job, resources stated in full. `minutes` is Slurm's walltime, already including our margins."""

    name: str
    script: Path
    log: Path
    workdir: Path
    lane: Lane
    minutes: float
    args: tuple[str, ...] = ()
    cpus: int = 1
    memory_mb: int | None = None
    gpus: int = 0
    nodes: int = 1
    after: tuple[str, ...] = ()
    """Job ids of an `afterany` dependency."""
    begin_seconds: int | None = None
    """Do not start before this many seconds from now."""
    requeue: bool = False
    exclude: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    """Set in the submitting tool's own (scrubbed) environment, so that it reaches the job by --export=ALL."""


class When(StrEnum):
    """When a refused submission may be tried again."""

    LATER = "later"
    NEVER = "never"
    CONFIG = "config"


@dataclass(frozen=True)
class Accepted:
    """The cluster has the job and said its id."""

    job_id: str
    cluster: str = ""
    notes: str = ""


@dataclass(frozen=True)
class Refused:
    """The cluster said no. `reason` is a token such as AssocMaxSubmitJobLimit, `detail` what it printed."""

    reason: str
    when: When
    detail: str = ""


@dataclass(frozen=True)
class Unknown:
    """Nobody knows whether the job exists: a timeout, a killed client, an empty or unparsable success."""

    why: str


SubmitOutcome = Accepted | Refused | Unknown


@dataclass(frozen=True)
class JobRow:
    """One job as a listing or a history shows it. Times are epoch seconds or None."""

    job_id: str
    """"123", or "123_4" for an array task."""
    name: str
    state: JobState
    reason: str = ""
    exit_code: int | None = None
    signal: int | None = None
    restarts: int | None = None
    node: str = ""
    submitted: float | None = None
    started: float | None = None
    ended: float | None = None
    cancelled_by: str = ""
    """Numeric uid or name behind "CANCELLED by", empty when not said."""
    raw_state: str = ""


NO_REASON = "None"
"""What squeue prints where a job waits for nothing."""

Sights = list[tuple[str, str]]
"""See `Listing.sights`."""


@dataclass(frozen=True)
class Listing:
    """Every job of ours that the queue shows, finished-but-listed ones included. A complete answer."""

    jobs: tuple[JobRow, ...]
    bad_rows: int = 0
    """Rows that could not be read: one of them may be any job, so absence means nothing then."""

    def by_id(self) -> Mapping[str, JobRow]:
        return {job.job_id: job for job in self.jobs}

    def states(self) -> Mapping[str, tuple[JobState, str]]:
        """Job id -> (state, reason): what a sweep compares."""
        return {job.job_id: (job.state, job.reason) for job in self.jobs}

    def sights(self) -> Sights:
        """("<job id>|<STATE>|", reason) of each job, in Slurm's spelling; a reason that is none is "None". For telling
        tens of thousands of unchanged jobs at once; whoever finds a job missing here looks at `states`."""
        return [(f"{job.job_id}|{job.state.name}|", job.reason or NO_REASON) for job in self.jobs]

    def changes(self, since: object) -> tuple[Sights, Sights] | None:
        """(sights that went, sights that came) since the listing whose `mark` this is; None where that is not known."""
        return None

    @property
    def mark(self) -> object:
        """Stands for what is listed: the same for two listings only if both show the very same."""
        return self

    def by_name(self) -> dict[str, list[JobRow]]:
        names: dict[str, list[JobRow]] = {}
        for job in self.jobs:
            names.setdefault(job.name, []).append(job)
        return names


@dataclass(frozen=True)
class History:
    """What accounting knows of the ids and names that were asked for. A complete answer."""

    jobs: tuple[JobRow, ...]


@dataclass(frozen=True)
class NoAnswer:
    """The tool failed, timed out or gave half an answer: nothing is known, nothing may change."""

    why: str


@dataclass(frozen=True)
class Unavailable:
    """The site has no accounting (or no such tool). Noted once; the queue and the files must do."""

    why: str


@dataclass(frozen=True)
class SiteLimits:
    """What doctor probed of a site."""

    version: str = ""
    cluster: str = ""
    max_array_size: int | None = None
    min_job_age_seconds: int | None = None
    message_timeout_seconds: int | None = None
    kill_wait_seconds: int | None = None
    preempt_mode: str = ""
    max_script_bytes: int | None = None
    """None where the site sets none, so that Slurm's default holds."""
    accounting: bool | None = None
    partitions: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@runtime_checkable
class LooksUp(Protocol):
    """A backend that can be asked about one job, for less than a listing costs."""

    def look_up(self, job_id: str) -> JobRow | NoAnswer | None: ...


class Compute(Protocol):
    """A place that runs jobs without being watched."""

    name: str
    arrays: bool
    """Whether `submit_array` is worth calling; without it, single jobs are as cheap."""

    def submit(self, job: JobSpec) -> SubmitOutcome: ...

    def submit_array(self, job: JobSpec, count: int, throttle: int | None) -> SubmitOutcome:
        """Tasks 0 to count-1 of one script in one request; `throttle` is how many may run at once, None for any.

        The accepted id is the array's; its tasks are called "<id>_<task>" and bear the array's name. The log of task
        K is `job.log` with ".K" at its end.
        """

    def listing(self) -> Listing | NoAnswer:
        """One query: every job of ours that the queue shows."""

    def history(self, since: float, ids: Iterable[str], names: Iterable[str]) -> History | NoAnswer | Unavailable:
        """One batched query to accounting about jobs since the epoch second `since`."""

    def cancel(self, ids: Iterable[str]) -> NoAnswer | None:
        """A request; its effect is confirmed by a later state. NoAnswer when the request was not delivered."""

    def limits(self) -> SiteLimits | NoAnswer: ...

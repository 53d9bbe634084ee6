"""A cluster on paper: nodes, partitions, limits, and how long Slurm takes for what. Values only.

Covered: everything of a site that the simulation honours, with the measured defaults. Not covered: how jobs move
(scheduler.py), what goes wrong (faults.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from outerloop.compute.protocol import JobSpec

__all__ = ["Clock", "Execution", "Node", "Outcome", "Partition", "Site", "Work", "uniform_site"]

START_DELAY_SECONDS = 0.5
"""Submit to start, and end to the start of an `afterany` job, on an idle cluster: 0.54 to 0.55 s measured on Slurm
22.05 and 24.11."""
MIN_JOB_AGE_SECONDS = 300.0
"""How long the controller lists a finished job (slurm.conf manual page, MinJobAge)."""
KILL_WAIT_SECONDS = 30.0
"""From SIGTERM to SIGKILL (slurm.conf manual page, KillWait)."""
REQUEUE_WAIT_SECONDS = 121.0
"""A requeued job waits for the credential's expiry, 120 s by default, and a second: measured."""
TIMEOUT_SLACK_SECONDS = (14.0, 29.0)
"""A job over its limit ended so much later than its limit: measured on a limit of 60 s, 74 to 89 s after its start."""
EVERYWHERE = ""


@dataclass
class Clock:
    """The cluster's time, in seconds since the epoch. It moves only when somebody says so."""

    seconds: float = 1_790_000_000.0

    def move_to(self, seconds: float) -> None:
        """Time never runs backwards."""
        self.seconds = max(self.seconds, seconds)


@dataclass(frozen=True)
class Node:
    """One host, and the partitions it is in (none: all of them)."""

    name: str
    cpus: int
    memory_mb: int = 1 << 20
    gpus: int = 0
    partitions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Partition:
    """Limits of a partition."""

    name: str = EVERYWHERE
    max_minutes: float | None = None
    max_nodes: int | None = None


@dataclass(frozen=True)
class Site:
    """A cluster and its habits. Times are seconds."""

    nodes: tuple[Node, ...]
    partitions: tuple[Partition, ...] = (Partition(),)
    max_submit_jobs: int | None = None
    """Pending and running jobs of one user (MaxSubmitJobsPerUser)."""
    max_running_jobs: int | None = None
    """Running jobs of one user (MaxJobsPerUser)."""
    max_array_size: int = 0
    """Tasks that one array may have; 0 for a site without arrays."""
    enforce_limits: bool = True
    """EnforcePartLimits: whether a walltime above the partition's is refused, or pends for ever."""
    preempt_mode: Literal["REQUEUE", "CANCEL"] = "REQUEUE"
    unknown_dependency: Literal["satisfied", "refused"] = "satisfied"
    """22.05 and 24.11 take `afterany` on a purged or unknown id and run the job at once; a stricter one refuses."""
    accounting: bool = True
    accounting_lag: float = 0.1
    """Median 91 ms on 22.05 and 6 ms on 24.11; seconds on a loaded slurmdbd."""
    start_delay: float = START_DELAY_SECONDS
    min_job_age: float = MIN_JOB_AGE_SECONDS
    kill_wait: float = KILL_WAIT_SECONDS
    requeue_wait: float = REQUEUE_WAIT_SECONDS
    version: str = "24.11.5"
    uid: str = "1000"


def uniform_site(nodes: int, cpus: int, *, memory_mb: int = 1 << 20, gpus: int = 0) -> tuple[Node, ...]:
    """`nodes` equal hosts, node0001 and so on."""
    return tuple(Node(f"node{i:04d}", cpus, memory_mb, gpus) for i in range(1, nodes + 1))


@dataclass(frozen=True)
class Execution:
    """A job's script that has begun."""

    job_id: str
    restart: int
    node: str
    started: float
    spec: JobSpec


@dataclass(frozen=True)
class Outcome:
    """What a script will do if nothing comes between. `finish` runs at its end and returns the exit code."""

    seconds: float
    finish: Callable[[float], int] = field(default=lambda ended: 0)
    steps: tuple[tuple[float, Callable[[], None]], ...] = ()
    """What it does on the way: (seconds after its start, the doing). What comes after a kill stays undone."""
    out_of_memory: bool = False


Work = Callable[[Execution], Outcome]
"""Called when a script starts; its effects at the start happen in it, those at the end in `Outcome.finish`."""

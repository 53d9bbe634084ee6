"""A job of the simulated cluster, what the queue and accounting show of it.

Covered: the job's facts and its two pictures, the queue's and accounting's. Not covered: when they change.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from outerloop.compute.protocol import JobRow, JobSpec, JobState
from outerloop.compute.simulation.site import Node, Outcome

__all__ = ["NEVER_BY_NAME", "Job", "as_accounted"]

NEVER_BY_NAME = frozenset({"Dependency", "DependencyNeverSatisfied", "JobHeldAdmin", "JobHeldUser"})
"""`sacct --name` never shows jobs that pend for these: measured on 22.05 and 24.11."""


@dataclass(eq=False)
class Job:
    """One job. `instance` grows with every start and end, so that an event of an earlier start is known as stale."""

    job_id: str
    number: int
    spec: JobSpec
    submitted: float
    state: JobState = JobState.PENDING
    reason: str = "Priority"
    throttle: int | None = None
    """Tasks of its array that may run at once; None for any number, and for a job of its own."""
    begin: float = 0.0
    held: bool = False
    waits_for: int = 0
    """Jobs that it depends on and that have not ended."""
    restarts: int = 0
    instance: int = 0
    nodes: list[Node] = field(default_factory=list)
    node_names: str = ""
    outcome: Outcome | None = None
    started: float | None = None
    ended: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    cancelled_by: str = ""
    listed: bool = True
    accounted: bool = True
    history: list[tuple[float, JobRow]] = field(default_factory=list)

    @property
    def gone(self) -> bool:
        return self.state.final

    def row(self) -> JobRow:
        raw = self.state.name
        if self.state is JobState.CANCELLED and self.cancelled_by:
            raw = f"CANCELLED by {self.cancelled_by}"
        return JobRow(
            job_id=self.job_id,
            name=self.spec.name,
            state=self.state,
            reason=self.reason if not self.state.final or self.reason == "BadConstraints" else "",
            exit_code=self.exit_code,
            signal=self.signal,
            restarts=self.restarts,
            node=self.node_names,
            submitted=self.submitted,
            started=self.started,
            ended=self.ended,
            cancelled_by=self.cancelled_by,
            raw_state=raw,
        )

    def note(self, at: float) -> None:
        """Tell accounting."""
        self.history.append((at, self.row()))

    def as_listed(self) -> JobRow:
        """The row as squeue shows it: nothing of exit codes, restarts or who cancelled."""
        raw = self.state.name
        return replace(self.row(), exit_code=None, signal=None, restarts=None, cancelled_by="", raw_state=raw)


def as_accounted(job: Job, upto: float) -> JobRow | None:
    """The newest picture that accounting has of a job at an instant; None when it does not know the job yet.

    Exit codes from 128 up are shown wrong, as sacct does (255 as 127): measured on 22.05 and 24.11.
    """
    shown = None
    for at, row in job.history:
        if at <= upto:
            shown = row
    if shown is None or shown.exit_code is None or shown.exit_code < 128:
        return shown
    return replace(shown, exit_code=shown.exit_code & 127)

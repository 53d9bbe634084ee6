"""The shapes of what people look at: frozen dataclasses, filled by views.py, read by health.py and the command line.

Covered: fields and what follows from them alone. Not covered: queries, wording.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

__all__ = [
    "AttemptView",
    "ChampionView",
    "EventView",
    "MeasureView",
    "Overview",
    "QueueView",
    "ReuseView",
    "RunFilter",
    "RunPage",
    "RunRow",
    "RunView",
    "TickView",
    "WakeView",
]


@dataclass(frozen=True)
class RunRow:
    """One run in a list, with counts of its current round."""

    id: str
    kind: str
    target: str
    benchmark: str
    label: str
    submitter: str
    state: str
    state_reason: str
    state_detail: str
    verdict: str | None
    verdict_reason: str | None
    sentence: str | None
    base_commit: str
    candidate_commit: str
    round: int
    ask: int
    priority: int
    last_error: str | None
    created_at: datetime
    updated_at: datetime
    due_at: datetime | None
    ended_at: datetime | None
    measures: int
    """Measures of the current round, environments included."""
    done: int
    """Those that have a value or a failure."""
    jobs: Mapping[str, int]
    """Live attempts by the state that the queue last showed."""
    pending: Mapping[str, int]
    """Pending attempts by Slurm's reason."""
    sealed: bool = False
    """A ladder withholds what it measured from everybody but the service's own account."""


@dataclass(frozen=True)
class RunFilter:
    """Which runs. Empty fields say nothing. `text` is looked for in id, label, target and benchmark."""

    states: tuple[str, ...] = ()
    target: str = ""
    benchmark: str = ""
    text: str = ""
    submitter: str = ""
    kind: str = ""
    verdict: str = ""


@dataclass(frozen=True)
class RunPage:
    """Some runs of `total`, and the database's time when they were read."""

    runs: tuple[RunRow, ...]
    total: int
    offset: int
    now: datetime

    @property
    def next_offset(self) -> int | None:
        """Where the next page begins; None on the last one."""
        after = self.offset + len(self.runs)
        return after if self.runs and after < self.total else None


@dataclass(frozen=True)
class AttemptView:
    """One submission of a slot."""

    n: int
    state: str
    job_id: str | None
    job_name: str
    slurm_state: str
    slurm_reason: str
    node: str
    restarts: int
    counted: bool
    outcome: str | None
    reason: str
    detail: str
    cancel_reason: str | None
    minutes: float
    intent_at: datetime
    submitted_at: datetime | None
    observed_at: datetime | None
    settled_at: datetime | None

    @property
    def live(self) -> bool:
        return self.state != "settled"


@dataclass(frozen=True)
class MeasureView:
    """One role of one round: its slot, the value if there is one, and every attempt in order."""

    role: str
    round: int
    benchmark: str
    side: str
    pair: int
    seed: int
    replicate: int
    kind: str
    slot: str
    """The slot's digest."""
    slot_id: int
    state: str
    reason: str
    detail: str
    failure_class: str | None
    value: Decimal | None
    result: Mapping[str, Any] | None
    """What the job's result file said."""
    pinned_attempt: int | None
    attempts_allowed: int
    attempts_counted: int
    next_try_at: datetime | None
    settled_at: datetime | None
    attempts: tuple[AttemptView, ...] = ()

    @property
    def newest(self) -> AttemptView | None:
        return self.attempts[-1] if self.attempts else None


@dataclass(frozen=True)
class EventView:
    """A fact of the run's ledger."""

    seq: int
    kind: str
    at: datetime
    body: Mapping[str, Any]


@dataclass(frozen=True)
class WakeView:
    """A doorbell job of the run."""

    number: int
    state: str
    job_id: str | None
    job_name: str
    awaited: tuple[str, ...]
    reason: str
    created_at: datetime


@dataclass(frozen=True)
class RunView:
    """One run in full, all rounds."""

    row: RunRow
    request: Mapping[str, Any]
    evidence: Mapping[str, Any] | None
    measures: tuple[MeasureView, ...]
    events: tuple[EventView, ...]
    wakes: tuple[WakeView, ...]
    now: datetime

    @property
    def current(self) -> tuple[MeasureView, ...]:
        """The measures of the current round."""
        return tuple(measure for measure in self.measures if measure.round == self.row.round)

    @property
    def waits_for(self) -> tuple[AttemptView, ...]:
        """Live attempts of the current round."""
        return tuple(attempt for measure in self.current for attempt in measure.attempts if attempt.live)


@dataclass(frozen=True)
class ChampionView:
    """One champion of a benchmark's history."""

    target: str
    benchmark: str
    definition: str
    seq: int
    run_id: str
    commit: str
    value: str
    gain: str
    label: str
    accepted_at: datetime
    submitter: str
    newest: bool
    """Whether it is the champion now, under its definition of the benchmark."""
    sealed: bool = False
    """Its run is sealed."""


@dataclass(frozen=True)
class ReuseView:
    """How often one set of data has decided: verdicts on a benchmark since its definition or inputs last changed.

    Seeds are drawn anew for every climb of a benchmark that takes one (`fresh_seeds`), data is not: who keeps what
    looked best fits it a little more each time.
    """

    target: str
    benchmark: str
    definition: str
    decisions: int
    accepted: int
    since: datetime
    """The first of these verdicts."""
    fresh_seeds: bool


@dataclass(frozen=True)
class QueueView:
    """Live jobs of one state and pending reason."""

    state: str
    reason: str
    jobs: int
    runs: int
    oldest: datetime
    """When the oldest of them was intended."""


@dataclass(frozen=True)
class Overview:
    """All runs of the realm in numbers, with one example of each kind of trouble."""

    now: datetime
    queued: int
    waiting: int
    blocked: int
    ended: int
    oldest: datetime | None
    """When the oldest run that is queued or waiting was asked."""
    blocked_run: str
    blocked_reason: str
    broken: int
    """Queued or waiting runs whose last advancing failed with an unexpected error."""
    broken_run: str
    paused: int = 0
    """Blocked by an operator's word and nothing else; not among the blocked."""

    @property
    def moving(self) -> int:
        return self.queued + self.waiting

    @property
    def open(self) -> int:
        return self.moving + self.blocked


@dataclass(frozen=True)
class TickView:
    """The tick that ended last."""

    at: datetime
    age_seconds: float
    host: str
    body: Mapping[str, Any] = field(default_factory=dict)

    @property
    def queue_answered(self) -> bool:
        return bool(self.body.get("queue_answered", True))

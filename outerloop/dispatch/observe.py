"""What the cluster says, asked once per process: one listing, at most one history.

Covered: an `Observation` with the instant it began, and the row that counts for an attempt. Not covered: what
follows from it (evidence.py, settle.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property

from outerloop.compute.jobids import array_id
from outerloop.compute.protocol import (
    Compute,
    History,
    JobRow,
    JobState,
    Listing,
    NoAnswer,
    Sights,
    SiteLimits,
    Unavailable,
)
from outerloop.record.store import Record

__all__ = ["Observation", "Sighting", "observe"]

HISTORY_MARGIN = timedelta(hours=1)
"""Accounting is asked from this long before the oldest attempt, against clocks that differ."""


@dataclass(frozen=True)
class Sighting:
    """What one observation says about one job.

    `row` is None when the job is in neither answer. `answered` is False when that absence means nothing.
    """

    answered: bool
    listed: bool
    row: JobRow | None
    canceller_open: bool = False
    """The job is cancelled, and accounting, which knows by whom, was not asked or did not answer."""


@dataclass
class Observation:
    """One listing and, when it was asked for, one history. It says nothing about what happened after `started`."""

    started: datetime
    listing: Listing | NoAnswer
    compute: Compute
    _by_name: dict[str, list[JobRow]] | None = None
    _history: History | NoAnswer | Unavailable | None = None
    _history_ids: dict[str, JobRow] = field(default_factory=dict)
    _history_names: dict[str, list[JobRow]] = field(default_factory=dict)
    _asked: set[str] = field(default_factory=set)
    _limits: SiteLimits | NoAnswer | None = None

    @cached_property
    def _by_id(self) -> Mapping[str, JobRow]:
        return self.listing.by_id() if isinstance(self.listing, Listing) else {}

    @cached_property
    def _states(self) -> Mapping[str, tuple[JobState, str]]:
        return self.listing.states() if isinstance(self.listing, Listing) else {}

    @property
    def complete(self) -> bool:
        """Whether the queue answered. Rows that could not be parsed make absence meaningless."""
        return isinstance(self.listing, Listing) and self.listing.bad_rows == 0

    @property
    def why_not(self) -> str:
        if isinstance(self.listing, NoAnswer):
            return self.listing.why
        return f"{self.listing.bad_rows} rows of the listing could not be read" if self.listing.bad_rows else ""

    def listed(self, job_id: str) -> JobRow | None:
        return self._by_id.get(job_id)

    def state_of(self, job_id: str) -> tuple[JobState, str] | None:
        """State and reason of a listed job: all that a sweep over thousands of quiet jobs looks at."""
        return self._states.get(job_id)

    def sights(self) -> Sights:
        """What the listing shows of each job (`Listing.sights`)."""
        return self.listing.sights() if isinstance(self.listing, Listing) else []

    def changes(self, since: object) -> tuple[Sights, Sights] | None:
        """Which sights went and which came since the listing of that `mark` (`Listing.changes`)."""
        return self.listing.changes(since) if isinstance(self.listing, Listing) else None

    @property
    def mark(self) -> object:
        return self.listing.mark if isinstance(self.listing, Listing) else self

    def ask_history(self, since: datetime, ids: Iterable[str], names: Iterable[str]) -> None:
        """Ask accounting about what the listing lacks, once per observation; later calls are ignored."""
        asked_ids, wanted_names = set(ids), sorted(set(names))
        # An array's id covers its tasks, however many.
        wanted_ids = sorted({array_id(job_id) for job_id in asked_ids})
        if self._history is not None or not (wanted_ids or wanted_names) or not self.complete:
            return
        self._history = self.compute.history((since - HISTORY_MARGIN).timestamp(), wanted_ids, wanted_names)
        self._asked = {*asked_ids, *wanted_names}
        if isinstance(self._history, History):
            earliest = (since - HISTORY_MARGIN).timestamp()
            for row in self._history.jobs:
                if row.submitted is not None and row.submitted < earliest:
                    continue  # ids and names are used again: submitted before any attempt that is asked about
                self._history_ids[row.job_id] = row
                self._history_names.setdefault(row.name, []).append(row)

    def job(self, job_id: str, job_name: str) -> Sighting:
        """What is known of a submitted job, by id; a history row must bear its name too (ids are reused)."""
        row = self._by_id.get(job_id)
        if row is not None and (not row.name or row.name == job_name):
            if row.state is JobState.CANCELLED and not row.cancelled_by:
                return self._cancelled(row, job_name)
            if row.state is JobState.FAILED and row.exit_code is None:
                row = self._failed(row, job_name)
            return Sighting(answered=True, listed=True, row=row)
        if not self.complete:
            return Sighting(answered=False, listed=False, row=None)
        if isinstance(self._history, NoAnswer) or (self._history is not None and job_id not in self._asked):
            return Sighting(answered=False, listed=False, row=None)
        past = self._history_ids.get(job_id)
        if past is not None and past.name and past.name != job_name:
            past = None
        # Accounting lags: a job that the controller no longer lists is not alive, whatever accounting still says.
        if past is not None and not past.state.final:
            past = None
        return Sighting(answered=True, listed=False, row=past)

    def _cancelled(self, row: JobRow, job_name: str) -> Sighting:
        """The queue does not say by whom a job was cancelled; accounting does."""
        if isinstance(self._history, Unavailable):
            return Sighting(answered=True, listed=True, row=row)
        if not isinstance(self._history, History) or row.job_id not in self._asked:
            return Sighting(answered=True, listed=True, row=row, canceller_open=True)
        past = self._history_ids.get(row.job_id)
        if past is not None and past.name in ("", job_name) and past.state is JobState.CANCELLED:
            row = replace(row, cancelled_by=past.cancelled_by)
        return Sighting(answered=True, listed=True, row=row)

    def _failed(self, row: JobRow, job_name: str) -> JobRow:
        """squeue shows no exit code, which tells our own program's refusals from a node that starts nothing. Accounting
        does; nobody waits for it."""
        past = self._history_ids.get(row.job_id)
        if past is not None and past.name in ("", job_name) and past.state is JobState.FAILED:
            return replace(row, exit_code=past.exit_code, signal=past.signal)
        return row

    def preemption_cancels(self, partition: str) -> bool:
        """Whether the site ends preempted jobs of `partition` (empty: the default one) for good. Asked at most once per
        observation, and only when somebody wants to know; no answer means no, which waits for the job's return."""
        if self._limits is None:
            self._limits = self.compute.limits()
        if isinstance(self._limits, NoAnswer):
            return False
        partitions = self._limits.partitions
        name = partition or next((name for name, facts in partitions.items() if facts.get("Default") == "YES"), "")
        # A list of partitions may start the job in any of them: only what all of them do can be expected.
        modes = [partitions.get(part, {}).get("PreemptMode") or self._limits.preempt_mode for part in name.split(",")]
        return all("CANCEL" in mode.upper().split(",") for mode in modes)

    def named(self, job_name: str) -> Sighting:
        """What is known of a job of which only the name is certain. The newest of several counts."""
        if self._by_name is None:
            self._by_name = self.listing.by_name() if isinstance(self.listing, Listing) else {}
        rows = self._by_name.get(job_name, [])
        if rows:
            return Sighting(answered=True, listed=True, row=_newest(rows))
        if not self.complete or isinstance(self._history, NoAnswer):
            return Sighting(answered=False, listed=False, row=None)
        past = self._history_names.get(job_name, [])
        return Sighting(answered=True, listed=False, row=_newest(past) if past else None)


def _newest(rows: list[JobRow]) -> JobRow:
    # A live one outranks an ended one: the ended one may be a duplicate that found the claim taken.
    return max(rows, key=lambda row: (not row.state.final, row.submitted or 0.0))


def observe(record: Record, compute: Compute) -> Observation:
    """Ask the queue now. The database's clock is read first, so that `started` is never too late."""
    started = record.now()
    return Observation(started=started, listing=compute.listing(), compute=compute)

"""A campaign's ledger: on disk, then in the record, event by event.

Covered: publishing the next event with one winner per number, committing it, reading both sides, what the campaign's
jobs were handed out with. Not covered: which event comes next (campaigns.py, outerloop.champion).

The file decides: runs/<id>/campaign/events/<thousands>/<seq>.json is linked before its transaction commits, so a
process that dies between the two leaves its word, and whoever loses a number folds the winner's event before he does
anything more. One file holds one line, which is what `campaign events --jsonl` prints.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from outerloop.champion import (
    CampaignState,
    DispatchEvent,
    Event,
    Job,
    LedgerError,
    apply,
    events_from_jsonl,
    events_to_jsonl,
    stamped,
)
from outerloop.controller.ledger import Behind, TornEvent
from outerloop.record.models import CampaignEvent
from outerloop.record.store import Record
from outerloop.slots import StateRoot
from outerloop.slots.files import publish

__all__ = ["Books", "CampaignLedger", "Launch", "insert_events", "recorded_lines"]


@dataclass(frozen=True)
class Launch:
    """A job as it was handed out: `setting` is the number of the setting in force, `again` counts from 0 how often the
    same job had been handed out before."""

    job: Job
    setting: int
    again: int


@dataclass
class Books:
    """The fold of a ledger, and every launch by the job's key, oldest first."""

    state: CampaignState = field(default_factory=CampaignState)
    launches: dict[str, list[Launch]] = field(default_factory=dict)

    def take(self, event: Event) -> None:
        """Fold the next event. Raises LedgerError for a wrong number."""
        apply(self.state, event)
        if isinstance(event, DispatchEvent) and event.action == "launched" and event.job is not None:
            live = self.state.live.get(event.job.key)
            if live is not None and live.job is event.job:
                earlier = self.launches.setdefault(event.job.key, [])
                earlier.append(Launch(event.job, event.setting, len(earlier)))

    @classmethod
    def of(cls, events: Iterable[Event]) -> Books:
        """The books of a whole ledger. Raises LedgerError."""
        books = cls()
        for event in events:
            books.take(event)
        return books


@dataclass(frozen=True)
class CampaignLedger:
    """The events of one campaign on disk."""

    root: StateRoot
    run_id: str

    def append(self, seq: int, event: Event) -> Event:
        """Publish event number `seq`. When it stands there already, in all but its time, that one counts (a process
        that died before its commit wrote it); anything else there raises Behind."""
        ours = stamped(event, seq, datetime.now(UTC).isoformat(timespec="milliseconds"))
        line = events_to_jsonl([ours])
        # What can't be read back would end the campaign for good; as an error of this pass it can be mended.
        self._parsed([line], seq)
        if publish(self.root.campaign_event(self.run_id, seq), line, name="campaign.event"):
            return ours
        lines = self.lines(seq, seq)
        if not lines:
            raise Behind(f"campaign {self.run_id}: event {seq} is not readable yet")
        [theirs] = self._parsed(lines, seq)
        if theirs.model_copy(update={"time": None}) != ours.model_copy(update={"time": None}):
            raise Behind(f"campaign {self.run_id}: event {seq} is another one")
        return theirs

    def read(self, start: int = 1) -> list[Event]:
        """Events from number `start` on, in order, up to the first that is missing. Raises TornEvent."""
        return self._parsed(self.lines(start), start)

    def lines(self, start: int = 1, last: int | None = None) -> list[str]:
        """The same as lines of JSON. Each folder is listed once, because NFS clients cache the absence of a name."""
        found: list[str] = []
        seq = start
        while last is None or seq <= last:
            folder = self.root.campaign_event(self.run_id, seq).parent
            try:
                names = set(os.listdir(folder))  # noqa: PTH208 - names alone, a thousand of them
            except FileNotFoundError:
                break
            path = self.root.campaign_event(self.run_id, seq)
            while path.parent == folder and path.name in names and (last is None or seq <= last):
                found.append(path.read_text(encoding="utf-8"))
                seq += 1
                path = self.root.campaign_event(self.run_id, seq)
            if path.parent == folder:
                break
        return found

    def _parsed(self, lines: Sequence[str], start: int) -> list[Event]:
        return parsed(lines, start, f"{self.root.campaign_events(self.run_id)}: event")


def parsed(lines: Sequence[str], start: int, where: str) -> list[Event]:
    """The events of these lines, the first of which has number `start`. Raises TornEvent."""
    try:
        return events_from_jsonl("".join(lines), where, first=start)
    except LedgerError as error:
        raise TornEvent(f"{error}; restore it from a backup") from error


def recorded_lines(session: Session, run_id: str) -> list[str]:
    """The ledger as the record has it, in order."""
    query = select(CampaignEvent.line).where(CampaignEvent.run_id == run_id).order_by(CampaignEvent.seq)
    return list(session.scalars(query))


def insert_events(session: Session, run_id: str, events: Sequence[Event]) -> None:
    """Copy events from disk into the record; those that are there already stay."""
    if not events:
        return
    rows = [
        {"run_id": run_id, "seq": event.seq, "kind": event.kind, "line": events_to_jsonl([event])} for event in events
    ]
    session.execute(insert(CampaignEvent).on_conflict_do_nothing(), rows)


def read_books(record: Record, ledger: CampaignLedger) -> tuple[Books, list[Event]]:
    """The books as disk and record have them together, and the events that the record lacks. Raises TornEvent."""
    with record.reading() as session:
        lines = recorded_lines(session, ledger.run_id)
    books = Books.of(parsed(lines, 1, f"the record's ledger of {ledger.run_id}: event"))
    tail = ledger.read(len(lines) + 1)
    for event in tail:
        books.take(event)
    return books, tail


def last_recorded(session: Session, run_id: str) -> int:
    """Number of the newest event that the record has, 0 for none."""
    return session.scalar(select(func.max(CampaignEvent.seq)).where(CampaignEvent.run_id == run_id)) or 0

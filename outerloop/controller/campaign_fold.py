"""Ledgers of campaigns, folded once and then only further: for a page that is asked for again every few seconds.

Covered: what the record has of one campaign's ledger, up to the first event that can't be read; the newest facts of
many campaigns without folding any. Not covered: the disk's ledger and checking it (campaign_views.replay), pages.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import func, select

from outerloop.champion import Event, LedgerError, PackageEvent, TeacherEvent, events_from_jsonl
from outerloop.controller.campaign_ledger import Books
from outerloop.record.models import CampaignEvent
from outerloop.record.store import Record

__all__ = ["CampaignLine", "Fold", "Folds", "campaign_lines", "ledger_page"]

MOST_FOLDS = 8
"""Campaigns that are kept folded; the one that was not looked at for longest makes room."""
BATCH = 2000
_TOLD = ("generation", "round", "champion", "reserve_check")


@dataclass
class Fold:
    """A ledger folded up to event `seq`. `problem` says why what follows could not be read, "" for a whole one."""

    books: Books = field(default_factory=Books)
    seq: int = 0
    last: str = ""
    times: dict[int, str] = field(default_factory=dict)
    """Of generations, champions and reserve checks, by event number: ISO 8601."""
    teachers: list[TeacherEvent] = field(default_factory=list)
    packages: list[PackageEvent] = field(default_factory=list)
    problem: str = ""
    derived: dict[object, Any] = field(default_factory=dict)
    """What readers made of it and want to keep, under keys of their own; gone with the next event."""

    def take(self, seq: int, line: str) -> bool:
        """Fold the next line. False, with `problem` set, when it is none."""
        if seq != self.seq + 1:
            self.problem = f"event {self.seq + 1} is missing in the record"
            return False
        try:
            [event] = events_from_jsonl(line, f"event {seq}", first=seq)
            self.books.take(event)
        except (LedgerError, ValueError, LookupError) as error:
            self.problem = f"event {seq} can't be read: {str(error).splitlines()[0][:300]}"
            return False
        self.seq, self.last = seq, line
        self.derived.clear()
        self._keep(event)
        return True

    def _keep(self, event: Event) -> None:
        if isinstance(event, TeacherEvent):
            self.teachers.append(event)
        elif isinstance(event, PackageEvent):
            self.packages.append(event)
        if event.kind in {"generation", "champion", "reserve_check"} and event.time:
            self.times[event.seq] = event.time


class Folds:
    """The folds of the campaigns that somebody looks at. Safe for several threads."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._known: OrderedDict[str, tuple[threading.Lock, Fold]] = OrderedDict()

    @contextmanager
    def of(self, record: Record, run_id: str) -> Iterator[Fold]:
        """The campaign's fold as the record has it now. It must not be kept or changed. Raises RecordUnavailable."""
        with self._guard:
            lock, _ = self._known.setdefault(run_id, (threading.Lock(), Fold()))
            self._known.move_to_end(run_id)
            while len(self._known) > MOST_FOLDS:
                self._known.popitem(last=False)
        with lock:
            fold = self._brought_up(record, run_id, lock)
            yield fold

    def _brought_up(self, record: Record, run_id: str, lock: threading.Lock) -> Fold:
        with self._guard:
            fold = self._known.get(run_id, (lock, Fold()))[1]
        query = select(CampaignEvent.seq, CampaignEvent.line).where(CampaignEvent.run_id == run_id)
        query = query.order_by(CampaignEvent.seq)
        fold.problem = ""
        with record.reading() as session:
            # The last known line is read again: a record that was made anew may have another history.
            rows = session.execute(query.where(CampaignEvent.seq >= fold.seq).execution_options(yield_per=BATCH))
            if fold.seq:
                first = next(iter(rows), None)
                if first is None or (first.seq, first.line) != (fold.seq, fold.last):
                    rows.close()
                    fold = Fold()
                    rows = session.execute(query.execution_options(yield_per=BATCH))
            for row in rows:
                if not fold.take(row.seq, row.line):
                    break
            rows.close()
        with self._guard:
            if run_id in self._known:
                self._known[run_id] = (lock, fold)
        return fold


@dataclass(frozen=True)
class CampaignLine:
    """A campaign's newest facts, as its ledger tells them. Empty where it has none yet, or they can't be read."""

    run_id: str
    events: int = 0
    generation: int | None = None
    reason: str = ""
    rounds: int = 0
    champion: str = ""
    counts: tuple[int, ...] = ()
    champion_generation: int | None = None
    """An older one than `generation` while the current one has no champion yet."""
    champion_at: str = ""
    check: str = ""


def campaign_lines(record: Record, runs: Collection[str]) -> Mapping[str, CampaignLine]:
    """The newest facts of these campaigns, by run; nothing is folded."""
    if not runs:
        return {}
    mine = CampaignEvent.run_id.in_(runs)
    counted = select(CampaignEvent.run_id, CampaignEvent.kind, func.count(), func.max(CampaignEvent.seq))
    found: dict[str, dict[str, Any]] = {run: {"events": 0} for run in runs}
    with record.reading() as session:
        places = []
        for run, kind, count, seq in session.execute(
            counted.where(mine).group_by(CampaignEvent.run_id, CampaignEvent.kind)
        ):
            found[run]["events"] += count
            if kind == "round":
                found[run]["rounds"] = count
            if kind in _TOLD:
                places.append((run, seq))
        lines = session.execute(
            select(CampaignEvent.run_id, CampaignEvent.seq, CampaignEvent.line).where(
                mine, func.row(CampaignEvent.run_id, CampaignEvent.seq).in_([func.row(*place) for place in places])
            )
        ).all() if places else []  # fmt: skip
    for run, seq, line in lines:
        try:
            [event] = events_from_jsonl(line, "event", first=seq)
        except LedgerError:
            continue
        found[run] |= _told(event)
    return {run: CampaignLine(run, **facts) for run, facts in found.items()}


def _told(event: Event) -> dict[str, Any]:
    match event.kind:
        case "generation":
            # The newest may be the split's end, which has no reason of its own.
            return {"generation": event.generation} | ({"reason": event.reason} if event.reason else {})
        case "champion":
            return {
                "champion": event.subject,
                "counts": event.counts,
                "champion_generation": event.generation,
                "champion_at": event.time or "",
            }
        case "reserve_check":
            return {"check": event.status}
        case _:
            return {}


@dataclass(frozen=True)
class LedgerPage:
    """Events of a ledger, newest first. An event that can't be read is there as its number, its kind and its text."""

    events: tuple[tuple[int, str, Event | None, str], ...]
    """(number, kind, event, line)"""
    total: int
    kinds: Mapping[str, int]


def ledger_page(record: Record, run_id: str, *, kind: str = "", limit: int = 50, offset: int = 0) -> LedgerPage:
    """A part of a campaign's ledger, newest first, of one kind or of all."""
    mine = CampaignEvent.run_id == run_id
    with record.reading() as session:
        counted = select(CampaignEvent.kind, func.count()).where(mine).group_by(CampaignEvent.kind)
        kinds = {row[0]: row[1] for row in session.execute(counted)}
        query = select(CampaignEvent).where(mine).order_by(CampaignEvent.seq.desc()).limit(limit).offset(offset)
        rows = session.scalars(query.where(CampaignEvent.kind == kind) if kind else query).all()
    events: list[tuple[int, str, Event | None, str]] = []
    for row in rows:
        try:
            [event] = events_from_jsonl(row.line, "event", first=row.seq)
        except (LedgerError, ValueError):
            events.append((row.seq, row.kind, None, row.line))
        else:
            events.append((row.seq, row.kind, event, row.line))
    return LedgerPage(tuple(events), kinds.get(kind, 0) if kind else sum(kinds.values()), dict(sorted(kinds.items())))

"""What people look at of a campaign: its ledger folded, its live jobs, its problems. Read-only.

Covered: one campaign in full, checking a ledger by replaying it. Not covered: rendering (cli), drawing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select

from outerloop.champion import (
    BrokenCandidates,
    CampaignConfig,
    CampaignState,
    Event,
    LedgerError,
    ReserveCheckEvent,
    events_from_jsonl,
    warnings,
)
from outerloop.champion.form import malformed
from outerloop.champion.front import vector_dominates
from outerloop.champion.recheck import odds_differ
from outerloop.champion.state import comparison, reserve_result
from outerloop.champion.words import event_sentence
from outerloop.controller.campaign_candidates import read_candidates
from outerloop.controller.campaign_ledger import Books, CampaignLedger, parsed, recorded_lines
from outerloop.controller.campaign_places import Places
from outerloop.controller.campaign_request import SETTING_EVENT, CampaignRequest, settings_in_force
from outerloop.controller.ledger import LedgerEvent
from outerloop.record.models import Attempt, Measure, Run, Slot
from outerloop.record.models import Event as RunEvent
from outerloop.record.store import Record
from outerloop.slots import StateRoot

__all__ = [
    "CampaignView",
    "LiveView",
    "Replay",
    "campaign_config",
    "campaign_named",
    "campaign_view",
    "live_jobs",
    "replay",
    "replay_text",
]


@dataclass(frozen=True)
class LiveView:
    """A job that was handed out and has not been taken in."""

    key: str
    state: str
    """Of its slot: open, done, failed, exhausted; "" while it has none."""
    job_id: str
    queue: str
    """What the queue showed of its newest attempt."""
    detail: str
    slot: str


@dataclass(frozen=True)
class CampaignView:
    """One campaign as the record has it."""

    run: Run
    request: CampaignRequest
    config: CampaignConfig
    places: Places
    books: Books
    events: tuple[Event, ...]
    live: tuple[LiveView, ...]

    @property
    def state(self) -> CampaignState:
        return self.books.state

    @property
    def warnings(self) -> list[str]:
        """Sentences for people, worst first."""
        found = warnings(self.state)
        if self.run.state != "ended":
            listed = read_candidates(self.places.settings[-1], self.state.candidates, None)
            if isinstance(listed, BrokenCandidates):
                found.insert(0, f"the candidates file is not used as it is: {listed.reason.splitlines()[0]}")
        return found


def campaign_named(record: Record, name: str) -> Run | None:
    """The newest campaign of this realm with exactly this name, None when there is none."""
    with record.reading() as session:
        return session.scalars(
            select(Run)
            .where(Run.realm_id == record.realm_id, Run.kind == "campaign", Run.benchmark == name)
            .order_by(Run.created_at.desc())
            .limit(1)
        ).one_or_none()


def campaign_view(record: Record, root: StateRoot, run: Run) -> CampaignView:
    """A campaign in full. Raises TornEvent for a ledger that can't be read."""
    with record.reading() as session:
        lines = recorded_lines(session, run.id)
        told = session.scalars(select(RunEvent).where(RunEvent.run_id == run.id).order_by(RunEvent.seq)).all()
    events = parsed(lines, 1, f"the record's ledger of {run.id}: event")
    books = Books.of(events)
    request = CampaignRequest.model_validate(run.request)
    settings = settings_in_force(request, [LedgerEvent(e.seq, e.kind, e.body, e.at) for e in told])
    live = live_jobs(record, run.id, list(books.state.live))
    return CampaignView(run, request, settings[-1].parsed, Places(root, run.id, settings), books, tuple(events), live)


def live_jobs(record: Record, run_id: str, keys: Sequence[str]) -> tuple[LiveView, ...]:
    """The jobs of these keys that a campaign handed out, in their order, as slot and queue showed them last."""
    with record.reading() as session:
        rows = session.execute(
            select(Measure.role, Slot)
            .join(Slot, Slot.id == Measure.slot_id)
            .where(Measure.run_id == run_id, Measure.round == 0, Measure.role.in_(keys))
        ).all()
        newest: dict[int, Attempt] = {}
        for attempt in session.scalars(
            select(Attempt).where(Attempt.slot_id.in_([slot.id for _, slot in rows])).order_by(Attempt.n)
        ):
            newest[attempt.slot_id] = attempt
    slots = {row[0]: row[1] for row in rows}
    return tuple(_live(key, slots.get(key), newest) for key in keys)


def campaign_config(record: Record, run_id: str) -> tuple[CampaignConfig | None, str]:
    """The configuration in force, or None and why it can't be read."""
    with record.reading() as session:
        request = session.get_one(Run, run_id).request
        told = session.scalars(
            select(RunEvent).where(RunEvent.run_id == run_id, RunEvent.kind == SETTING_EVENT).order_by(RunEvent.seq)
        ).all()
    try:
        asked = CampaignRequest.model_validate(request)
        return settings_in_force(asked, [LedgerEvent(e.seq, e.kind, e.body, e.at) for e in told])[-1].parsed, ""
    except (ValueError, LookupError) as error:
        return None, f"the campaign's configuration can't be read: {str(error).splitlines()[0][:300]}"


def _live(key: str, slot: Slot | None, newest: dict[int, Attempt]) -> LiveView:
    if slot is None:
        return LiveView(key, "", "", "", "", "")
    attempt = newest.get(slot.id)
    queue = "" if attempt is None or attempt.state == "settled" else attempt.slurm_state or attempt.state
    detail = f"{slot.reason}: {slot.detail}".strip(": ") if slot.state in {"failed", "exhausted"} else ""
    if queue == "pending" and attempt is not None:
        detail = detail or attempt.slurm_reason
    return LiveView(key, slot.state, (attempt.job_id or "") if attempt else "", queue, detail, slot.digest)


@dataclass(frozen=True)
class Replay:
    """What folding a ledger from nothing gives. `problems` is empty for one that holds."""

    events: int
    champion: str | None
    front: tuple[str, ...]
    generations: int
    problems: tuple[str, ...]


def replay_text(text: str, filename: str) -> Replay:
    """Fold an exported ledger from nothing. Raises LedgerError for one that can't be read."""
    return _replayed(events_from_jsonl(text, filename), [])


def replay(record: Record | None, root: StateRoot, run_id: str) -> Replay:
    """Fold a campaign's ledger on disk from nothing, and compare its lines with the record's, if one is given.
    Raises TornEvent."""
    disk = CampaignLedger(root, run_id).lines()
    problems = []
    if record is not None:
        with record.reading() as session:
            recorded = recorded_lines(session, run_id)
        for number, (ours, theirs) in enumerate(zip(recorded, disk, strict=False), start=1):
            if ours != theirs:
                problems.append(f"event {number}: the record and {root.campaign_event(run_id, number)} differ")
        if len(recorded) != len(disk):
            problems.append(f"the record has {len(recorded)} events, the disk {len(disk)}")
    return _replayed(parsed(disk, 1, f"{root.campaign_events(run_id)}: event"), problems)


def _replayed(events: Sequence[Event], problems: list[str]) -> Replay:
    """Fold step by step. A decision that does not follow from the rows before it is an anomaly of the fold; the front
    is computed anew from all rows of its generation and compared."""
    books = Books()
    for event in events:
        if problem := malformed(event):
            problems.append(f"event {event.seq} ({event.kind}): {problem}")
        generation = books.state.generation
        check = generation.check if generation is not None else None
        known = len(books.state.anomalies)
        try:
            books.take(event)
        except LedgerError as error:
            problems.append(str(error))
            break
        if isinstance(event, ReserveCheckEvent) and check is not None and len(books.state.anomalies) == known:
            problems += _odds(books.state, event, check)
    state = books.state
    problems += state.anomalies
    problems += [
        f"event {item.eval_seq} is not followed by what follows from it: {event_sentence(item)}"
        for item in state.unrecorded
    ]
    problems += _front_again(state)
    generation = state.generation
    return Replay(
        events=len(events),
        champion=generation.champion.subject if generation is not None and generation.champion is not None else None,
        front=tuple(item.subject for item in generation.front.items()) if generation is not None else (),
        generations=len(state.generations),
        problems=tuple(problems),
    )


def _odds(state: CampaignState, event: ReserveCheckEvent, check: ReserveCheckEvent) -> list[str]:
    """What is wrong about the odds that a verdict tells."""
    generation, reserve = state.generation, reserve_result(state, check)
    if generation is None or generation.champion is None or reserve is None:
        return []
    problem = odds_differ(generation, event, generation.champion, reserve)
    return [f"event {event.seq} ({event.kind}): {problem}"] if problem else []


def _front_again(state: CampaignState) -> list[str]:
    generation = state.generation
    if generation is None:
        return []
    ranked = []
    for event in state.evaluations:
        if event.role == "test" and event.generation == generation.number:
            ranks = comparison(event, generation.rules)
            if ranks is not None:
                ranked.append((ranks[0], event.subject))
    vectors = {counts for counts, _ in ranked}
    best = {counts for counts in vectors if not any(vector_dominates(other, counts) for other in vectors)}
    whole = [subject for counts, subject in ranked if counts in best]
    front = [item.subject for item in generation.front.items()]
    return [] if whole == front else [f"the front is {front}, computed from all rows it is {whole}"]

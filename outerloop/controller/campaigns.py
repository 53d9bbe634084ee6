"""Campaigns: the champion loop as one kind of run.

Covered: folding the ledger, appending what follows from it, turning ended slots into events, handing jobs out, the
answers of one campaign (see `engine.Kind`). Not covered: what is due and who wins (outerloop.champion, pure), what a
job's command is (campaign_work.py) and left (campaign_harvest.py), operators' words (campaign_operate.py).

One pass is: records that are due, then the first outcome that is owed, and again from the beginning; when nothing is
owed, the next job is handed out, its intent in the ledger before its slot exists. Every append is a link at the next
number, so nothing that was computed from an older state is ever appended, and a kill at any instant leaves a ledger
from which the same step follows again.

Measures of a campaign: those of round 0 are its live jobs; a job that has ended moves to round 1 plus its repetition.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import delete, func, select, update

from outerloop.champion import (
    BrokenCandidates,
    CandidateList,
    DispatchEvent,
    EvalEvent,
    Event,
    GenerationEvent,
    Job,
    PackageEvent,
    Record,
    RunEvent,
    finished,
    held_round,
    next_work,
    ready_order,
)
from outerloop.controller.campaign_candidates import read_candidates, watched
from outerloop.controller.campaign_harvest import Ended, Memory, digest_of, failure_events, harvest
from outerloop.controller.campaign_ledger import Books, CampaignLedger, Launch, insert_events, read_books
from outerloop.controller.campaign_places import Places
from outerloop.controller.campaign_request import CampaignRequest, settings_in_force
from outerloop.controller.campaign_slots import output_folder, slot_of
from outerloop.controller.campaign_watch import file_stamps, note_idle
from outerloop.controller.campaign_work import CONFIG, CannotHandOut, Rendered, campaign_work, render
from outerloop.controller.engine import Blocking, Ending, Engine, Next
from outerloop.controller.interest import drop_interest
from outerloop.controller.plan import Planned, commit_measures
from outerloop.controller.request import Execution
from outerloop.record.models import Attempt, Measure, Run, Slot

__all__ = ["LIVE_ROUND", "Campaign", "archive_round", "campaign_verdict", "planned_launch"]

LIVE_ROUND = 0
"""Round of the measures that are live jobs."""
MOST_NAMED = 3
"""Jobs that a sentence names."""


def archive_round(launch: Launch) -> int:
    """Round of a launch's measure once the job has ended."""
    return LIVE_ROUND + 1 + launch.again


def planned_launch(
    places: Places,
    mirror: str,
    launch: Launch,
    *,
    rendered: Rendered | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Planned:
    """A launch as the plan's rows have it; `facts` are those of its slot's spec."""
    work = campaign_work(places.settings[launch.setting], launch, mirror=mirror, rendered=rendered, facts=facts)
    return Planned(launch.job.key, None, work)


@dataclass(frozen=True)
class _Row:
    """A live job's slot as the record has it."""

    digest: str
    state: str
    reason: str
    detail: str
    attempt: int | None
    restart: int
    exit_code: int | None
    gpu_hours: float
    live: int
    """Attempts that have not ended."""
    submitted: int
    """Attempts that the cluster took."""


class Campaign:
    """The answers of one campaign."""

    round = LIVE_ROUND

    def __init__(self, engine: Engine, run: Run) -> None:
        self.engine = engine
        self.context = engine.context
        self.request = CampaignRequest.model_validate(run.request)
        self.settings = settings_in_force(self.request, engine.events)
        self.setting = self.settings[-1]
        self.config = self.setting.parsed
        self.places = Places(self.context.root, self.request.id, self.settings)
        self.ledger = CampaignLedger(self.context.root, self.request.id)
        self.mirror = str(self.context.root.mirror(self.request.target))
        self.books = Books()
        self.rows: dict[str, _Row] = {}
        """Slots of live jobs, looked at once a pass: what ends meanwhile is the next pass's."""
        self.rendered: dict[tuple[str, int], Rendered] = {}
        self.memory = Memory()

    # -- what the engine asks

    @property
    def gpu_hours(self) -> float | None:
        """The campaign's own budget is the core's; here the deployment's counts."""
        return None

    @property
    def executions(self) -> Sequence[Execution]:
        return tuple(self.setting.executions.values())

    def before_jobs(self) -> Ending | None:
        """Fold the ledger; what a process left on disk before it died goes into the record."""
        self.engine.tells_of_submissions = True  # that a package is being made is an event
        self.books, tail = read_books(self.context.record, self.ledger)
        self.engine.campaign_seq = self.books.state.seq
        if tail:
            with self._fenced() as session:
                insert_events(session, self.request.id, tail)
        return None

    def plan(self) -> None:
        """Append everything that is due or owed, hand out what may be, and let the measures of round 0 be that."""
        if self.books.state.cancelled and self.books.state.live:
            self.engine.notes += drop_interest(self.context, self.request.id, "the campaign was cancelled")
        self.rows = self._rows()
        while self._record_due() or self._take_in() or self._hand_out():
            if self.engine.turn_over:
                break
        self._commit_live()

    def step(self) -> Ending | Next:
        """Done, or more to take in, or wait; blocked when only somebody's hand can help."""
        self.rows = self._rows()
        if self._owed():
            return Next.MORE
        state = self.books.state
        before = file_stamps(self._watched())
        candidates = self._candidates()
        if finished(state, self.config, candidates):
            return Ending({"round": 0, "verdict": campaign_verdict(self.books), "champion_seq": None})
        wanted = next_work(state, self.config, candidates)
        rows = self.rows
        stuck = [key for key in state.live if key in rows and rows[key].state == "exhausted"]
        if stuck and len(stuck) == len(state.live) == len(wanted):
            told = "; ".join(f"{key}: {rows[key].reason} {rows[key].detail}".strip() for key in stuck[:MOST_NAMED])
            raise Blocking(self.engine.exhausted_because(LIVE_ROUND), told)
        generation = state.generation
        if not wanted and generation is not None and generation.split_failed and not state.stopped:
            raise Blocking("SPLIT", self._split_failure())
        held = held_round(state)
        if not wanted and held is not None and not state.stopped:
            raise Blocking("ROUND", self._burnt(held))
        if not state.live:
            self.engine.idle = self._why_idle(candidates)
            if not state.stopped:
                note_idle(self.context.root, self.request.id, before)
        return Next.WAIT

    def _burnt(self, number: int) -> str:
        generation = self.books.state.generation
        first = generation.rounds[number][0] if generation is not None else ""
        for event in reversed(self.ledger.read()):
            if isinstance(event, RunEvent) and event.run_id == first:
                return f"no training of round {number} could be handed out: {event.detail}"
        return f"no training of round {number} could be handed out"

    def _why_idle(self, candidates: CandidateList | BrokenCandidates) -> tuple[str, str]:
        state = self.books.state
        if state.stopped:
            return "STOPPED", f"stopped by its owner; `outerloop campaign resume {self.request.id}` goes on"
        if isinstance(candidates, BrokenCandidates):
            return "IDLE", candidates.reason.splitlines()[0]
        return "IDLE", f"nothing to do until {self.setting.candidates_path.name} or the configuration changes"

    def _split_failure(self) -> str:
        number = self.books.state.generation.number if self.books.state.generation else 0
        for event in reversed(self.ledger.read()):
            if event.kind == "generation" and event.status == "split_failed":
                return f"generation {event.generation}: {event.detail}"
        return f"the split of generation {number} could not be built"

    # -- the ledger

    def _fenced(self) -> Any:
        return self.context.record.fenced("tx.campaign", self.engine.lease, seconds=self.context.patience.lease)

    def _append(self, event: Event) -> None:
        """Publish the next event, commit it, fold it. Raises Behind when somebody else wrote another one first."""
        written = self.ledger.append(self.books.state.seq + 1, event)
        with self._fenced() as session:
            insert_events(session, self.request.id, [written])
        self.books.take(written)
        self.engine.campaign_seq = self.books.state.seq

    def _watched(self) -> list[Path]:
        generation = self.books.state.generation
        where = None if generation is None else (self.places.folder, generation.number)
        return watched(self.setting, self.books.state.candidates, where)

    def _candidates(self) -> CandidateList | BrokenCandidates:
        state = self.books.state
        generation = state.generation
        where = None if generation is None else (self.places.folder, generation.number)
        return read_candidates(self.setting, state.candidates, where)

    def _record_due(self) -> bool:
        """Append the one event that follows from the ledger, if there is one."""
        candidates = self._candidates()
        if self.books.state.generation is None and isinstance(candidates, BrokenCandidates):
            # A campaign does not start on a list that nobody can read: that is the operator's to mend.
            raise Blocking("CANDIDATES", candidates.reason)
        work = next_work(self.books.state, self.config, candidates)
        if work and isinstance(work[0], Record):
            self._append(work[0].event)
            return True
        return False

    # -- what has ended

    def _take_in(self) -> bool:
        """Append the first outcome that is owed, if there is one."""
        owed = self._owed()
        if owed is None:
            return False
        self._append(owed)
        return True

    def _owed(self) -> Event | None:
        """The first outcome that is owed. Evaluations that are ready together have an order of their own."""
        others: list[tuple[Job, Event]] = []
        evaluations: list[EvalEvent] = []
        for key in self.books.state.live:
            launch = self.books.launches[key][-1]
            events = self._outcomes(launch, self.rows.get(key))
            if not events:
                continue
            if isinstance(events[0], EvalEvent):
                evaluations += [event for event in events if isinstance(event, EvalEvent)]
            else:
                others.append((launch.job, events[0]))
        if others:
            return min(others, key=lambda pair: (pair[0].generation, pair[0].round, pair[0].run_id, pair[0].key))[1]
        return ready_order(evaluations)[0] if evaluations else None

    def _outcomes(self, launch: Launch, row: _Row | None) -> list[Event]:
        """What a live job owes now; nothing while its slot is open, or blocked."""
        job, slot = launch.job, slot_of(self.context.root, self.settings, launch)
        if row is None or row.digest != slot.digest:
            try:
                if slot.spec() is None:
                    self._render(launch)
            except CannotHandOut as reason:
                return failure_events(self.books, job, str(reason))
            return failure_events(self.books, job, CANCELLED) if self.books.state.cancelled else []
        packaging = self.books.state.packaging
        if job.kind == "package" and not packaging.announced and row.submitted:
            subject = job.awaits[0].removeprefix("package:")
            return [PackageEvent(status="launched", generation=job.generation, subject=subject)]
        if row.state in {"done", "failed"}:
            output = None if row.attempt is None else output_folder(slot, row.attempt, row.restart)
            told = f"{row.reason}: {row.detail}" if row.detail else row.reason
            ended = Ended(launch, slot, row.state == "done", row.exit_code, told, output, row.gpu_hours)
            return harvest(self.books, self.config, self.places, ended, self.memory)
        if self.books.state.cancelled and not row.live:
            return failure_events(self.books, job, CANCELLED, gpu_hours=row.gpu_hours)
        if job.kind == "package" and row.state == "exhausted" and not row.submitted:
            return failure_events(self.books, job, f"{row.reason}: {row.detail}")
        return []

    def _rows(self) -> dict[str, _Row]:
        """The slots of live jobs, by job."""
        with self.context.record.reading() as session:
            found = session.execute(
                select(Measure.role, Slot)
                .join(Slot, Slot.id == Measure.slot_id)
                .where(Measure.run_id == self.request.id, Measure.round == LIVE_ROUND)
            ).all()
            slots = [slot.id for _, slot in found]
            told = session.execute(
                select(
                    Attempt.slot_id,
                    func.max(Attempt.n).label("newest"),
                    func.coalesce(func.sum(Attempt.gpu_hours_used), 0.0).label("hours"),
                    func.count().filter(Attempt.state != "settled").label("live"),
                    func.count().filter(Attempt.job_id.is_not(None)).label("submitted"),
                )
                .where(Attempt.slot_id.in_(slots))
                .group_by(Attempt.slot_id)
            ).all()
        attempts = {item.slot_id: item for item in told}
        return {role: _row(slot, attempts.get(slot.id)) for role, slot in found}

    # -- handing out

    def _hand_out(self) -> bool:
        """Give the next job its place in the ledger, or its failure if it can't be handed out. False when none is
        to be handed out."""
        state = self.books.state
        work = next_work(state, self.config, self._candidates())
        job = next((item for item in work if isinstance(item, Job) and not item.live), None)
        if job is None:
            return False
        if (found := self._split_lost_or_found(job)) is not None:
            self._append(found)
            return True
        if job.kind == "train":
            failure = self._unfit_training(job)
            if failure is not None:
                self._append(failure)
                return True
        self._append(DispatchEvent(action="launched", job=job, setting=len(self.settings) - 1))
        return True

    def _split_lost_or_found(self, job: Job) -> Event | None:
        """That the split which a job reads is gone, or that the one to be built again is there; else None."""
        generation = self.books.state.generation
        if generation is None or job.generation != generation.number or job.kind == "package":
            return None
        link = self.places.split_link(job.generation)
        if job.kind != "split":
            if link.exists():
                return None
            detail = f"{link} is gone; it is built again"
            return GenerationEvent(status="split_lost", generation=job.generation, detail=detail)
        if generation.split_lost and digest_of(link) == generation.split_sha256:
            return GenerationEvent(
                status="split_ready",
                generation=job.generation,
                split_sha256=generation.split_sha256,
                detail="somebody put it back",
            )
        return None

    def _unfit_training(self, job: Job) -> Event | None:
        """Why a training can't be handed out, as its end; None when it can, and its config is written then."""
        folder = self.places.run_folder(job.run_id)
        if os.path.lexists(folder):
            detail = f"{folder} exists and no event speaks of it; it was not touched"
            return RunEvent(
                status="stale_run_dir", run_id=job.run_id, generation=job.generation, round=job.round, detail=detail
            )
        try:
            rendered = render(self.setting, self.books, self.places, job)
        except CannotHandOut as reason:
            return failure_events(self.books, job, str(reason))[0]
        self.places.write_config(job.run_id, rendered.files[CONFIG])
        return None

    def _render(self, launch: Launch) -> Rendered:
        """A launch's command and files. Raises CannotHandOut."""
        key = (launch.job.key, launch.again)
        if key not in self.rendered:
            setting = self.settings[launch.setting]
            self.rendered[key] = render(setting, self.books, self.places, launch.job)
        return self.rendered[key]

    def _commit_live(self) -> None:
        """Let the measures of round 0 be the live jobs; new ones get their slots."""
        with self.context.record.reading() as session:
            known = {
                row.role: row.digest
                for row in session.execute(
                    select(Measure.role, Slot.digest)
                    .join(Slot, Slot.id == Measure.slot_id)
                    .where(Measure.run_id == self.request.id, Measure.round == LIVE_ROUND)
                )
            }
        live = {key: self.books.launches[key][-1] for key in self.books.state.live}
        slots = {key: slot_of(self.context.root, self.settings, launch) for key, launch in live.items()}
        over = [key for key, digest in known.items() if key not in live or slots[key].digest != digest]
        if over:
            self._archive(over, known)
        planned = []
        for key, launch in live.items():
            if key in known and key not in over and not self.engine.lost_specs:
                continue
            spec = slots[key].spec()
            facts = spec.get("work") if spec is not None else None
            rendered = None if facts else self._render(launch)
            planned.append(planned_launch(self.places, self.mirror, launch, rendered=rendered, facts=facts))
        if planned:
            commit_measures(self.context, self.engine.lease, self.request, LIVE_ROUND, planned)

    def _archive(self, keys: Sequence[str], digests: Mapping[str, str]) -> None:
        """Move the measures of ended jobs out of round 0."""
        with self._fenced() as session:
            for key in keys:
                launch = next(
                    item
                    for item in reversed(self.books.launches[key])
                    if slot_of(self.context.root, self.settings, item).digest == digests[key]
                )
                mine = (Measure.run_id == self.request.id, Measure.role == key)
                session.execute(delete(Measure).where(*mine, Measure.round == archive_round(launch)))
                session.execute(
                    update(Measure).where(*mine, Measure.round == LIVE_ROUND).values(round=archive_round(launch))
                )


CANCELLED = "the campaign was cancelled"


def _row(slot: Slot, attempts: Any) -> _Row:
    """A slot's row with what its attempts add up to."""
    result = slot.result or {}
    attempt = result.get("attempt", slot.pinned_attempt)
    if attempt is None and attempts is not None:
        attempt = attempts.newest
    code = result.get("exit_code")
    return _Row(
        digest=slot.digest,
        state=slot.state,
        reason=slot.reason,
        detail=slot.detail,
        attempt=attempt if isinstance(attempt, int) else None,
        restart=int(result.get("restart") or 0),
        exit_code=code if isinstance(code, int) else None,
        gpu_hours=float(attempts.hours) if attempts is not None else 0.0,
        live=int(attempts.live) if attempts is not None else 0,
        submitted=int(attempts.submitted) if attempts is not None else 0,
    )


def campaign_verdict(books: Books) -> dict[str, Any]:
    """The verdict of a campaign that has come to its end. Pure in its ledger."""
    state = books.state
    champion = state.generation.champion if state.generation is not None else None
    scored = sum(event.role == "test" and event.status == "scored" for event in state.evaluations)
    generations = len(state.generations)
    rounds = f"{state.rounds_opened} round{'s' if state.rounds_opened != 1 else ''}"
    said = f"{rounds} in {generations} generation{'s' if generations != 1 else ''}, {scored} scored"
    best = f"the champion is {champion.subject}" if champion is not None else "there is no champion"
    opened = state.generation.opened if state.generation is not None else None
    if champion is None and opened is not None and opened.reason == "reserve_failed":
        best += f": {opened.previous_champion} did not hold up on the reserve set, and no later one was found"
    word = "cancelled" if state.cancelled else "finished"
    return {
        "kind": "campaign",
        "outcome": word,
        "reason": "operator" if state.cancelled else "",
        "sentence": f"the campaign {'was cancelled' if state.cancelled else 'finished'}: {said}; {best}",
        "champion": champion.subject if champion is not None else None,
        "generations": generations,
        "rounds": state.rounds_opened,
        "scored": scored,
        "events": state.seq,
    }

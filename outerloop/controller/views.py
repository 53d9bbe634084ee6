"""What people look at: read-only questions to the record, answered with frozen dataclasses.

Covered: the list of runs, one run in full, champions, the queue by pending reason, the tick's heartbeat. Each answer
takes a fixed number of queries, whatever the number of runs or measures, and needs no right but SELECT. Not covered:
what an answer means (health.py), rendering (cli), advancing anything.

Ages and "now" are the database's clock. `Decimal` values are exact, as they were printed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Select, Text, and_, case, cast, exists, func, literal, or_, select, true
from sqlalchemy.dialects.postgresql import JSONB, aggregate_order_by
from sqlalchemy.orm import aliased, defer

from outerloop.controller.ladders import is_sealed
from outerloop.controller.ledger import PAUSED
from outerloop.controller.shown import (
    AttemptView,
    ChampionView,
    EventView,
    MeasureView,
    Overview,
    QueueView,
    ReuseView,
    RunFilter,
    RunPage,
    RunRow,
    RunView,
    TickView,
    WakeView,
)
from outerloop.record.models import Attempt, Champion, Event, Heartbeat, Measure, Realm, Run, Slot, Wake
from outerloop.record.store import Record
from outerloop.slots import Result

__all__ = [
    "OPEN_STATES",
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
    "benchmarks",
    "champions",
    "entries",
    "last_tick",
    "one_run",
    "overview",
    "queue",
    "realm_of",
    "reuse",
    "reuse_before",
    "run_head",
    "runs",
]

OPEN_STATES = ("queued", "waiting", "blocked")
UNLISTED = "submitted"
"""Shown as the state of a live attempt that no listing has shown yet."""
CANCELLING = "cancelling"
"""Shown for a live attempt whose job was cancelled, until a listing shows that it is gone."""
SHOWN_STATE = case(
    (Attempt.cancel_reason.is_not(None), cast(literal(CANCELLING), Text)),
    else_=func.coalesce(func.nullif(Attempt.slurm_state, ""), cast(literal(UNLISTED), Text)),
)
"""The state of a live attempt as people see it."""


def realm_of(record: Record) -> Any:
    """Id of the record's realm as a subquery: a reader may not make the row that is missing."""
    return select(Realm.id).where(Realm.owner == record.owner, Realm.slot_root == record.slot_root).scalar_subquery()


_LARGE = (defer(Run.request, raiseload=True), defer(Run.evidence, raiseload=True))
"""What was asked and the evidence: large, and no list shows them."""


def _listing(record: Record) -> Select[Any]:
    """Runs with the counts of their current round, in one statement."""
    counted = (
        select(
            func.count().label("measures"),
            func.count().filter(Slot.state.in_(["done", "failed"])).label("done"),
        )
        .select_from(Measure)
        .join(Slot, Slot.id == Measure.slot_id)
        .where(Measure.run_id == Run.id, Measure.round == Run.round)
        .correlate(Run)
        .lateral("counted")
    )
    by_state = (
        select(SHOWN_STATE.label("state"), Attempt.slurm_reason.label("reason"), func.count().label("jobs"))
        .select_from(Measure)
        .join(Attempt, and_(Attempt.slot_id == Measure.slot_id, Attempt.state.in_(["intent", "submitted"])))
        .where(Measure.run_id == Run.id, Measure.round == Run.round)
        .group_by(SHOWN_STATE, Attempt.slurm_reason)
        .correlate(Run)
        .subquery("by_state")
    )
    live = select(
        func.coalesce(
            func.jsonb_agg(
                aggregate_order_by(
                    func.jsonb_build_array(by_state.c.state, by_state.c.reason, by_state.c.jobs),
                    by_state.c.state,
                    by_state.c.reason,
                )
            ),
            cast(literal("[]"), JSONB),
        ).label("jobs")
    ).lateral("live")
    return (
        select(
            Run,
            func.coalesce(Run.request["sealed"].astext == "true", literal(False)).label("sealed"),
            counted.c.measures,
            counted.c.done,
            live.c.jobs,
            func.now().label("now"),
        )
        .select_from(Run)
        .join(counted, true())
        .join(live, true())
        .where(Run.realm_id == realm_of(record))
    )


def _row(found: Any) -> RunRow:
    run: Run = found.Run
    jobs: dict[str, int] = {}
    pending: dict[str, int] = {}
    for state, reason, count in found.jobs:
        jobs[state] = jobs.get(state, 0) + count
        if state == "pending" and reason:
            pending[reason] = pending.get(reason, 0) + count
    return RunRow(
        id=run.id,
        kind=run.kind,
        target=run.target,
        benchmark=run.benchmark,
        label=run.label,
        submitter=run.submitter,
        state=run.state,
        state_reason=run.state_reason,
        state_detail=run.state_detail,
        verdict=run.verdict,
        verdict_reason=run.verdict_reason,
        sentence=run.sentence,
        base_commit=run.base_commit,
        candidate_commit=run.candidate_commit,
        round=run.round,
        ask=run.ask,
        priority=run.priority,
        last_error=run.last_error,
        created_at=run.created_at,
        updated_at=run.updated_at,
        due_at=run.due_at,
        ended_at=run.ended_at,
        measures=found.measures,
        done=found.done,
        jobs=jobs,
        pending=pending,
        sealed=found.sealed,
    )


def _conditions(record: Record, wanted: RunFilter) -> list[Any]:
    conditions: list[Any] = [Run.realm_id == realm_of(record)]
    if wanted.states:
        conditions.append(Run.state.in_(wanted.states))
    if wanted.target:
        conditions.append(Run.target.icontains(wanted.target, autoescape=True))
    if wanted.benchmark:
        conditions.append(Run.benchmark == wanted.benchmark)
    if wanted.submitter:
        conditions.append(Run.submitter == wanted.submitter)
    if wanted.kind:
        conditions.append(Run.kind == wanted.kind)
    if wanted.verdict:
        conditions.append(Run.verdict == wanted.verdict)
    if wanted.text:
        columns = (Run.id, Run.label, Run.target, Run.benchmark)
        conditions.append(or_(*(column.icontains(wanted.text, autoescape=True) for column in columns)))
    return conditions


def runs(record: Record, wanted: RunFilter | None = None, *, limit: int = 50, offset: int = 0) -> RunPage:
    """Runs of this realm: blocked ones first, then newest first by the time of their verdict or, while open, of
    asking. Raises RecordUnavailable."""
    conditions = _conditions(record, wanted or RunFilter())
    with record.reading() as session:
        # The page first, its counts second: counted together, every run would be counted before fifty are kept.
        total, now = session.execute(select(func.count(), func.now()).select_from(Run).where(*conditions)).one()
        page = list(
            session.scalars(
                select(Run.id)
                .where(*conditions)
                .order_by((Run.state == "blocked").desc(), func.coalesce(Run.ended_at, Run.created_at).desc(), Run.id)
                .limit(limit)
                .offset(offset)
            )
        )
        found = {
            row.Run.id: _row(row) for row in session.execute(_listing(record).options(*_LARGE).where(Run.id.in_(page)))
        }
    return RunPage(tuple(found[run_id] for run_id in page if run_id in found), total, offset, now)


def one_run(record: Record, run_id: str) -> RunView | None:
    """Everything about one run, None when there is none of this id. Five queries, whatever its size."""
    with record.reading() as session:
        found = session.execute(_listing(record).where(Run.id == run_id)).one_or_none()
        if found is None:
            return None
        rows = session.execute(_MEASURES.where(Measure.run_id == run_id).order_by(Measure.round, Measure.id)).all()
        attempts: dict[int, list[AttemptView]] = {}
        slots = select(Measure.slot_id).where(Measure.run_id == run_id)
        for slot_id, *attempt in session.execute(
            _ATTEMPTS.where(Attempt.slot_id.in_(slots)).order_by(Attempt.slot_id, Attempt.n)
        ):
            attempts.setdefault(slot_id, []).append(AttemptView(*attempt))
        events = session.scalars(select(Event).where(Event.run_id == run_id).order_by(Event.seq)).all()
        wakes = session.scalars(select(Wake).where(Wake.run_id == run_id).order_by(Wake.number)).all()
    return RunView(
        row=_row(found),
        request=found.Run.request,
        evidence=found.Run.evidence,
        measures=tuple(
            sorted(
                (_measure(row, attempts.get(row.slot_id, ())) for row in rows),
                key=lambda m: (m.round, m.kind != "environment", m.benchmark != found.Run.benchmark, m.pair, m.side),
            )
        ),
        events=tuple(EventView(event.seq, event.kind, event.at, event.body) for event in events),
        wakes=tuple(_wake(wake) for wake in wakes),
        now=found.now,
    )


def run_head(record: Record, run_id: str) -> RunView | None:
    """A run without its measures and events, None when there is none of this id: three queries, whatever its size."""
    with record.reading() as session:
        found = session.execute(_listing(record).where(Run.id == run_id)).one_or_none()
        if found is None:
            return None
        wakes = session.scalars(select(Wake).where(Wake.run_id == run_id).order_by(Wake.number.desc()).limit(20)).all()
    return RunView(
        row=_row(found),
        request=found.Run.request,
        evidence=found.Run.evidence,
        measures=(),
        events=(),
        wakes=tuple(_wake(wake) for wake in reversed(wakes)),
        now=found.now,
    )


def _wake(w: Wake) -> WakeView:
    return WakeView(w.number, w.state, w.job_id, w.job_name, tuple(w.awaited), w.reason, w.created_at)


# Columns, not entities: a run of hundreds of measures is read several times faster.
_ATTEMPTS = select(Attempt.slot_id, *(getattr(Attempt, name) for name in AttemptView.__dataclass_fields__))
_MEASURES = select(
    Measure.role,
    Measure.round,
    Measure.benchmark,
    Measure.side,
    Measure.pair,
    Measure.seed,
    Measure.replicate,
    Slot.kind,
    Slot.digest.label("slot"),
    Slot.id.label("slot_id"),
    Slot.state,
    Slot.reason,
    Slot.detail,
    Slot.failure_class,
    Slot.result,
    Slot.pinned_attempt,
    Slot.attempts_allowed,
    Slot.attempts_counted,
    Slot.next_try_at,
    Slot.settled_at,
).join(Slot, Slot.id == Measure.slot_id)


def _measure(row: Any, attempts: Sequence[AttemptView]) -> MeasureView:
    value = None
    if row.state == "done" and row.result is not None:
        value = Result(row.pinned_attempt or 0, "", 0, row.result).value
    return MeasureView(**row._mapping, value=value, attempts=tuple(attempts))


def champions(record: Record, benchmark: str = "", *, target: str = "", limit: int = 200) -> tuple[ChampionView, ...]:
    """The history of champions, by target and benchmark, newest first."""
    line = (Champion.target, Champion.benchmark, Champion.definition)
    newest = Champion.seq == func.max(Champion.seq).over(partition_by=line)
    # the last crowning of a line orders lines of one benchmark, so that the definition in force comes first
    latest = func.max(Champion.accepted_at).over(partition_by=line)
    every = (
        select(Champion.id, newest.label("newest"), latest.label("latest"))
        .where(Champion.realm_id == realm_of(record))
        .subquery()
    )
    query = (
        select(Champion, every.c.newest, Run.submitter, Run.request)
        .join(every, every.c.id == Champion.id)
        .outerjoin(Run, Run.id == Champion.run_id)
        .order_by(Champion.target, Champion.benchmark, every.c.latest.desc(), Champion.definition, Champion.seq.desc())
        .limit(limit)
    )
    if benchmark:
        query = query.where(Champion.benchmark == benchmark)
    if target:
        query = query.where(Champion.target.icontains(target, autoescape=True))
    with record.reading() as session:
        found = session.execute(query).all()
    return tuple(
        ChampionView(
            target=c.target,
            benchmark=c.benchmark,
            definition=c.definition,
            seq=c.seq,
            run_id=c.run_id,
            commit=c.commit,
            value=c.value,
            gain=c.gain,
            label=c.label,
            accepted_at=c.accepted_at,
            submitter=submitter or "",
            newest=is_newest,
            sealed=is_sealed(request or {}),
        )
        for c, is_newest, submitter, request in found
    )


_DECIDED = ("accepted", "rejected")
"""Verdicts that weighed the candidate's numbers."""


def _data(run: Any) -> Any:
    """What a run was measured on besides its tree: its frozen inputs as text, equal for equal content."""
    inputs = func.jsonb_extract_path(run.request, "execution", run.benchmark, "inputs")
    return func.coalesce(cast(inputs, Text), "[]")


def reuse(record: Record, benchmark: str = "", *, target: str = "") -> tuple[ReuseView, ...]:
    """For each benchmark and definition: how often the data that decided last has decided."""
    seeded = exists().where(Measure.run_id == Run.id, Measure.side == "candidate", Measure.seed > 0)
    line = (Run.target, Run.benchmark, Run.definition)
    conditions = [Run.realm_id == realm_of(record), Run.kind == "climb", Run.verdict.in_(_DECIDED)]
    if benchmark:
        conditions.append(Run.benchmark == benchmark)
    if target:
        conditions.append(Run.target.icontains(target, autoescape=True))
    accepted = func.count().filter(Run.verdict == "accepted")
    query = (
        select(*line, func.count(), accepted, func.min(Run.ended_at), func.bool_or(seeded))
        .where(*conditions)
        .group_by(*line, _data(Run))
        .order_by(*line, func.max(Run.ended_at).desc())
    )
    with record.reading() as session:
        found = [ReuseView(*row) for row in session.execute(query)]
    newest: dict[tuple[str, str, str], ReuseView] = {}
    for view in found:
        newest.setdefault((view.target, view.benchmark, view.definition), view)
    return tuple(newest.values())


def reuse_before(record: Record, run_id: str) -> int:
    """How many verdicts on the same benchmark and data there were before this run's, or are there while it is open."""
    other = aliased(Run)
    query = (
        select(func.count())
        .select_from(Run)
        .join(
            other,
            and_(
                other.realm_id == Run.realm_id,
                other.id != Run.id,
                other.target == Run.target,
                other.benchmark == Run.benchmark,
                other.definition == Run.definition,
                other.verdict.in_(_DECIDED),
                _data(other) == _data(Run),
                or_(Run.ended_at.is_(None), other.ended_at < Run.ended_at),
            ),
        )
        .where(Run.id == run_id)
    )
    with record.reading() as session:
        return session.scalar(query) or 0


def entries(record: Record, challenge: str) -> list[dict[str, Any]]:
    """Entries of a challenge, oldest first, each with `run`, `entry` (what people call it) and its verdict.

    One that nothing was compared for has the outcome `open`, with its state as the reason, or how it ended. Cancelled
    ones are left out.
    """
    with record.reading() as session:
        found = session.execute(
            select(Run.id, Run.label, Run.evidence, Run.state, Run.verdict, Run.verdict_reason)
            .where(
                Run.realm_id == realm_of(record),
                Run.kind == "entry",
                Run.benchmark == challenge,
                func.coalesce(Run.verdict, "") != "cancelled",
            )
            .order_by(Run.ended_at, Run.id)
        ).all()
    return [
        {"run": row.id, "entry": row.label, **(row.evidence or _uncompared(row.verdict, row.verdict_reason, row.state))}
        for row in found
    ]


def _uncompared(verdict: str | None, reason: str | None, state: str) -> dict[str, Any]:
    """What stands for the evidence of an entry that was not compared with anything, or not yet."""
    return {"outcome": verdict or "open", "reason": (reason or "") if verdict else state, "opponent": ""}


def benchmarks(record: Record) -> list[str]:
    """Names of the benchmarks that somebody asked about."""
    with record.reading() as session:
        return list(
            session.scalars(
                select(Run.benchmark).where(Run.realm_id == realm_of(record)).distinct().order_by(Run.benchmark)
            )
        )


def queue(record: Record) -> tuple[QueueView, ...]:
    """Live jobs by state and pending reason, as the queue last showed them; asks no cluster."""
    state = SHOWN_STATE.label("state")
    live = (Attempt.realm_id == realm_of(record), Attempt.state.in_(["intent", "submitted"]))
    # Jobs and runs are counted apart: many runs may want one job.
    jobs = (
        select(state, Attempt.slurm_reason, func.count().label("jobs"), func.min(Attempt.intent_at).label("oldest"))
        .where(*live)
        .group_by(state, Attempt.slurm_reason)
        .subquery("by_reason")
    )
    wanted = (
        select(state, Attempt.slurm_reason, Measure.run_id)
        .join(Measure, Measure.slot_id == Attempt.slot_id)
        .where(*live)
        .distinct()
        .subquery("wanted")
    )
    runs = (
        select(wanted.c.state, wanted.c.slurm_reason, func.count().label("runs"))
        .group_by(wanted.c.state, wanted.c.slurm_reason)
        .subquery("wanting")
    )
    with record.reading() as session:
        found = session.execute(
            select(jobs.c.state, jobs.c.slurm_reason, jobs.c.jobs, func.coalesce(runs.c.runs, 0), jobs.c.oldest)
            .outerjoin(runs, and_(runs.c.state == jobs.c.state, runs.c.slurm_reason == jobs.c.slurm_reason))
            .order_by(jobs.c.state, jobs.c.slurm_reason)
        ).all()
    return tuple(QueueView(*row) for row in found)


def overview(record: Record) -> Overview:
    """Numbers over all runs of the realm. The examples are the ones that changed last."""
    moving = Run.state.in_(["queued", "waiting"])
    broken = and_(moving, Run.last_error.is_not(None))
    held = and_(Run.state == "blocked", Run.state_reason == PAUSED)
    blocked = and_(Run.state == "blocked", Run.state_reason != PAUSED)

    def example(column: Any, condition: Any) -> Any:
        ordered = aggregate_order_by(column, Run.updated_at.desc(), Run.id)
        return func.coalesce(func.array_agg(ordered).filter(condition)[1], "")

    with record.reading() as session:
        found = session.execute(
            select(
                func.now(),
                func.count().filter(Run.state == "queued"),
                func.count().filter(Run.state == "waiting"),
                func.count().filter(blocked),
                func.count().filter(Run.state == "ended"),
                func.min(Run.created_at).filter(moving),
                example(Run.id, blocked),
                example(Run.state_reason, blocked),
                func.count().filter(broken),
                example(Run.id, broken),
                func.count().filter(held),
            )
            .select_from(Run)
            .where(Run.realm_id == realm_of(record))
        ).one()
    values: tuple[Any, ...] = tuple(found)
    return Overview(*values)


def last_tick(record: Record) -> TickView | None:
    """The heartbeat of the tick, None when none has ended yet."""
    age = func.extract("epoch", func.now() - Heartbeat.at)
    with record.reading() as session:
        found = session.execute(
            select(Heartbeat, age).where(Heartbeat.realm_id == realm_of(record), Heartbeat.name == "tick")
        ).one_or_none()
    if found is None:
        return None
    beat, seconds = found
    return TickView(beat.at, float(seconds), beat.host, beat.body)

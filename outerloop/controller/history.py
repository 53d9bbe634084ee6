"""What the record says over many runs: benchmarks, verdicts over time, live jobs, how long runs usually take.

Covered: read-only questions, a fixed number of queries each, no right but SELECT. Not covered: single runs and lists of
runs (views.py), what an answer means.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import and_, case, func, literal, select, tuple_
from sqlalchemy.dialects.postgresql import aggregate_order_by

from outerloop.controller.views import SHOWN_STATE, realm_of
from outerloop.record.models import Attempt, Champion, Event, Measure, Run, Slot
from outerloop.record.store import Record

__all__ = [
    "Asked",
    "BenchmarkLine",
    "Day",
    "LiveJob",
    "PlannedTraining",
    "Usual",
    "authors",
    "benchmark_lines",
    "days",
    "live_jobs",
    "planned_trainings",
    "training_reports",
    "usual_durations",
    "verdict_history",
]

USUAL_RUNS = 50
"""Ended runs of a benchmark that say how long the next one takes: enough for a median, few enough to be current."""
FEWEST_FOR_USUAL = 3


@dataclass(frozen=True)
class BenchmarkLine:
    """One benchmark of one target: what was asked of it and its champion under the newest definition."""

    target: str
    benchmark: str
    runs: int
    open: int
    accepted: int
    rejected: int
    failed: int
    newest: datetime
    """When it was asked about last."""
    champion_seq: int | None
    champion_value: str | None
    champion_run: str | None
    champion_at: datetime | None
    values: tuple[str, ...]
    """The champions' values, oldest first, under the newest definition."""


@dataclass(frozen=True)
class Asked:
    """One climb that weighed numbers: the means of both sides, in the metric's unit, as exact text."""

    run_id: str
    ended_at: datetime
    verdict: str
    reason: str
    metric: str
    direction: str
    base: str
    candidate: str
    gain: str
    label: str
    submitter: str
    definition: str


@dataclass(frozen=True)
class LiveJob:
    """One job that the record takes to be alive, and one of the runs that want it."""

    job_id: str | None
    job_name: str
    state: str
    reason: str
    node: str
    lane: str
    role: str
    run_id: str
    benchmark: str
    target: str
    n: int
    minutes: float
    intent_at: datetime
    submitted_at: datetime | None
    observed_at: datetime | None


@dataclass(frozen=True)
class Usual:
    """How long ended runs of a benchmark took from asking to verdict, in seconds."""

    runs: int
    median: float
    p90: float


@dataclass(frozen=True)
class Day:
    """Verdicts of one UTC day."""

    day: datetime
    verdict: str
    runs: int


@dataclass(frozen=True)
class PlannedTraining:
    """A training that a plan report launched, with what its processes reported."""

    run_id: str
    name: str
    target: str
    state: str
    verdict: str | None
    created_at: datetime
    ended_at: datetime | None
    expected: Mapping[str, Any]
    """`training_request.Expected` as JSON, with the fields of its layout beside the others."""
    reports: Mapping[str, Mapping[str, Any]]


def benchmark_lines(
    record: Record, *, target: str = "", text: str = "", limit: int = 100, offset: int = 0
) -> tuple[tuple[BenchmarkLine, ...], int]:
    """Benchmarks that climbs asked about, the most recently asked first, and how many there are in all.

    A champion whose value a ladder withholds has the word `withheld` instead.
    """
    conditions = [Run.realm_id == realm_of(record), Run.kind == "climb"]
    if target:
        conditions.append(Run.target.icontains(target, autoescape=True))
    if text:
        conditions.append((Run.benchmark + literal(" ") + Run.target).icontains(text, autoescape=True))
    grouped = (
        select(
            Run.target,
            Run.benchmark,
            func.count().label("runs"),
            func.count().filter(Run.state != "ended").label("open"),
            *(func.count().filter(Run.verdict == name).label(name) for name in ("accepted", "rejected", "failed")),
            func.max(Run.created_at).label("newest"),
        )
        .where(*conditions)
        .group_by(Run.target, Run.benchmark)
    )
    with record.reading() as session:
        total = session.scalar(select(func.count()).select_from(grouped.subquery())) or 0
        rows = session.execute(
            grouped.order_by(func.max(Run.created_at).desc(), Run.target, Run.benchmark).limit(limit).offset(offset)
        ).all()
        keys = [(row.target, row.benchmark) for row in rows]
        value = case((Run.request["sealed"].astext == "true", literal("withheld")), else_=Champion.value)
        crowned = session.execute(
            select(
                Champion.target,
                Champion.benchmark,
                Champion.definition,
                func.max(Champion.accepted_at).label("at"),
                func.max(Champion.seq).label("seq"),
                func.array_agg(aggregate_order_by(value, Champion.seq)).label("values"),
                func.array_agg(aggregate_order_by(Champion.run_id, Champion.seq.desc())).label("runs"),
            )
            .outerjoin(Run, Run.id == Champion.run_id)
            .where(Champion.realm_id == realm_of(record), tuple_(Champion.target, Champion.benchmark).in_(keys))
            .group_by(Champion.target, Champion.benchmark, Champion.definition)
        ).all()
    newest: dict[tuple[str, str], Any] = {}
    for line in sorted(crowned, key=lambda found: found.at):
        newest[line.target, line.benchmark] = line
    lines = []
    for row in rows:
        best = newest.get((row.target, row.benchmark))
        lines.append(
            BenchmarkLine(
                target=row.target,
                benchmark=row.benchmark,
                runs=row.runs,
                open=row.open,
                accepted=row.accepted,
                rejected=row.rejected,
                failed=row.failed,
                newest=row.newest,
                champion_seq=None if best is None else best.seq,
                champion_value=None if best is None else best.values[-1],
                champion_run=None if best is None else best.runs[0],
                champion_at=None if best is None else best.at,
                values=() if best is None else tuple(best.values),
            )
        )
    return tuple(lines), total


def verdict_history(record: Record, target: str, benchmark: str, *, limit: int = 1000) -> tuple[Asked, ...]:
    """Climbs of one benchmark that weighed numbers, newest first; not those whose numbers a ladder withholds."""
    climbed = Run.evidence["findings"]["climbed"]
    with record.reading() as session:
        found = session.execute(
            select(
                Run.id,
                Run.ended_at,
                Run.verdict,
                func.coalesce(Run.verdict_reason, ""),
                *(
                    func.coalesce(climbed[key].astext, "")
                    for key in ("metric", "direction", "mean_base", "mean_candidate", "gain")
                ),
                Run.label,
                Run.submitter,
                Run.definition,
            )
            .where(
                Run.realm_id == realm_of(record),
                Run.target == target,
                Run.benchmark == benchmark,
                Run.kind == "climb",
                Run.ended_at.is_not(None),
                climbed["mean_candidate"].astext.is_not(None),
                Run.request["sealed"].astext.is_distinct_from("true"),
            )
            .order_by(Run.ended_at.desc(), Run.id)
            .limit(limit)
        ).all()
    return tuple(Asked(*row) for row in found)


def live_jobs(
    record: Record, *, state: str = "", reason: str = "", limit: int = 100, offset: int = 0
) -> tuple[tuple[LiveJob, ...], int]:
    """Live jobs as the queue last showed them, the oldest first, and how many there are; asks no cluster."""
    conditions = [Attempt.realm_id == realm_of(record), Attempt.state.in_(["intent", "submitted"])]
    if state:
        conditions.append(state == SHOWN_STATE)
    if reason:
        conditions.append(Attempt.slurm_reason == reason)
    wanting = (
        select(Measure.run_id, Measure.role, Measure.benchmark)
        .where(Measure.slot_id == Attempt.slot_id)
        .order_by(Measure.id.desc())
        .limit(1)
        .correlate(Attempt)
        .lateral("wanting")
    )
    # The page first, what belongs to its jobs second: joined together, all jobs before the page would be, too.
    chosen = select(Attempt.id).where(*conditions).order_by(Attempt.id).limit(limit).offset(offset).subquery("chosen")
    with record.reading() as session:
        total = session.scalar(select(func.count()).select_from(Attempt).where(*conditions)) or 0
        found = session.execute(
            select(
                Attempt.job_id,
                Attempt.job_name,
                SHOWN_STATE,
                Attempt.slurm_reason,
                Attempt.node,
                func.coalesce(Slot.order["lane"]["name"].astext, ""),
                func.coalesce(wanting.c.role, Slot.label),
                func.coalesce(wanting.c.run_id, ""),
                func.coalesce(wanting.c.benchmark, ""),
                Slot.target,
                Attempt.n,
                Attempt.minutes,
                Attempt.intent_at,
                Attempt.submitted_at,
                Attempt.observed_at,
            )
            .join(chosen, chosen.c.id == Attempt.id)
            .join(Slot, Slot.id == Attempt.slot_id)
            .outerjoin(wanting, literal(True))
            .order_by(Attempt.id)
        ).all()
    return tuple(LiveJob(*row) for row in found), total


def usual_durations(record: Record, lines: Collection[tuple[str, str]]) -> Mapping[tuple[str, str], Usual]:
    """By (target, benchmark): how long its last runs took that ended with a weighed verdict or finished. Benchmarks
    with fewer than three such runs are left out."""
    if not lines:
        return {}
    recent = (
        select(
            Run.target,
            Run.benchmark,
            func.extract("epoch", Run.ended_at - Run.created_at).label("seconds"),
            func.row_number()
            .over(partition_by=(Run.target, Run.benchmark), order_by=Run.ended_at.desc())
            .label("newness"),
        )
        .where(
            Run.realm_id == realm_of(record),
            tuple_(Run.target, Run.benchmark).in_(list(lines)),
            Run.verdict.in_(["accepted", "rejected", "finished"]),
        )
        .subquery()
    )
    with record.reading() as session:
        found = session.execute(
            select(
                recent.c.target,
                recent.c.benchmark,
                func.count(),
                func.percentile_cont(0.5).within_group(recent.c.seconds),
                func.percentile_cont(0.9).within_group(recent.c.seconds),
            )
            .where(recent.c.newness <= USUAL_RUNS)
            .group_by(recent.c.target, recent.c.benchmark)
            .having(func.count() >= FEWEST_FOR_USUAL)
        ).all()
    return {(row[0], row[1]): Usual(row[2], float(row[3]), float(row[4])) for row in found}


def days(record: Record, *, back: int = 30) -> tuple[Day, ...]:
    """Verdicts per UTC day of the last `back` days."""
    day = func.date_trunc("day", func.timezone("UTC", Run.ended_at))
    with record.reading() as session:
        found = session.execute(
            select(day, Run.verdict, func.count())
            .where(
                and_(
                    Run.realm_id == realm_of(record),
                    Run.state == "ended",
                    Run.ended_at > func.now() - func.make_interval(0, 0, 0, back),
                )
            )
            .group_by(day, Run.verdict)
            .order_by(day, Run.verdict)
        ).all()
    return tuple(Day(*row) for row in found)


def authors(record: Record) -> tuple[str, ...]:
    """Everybody who asked for a run."""
    with record.reading() as session:
        return tuple(
            session.scalars(
                select(Run.submitter).where(Run.realm_id == realm_of(record)).distinct().order_by(Run.submitter)
            )
        )


def training_reports(record: Record, runs: Collection[str]) -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    """By run and role: what trainings that came so far noted in their ledger (see `training_facts.read_facts`)."""
    if not runs:
        return {}
    with record.reading() as session:
        found = session.execute(
            select(Event.run_id, Event.body)
            .where(Event.run_id.in_(list(runs)), Event.kind == "facts")
            .order_by(Event.run_id, Event.seq)
        ).all()
    return {run_id: dict(body.get("reports") or {}) for run_id, body in found}


def planned_trainings(record: Record, *, limit: int = 100) -> tuple[PlannedTraining, ...]:
    """Trainings with the planner's word of what to expect, newest first."""
    with record.reading() as session:
        found = session.execute(
            select(
                Run.id,
                Run.benchmark,
                Run.target,
                Run.state,
                Run.verdict,
                Run.created_at,
                Run.ended_at,
                Run.request["expected"],
            )
            .where(
                Run.realm_id == realm_of(record),
                Run.kind == "training",
                Run.request["expected"]["layout"]["candidate"].astext.is_not(None),
            )
            .order_by(Run.created_at.desc(), Run.id)
            .limit(limit)
        ).all()
    reports = training_reports(record, [row[0] for row in found])
    return tuple(
        PlannedTraining(
            run_id=row[0],
            name=row[1],
            target=row[2],
            state=row[3],
            verdict=row[4],
            created_at=row[5],
            ended_at=row[6],
            expected={**row[7]["layout"], **row[7]},
            reports=reports.get(row[0], {}),
        )
        for row in found
    )

"""A folded campaign as the values that its page and its JSON show: generations, front, champions, checks, teachers.

Covered: one generation in detail, all of them in a line each. Pure. Not covered: folding (controller.campaign_fold),
markup, drawing (campaign_charts.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outerloop.champion import CampaignState, EvalEvent, Front, GenerationEvent, RowError, Rules
from outerloop.champion.rows import REJECTED_TOTAL
from outerloop.champion.state import RunState, compared_row, comparison, coverage, run_status
from outerloop.controller.campaign_fold import Fold

__all__ = [
    "Check",
    "Detail",
    "GenerationLine",
    "Member",
    "Point",
    "Step",
    "checks",
    "detail",
    "evaluations",
    "generation_lines",
    "objectives_of",
    "steps",
]


@dataclass(frozen=True)
class Point:
    """A comparable test row: error counts in the objectives' order."""

    seq: int
    round: int
    subject: str
    run_id: str
    counts: tuple[int, ...]
    totals: tuple[int, ...]
    coverage: float | None
    gate_auc: float | None
    on_front: bool = False
    champion: bool = False

    @property
    def ensemble(self) -> bool:
        return self.run_id.startswith("ens-")


@dataclass(frozen=True)
class Step:
    """A change of champion."""

    seq: int
    at: str
    generation: int
    subject: str
    counts: tuple[int, ...]
    previous: str


@dataclass(frozen=True)
class Check:
    """A reserve check and its arithmetic."""

    seq: int
    at: str
    generation: int
    status: str
    subject: str
    evaluations: int
    rule: str
    alpha: float | None
    lines: tuple[Any, ...]
    ends: str
    detail: str


@dataclass(frozen=True)
class GenerationLine:
    """One generation in a line."""

    number: int
    reason: str
    at: str
    seed: int | None
    split: str
    rounds: int
    evaluations: int
    failed: int
    champion: str
    counts: tuple[int, ...]
    checks: tuple[str, ...]
    teacher: str
    ensembles: int
    current: bool


@dataclass(frozen=True)
class Member:
    """A training of a round, and what its checkpoints came to."""

    run_id: str
    candidate: str
    seed: int | None
    student: bool
    status: str
    checkpoints: int
    scored: int
    best: tuple[int, ...] = ()
    on_front: int = 0
    members: tuple[str, ...] = ()
    """Of an ensemble: the checkpoints in it."""


@dataclass(frozen=True)
class Detail:
    """One generation in full."""

    number: int
    opened: GenerationEvent
    objectives: tuple[str, ...]
    points: tuple[Point, ...] = ()
    """In order of arrival."""
    failed: int = 0
    rounds: Mapping[int, tuple[Member, ...]] = field(default_factory=dict)
    """Newest round first."""
    ensembles: tuple[Member, ...] = ()
    curves: tuple[tuple[str, tuple[tuple[float, ...], ...]], ...] = ()
    teachers: tuple[Any, ...] = ()
    packages: tuple[Any, ...] = ()

    @property
    def front(self) -> tuple[Point, ...]:
        return tuple(point for point in self.points if point.on_front)

    @property
    def champion(self) -> Point | None:
        return next((point for point in self.points if point.champion), None)


def objectives_of(rules: Rules | None) -> tuple[str, ...]:
    """Names of what is counted, in the order of the counts."""
    if rules is None:
        return ()
    names = tuple(objective.name for objective in rules.objectives)
    return (*names, REJECTED_TOTAL) if rules.compare == "decided" and rules.reject_objective else names


def steps(fold: Fold) -> tuple[Step, ...]:
    """Every change of champion, oldest first."""
    return tuple(
        Step(e.seq, fold.times.get(e.seq, ""), e.generation, e.subject, e.counts, e.previous or "")
        for e in fold.books.state.champions
    )


def checks(fold: Fold) -> tuple[Check, ...]:
    """Every reserve check that has ended, and the one that runs; oldest first."""
    found = []
    events = fold.books.state.reserve_checks
    for place, event in enumerate(events):
        if event.status == "started" and place + 1 < len(events):
            continue  # its end follows
        found.append(
            Check(
                event.seq,
                fold.times.get(event.seq, ""),
                event.generation,
                event.status,
                event.subject,
                event.evaluations,
                event.rule,
                event.alpha,
                event.lines,
                event.ends,
                event.detail,
            )
        )
    return tuple(found)


def _ranked(event: EvalEvent, rules: Rules) -> tuple[int, ...] | None:
    try:
        ranks = comparison(event, rules)
    except RowError:
        return None
    return None if ranks is None else ranks[0]


def _tests(state: CampaignState, number: int) -> list[EvalEvent]:
    return [e for e in state.evaluations if e.role == "test" and e.generation == number]


def evaluations(fold: Fold) -> tuple[Point, ...]:
    """Every comparable test row of every generation, in order of arrival; without the marks of front and champion."""
    if "evaluations" not in fold.derived:
        fold.derived["evaluations"] = _evaluations(fold.books.state)
    kept: tuple[Point, ...] = fold.derived["evaluations"]
    return kept


def _evaluations(state: CampaignState) -> tuple[Point, ...]:
    rules = {event.generation: event.rules for event in state.generations}
    found = []
    for event in state.evaluations:
        own = rules.get(event.generation) if event.role == "test" else None
        counts = None if own is None else _ranked(event, own)
        if own is not None and counts is not None:
            found.append(_point(event, counts, own, False, False))
    return tuple(found)


def generation_lines(fold: Fold) -> tuple[GenerationLine, ...]:
    """Every generation in a line, newest first."""
    state = fold.books.state
    tests: Counter[int] = Counter()
    failed: Counter[int] = Counter()
    rules = {event.generation: event.rules for event in state.generations}
    for event in state.evaluations:
        if event.role != "test":
            continue
        own = rules.get(event.generation)
        comparable = own is not None and _ranked(event, own) is not None
        (tests if comparable else failed)[event.generation] += 1
    rounds: dict[int, set[int]] = {}
    ensembles: Counter[int] = Counter()
    for run in state.runs.values():
        if run.status == "ensemble":
            ensembles[run.generation] += 1
        else:
            rounds.setdefault(run.generation, set()).add(run.round)
    last = {event.generation: event for event in state.champions}
    verdicts: dict[int, list[str]] = {}
    for check in checks(fold):
        verdicts.setdefault(check.generation, []).append(check.status)
    teachers = {event.generation: event.status for event in fold.teachers}
    now = state.generation.number if state.generation is not None else None
    found = []
    for opened in state.generations:
        number = opened.generation
        champion = last.get(number)
        found.append(
            GenerationLine(
                number=number,
                reason=opened.reason,
                at=fold.times.get(opened.seq, ""),
                seed=opened.seed,
                split=_split(state, number, now),
                rounds=len(rounds.get(number, ())),
                evaluations=tests[number],
                failed=failed[number],
                champion=champion.subject if champion is not None else "",
                counts=champion.counts if champion is not None else (),
                checks=tuple(verdicts.get(number, ())),
                teacher=teachers.get(number, ""),
                ensembles=ensembles[number],
                current=number == now,
            )
        )
    return tuple(reversed(found))


def _split(state: CampaignState, number: int, now: int | None) -> str:
    if number != now or state.generation is None:
        return "used"
    if state.generation.split_failed:
        return "failed"
    return "ready" if state.generation.split_sha256 else "being built"


def detail(fold: Fold, number: int) -> Detail | None:
    """One generation in full, None when there is none of this number. The front is that of all its comparable rows, as
    they arrived."""
    if ("detail", number) not in fold.derived:
        fold.derived["detail", number] = _detail(fold, number)
    kept: Detail | None = fold.derived["detail", number]
    return kept


def _detail(fold: Fold, number: int) -> Detail | None:
    state = fold.books.state
    opened = next((event for event in state.generations if event.generation == number), None)
    if opened is None or opened.rules is None:
        return None
    rules = opened.rules
    front: Front[EvalEvent] = Front()
    ranked: list[tuple[EvalEvent, tuple[int, ...]]] = []
    failed = 0
    for event in _tests(state, number):
        counts = _ranked(event, rules)
        if counts is None:
            failed += 1
            continue
        ranked.append((event, counts))
        front.insert(counts, event.seq, event)
    best = {event.seq: event for event in front.items()}
    crowned = [event.eval_seq for event in state.champions if event.generation == number]
    champion = crowned[-1] if crowned else 0
    points = tuple(_point(e, counts, rules, e.seq in best, e.seq == champion) for e, counts in ranked)
    runs = [run for run in state.runs.values() if run.generation == number]
    members = _members(state, runs, points)
    rounds: dict[int, list[Member]] = {}
    for run in runs:
        if run.status != "ensemble":
            rounds.setdefault(run.round, []).append(members[run.run_id])
    return Detail(
        number=number,
        opened=opened,
        objectives=objectives_of(rules),
        points=points,
        failed=failed,
        rounds={name: tuple(rounds[name]) for name in sorted(rounds, reverse=True)},
        ensembles=tuple(members[run.run_id] for run in runs if run.status == "ensemble"),
        curves=tuple(
            (event.subject, event.gate_curve)
            for event in sorted(best.values(), key=lambda e: (e.seq != champion, e.seq))
            if event.gate_curve and all(len(place) >= 2 for place in event.gate_curve)
        ),
        teachers=tuple(event for event in fold.teachers if event.generation == number),
        packages=tuple(event for event in fold.packages if event.generation == number),
    )


def _point(event: EvalEvent, counts: tuple[int, ...], rules: Rules, on_front: bool, champion: bool) -> Point:
    row = compared_row(event, rules) or {}
    return Point(
        seq=event.seq,
        round=event.round,
        subject=event.subject,
        run_id=event.run_id,
        counts=counts,
        totals=tuple(row.get(objective.total, 0) for objective in rules.objectives),
        coverage=coverage(event, rules),
        gate_auc=event.gate_auc,
        on_front=on_front,
        champion=champion,
    )


def _members(state: CampaignState, runs: Sequence[RunState], points: Sequence[Point]) -> dict[str, Member]:
    scored: dict[str, list[Point]] = {}
    for point in points:
        scored.setdefault(point.run_id, []).append(point)
    found = {}
    for run in runs:
        mine = scored.get(run.run_id, [])
        found[run.run_id] = Member(
            run_id=run.run_id,
            candidate=run.member.candidate.name if run.member is not None else run.run_id,
            seed=run.member.seed if run.member is not None else None,
            student=run.student,
            status=run_status(state, run),
            checkpoints=len(run.checkpoints),
            scored=len(mine),
            best=min((point.counts for point in mine), default=()),
            on_front=sum(point.on_front for point in mine),
            members=tuple(f"{member.run_id}/{member.checkpoint}" for member in run.members),
        )
    return found

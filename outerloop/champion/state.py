"""The state of a campaign: everything that its events say, indexed so that the next step costs what is open.

Covers the values. Not covered: how events change them (ledger.py) and what follows (decide.py, plan.py).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from outerloop.champion.candidates import Candidate
from outerloop.champion.config import Rules
from outerloop.champion.events import (
    ChampionEvent,
    Checkpoint,
    EvalEvent,
    GenerationEvent,
    ParetoSetEvent,
    ReserveCheckEvent,
    RoundMember,
)
from outerloop.champion.front import Front
from outerloop.champion.rows import REJECTED_TOTAL, RowError, integer_at
from outerloop.champion.work import Job, Member

# A package command that can't be started is tried this often before it waits for `campaign retry`.
PACKAGE_LAUNCHES = 3

RunStatus = Literal["open", "trained", "train_failed", "no_eligible_checkpoint", "stale_run_dir", "ensemble"]


@dataclass
class RunState:
    """A training or an ensemble of the current or an earlier generation."""

    run_id: str
    generation: int
    round: int
    status: RunStatus = "open"
    launched: bool = False
    """Whether its training was handed out."""
    member: RoundMember | None = None
    config_sha256: str = ""
    inputs_sha256: str = ""
    checkpoints: dict[str, Checkpoint] = field(default_factory=dict)
    members: tuple[Member, ...] = ()
    validation: dict[str, EvalEvent] = field(default_factory=dict)
    reserve: dict[str, EvalEvent] = field(default_factory=dict)

    @property
    def student(self) -> bool:
        """Whether it learns from a teacher's soft targets."""
        return self.member is not None and self.member.student

    @property
    def selected(self) -> Checkpoint | None:
        """The checkpoint that the run itself chose, if its file was there."""
        return next((c for c in self.checkpoints.values() if c.selected and c.sha256), None)

    def band_scores(self, checkpoint: str) -> str:
        """Digest of the validation scores that fix a checkpoint's reject band; "" if there are none."""
        own = self.checkpoints[checkpoint].validation_scores_sha256 if checkpoint in self.checkpoints else ""
        scored = self.validation.get(checkpoint)
        return own or (scored.scores_sha256 if scored is not None else "")


@dataclass
class TeacherState:
    """How far the teacher of a generation is."""

    attempt: int = 0
    status: Literal["none", "started", "finished", "failed"] = "none"
    members: tuple[Member, ...] = ()
    margins: dict[str, str] = field(default_factory=dict)
    path: str = ""
    sha256: str = ""


@dataclass
class PackagingState:
    """The queue of champions for the package command: at most one runs and one waits."""

    running: EvalEvent | None = None
    waiting: EvalEvent | None = None
    overtaken: list[EvalEvent] = field(default_factory=list)
    announced: bool = False
    launch_failures: int = 0


@dataclass
class GenerationState:
    """One generation: its split, its rounds, its front and its champion."""

    number: int
    opened: GenerationEvent
    rules: Rules
    split_sha256: str = ""
    split_failed: bool = False
    split_lost: bool = False
    totals: tuple[int, ...] | None = None
    front: Front[EvalEvent] = field(default_factory=Front)
    champion: EvalEvent | None = None
    evaluations: int = 0
    consumed: int = 0
    checks_passed: int = 0
    check: ReserveCheckEvent | None = None
    ends: str = ""
    retried_round: int = 0
    """The newest round for which somebody said that the next may be tried."""
    rounds: dict[int, tuple[str, ...]] = field(default_factory=dict)
    # Rounds with something pending, and how much: runs that are not final and checkpoints without a test row.
    pending: Counter[int] = field(default_factory=Counter)
    unlaunched: dict[str, None] = field(default_factory=dict)
    unscored: dict[str, set[str]] = field(default_factory=dict)
    ensembled_round: int = 0
    teacher: TeacherState = field(default_factory=TeacherState)


@dataclass
class LiveJob:
    """A job that was handed out, and which of its outcomes are still missing."""

    job: Job
    missing: set[str]


@dataclass
class CampaignState:
    """The fold of a campaign's events. Only ledger.py changes it; `seq` is that of the last event.

    `unrecorded` lists the champion and front changes that follow from evaluations but stand in no event yet,
    oldest first. `anomalies` lists events that can't be true; they changed nothing but `seq`.
    """

    seq: int = 0
    generation: GenerationState | None = None
    runs: dict[str, RunState] = field(default_factory=dict)
    live: dict[str, LiveJob] = field(default_factory=dict)
    awaited: dict[str, str] = field(default_factory=dict)
    unrecorded: list[ChampionEvent | ParetoSetEvent] = field(default_factory=list)
    packaging: PackagingState = field(default_factory=PackagingState)
    candidates: tuple[Candidate, ...] = ()
    candidates_sha256: str = ""
    candidates_rejected: str = ""
    rounds_opened: int = 0
    stopped: bool = False
    cancelled: bool = False
    advance_reason: str | None = None
    gpu_hours_used: float = 0.0
    gpu_hours_reserved: dict[str, float] = field(default_factory=dict)
    scored: set[tuple[str, str, str]] = field(default_factory=set)
    evaluations: list[EvalEvent] = field(default_factory=list)
    generations: list[GenerationEvent] = field(default_factory=list)
    champions: list[ChampionEvent] = field(default_factory=list)
    reserve_checks: list[ReserveCheckEvent] = field(default_factory=list)
    anomalies: list[str] = field(default_factory=list)


def run_status(state: CampaignState, run: RunState) -> str:
    """Where a run stands, in words: its end, or "running", "to come", or "left out" by a new generation."""
    if run.status != "open":
        return run.status.replace("_", " ")
    if f"run:{run.run_id}" in state.awaited:
        return "running"
    return "to come" if state.generation is not None and run.generation == state.generation.number else "left out"


def reserve_result(state: CampaignState, check: ReserveCheckEvent) -> EvalEvent | None:
    """The reserve evaluation that an open check decides by; None while there is none.

    A success of an earlier check is used again; a failure counts only for the check in which it happened.
    """
    ident, _, checkpoint = check.subject.partition("/")
    event = state.runs[ident].reserve.get(checkpoint)
    return event if event is not None and (event.status == "scored" or event.seq > check.seq) else None


def compared_row(event: EvalEvent, rules: Rules) -> dict[str, int] | None:
    """The counts of an evaluation that its campaign compares; None if it has none."""
    if event.status != "scored":
        return None
    return event.row if rules.compare == "result" else event.decided


def coverage(event: EvalEvent, rules: Rules) -> float | None:
    """The smallest decided share of a class, 0..1; None without decided counts or for an empty class."""
    if event.decided is None:
        return None
    shares = []
    for objective in rules.objectives:
        whole = event.row.get(objective.total, 0)
        if not whole:
            return None
        shares.append(event.decided.get(objective.total, 0) / whole)
    return min(shares)


def comparison(event: EvalEvent, rules: Rules) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None:
    """(counts for dominance, counts for the lexicographic order, denominators of the whole set), or None.

    None for a failed evaluation, one without the compared counts, and one below `min_coverage`. Raises RowError
    on a row that the campaign should never have taken in.
    """
    row = compared_row(event, rules)
    if row is None:
        return None
    counts: tuple[int, ...] = ()
    totals: tuple[int, ...] = ()
    for objective in rules.objectives:
        count, total = integer_at(row, objective.count), integer_at(row, objective.total)
        whole = total if row is event.row else integer_at(event.row, objective.total)
        if count > total or whole == 0:
            raise RowError(f"{objective.count} is {count} of {total} items")
        counts, totals = (*counts, count), (*totals, whole)
    if rules.compare == "result":
        return counts, counts, totals
    rejected = integer_at(row, REJECTED_TOTAL)
    if (coverage(event, rules) or 0.0) < rules.min_coverage:
        return None
    with_rejected = (*counts, rejected)
    return with_rejected if rules.reject_objective else counts, with_rejected, totals

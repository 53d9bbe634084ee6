"""What can be said of a climb besides its row: the plan at its base, the readings, and how far to trust them.

Covered: gathering the argument of `explain` and of the run's page. Not covered: the argument itself (climb.explain),
rendering.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from outerloop.climb import ClimbPlan, Reading
from outerloop.contract import Benchmark, ContractError
from outerloop.controller.evidence import changed_files
from outerloop.controller.git import GitError, Mirror
from outerloop.controller.ledger import LedgerEvent
from outerloop.controller.plan import ContractGone, Round, climb_plan, read_contract, readings_of
from outerloop.controller.request import ClimbRequest
from outerloop.controller.reuse_text import reuse_sentences
from outerloop.controller.shown import EventView, RunView
from outerloop.controller.training_shown import Reads
from outerloop.controller.views import reuse_before

__all__ = ["Argument", "gather", "looks_of", "notes_of"]

UNSANDBOXED = (
    "Unsandboxed: the candidate ran as an ordinary process of this account. Accidents were contained, malice could"
    " not be."
)
OWN_PRINT = (
    "There is no score command: the metric is the candidate's own print, so the verdict is as honest as the candidate."
)


@dataclass
class Argument:
    """What can be said about a run besides its row."""

    view: RunView
    benchmark: Benchmark | None = None
    plan: ClimbPlan | None = None
    readings: dict[str, Reading] = field(default_factory=dict)
    missing: str = ""
    """Why there is no plan."""
    decided_before: int = 0
    """Verdicts on the same benchmark and data before this one."""
    damaged: tuple[str, ...] = ()
    """Result files behind the verdict that are no longer what was accepted."""


def gather(reader: Reads, view: RunView) -> Argument:
    """Everything that `explain` says of a climb; what cannot be read is said in `missing`. Raises RecordUnavailable."""
    argument = Argument(view, decided_before=reuse_before(reader.record, view.row.id))
    if os.access(reader.root.slots, os.R_OK | os.X_OK):  # who may only read the record can't compare the files with it
        argument.damaged = tuple(changed_files(reader.record, reader.root, view.row.id))
    with reader.record.reading() as session:
        argument.readings = readings_of(session, view.row.id, view.row.round)
    rounds = [event for event in view.events if event.kind == "round"]
    if not rounds:
        argument.missing = "no round of measuring was begun"
    try:
        request = ClimbRequest.model_validate(view.request)
        base = str(rounds[-1].body["base_commit"]) if rounds else request.base_commit
        contract = read_contract(Mirror(reader.root.mirror(request.target)), base)
        argument.benchmark = contract.benchmark(request.benchmark)
        if rounds:
            argument.plan = climb_plan(contract, request, Round.of(_ledger_event(rounds[-1])))
    except (ContractError, ContractGone, GitError, OSError, ValueError, LookupError) as error:
        argument.missing = f"the contract at the base can't be read: {str(error).splitlines()[0]}"
    return argument


def _ledger_event(event: EventView) -> LedgerEvent:
    return LedgerEvent(event.seq, event.kind, dict(event.body), event.at)


def notes_of(argument: Argument) -> list[str]:
    """How far the numbers can be trusted."""
    if not argument.view.measures:
        return []
    told = []
    row, request = argument.view.row, argument.view.request
    execution = (request.get("execution") or {}).get(row.benchmark) or {}
    if execution.get("isolation", "none") == "none":
        told.append(UNSANDBOXED)
    if argument.benchmark is not None and not argument.benchmark.score:
        told.append(OWN_PRINT)
    apart, pairs = _pairs_apart(argument)
    if apart:
        told.append(
            f"{apart} of {pairs} pairs did not share a job although the benchmark says colocate: one side was measured"
            " again, had its value already, or the site refused them together."
        )
    if row.verdict in ("accepted", "rejected") and argument.decided_before:
        seeded = any(measure.seed for measure in argument.view.measures)
        told.append(" ".join(reuse_sentences(argument.decided_before + 1, fresh_seeds=seeded)))
    return told


def _pairs_apart(argument: Argument) -> tuple[int, int]:
    """(pairs of a colocated benchmark whose sides ran in different jobs, pairs with both sides)."""
    if argument.benchmark is None or not argument.benchmark.colocate:
        return 0, 0
    jobs: dict[int, dict[str, str | None]] = {}
    for measure in argument.view.current:
        if measure.benchmark == argument.view.row.benchmark and measure.pinned_attempt is not None:
            ran = {attempt.n: attempt.job_id for attempt in measure.attempts}
            jobs.setdefault(measure.pair, {})[measure.side] = ran.get(measure.pinned_attempt)
    both = [set(sides.values()) for sides in jobs.values() if len(sides) == 2]
    return sum(len(where) > 1 for where in both), len(both)


def looks_of(argument: Argument) -> list[dict[str, Any]]:
    """The looks of the current round, as the ledger has them."""
    number = argument.view.row.round
    return [dict(e.body) for e in argument.view.events if e.kind == "look" and e.body.get("round") == number]

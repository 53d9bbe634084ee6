"""A run's ledger on disk: runs/<id>/events/<seq>.json, each written once, by link, before its transaction commits.

Covered: appending with one winner per number, reading, the kinds of events, folding them into the record.
Not covered: deciding what happens (advance.py). The same fold serves a living run and `db rebuild`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import DateTime, bindparam, func, literal, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from outerloop.record.models import Champion, Event, Run
from outerloop.slots import StateRoot
from outerloop.slots.files import publish, read_json

__all__ = [
    "EVENTS",
    "PAUSED",
    "Behind",
    "Ledger",
    "LedgerEvent",
    "TornEvent",
    "crowned",
    "effective_cancel",
    "fold_events",
    "paused",
]


EVENTS: dict[str, tuple[str, dict[str, str]]] = {
    "round": (
        "A round of measuring: everything in it was drawn or chosen, so the inputs do not determine it.",
        {
            "round": "Number of the round, from 0.",
            "base_commit": "Commit that is measured as the base.",
            "base_tree": "Its tree.",
            "champion_seq": "Number of the champion that the base is; null where it is none.",
            "promotable": "Whether acceptance makes the candidate champion.",
            "siblings": "Benchmarks of the suite that are measured besides.",
            "replicate_start": "First replicate number of the round's measures, which no other round uses.",
            "pair_seeds": "A seed for each pair.",
            "suite_seeds": "The same for each sibling.",
            "prior_pairs": "Pairs that earlier askings of the same question measured.",
            "asking": "How often the question was asked, this one included.",
            "noise_sd": "Standard deviation of each benchmark that a noise study found, as text.",
            "opponent": "Of an entry: the champion's run, empty for the untrained model.",
            "seeds": "Of an entry: its training seeds.",
        },
    ),
    "reserve": (
        "An entry won its suites; from here on the reserve counts.",
        {"round": "Round.", "gain": "Gain on the suites, as text.", "p": "Its p."},
    ),
    "look": (
        "One look of a sequential test.",
        {
            "round": "Round.",
            "pairs": "Pairs that were looked at.",
            "llr": "Log-likelihood ratio.",
            "lower": "Bound below which the candidate is rejected.",
            "upper": "Bound above which it is accepted.",
            "mean_gain": "Mean gain, as text.",
            "sd": "Standard deviation of the gains, as text.",
        },
    ),
    "ladder": (
        "What a submitter may know of hidden items.",
        {
            "round": "Round.",
            "improved": "Whether the candidate stepped up the ladder.",
            "released": "The loss that was released for it; null where none was.",
            "best": "The lowest loss that was released so far.",
            "items": "Number of hidden items.",
        },
    ),
    "crown": (
        "The run goes for champion number `seq`; from here on a cancel comes too late.",
        {"round": "Round.", "seq": "Number of the champion."},
    ),
    "facts": (
        "What a training said of itself, noted before its folders may be collected.",
        {
            "round": "Round.",
            "lane": "Lane it ran in.",
            "nodes": "Nodes of a launch.",
            "reports": "By role: peak memory, step time, checkpoint cost.",
        },
    ),
    "setting": (
        "A campaign was submitted again, with another tree or environment.",
        {"round": "Number of the submission.", "by": "Account.", "setting": "Tree, environment and commands."},
    ),
    "verdict": (
        "The end.",
        {
            "round": "Round that decided.",
            "verdict": "The verdict with all of its numbers.",
            "champion_seq": "Number of the champion that the candidate became; null where it became none.",
        },
    ),
    "cancel": ("An operator ended the run.", {"by": "Account.", "why": "What was said."}),
    "pause": ("Nothing new is submitted from here on.", {"by": "Account.", "why": "What was said."}),
    "resume": ("A pause was taken back.", {"by": "Account."}),
}
"""Kind of event -> (what it says, key of its body -> meaning). `append` takes nothing else."""

PAUSED = "PAUSED"
"""Reason word of a run that an operator paused. It is blocked, but nothing is wrong with it."""


class TornEvent(ValueError):
    """An event file is there and cannot be read; it was published whole, so something damaged it since."""


class Behind(Exception):
    """Somebody else wrote the next event of this run first; read it before doing anything more."""


@dataclass(frozen=True)
class LedgerEvent:
    """One fact about a run."""

    seq: int
    kind: str
    body: dict[str, Any]
    at: datetime


@dataclass(frozen=True)
class Ledger:
    """The events of one run."""

    root: StateRoot
    run_id: str

    def read(self, start: int = 0) -> list[LedgerEvent]:
        """Events from `start` on, in order, up to the first number that is missing. Raises TornEvent."""
        events = []
        seq = start
        while (event := self._one(seq)) is not None:
            events.append(event)
            seq += 1
        return events

    def _one(self, seq: int) -> LedgerEvent | None:
        path = self.root.event(self.run_id, seq)
        body = read_json(path)
        if body is None:
            if path.exists():
                raise TornEvent(f"{path} cannot be read as an event; restore it from a backup")
            return None
        try:
            at = datetime.fromisoformat(str(body.get("at")))
        except ValueError:
            raise TornEvent(f"{path} cannot be read as an event: its time is {body.get('at')!r}") from None
        return LedgerEvent(seq, str(body.get("kind")), dict(body.get("body") or {}), at)

    def append(self, seq: int, kind: str, body: dict[str, Any]) -> LedgerEvent:
        """Write event number `seq`. When it was already there with the same kind and round, that one counts (a
        process that died before its commit wrote it); with another kind, Behind is raised. Raises KeyError for a kind
        or a key that `EVENTS` does not have.
        """
        strange = body.keys() - EVENTS[kind][1].keys()
        if strange:
            raise KeyError(f"{kind} events have no {', '.join(sorted(strange))}; see EVENTS")
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        publish(
            self.root.event(self.run_id, seq),
            {"schema": 1, "run": self.run_id, "seq": seq, "kind": kind, "at": at, "body": body},
            name="run.event",
        )
        event = self._one(seq)
        if event is None:
            raise Behind(f"run {self.run_id}: event {seq} is not readable yet")
        if event.kind != kind or event.body.get("round") != body.get("round"):
            raise Behind(f"run {self.run_id}: event {seq} is a {event.kind}, not a {kind}")
        return event


def crowned(events: Sequence[LedgerEvent]) -> LedgerEvent | None:
    """The crown event that is in force: the last one with no new round after it."""
    found = None
    for event in events:
        if event.kind == "crown":
            found = event
        elif event.kind == "round":
            found = None
    return found


def effective_cancel(events: Sequence[LedgerEvent]) -> LedgerEvent | None:
    """The cancel that ended the run, if one did: not after a crown, not after a verdict."""
    going_for_crown = False
    for event in events:
        if event.kind == "verdict":
            return None
        if event.kind == "crown":
            going_for_crown = True
        elif event.kind == "round":
            going_for_crown = False
        elif event.kind == "cancel" and not going_for_crown:
            return event
    return None


def paused(events: Sequence[LedgerEvent]) -> LedgerEvent | None:
    """The pause that is in force: the last one that no resume follows."""
    found = None
    for event in events:
        if event.kind == "pause":
            found = event
        elif event.kind == "resume":
            found = None
    return found


_TOLD = select(func.count()).select_from(Event).where(Event.run_id == bindparam("run"))


def fold_events(session: Session, run: Run, events: Sequence[LedgerEvent], *, root: StateRoot) -> None:
    """Bring a run's row up to date with its ledger, from nothing or from where the record stands. Idempotent."""
    known = session.scalar(_TOLD, {"run": run.id}) or 0
    for event in events:
        if event.seq >= known:
            session.execute(
                insert(Event)
                .values(run_id=run.id, seq=event.seq, kind=event.kind, body=event.body, at=event.at)
                .on_conflict_do_nothing()
            )
    for event in events:
        if event.kind == "round":
            run.round = int(event.body["round"])
            run.base_commit = str(event.body["base_commit"])
            run.base_tree = str(event.body["base_tree"])
        elif event.kind == "verdict":
            _fold_verdict(session, run, event, root)
    cancel = effective_cancel(events)
    if cancel is not None and run.verdict is None:
        _end(run, "cancelled", "operator", str(cancel.body.get("why") or "cancelled"), None, cancel.at)
    run.updated_at = func.now()


def _fold_verdict(session: Session, run: Run, event: LedgerEvent, root: StateRoot) -> None:
    verdict = event.body["verdict"]
    _end(run, verdict["outcome"], verdict["reason"], verdict["sentence"], verdict, event.at)
    seq = event.body.get("champion_seq")
    if seq is None:
        return
    from outerloop.controller.request import champion_key

    body = read_json(root.champion(champion_key(run.target, run.benchmark, run.definition), int(seq)))
    if body is None or body.get("run") != run.id:
        return
    session.execute(
        insert(Champion)
        .values(
            realm_id=run.realm_id,
            target=run.target,
            benchmark=run.benchmark,
            definition=run.definition,
            seq=int(seq),
            run_id=run.id,
            commit=body["commit"],
            tree=body["tree"],
            value=str(body["value"]),
            gain=str(body["gain"]),
            label=str(body.get("label") or ""),
            accepted_at=datetime.fromisoformat(body["at"]),
        )
        .on_conflict_do_nothing()
    )


def _end(run: Run, outcome: str, reason: str, sentence: str, evidence: dict[str, Any] | None, at: datetime) -> None:
    run.state = "ended"
    run.verdict = outcome
    run.verdict_reason = reason
    run.sentence = sentence
    run.evidence = evidence
    run.state_reason = run.state_detail = ""
    run.due_at = None
    # The event was stamped by the clock of whoever wrote it, a login or a compute node's. What is young is asked of the
    # record's clock, which does not know the future, and a run does not end before it was made.
    run.ended_at = func.least(func.greatest(literal(at, DateTime(timezone=True)), Run.created_at), func.now())

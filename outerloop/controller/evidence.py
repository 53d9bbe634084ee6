"""A run read from disk alone: request, ledger, contract and slots, without the record.

Covered: the readings of a run's current round from its slot directories, and judging them anew. `verify` compares
that with the record, `db rebuild` makes the record from it. Not covered: writing anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Protocol

from sqlalchemy import select

from outerloop.climb import (
    ClimbPlan,
    EvidenceError,
    MeasureRequest,
    NeedMore,
    Reading,
    Verdict,
    ladder_verdict,
    next_step,
    plan_measures,
    superseded_verdict,
)
from outerloop.contract import Contract
from outerloop.controller.campaign_evidence import campaign_differences, campaign_on_disk
from outerloop.controller.campaign_ledger import Books
from outerloop.controller.campaign_request import CampaignRequest
from outerloop.controller.entry_evidence import entry_differences, entry_on_disk
from outerloop.controller.entry_request import EntryRequest
from outerloop.controller.git import Mirror
from outerloop.controller.ledger import Ledger, LedgerEvent, effective_cancel
from outerloop.controller.plan import Planned, Round, climb_plan, planned_work, read_contract, reading_of_slot
from outerloop.controller.request import ClimbRequest
from outerloop.controller.scope import verdict_on_scope
from outerloop.controller.training_request import Request, TrainingRequest, read_request
from outerloop.controller.trainings import Outcome, planned_tasks, training_verdict
from outerloop.dispatch.evidence import Action
from outerloop.dispatch.settle import decision_from_disk
from outerloop.job.layout import RESULT
from outerloop.record.models import Measure, Slot
from outerloop.record.store import Record
from outerloop.slots import Result, SlotDirectory, StateRoot
from outerloop.slots.files import read_json

__all__ = ["Disk", "OnDisk", "Verified", "changed_files", "read_run", "verify"]


class OnDisk(Protocol):
    """Where evidence lies: a deployment's state folder, or one that was made from an archive."""

    @property
    def root(self) -> StateRoot: ...

    def slot(self, digest: str) -> SlotDirectory: ...


@dataclass
class Disk:
    """What the state folder holds of one run."""

    request: Request
    events: list[LedgerEvent]
    rounds: list[Round]
    contract: Contract | None = None
    plan: ClimbPlan | None = None
    planned: dict[int, list[Planned]] = field(default_factory=dict)
    """By round: every role whose measure follows from the readings, with its work."""
    readings: dict[int, dict[str, Reading]] = field(default_factory=dict)
    books: Books | None = None
    """A campaign's ledger, folded."""

    @property
    def verdict(self) -> Verdict | None:
        """A climb's verdict as the ledger has it."""
        for event in self.events:
            if event.kind == "verdict":
                return Verdict.from_json(event.body["verdict"])
        return None


def read_run(context: OnDisk, run_id: str) -> Disk:
    """Read a run from disk. Raises LookupError when there is no request, ValueError for one that is torn."""
    body = read_json(context.root.request(run_id))
    if body is None:
        path = context.root.request(run_id)
        if path.exists():
            raise ValueError(f"{path} is torn: it is no JSON object")
        raise LookupError(f"there is no request on disk for run {run_id}")
    request = read_request(body)
    events = Ledger(context.root, run_id).read()
    if isinstance(request, EntryRequest):
        return Disk(request, events, [], planned=entry_on_disk(context, request, events))
    disk = Disk(request, events, [Round.of(event) for event in events if event.kind == "round"])
    mirror = Mirror(context.root.mirror(request.target))
    if isinstance(request, TrainingRequest):
        tasks = planned_tasks(request, mirror)
        disk.planned[0] = [item for item in tasks if context.slot(item.work.digest).spec() is not None]
        return disk
    if isinstance(request, CampaignRequest):
        disk.books, disk.planned = campaign_on_disk(context.root, request, events)
        return disk
    for round_ in disk.rounds:
        disk.contract = read_contract(mirror, round_.base_commit)
        disk.plan = climb_plan(disk.contract, request, round_)
        _measure_round(context, mirror, disk, request, round_)
    return disk


def _measure_round(context: OnDisk, mirror: Mirror, disk: Disk, request: ClimbRequest, round_: Round) -> None:
    assert disk.contract is not None and disk.plan is not None
    readings: dict[str, Reading] = {}
    planned: list[Planned] = []
    while True:
        try:
            wanted: tuple[MeasureRequest, ...] = plan_measures(disk.plan, readings)
        except EvidenceError:
            break
        missing = [request for request in wanted if request.role not in readings]
        known = {item.role for item in planned}
        found = False
        for item in planned_work(context.root, mirror, disk.contract, request, round_, missing) if missing else []:
            directory = context.slot(item.work.digest)
            if item.role in known or directory.spec() is None:
                continue  # wanted in principle, but the run never came so far (a scope verdict, a cancel)
            planned.append(item)
            if item.measure is not None:
                readings[item.role] = slot_reading(directory, item.role, item.measure.seed)
                found = True
        if not found:
            break
    disk.planned[round_.number] = planned
    disk.readings[round_.number] = readings


def slot_reading(directory: SlotDirectory, role: str, seed: int) -> Reading:
    """A slot's value, failure or absence as its directory has it."""
    state, result, reason, detail, attempt = slot_on_disk(directory)
    settled = directory.settled(attempt) or {}
    return reading_of_slot(
        role,
        state=state,
        body=result.body if result is not None else None,
        reason=reason,
        detail=detail,
        digest=directory.digest,
        attempt=attempt,
        node=str(settled.get("node") or ""),
        seed=seed,
        image=_image_of(directory),
    )


def _image_of(directory: SlotDirectory) -> str | None:
    determinants = (directory.spec() or {}).get("determinants")
    image = determinants.get("image") if isinstance(determinants, Mapping) else None
    return image if isinstance(image, str) else None


def slot_on_disk(directory: SlotDirectory) -> tuple[str, Result | None, str, str, int]:
    """(state, result, reason, detail, attempt) as far as a slot's files tell: done, failed or open."""
    pin = directory.pinned()
    if pin is not None:
        result = directory.result(pin.attempt)
        if result is not None:
            settled = decision_from_disk(directory.settled(pin.attempt) or {})
            return "done", result, settled.reason if settled else "", settled.detail if settled else "", pin.attempt
    for n in reversed(directory.attempt_numbers()):
        decision = decision_from_disk(directory.settled(n) or {})
        if decision is None:
            break  # a newer attempt is open: whatever an older one says, the slot was reopened
        if decision.action is Action.FAILED:
            return "failed", directory.result(n), decision.reason, decision.detail, n
    return "open", None, "", "", 0


@dataclass(frozen=True)
class Verified:
    """Whether what the slots say is what was decided."""

    run_id: str
    agrees: bool
    recorded: str
    recomputed: str
    differences: tuple[str, ...] = ()
    verdict: Verdict | None = None


def verify(
    context: OnDisk, run_id: str, recorded: Mapping[str, object] | None = None, *, record: Record | None = None
) -> Verified:
    """Recompute a run's verdict from disk alone and compare it with the ledger and, if given, the record's evidence.

    Differences name the measure and the file that says something else. With `record` its copies of the result files
    are compared too, so that a changed file is found even where it changes no number.
    """
    disk = read_run(context, run_id)
    if isinstance(disk.request, TrainingRequest):
        return _verify_training(context, disk, recorded, record)
    if isinstance(disk.request, CampaignRequest):
        return _verify_campaign(context, disk, disk.request, recorded, record)
    if isinstance(disk.request, EntryRequest):
        return _verify_entry(context, disk, disk.request, recorded, record)
    ledger = disk.verdict
    cancelled = effective_cancel(disk.events)
    if ledger is None:
        told = "cancelled" if cancelled is not None else "no verdict yet"
        return Verified(run_id, True, told, told, (), None)
    differences: list[str] = []
    if recorded is not None:
        if dict(recorded) != ledger.to_json():
            differences.append("the record's verdict is not the ledger's")
        if record is not None:
            differences += changed_files(record, context.root, run_id)
    if not disk.rounds or disk.plan is None or disk.contract is None:
        return Verified(run_id, not differences, ledger.sentence, ledger.sentence, tuple(differences), ledger)
    round_ = disk.rounds[-1]
    readings = {
        role: reading for role, reading in disk.readings[round_.number].items() if role in set(ledger.findings.roles)
    }
    verdict: Verdict | None = None
    if ledger.reason == "scope":
        mirror = Mirror(context.root.mirror(disk.request.target))
        changes = mirror.changes(round_.base_tree, disk.request.candidate_tree)
        verdict = verdict_on_scope(disk.request.benchmark, changes, disk.contract.scope)
        again = verdict.sentence if verdict is not None else "the diff stays inside the scope"
    else:
        differences += _changed_values(context, disk, ledger, readings)
        verdict, again = _judged_again(disk.plan, readings)
        if ledger.reason == "ladder" and verdict is not None and verdict.outcome == "accepted":
            verdict = ladder_verdict(verdict)
            again = verdict.sentence
        if ledger.reason == "superseded" and verdict is not None and verdict.outcome == "accepted":
            verdict = superseded_verdict(verdict, round_.number + 1)
            again = verdict.sentence
    if verdict is None or verdict.to_json() != ledger.to_json():
        differences.append(f"the slots say: {again}")
    return Verified(run_id, not differences, ledger.sentence, again, tuple(differences), verdict)


def ending_on_disk(directory: SlotDirectory, told: Mapping[str, object] | None) -> Outcome:
    """How a task ended by its slot's files. A slot that a later asking went on with still has the ending `told`."""
    if told is not None:
        for n in directory.attempt_numbers():
            decision = decision_from_disk(directory.settled(n) or {})
            if decision is None or decision.action is not Action.FAILED:
                continue
            if (decision.reason, decision.detail) == (told.get("reason"), told.get("detail")):
                return Outcome("failed", decision.reason, decision.detail)
    state, _result, reason, detail, _attempt = slot_on_disk(directory)
    return Outcome(state, reason, detail)


def _verify_training(
    context: OnDisk, disk: Disk, recorded: Mapping[str, object] | None, record: Record | None
) -> Verified:
    """How the slots say that every task ended, against what the ledger says of the training."""
    run_id = disk.request.id
    told = next((event.body["verdict"] for event in disk.events if event.kind == "verdict"), None)
    if told is None:
        state = "no verdict yet" if effective_cancel(disk.events) is None else "cancelled"
        return Verified(run_id, True, state, state)
    differences = []
    if recorded is not None:
        if dict(recorded) != told:
            differences.append("the record's verdict is not the ledger's")
        if record is not None:
            differences += changed_files(record, context.root, run_id)
    outcomes = {}
    for item in disk.planned.get(0, []):
        outcomes[item.role] = ending_on_disk(context.slot(item.work.digest), told["failed"].get(item.role))
    again = training_verdict(outcomes) if len(outcomes) == told["tasks"] else None
    if again is None:
        missing = told["tasks"] - sum(item.state in {"done", "failed"} for item in outcomes.values())
        said = f"not to be judged: no ending of {missing} of {told['tasks']} tasks"
    else:
        said = str(again["sentence"])
    if again != told:
        differences.append(f"the slots say: {said}")
    return Verified(run_id, not differences, str(told["sentence"]), said, tuple(differences))


def _verify_campaign(
    context: OnDisk,
    disk: Disk,
    request: CampaignRequest,
    recorded: Mapping[str, object] | None,
    record: Record | None,
) -> Verified:
    """Whether a campaign's ledger holds, on disk and in the record, and fits its reports; also while it lives."""
    assert disk.books is not None, "read_run folds a campaign's ledger"
    told = next((event.body["verdict"] for event in disk.events if event.kind == "verdict"), None)
    differences = []
    if recorded is not None and told is not None and dict(recorded) != told:
        differences.append("the record's verdict is not the ledger's")
    differences += campaign_differences(context.root, record, request, disk.books, disk.events, told)
    if record is not None:
        differences += changed_files(record, context.root, request.id)
    said = f"{disk.books.state.seq} events" if told is None else str(told["sentence"])
    again = said if not differences else f"{len(differences)} things do not fit"
    return Verified(request.id, not differences, said, again, tuple(differences))


def _verify_entry(
    context: OnDisk,
    disk: Disk,
    request: EntryRequest,
    recorded: Mapping[str, object] | None,
    record: Record | None,
) -> Verified:
    """An entry's verdict from its slots and the sealed rows, against what the ledger says."""
    told = next((event.body["verdict"] for event in disk.events if event.kind == "verdict"), None)
    if told is None:
        state = "no verdict yet" if effective_cancel(disk.events) is None else "cancelled"
        return Verified(request.id, True, state, state)
    differences = []
    if recorded is not None:
        if dict(recorded) != told:
            differences.append("the record's verdict is not the ledger's")
        if record is not None:
            differences += changed_files(record, context.root, request.id)
    found, said = entry_differences(context, request, disk.events, told, sealed=not getattr(context, "unpacked", False))
    differences += found
    return Verified(request.id, not differences, str(told["sentence"]), said, tuple(differences))


def _judged_again(plan: ClimbPlan, readings: Mapping[str, Reading]) -> tuple[Verdict | None, str]:
    """The verdict that these readings lead to, or None, and a sentence."""
    try:
        step = next_step(plan, readings)
    except EvidenceError as error:
        return None, f"not to be judged: {error}"
    if isinstance(step, Verdict):
        return step, step.sentence
    if isinstance(step, NeedMore):
        return None, f"not to be judged: no slots for {', '.join(m.role for m in step.measures)}"
    return None, f"not to be judged: no value for {', '.join(step.roles)}"


def _values_of(verdict: Verdict) -> dict[tuple[str, str], Decimal]:
    """(role, metric) -> the value that the verdict was reached with."""
    found: dict[tuple[str, str], Decimal] = {}
    climbed = verdict.findings.climbed
    groups = [(climbed.metric, climbed.pairs)] if climbed is not None else []
    groups += [(loss.metric, loss.pairs) for loss in verdict.findings.losses]
    for metric, pairs in groups:
        for pair in pairs:
            found[pair.candidate_role, metric] = pair.candidate
            if pair.base is not None:
                found[pair.base_role, metric] = pair.base
    if climbed is not None and climbed.baselines:
        # cached base measurements come first among the roles, in the order of their values
        roles = verdict.findings.roles[: len(climbed.baselines)]
        found |= {(role, climbed.metric): value for role, value in zip(roles, climbed.baselines, strict=True)}
    return found


def _changed_values(context: OnDisk, disk: Disk, ledger: Verdict, readings: Mapping[str, Reading]) -> list[str]:
    """What the slots of the last round say that is not what the verdict was reached with, with the file."""
    planned = {item.role: item for item in disk.planned[disk.rounds[-1].number]}
    assert disk.contract is not None
    told: dict[str, str] = {}

    def where(role: str) -> str:
        item = planned.get(role)
        if item is None:
            return "its slot is gone"
        directory = context.slot(item.work.digest)
        attempt = readings[role].facts.attempt if role in readings else 0
        attempt = attempt or max(directory.attempt_numbers(), default=0)
        return str(directory.attempt(attempt) / RESULT if attempt else directory.path)

    for (role, metric), value in _values_of(ledger).items():
        reading = readings.get(role)
        if reading is None or reading.status != "value":
            told.setdefault(role, f"{role}: no result that fits its claim in {where(role)}")
            continue
        benchmark = disk.contract.benchmark(planned[role].measure.benchmark)  # type: ignore[union-attr]
        now = reading.value if metric == benchmark.metric else reading.guards.get(metric)
        if now is None or now != value:
            told.setdefault(role, f"{role}: {metric} was {value} and is now {now} in {where(role)}")
    for failure in ledger.findings.failures:
        reading = readings.get(failure.role)
        if reading is None or reading.status == "pending":
            told.setdefault(failure.role, f"{failure.role}: nothing to be read any more in {where(failure.role)}")
    return list(told.values())


def changed_files(record: Record, root: StateRoot, run_id: str) -> list[str]:
    """Result files that are not what the record copied when it accepted them."""
    with record.reading() as session:
        slots = session.scalars(
            select(Slot)
            .where(Slot.id.in_(select(Measure.slot_id).where(Measure.run_id == run_id)), Slot.state == "done")
            .order_by(Slot.id)
        ).all()
    told = []
    for slot in slots:
        if slot.pinned_attempt is None or slot.result is None:
            continue
        path = SlotDirectory(root.slot(slot.digest), slot.digest).attempt(slot.pinned_attempt) / RESULT
        body = read_json(path)
        if body is None:
            told.append(f"{path} {_state_of(path)}")
        elif body != slot.result:
            keys = sorted(key for key in {*body, *slot.result} if body.get(key) != slot.result.get(key))
            told.append(f"{path} was changed after it was accepted ({', '.join(keys)})")
    return told


def _state_of(path: Path) -> str:
    """Why a result file can't be read as one."""
    try:
        size = path.stat().st_size
        with path.open("rb"):
            pass
    except FileNotFoundError:
        return "is gone"
    except OSError as error:
        return f"can't be read: {error.strerror}"
    return "is empty: its content was lost" if size == 0 else "is no JSON any more"

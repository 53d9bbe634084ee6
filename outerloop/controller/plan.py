"""A climb's plan and its rows: from the ledger's round to slots, measures and readings.

Covered: drawing a round, building the pure ClimbPlan, publishing specs and committing slots and measures, reading
the slots back. Not covered: judging (climb), submitting (dispatch), when to do what (advance.py).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from sqlalchemy import bindparam, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from outerloop.climb import (
    FIRST_FRESH_REPLICATE,
    ClimbPlan,
    Facts,
    MeasureRequest,
    Reading,
    alpha_share,
    seeds_needed,
)
from outerloop.contract import CONTRACT_FILE, MAX_BYTES, Benchmark, Contract, parse_contract
from outerloop.controller.git import Mirror
from outerloop.controller.ledger import LedgerEvent
from outerloop.controller.request import ClimbRequest, fresh_seed
from outerloop.controller.work import Work, environment_work, measure_work
from outerloop.dispatch.context import Context
from outerloop.record.models import Attempt, Measure, Slot
from outerloop.record.parameters import is_among
from outerloop.record.store import LeaseHandle
from outerloop.slots import Result, StateRoot

if TYPE_CHECKING:
    from outerloop.controller.training_request import Request

__all__ = [
    "ENVIRONMENT_ROLES",
    "Prior",
    "Round",
    "climb_plan",
    "commit_measures",
    "draw_round",
    "read_contract",
    "readings_of",
]

TIME_REASONS = frozenset({"TIMEOUT", "STALLED"})
"""Failures that more minutes may mend."""
ENVIRONMENT_ROLES = {"base": "env-base", "candidate": "env-candidate"}
"""Roles of the environment slots that a run depends on; they are no measures of the climb."""

_SLOT_LOCKED = (
    select(Slot).where(Slot.realm_id == bindparam("realm"), Slot.digest == bindparam("digest")).with_for_update()
)
_ROUND = (
    select(Measure, Slot)
    .join(Slot, Slot.id == Measure.slot_id)
    .where(Measure.run_id == bindparam("run"), Measure.round == bindparam("round"))
)
_RAN = select(Attempt.slot_id, Attempt.n, Attempt.node).where(is_among(Attempt.slot_id, "slots"))


class ContractGone(Exception):
    """The base commit has no contract (any more)."""


def read_contract(mirror: Mirror, commit: str) -> Contract:
    """The contract at a commit of the mirror. Raises ContractError, ContractGone, GitError."""
    text = mirror.blob(mirror.tree(commit), CONTRACT_FILE, limit=MAX_BYTES)
    if text is None:
        raise ContractGone(f"commit {commit[:12]} has no {CONTRACT_FILE}; write one with `outerloop contract init`")
    return parse_contract(text, f"{CONTRACT_FILE} at {commit[:12]}")


@dataclass(frozen=True)
class Round:
    """One round of measuring, as its event has it."""

    number: int
    base_commit: str
    base_tree: str
    champion_seq: int
    promotable: bool
    siblings: tuple[str, ...]
    replicate_start: int
    pair_seeds: tuple[int, ...]
    suite_seeds: Mapping[str, tuple[int, ...]]
    prior_pairs: int = 0
    asking: int = 1
    """The how-manieth decision on this question it is: what alpha is split by."""
    noise_sd: Mapping[str, Decimal] = field(default_factory=dict)
    """By benchmark: the standard deviation of one value, from the noise study that was the newest at the time."""

    @classmethod
    def of(cls, event: LedgerEvent) -> Round:
        body = event.body
        return cls(
            number=int(body["round"]),
            base_commit=str(body["base_commit"]),
            base_tree=str(body["base_tree"]),
            champion_seq=int(body["champion_seq"]),
            promotable=bool(body["promotable"]),
            siblings=tuple(body["siblings"]),
            replicate_start=int(body["replicate_start"]),
            pair_seeds=tuple(body["pair_seeds"]),
            suite_seeds={name: tuple(seeds) for name, seeds in body["suite_seeds"].items()},
            prior_pairs=int(body.get("prior_pairs", 0)),
            asking=int(body.get("asking", 1)),
            noise_sd={name: Decimal(sd) for name, sd in body.get("noise_sd", {}).items()},
        )


def relevant_siblings(contract: Contract, benchmark: str, changed: Sequence[str]) -> tuple[Benchmark, ...]:
    """The suite, when the diff touches a shared path; nobody otherwise."""
    if not any(contract.scope.is_shared(path) for path in changed):
        return ()
    return contract.siblings(benchmark)


@dataclass(frozen=True)
class Prior:
    """What earlier askings of the same question leave to this one.

    `asking` counts this one: earlier verdicts that weighed numbers, plus one. `round_` is the last round of theirs on
    the same base, `pairs` how many of its pairs were decided on. `unfinished`: nobody decided (it was cancelled), so
    this asking goes on with exactly the same seeds; else cancelling what looks unlucky would be a free new draw.
    """

    asking: int = 1
    round_: Round | None = None
    pairs: int = 0
    unfinished: bool = False


def draw_round(
    contract: Contract,
    benchmark: str,
    *,
    number: int,
    base_commit: str,
    base_tree: str,
    champion_seq: int,
    promotable: bool,
    changed: Sequence[str],
    prior: Prior = Prior(),
    noise_sd: Mapping[str, Decimal] | None = None,
) -> dict[str, Any]:
    """The body of a `round` event: every seed that the rule can ever need, drawn now, after the candidate is frozen.

    Asking again keeps the seeds of the earlier asking first, in their order, and adds as many as the rule can need.
    """
    climbed = contract.benchmark(benchmark)
    siblings = relevant_siblings(contract, benchmark, changed)
    before = prior.round_
    prior_pairs = 0
    # What is measured once and for all has no earlier pairs to add to: the same values are read again.
    if before is not None and (climbed.seed_env or not climbed.deterministic):
        prior_pairs = before.prior_pairs if prior.unfinished else prior.pairs
    pairs = seeds_needed(climbed.parsed_rule(), prior_pairs)

    def seeds(of: Benchmark, earlier: Sequence[int]) -> list[int]:
        wanted = 1 if of.deterministic and not of.seed_env else pairs
        if not of.seed_env:
            return [0] * wanted
        drawn = dict.fromkeys(earlier)
        while len(drawn) < wanted:
            drawn.setdefault(fresh_seed())
        return list(drawn)

    named = {item.name for item in (climbed, *siblings)}
    return {
        "round": number,
        "base_commit": base_commit,
        "base_tree": base_tree,
        "champion_seq": champion_seq,
        "promotable": promotable,
        "siblings": [sibling.name for sibling in siblings],
        "replicate_start": before.replicate_start if before else FIRST_FRESH_REPLICATE + 2 * secrets.randbelow(2**40),
        "pair_seeds": seeds(climbed, before.pair_seeds if before else ()),
        "suite_seeds": {s.name: seeds(s, before.suite_seeds.get(s.name, ()) if before else ()) for s in siblings},
        "prior_pairs": prior_pairs,
        "asking": prior.asking,
        "noise_sd": {name: str(sd) for name, sd in (noise_sd or {}).items() if name in named},
    }


def climb_plan(contract: Contract, request: ClimbRequest, round_: Round) -> ClimbPlan:
    """What is judged: pure in the contract, the request and the round."""
    climbed = contract.benchmark(request.benchmark)
    return ClimbPlan(
        climbed=climbed.judged_by(noise_sd=round_.noise_sd.get(climbed.name)),
        siblings=tuple(
            contract.benchmark(name).judged_by(noise_sd=round_.noise_sd.get(name)) for name in round_.siblings
        ),
        pair_seeds=round_.pair_seeds,
        suite_seeds=round_.suite_seeds,
        eager=climbed.eager,
        alpha_share=alpha_share(round_.asking),
        prior_pairs=round_.prior_pairs,
        replicate_start=round_.replicate_start,
    )


@dataclass(frozen=True)
class Planned:
    """One role with its work. Environments and the tasks of a training are no measures of a climb."""

    role: str
    measure: MeasureRequest | None
    work: Work

    def row(self, run_id: str, slot_id: int, round_: int) -> dict[str, Any]:
        """The values of its row in the record."""
        measure = self.measure
        environment = self.work.kind == "environment"
        return {
            "run_id": run_id,
            "slot_id": slot_id,
            "round": round_,
            "role": self.role,
            "benchmark": measure.benchmark if measure else "",
            "side": measure.side if measure else self.role.removeprefix("env-") if environment else "candidate",
            "pair": measure.pair if measure else 0,
            "seed": measure.seed if measure else 0,
            "replicate": measure.replicate if measure else self.work.determinants.replicate,
        }


def planned_work(
    root: StateRoot,
    mirror: Mirror,
    contract: Contract,
    request: ClimbRequest,
    round_: Round,
    measures: Sequence[MeasureRequest],
) -> list[Planned]:
    """The work of these measures, preceded by the environments that they need."""
    environments: dict[str, Work] = {}
    if contract.environment is not None:
        for side, tree in (("base", round_.base_tree), ("candidate", request.candidate_tree)):
            files_tree, missing = mirror.subset_tree(tree, contract.environment.files)
            if missing:
                raise EnvironmentFilesMissing(side, missing)
            environments[side] = environment_work(
                request, contract, request.benchmark, files_tree=files_tree, mirror=str(mirror.path)
            )
    planned = [Planned(ENVIRONMENT_ROLES[side], None, work) for side, work in environments.items()]
    for measure in measures:
        environment = environments.get(measure.side)
        work = measure_work(
            request,
            contract,
            measure,
            base_tree=round_.base_tree,
            mirror=str(mirror.path),
            environment=environment,
            environment_slot=str(root.slot(environment.digest)) if environment else "",
        )
        planned.append(Planned(measure.role, measure, work))
    return planned


class EnvironmentFilesMissing(Exception):
    """The contract's [environment] names files that a tree lacks."""

    def __init__(self, side: str, missing: Sequence[str]) -> None:
        self.side = side
        super().__init__(f"[environment] files that the {side} tree lacks: {', '.join(missing)}")


def commit_measures(
    context: Context, lease: LeaseHandle, request: Request, round_: int, planned: Sequence[Planned]
) -> None:
    """Publish the specs, then commit slots and measures. Repeating it changes nothing."""
    for item in planned:
        context.slot(item.work.digest).write_spec(item.work.determinants.canonical(), item.work.facts)
    realm = context.record.realm_id
    with context.record.fenced("tx.plan", lease, seconds=context.patience.lease) as session:
        rows = []
        for item in sorted(planned, key=lambda p: p.work.digest):
            slot = ensure_slot(session, context, realm, request, item.work)
            rows.append(item.row(request.id, slot.id, round_))
        session.execute(insert(Measure).on_conflict_do_nothing(), rows)


def ensure_slot(session: Session, context: Context, realm: int, request: Request, work: Work) -> Slot:
    """The slot's row, made or reopened as the work asks: collected ones, ones whose directory was lost (a collection
    that died before its commit, a disk), and time-outs that now have more minutes."""
    session.execute(
        insert(Slot)
        .values(
            realm_id=realm,
            digest=work.digest,
            kind=work.kind,
            label=work.label,
            target=request.target,
            submitter=request.submitter,
            order=dict(work.order),
            attempts_allowed=context.patience.max_attempts,
        )
        .on_conflict_do_nothing()
    )
    slot = session.scalars(_SLOT_LOCKED, {"realm": realm, "digest": work.digest}).one()
    longer = float(work.order["minutes"]) > float(slot.order["minutes"])
    directory = context.slot(work.digest)
    settled = slot.state in {"done", "failed", "exhausted"}
    gone = slot.state == "collected" or (settled and not directory.attempt_numbers())
    if gone:
        # The folder may have been renamed away between the publication of the spec and this lock.
        directory.write_spec(work.determinants.canonical(), work.facts)
        slot.pinned_attempt = slot.pinned_restart = slot.result = None
        slot.attempts_counted = 0
    if gone or (slot.state == "failed" and slot.reason in TIME_REASONS and longer):
        slot.state, slot.reason, slot.detail, slot.failure_class = "open", "", "", None
        slot.order = dict(work.order)
        slot.settled_at = slot.next_try_at = None
    return slot


def readings_of(session: Session, run_id: str, round_: int) -> dict[str, Reading]:
    """What the record knows of each role of a round, environments folded into the measures that need them."""
    rows = session.execute(_ROUND, {"run": run_id, "round": round_}).all()
    pinned = [slot.id for _, slot in rows if slot.pinned_attempt]
    ran = session.execute(_RAN, {"slots": pinned}) if pinned else ()
    nodes = {(slot_id, n): node for slot_id, n, node in ran}
    broken = {
        measure.side: slot
        for measure, slot in rows
        if measure.role in ENVIRONMENT_ROLES.values() and slot.state in {"failed", "exhausted"}
    }
    found = {}
    for measure, slot in rows:
        if measure.role in ENVIRONMENT_ROLES.values():
            continue
        if slot.state in {"open", "collected"} and measure.side in broken:
            environment = broken[measure.side]
            found[measure.role] = Reading(
                role=measure.role,
                status="exhausted",
                reason="ENVIRONMENT",
                detail=f"its environment could not be built ({environment.reason}): {environment.detail}",
            )
            continue
        found[measure.role] = reading_of_slot(
            measure.role,
            state=slot.state,
            body=slot.result,
            reason=slot.reason,
            detail=slot.detail,
            digest=slot.digest,
            attempt=slot.pinned_attempt or 0,
            node=nodes.get((slot.id, slot.pinned_attempt or 0), ""),
            seed=measure.seed,
            image=slot.order.get("image_digest"),
        )
    return found


def reading_of_slot(
    role: str,
    *,
    state: str,
    body: Mapping[str, Any] | None,
    reason: str,
    detail: str,
    digest: str,
    attempt: int,
    node: str,
    seed: int,
    image: str | None,
) -> Reading:
    """A slot as the judge reads it. `image` is the content digest, "" for none, None where it is not known."""
    result = Result(attempt, str((body or {}).get("job_id") or ""), 0, body or {})
    cpus = result.body.get("cpus_seen")
    facts = Facts(
        cpus_seen=cpus if isinstance(cpus, int) else None,
        image=image,
        node=node or result.host,
        job_id=result.job_id,
        slot=digest,
        attempt=attempt,
        seed=seed,
    )
    if state == "done":
        return Reading(
            role, "value", value=result.value, guards=result.guards, facts=facts, reason=reason, detail=detail
        )
    if state == "failed":
        return Reading(role, "failed", reason=reason, detail=detail or result.detail, facts=facts)
    if state == "exhausted":
        return Reading(
            role, "exhausted", reason=reason, detail=f"{reason}: {detail}" if detail else reason, facts=facts
        )
    return Reading(role, "pending", facts=facts)

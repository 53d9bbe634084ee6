"""next_step: what a climb needs next, or its verdict. The one comparison function of this project.

Covers: the order of measuring (climbed pairs, then guards, then siblings), failed and exhausted measures,
the rules. The gate, `explain`, the viewer and `verify` all call it. Does not cover: the scope check and the
champion's compare-and-set, whose verdicts have constructors here but are decided by the controller.

Everything is a pure function of the plan and the readings. Siblings are looked at only when the climbed
benchmark has passed, so `eager` never changes a verdict; a candidate's failure counts only where the base
works on the same pair, so a base that is broken itself charges nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from outerloop.climb import argument
from outerloop.climb.climbed import climbed_finding, comparison_of, effective_alpha
from outerloop.climb.comparison import Comparison
from outerloop.climb.evidence import Pair, failure_of, pairs_of
from outerloop.climb.findings import (
    Blocked,
    ClimbedFinding,
    Failure,
    Findings,
    Look,
    LossFinding,
    NeedMore,
    Outcome,
    Reason,
    Step,
    TestFinding,
    Verdict,
    Waiting,
)
from outerloop.climb.model import (
    DEFAULT_ALPHA,
    BenchmarkRule,
    ClimbPlan,
    EvidenceError,
    MeasureRequest,
    Reading,
    Sequential,
    Threshold,
    seeds_needed,
)
from outerloop.climb.noninferiority import guard_loss, sibling_loss
from outerloop.climb.plan import climbed_requests, pair_requests, sibling_requests
from outerloop.climb.sequential import look_at, look_schedule, sequential_finding
from outerloop.climb.text import number

_Wanted = tuple[tuple[BenchmarkRule, tuple[MeasureRequest, ...]], ...]


@dataclass(frozen=True)
class _Position:
    """How far a climb has come: its next step and the measures it has asked for up to now."""

    step: Step
    pairs: int
    siblings: bool


def plan_measures(plan: ClimbPlan, readings: Mapping[str, Reading]) -> tuple[MeasureRequest, ...]:
    """Every measure that the climb needs as far as these readings tell, in a fixed order.

    It only grows as readings arrive. Raises EvidenceError where the readings can't be compared.
    """
    position = _advance(plan, readings)
    return _requests(plan, position.pairs, position.siblings or plan.eager)


def next_step(plan: ClimbPlan, readings: Mapping[str, Reading]) -> Step:
    """The verdict, or what it takes to reach it.

    NeedMore: measures without any reading. Waiting: all are asked for, some are not there. Blocked: some used up
    their attempts for reasons of infrastructure. Raises EvidenceError for readings that must not be compared.
    """
    return _advance(plan, readings).step


def judge(plan: ClimbPlan, readings: Mapping[str, Reading]) -> Verdict:
    """The verdict that complete readings lead to.

    Raises EvidenceError naming the roles that are missing. To recompute a recorded verdict, give exactly the
    readings that it read (`verdict.findings.roles`): measures that ended later must not enter.
    """
    step = next_step(plan, readings)
    if isinstance(step, Verdict):
        return step
    if isinstance(step, NeedMore):
        raise EvidenceError(f"not measured yet: {', '.join(m.role for m in step.measures)}")
    raise EvidenceError(f"no value yet: {', '.join(step.roles)}")


def scope_verdict(benchmark: str, failures: Sequence[Failure]) -> Verdict:
    """The verdict on a diff that touches what it must not: nothing was measured."""
    named = "; ".join(f"{failure.role}: {failure.detail}" for failure in failures)
    return Verdict(
        outcome="failed",
        reason="scope",
        sentence=f"failed (scope): the candidate changes what the contract does not allow: {named}",
        benchmark=benchmark,
        findings=Findings(failures=tuple(failures), would_have_changed=("a diff that stays inside scope.allowed",)),
    )


def superseded_verdict(verdict: Verdict, moves: int) -> Verdict:
    """An accepted verdict whose champion moved once too often while it was measured."""
    return replace(
        verdict,
        outcome="rejected",
        reason="superseded",
        sentence=(
            f"rejected (superseded): the champion changed {moves} times while this candidate was measured;"
            f" against the last one it was measured against: {verdict.sentence}"
        ),
        findings=replace(
            verdict.findings, would_have_changed=("a champion that stays while the candidate is measured",)
        ),
    )


def ladder_verdict(verdict: Verdict) -> Verdict:
    """An accepted verdict whose gain on the hidden items is not above the ladder's step (climb.ladder)."""
    return replace(
        verdict,
        outcome="rejected",
        reason="ladder",
        sentence=f"rejected (ladder): not above the ladder's step on the hidden items; without it: {verdict.sentence}",
        findings=replace(verdict.findings, would_have_changed=("a gain above the ladder's step",)),
    )


@dataclass(frozen=True)
class _Evidence:
    """The climbed benchmark's pairs when no more of them are needed."""

    requests: tuple[MeasureRequest, ...]
    pairs: tuple[Pair, ...]
    bases: tuple[Reading, ...]
    comparison: Comparison
    looks: tuple[Look, ...] = ()
    test: TestFinding | None = None

    @property
    def count(self) -> int:
        return len(self.pairs)


def _advance(plan: ClimbPlan, readings: Mapping[str, Reading]) -> _Position:
    climbed = plan.climbed
    evidence = _sequential(plan, climbed.rule, readings) if isinstance(climbed.rule, Sequential) else None
    if evidence is None:
        evidence = _all_at_once(plan, seeds_needed(climbed.rule, plan.prior_pairs), readings)
    if isinstance(evidence, _Position):
        return evidence
    count, pairs, bases = evidence.count, evidence.pairs, evidence.bases
    finding = climbed_finding(plan, pairs, evidence.comparison, evidence.test)
    roles = tuple(request.role for request in evidence.requests)
    if not finding.passed:
        reason: Reason = "undecided" if finding.why == "undecided" else "no-improvement"
        return _Position(_verdict(plan, reason, finding, (), roles), count, siblings=False)
    # a rule without an alpha has its bounds (if asked again, so that there are pairs) at the usual 5 %
    alpha = effective_alpha(plan) or DEFAULT_ALPHA
    losses = [guard_loss(climbed, guard, pairs, bases, alpha) for guard in climbed.guards]
    if not all(loss.passed for loss in losses):
        return _Position(_verdict(plan, "guard", finding, tuple(losses), roles), count, siblings=False)
    return _Position(_judge_siblings(plan, readings, evidence, finding, losses, roles), count, siblings=True)


def _all_at_once(plan: ClimbPlan, count: int, readings: Mapping[str, Reading]) -> _Evidence | _Position:
    requests = climbed_requests(plan, count)
    halt = _halt(plan, ((plan.climbed, requests),), readings, (), lambda: _requests(plan, count, plan.eager))
    if halt is not None:
        return _Position(halt, count, siblings=False)
    pairs, bases = pairs_of(plan.climbed, requests, readings, cached=plan.climbed.baseline == "cached")
    return _Evidence(requests, pairs, bases, comparison_of(plan.climbed, pairs, bases))


def _sequential(plan: ClimbPlan, rule: Sequential, readings: Mapping[str, Reading]) -> _Evidence | _Position:
    """Every look that the readings allow, and the batch after the last one while the test goes on."""
    schedule = look_schedule(rule, plan.prior_pairs)
    alpha = effective_alpha(plan) or rule.alpha
    measured = _measured_pairs(plan, readings, schedule[-1])
    reached = [count for count in schedule if count <= measured]
    looks: list[Look] = []
    if reached:
        evidence = _all_at_once(plan, reached[-1], readings)
        if isinstance(evidence, _Position):
            return evidence
        gains = evidence.comparison.gains
        for count in reached:
            looks.append(look_at(rule, gains[:count]))
            test = sequential_finding(rule, looks, alpha)
            if test.decision != "open" or count == schedule[-1]:
                pairs, bases = evidence.pairs[:count], evidence.bases[:count]
                comparison = comparison_of(plan.climbed, pairs, bases)
                requests = climbed_requests(plan, count)
                return _Evidence(requests, pairs, bases, comparison, tuple(looks), test)
    count = schedule[len(looks)]
    halt = _halt(
        plan,
        ((plan.climbed, climbed_requests(plan, count)),),
        readings,
        looks,
        lambda: _requests(plan, count, plan.eager),
    )
    if halt is None:
        raise AssertionError(f"look {count} has all its values but was not taken")
    return _Position(halt, count, siblings=False)


def _measured_pairs(plan: ClimbPlan, readings: Mapping[str, Reading], most: int) -> int:
    """How many pairs, counted from the first without a gap, have a value on both sides."""
    for pair in range(most):
        for request in pair_requests(plan, plan.climbed, pair):
            reading = readings.get(request.role)
            if reading is None or reading.status != "value":
                return pair
    return most


def _judge_siblings(
    plan: ClimbPlan,
    readings: Mapping[str, Reading],
    evidence: _Evidence,
    finding: ClimbedFinding,
    losses: list[LossFinding],
    roles: tuple[str, ...],
) -> Step:
    count = evidence.count
    alpha = effective_alpha(plan) or DEFAULT_ALPHA
    wanted = tuple((sibling, sibling_requests(plan, sibling, count)) for sibling in plan.siblings)
    halt = _halt(plan, wanted, readings, evidence.looks, lambda: _requests(plan, count, siblings=True))
    if halt is not None:
        if isinstance(halt, Verdict):
            settled = replace(halt.findings, climbed=finding, losses=tuple(losses))
            return replace(halt, findings=replace(settled, roles=(*roles, *settled.roles)))
        return halt
    for sibling, requests in wanted:
        pairs, bases = pairs_of(sibling, requests, readings)
        losses.append(sibling_loss(sibling, pairs, alpha, evidence.comparison))
        losses.extend(guard_loss(sibling, guard, pairs, bases, alpha) for guard in sibling.guards)
        roles = (*roles, *(request.role for request in requests))
    reason: Reason = "" if all(loss.passed for loss in losses) else "suite-regression"
    return _verdict(plan, reason, finding, tuple(losses), roles)


def _requests(plan: ClimbPlan, pairs: int, siblings: bool) -> tuple[MeasureRequest, ...]:
    requests = climbed_requests(plan, pairs)
    if siblings:
        for sibling in plan.siblings:
            requests += sibling_requests(plan, sibling, pairs)
    return requests


def _halt(
    plan: ClimbPlan,
    wanted: _Wanted,
    readings: Mapping[str, Reading],
    looks: Sequence[Look],
    asked: Callable[[], Sequence[MeasureRequest]],
) -> Verdict | NeedMore | Waiting | Blocked | None:
    """Why these measures can't be judged yet, or that they never can; None when all have usable values."""
    base_failures: list[Failure] = []
    candidate_failures: list[Failure] = []
    for benchmark, requests in wanted:
        usable_bases: set[int] = set()
        failed: list[Failure] = []
        for request in requests:
            reading = readings.get(request.role)
            if reading is None:
                continue
            failure = failure_of(request, reading, benchmark)
            if failure is not None:
                (base_failures if request.side == "base" else failed).append(failure)
            elif request.side == "base" and reading.status == "value":
                usable_bases.add(request.pair)
        cached = benchmark.name == plan.climbed.name and benchmark.baseline == "cached"
        candidate_failures += [f for f in failed if f.pair in usable_bases or (cached and usable_bases)]
    everything = [request for _, requests in wanted for request in requests]
    if base_failures or candidate_failures:
        return _failed(plan, base_failures, candidate_failures, everything, readings)
    states = {request.role: readings[request.role] for request in everything if request.role in readings}
    exhausted = [reading for reading in states.values() if reading.status == "exhausted"]
    if exhausted:
        reason = "; ".join(
            f"{reading.role}: {reading.detail or reading.reason or 'attempts used up'}" for reading in exhausted
        )
        return Blocked(tuple(reading.role for reading in exhausted), reason, tuple(looks))
    if len(states) == len(everything) and all(reading.status == "value" for reading in states.values()):
        return None
    missing = tuple(request for request in asked() if request.role not in readings)
    if missing:
        return NeedMore(missing, tuple(looks))
    return Waiting(tuple(r.role for r in states.values() if r.status == "pending"), tuple(looks))


def _failed(
    plan: ClimbPlan,
    base_failures: Sequence[Failure],
    candidate_failures: Sequence[Failure],
    requests: Sequence[MeasureRequest],
    readings: Mapping[str, Reading],
) -> Verdict:
    roles = tuple(
        request.role
        for request in requests
        if request.role in readings and readings[request.role].status in ("value", "failed")
    )
    first, *others = base_failures or candidate_failures
    more = f" (and {len(others)} more)" if others else ""
    if base_failures:
        reason: Reason = "base-error"
        sentence = (
            f"failed (base-error): the base itself gives no value: {argument.failure_sentence(first)}{more};"
            " this says nothing about the candidate"
        )
        change = "a base commit on which the benchmark runs"
    else:
        reason = "candidate-error"
        sentence = f"failed (candidate-error): {argument.failure_sentence(first)}{more}; the base ran"
        change = "a candidate on which the benchmark prints its metric and exits 0"
    findings = Findings(failures=(*base_failures, *candidate_failures), roles=roles, would_have_changed=(change,))
    return Verdict("failed", reason, sentence, plan.climbed.name, findings)


def _verdict(
    plan: ClimbPlan,
    reason: Reason,
    finding: ClimbedFinding,
    losses: tuple[LossFinding, ...],
    roles: tuple[str, ...],
) -> Verdict:
    outcome: Outcome = "rejected" if reason else "accepted"
    refused = [loss for loss in losses if not loss.passed]
    if refused:
        told = "; ".join(argument.loss_sentence(loss) for loss in refused)
        told += f" (climbed: {argument.climbed_sentence(finding)})"
        changes = tuple(argument.loss_alternative(loss) for loss in refused)
    else:
        told = argument.climbed_sentence(finding)
        if losses:
            told += "; " + "; ".join(argument.loss_sentence(loss) for loss in losses)
        changes = argument.climbed_alternatives(finding)
    head = f"{outcome} ({reason})" if reason else outcome
    return Verdict(
        outcome=outcome,
        reason=reason,
        sentence=f"{head}: {told}",
        benchmark=plan.climbed.name,
        findings=Findings(climbed=finding, losses=losses, roles=roles, notes=_notes(plan), would_have_changed=changes),
    )


def _notes(plan: ClimbPlan) -> tuple[str, ...]:
    notes = []
    climbed = plan.climbed
    if climbed.baseline == "cached":
        notes.append(
            f"nothing was paired: {climbed.cached_k} cached base measurements serve every climb on this base, so"
            " one unlucky set of them makes the errors of all these climbs correlated"
        )
    if plan.prior_pairs:
        if isinstance(climbed.rule, Threshold):
            used = "the threshold rule has no alpha to split, so asking often enough accepts noise"
        else:
            alpha = effective_alpha(plan) or climbed.rule.alpha
            used = (
                f"this asking may use alpha = {number(alpha)} of {number(climbed.rule.alpha)}; all askings"
                f" together accept noise with a probability below {number(2 * climbed.rule.alpha)}"
            )
        notes.append(f"asked again: {plan.prior_pairs} earlier pairs count as evidence; {used}")
    elif plan.alpha_share < 1 and not isinstance(climbed.rule, Threshold):
        notes.append(
            f"asked before: this asking may use alpha = {number(climbed.rule.alpha * plan.alpha_share)} of"
            f" {number(climbed.rule.alpha)}; none of the earlier pairs could be used"
        )
    return tuple(notes)

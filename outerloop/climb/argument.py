"""A verdict's one sentence, and what would have changed it, in words.

Covers: findings -> text. Does not cover: deciding (nothing here is read by a decision) or layout (explain.py).
"""

from __future__ import annotations

from decimal import Decimal

from outerloop.climb.findings import ClimbedFinding, Failure, LossFinding
from outerloop.climb.model import MOST_PAIRS
from outerloop.climb.text import number, percent, plural

# What a sign-flip or t test would need, from the observed spread: z(1−alpha)+z(1−beta) for beta = 0.2.
_PLANNING_POWER = 0.8


def gain_phrase(finding: ClimbedFinding) -> str:
    """`tour_length fell by 213.4 (2.83 %), from 7542 to 7328.6`."""
    change = finding.mean_candidate - finding.mean_base
    if finding.gain == 0:
        return f"{finding.metric} did not change ({number(finding.mean_base)})"
    relative = "" if finding.gain_relative is None else f" ({percent(abs(finding.gain_relative))})"
    return (
        f"{finding.metric} {'rose' if change > 0 else 'fell'} by {number(abs(finding.gain))}{relative},"
        f" from {number(finding.mean_base)} to {number(finding.mean_candidate)}"
    )


def floor_phrase(finding: ClimbedFinding) -> str:
    """`the floor is 37.71`, or that any gain above zero would do."""
    if finding.floor.binding == "above-zero":
        return "a gain above zero is required"
    return f"the floor is {number(finding.floor.required)}"


def test_phrase(finding: ClimbedFinding) -> str:
    """What the significance test said, or "" for a single pair."""
    test = finding.test
    if test.p_value is not None:
        return f"sign-flip p = {test.p_value:.4g} against alpha = {number(test.alpha or Decimal(0))}"
    if test.looks and test.lower is not None and test.upper is not None:
        last = test.looks[-1]
        return (
            f"log-likelihood ratio {last.llr:.2f} after {plural(last.pairs, 'pair')}"
            f" (bounds {test.lower:.2f} and {test.upper:.2f})"
        )
    return ""


def climbed_sentence(finding: ClimbedFinding) -> str:
    """The whole argument about the climbed benchmark in one sentence, without its outcome."""
    parts = [f"over {plural(len(finding.pairs), 'pair')} {gain_phrase(finding)}", floor_phrase(finding)]
    if not finding.paired:
        count = len(finding.baselines)
        parts[0] = f"against {count} cached base measurements (nothing was paired) {gain_phrase(finding)}"
    if test := test_phrase(finding):
        parts.append(test)
    if finding.why == "worse-pairs":
        parts.append(f"{plural(len(finding.worse_pairs), 'pair')} got worse and all_pairs allows none")
    return "; ".join(parts)


def loss_sentence(finding: LossFinding) -> str:
    """What a sibling or guard lost and what it may lose."""
    name = finding.benchmark if finding.kind == "sibling" else f"guard {finding.metric} of {finding.benchmark}"
    if finding.why == "unusable":
        return f"{name}: {finding.detail}"
    if finding.loss is None or finding.bound is None:
        raise ValueError("a usable loss has a number")
    moved = "lost" if finding.loss > 0 else "gained" if finding.loss < 0 else "kept"
    amount = "its value" if finding.loss == 0 else number(abs(finding.loss))
    text = f"{name} {moved} {amount}"
    if finding.confidence is not None:
        text += f" (at most {number(finding.bound)} with {percent(finding.confidence)} confidence)"
    text += f"; it may lose {number(finding.limit)} ({finding.limit_from})"
    if finding.why in ("gain-too-small", "bought-by-gain"):
        text += (
            f", and more than {number(finding.free)} only for a climbed gain of at least"
            f" {number(finding.requires_gain or Decimal(0))}, which was"
            f" {number(finding.climbed_gain or Decimal(0))}"
        )
    return text


def failure_sentence(failure: Failure) -> str:
    """`candidate-2 ended with EXIT_1: Segmentation fault`."""
    detail = f": {failure.detail}" if failure.detail else ""
    return f"{failure.role} ended with {failure.code}{detail}"


def climbed_alternatives(finding: ClimbedFinding) -> tuple[str, ...]:
    """What would have changed the verdict on the climbed benchmark."""
    required = finding.floor.required
    at_least = f"a mean gain of at least {number(required)}" if required > 0 else "a mean gain above zero"
    if finding.passed:
        return (
            f"it would have been rejected without {at_least} (there was {number(finding.gain)})",
            *_stricter_test(finding),
        )
    if finding.why == "undecided":
        test = finding.test
        last = test.looks[-1]
        return (
            f"evidence: max_pairs is reached at {plural(last.pairs, 'pair')} with the ratio"
            f" {last.llr:.2f} still between {test.lower:.2f} and {test.upper:.2f}; asking again (--again)"
            " measures more pairs at a smaller alpha",
        )
    if finding.why in ("gain", "floor"):
        mean = finding.mean_base - required if finding.direction == "min" else finding.mean_base + required
        side = "at most" if finding.direction == "min" else "at least"
        strict = "" if required > 0 else " (equal is not enough)"
        return (f"{at_least}: a candidate mean of {side} {number(mean)}{strict}",)
    if finding.why == "worse-pairs":
        named = ", ".join(str(pair) for pair in finding.worse_pairs)
        return (f"no loss in pairs {named}, or a rule without all_pairs",)
    return _more_evidence(finding)


def _stricter_test(finding: ClimbedFinding) -> tuple[str, ...]:
    test = finding.test
    if test.p_value is not None:
        return (f"it would have been rejected at an alpha below {test.p_value:.4g}",)
    return ()


def _more_evidence(finding: ClimbedFinding) -> tuple[str, ...]:
    test = finding.test
    if test.decision == "h0":
        return (
            f"gains that raise the ratio above {test.upper:.2f}; at {test.looks[-1].llr:.2f} it fell below"
            f" {test.lower:.2f}: the evidence is for no gain of the size that the rule looks for",
        )
    if test.p_value is not None and test.alpha is not None and finding.gain_sd and finding.gain > 0:
        from statistics import NormalDist

        normal = NormalDist()
        quantiles = normal.inv_cdf(1 - float(test.alpha)) + normal.inv_cdf(_PLANNING_POWER)
        ratio = float(finding.gain / finding.gain_sd)
        told = f"p at most {number(test.alpha)} (it is {test.p_value:.4g})"
        if ratio * MOST_PAIRS**0.5 < quantiles:
            return (f"{told}; a true gain of this size is too small beside its spread to be found",)
        pairs = max(len(finding.pairs) + 1, int((quantiles / ratio) ** 2) + 1)
        return (
            f"{told}; a true gain of this size and spread would be found with about {pairs} pairs, four times"
            " out of five",
        )
    return ("gains that are more often above zero",)


def loss_alternative(finding: LossFinding) -> str:
    """What would have let a refused sibling or guard pass."""
    if finding.why == "unusable":
        return f"a finite {finding.metric} in every candidate output"
    if finding.why == "gain-too-small":
        return (
            f"a climbed gain of at least {number(finding.requires_gain or Decimal(0))}, or a loss of"
            f" {finding.benchmark} of at most {number(finding.free)}"
        )
    what = "an upper bound of the loss" if finding.why == "bound-above-limit" else "a loss"
    return f"{what} of {finding.metric} ({finding.benchmark}) of at most {number(finding.limit)}"

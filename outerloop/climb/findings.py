"""The verdict of a climb and every number that led to it, and their JSON form.

Covers: the frozen dataclasses that `next_step` returns, and a lossless JSON round trip (decimals travel as
strings). Does not cover: how they come about (judge.py) or how they are shown (explain.py).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

from outerloop.climb.model import Direction, MeasureRequest, Rule, Side

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Outcome = Literal["accepted", "rejected", "failed"]
Reason = Literal[
    "",
    "no-improvement",
    "suite-regression",
    "guard",
    "undecided",
    "superseded",
    "ladder",
    "candidate-error",
    "scope",
    "base-error",
]
TestName = Literal["point", "sign-flip", "sequential-t", "gsprt"]
Decision = Literal["h1", "h0", "open"]

VERDICT_SCHEMA = 1


@dataclass(frozen=True)
class PairFinding:
    """Both values of one pair and the gain, positive when the candidate is better. Cached: base is None."""

    pair: int
    seed: int
    candidate_role: str
    candidate: Decimal
    base_role: str = ""
    base: Decimal | None = None
    gain: Decimal | None = None


@dataclass(frozen=True)
class FloorFinding:
    """The smallest mean gain that is accepted (`required`), and the parts that it is the largest of.

    `relative` is min_delta_rel times the absolute mean baseline. `cached_error` (0 when paired) is added to
    the larger part. A required floor of 0 still asks for a gain above zero. Quotients are rounded for
    display; the decision compared exact sums.
    """

    absolute: Decimal
    relative: Decimal
    cached_error: Decimal
    required: Decimal
    binding: Literal["absolute", "relative", "above-zero"]


@dataclass(frozen=True)
class Look:
    """The state of a sequential test after so many pairs.

    `llr` is the natural-log likelihood ratio of H1 to H0, `t` the one-sample t statistic of the gains
    (None when the gains don't vary), `sd` their sample standard deviation in the metric's unit.
    """

    pairs: int
    llr: float
    t: float | None
    mean_gain: Decimal
    sd: Decimal


@dataclass(frozen=True)
class TestFinding:
    """The significance test of the climbed benchmark.

    point: nothing was tested. sign-flip: `p_value` against `alpha`; `resamples` is None when all 2^n sign
    patterns were counted. sequential: `looks` against the log bounds `lower` and `upper`, and the decision.
    """

    test: TestName
    pairs: int
    alpha: Decimal | None = None
    beta: Decimal | None = None
    p_value: float | None = None
    resamples: int | None = None
    looks: tuple[Look, ...] = ()
    lower: float | None = None
    upper: float | None = None
    decision: Decision | None = None

    __test__ = False  # not a test class, whatever its name looks like to pytest


@dataclass(frozen=True)
class ClimbedFinding:
    """What was found on the climbed benchmark. Means are rounded for display; sums decided."""

    benchmark: str
    metric: str
    direction: Direction
    rule: Rule
    paired: bool
    pairs: tuple[PairFinding, ...]
    baselines: tuple[Decimal, ...]
    mean_base: Decimal
    mean_candidate: Decimal
    gain: Decimal
    gain_relative: Decimal | None
    gain_sd: Decimal | None
    floor: FloorFinding
    clears_floor: bool
    worse_pairs: tuple[int, ...]
    test: TestFinding
    passed: bool
    why: Literal["passed", "gain", "floor", "test", "worse-pairs", "undecided"]
    noise_acceptance: float | None = None


LossWhy = Literal[
    "within-free",
    "within-limit",
    "bought-by-gain",
    "gain-too-small",
    "loss-above-limit",
    "bound-above-limit",
    "unusable",
]


@dataclass(frozen=True)
class LossFinding:
    """Whether a sibling or a guard metric lost more than it may.

    Loss is positive when the candidate is worse. `bound` is the one-sided upper confidence bound of the
    mean loss at `confidence`; with one pair, or where nothing was declared, the point estimate stands in and
    `confidence` is None. `limit`, `free` and `requires_gain` are in metric units. `false_refusal` is how often
    an unchanged benchmark would be refused by noise alone, None where its noise is unknown.
    """

    kind: Literal["sibling", "guard"]
    benchmark: str
    metric: str
    direction: Direction
    pairs: tuple[PairFinding, ...]
    mean_base: Decimal | None
    mean_candidate: Decimal | None
    loss: Decimal | None
    loss_sd: Decimal | None
    bound: Decimal | None
    confidence: Decimal | None
    free: Decimal
    limit: Decimal
    limit_from: str
    requires_gain: Decimal | None
    climbed_gain: Decimal | None
    passed: bool
    why: LossWhy
    detail: str = ""
    false_refusal: float | None = None


@dataclass(frozen=True)
class Failure:
    """A measure that ended without a usable value, or a rule of the contract that the diff broke."""

    role: str
    code: str
    detail: str
    side: Side | Literal[""] = ""
    pair: int = 0


@dataclass(frozen=True)
class Findings:
    """Every number that led to a verdict. `roles` are the measures that were read to reach it."""

    climbed: ClimbedFinding | None = None
    losses: tuple[LossFinding, ...] = ()
    failures: tuple[Failure, ...] = ()
    roles: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    would_have_changed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """How a climb ended. `sentence` says it to a person; `reason` is "" only when it was accepted."""

    outcome: Outcome
    reason: Reason
    sentence: str
    benchmark: str
    findings: Findings = field(default_factory=Findings)
    schema: int = VERDICT_SCHEMA

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; decimals as strings, nothing lost."""
        dumped: dict[str, Any] = _adapter().dump_python(self, mode="json")
        return dumped

    @classmethod
    def from_json(cls, data: Any) -> Verdict:
        """The verdict that `to_json` wrote. Raises ValueError naming what does not fit."""
        return _adapter().validate_python(data)


@functools.cache
def _adapter() -> TypeAdapter[Verdict]:
    from pydantic import TypeAdapter

    return TypeAdapter(Verdict)


@dataclass(frozen=True)
class NeedMore:
    """These measures have no reading yet: submit them. `looks` are the sequential test's looks so far."""

    measures: tuple[MeasureRequest, ...]
    looks: tuple[Look, ...] = ()


@dataclass(frozen=True)
class Waiting:
    """Everything needed was asked for; these roles are not there yet."""

    roles: tuple[str, ...]
    looks: tuple[Look, ...] = ()


@dataclass(frozen=True)
class Blocked:
    """These roles used up their attempts for reasons of infrastructure: nobody is charged, retry reopens."""

    roles: tuple[str, ...]
    reason: str
    looks: tuple[Look, ...] = ()


Step = Verdict | NeedMore | Waiting | Blocked

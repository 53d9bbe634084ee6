"""What a climb is judged by: rules, benchmarks, the plan, the measures it asks for and their readings.

Covers: the frozen dataclasses that the controller builds and that `next_step` reads, with the checks that
make a wrong one impossible to build. Does not cover: reading a contract's `rule` table (rule.py), results
(findings.py), or anything about how a measure is executed.

All are standard dataclasses, so `pydantic.TypeAdapter(ClimbPlan)` turns them into JSON and back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from statistics import NormalDist
from typing import Literal

Direction = Literal["min", "max"]
Side = Literal["base", "candidate"]
Units = Literal["sd", "absolute"]
SequentialTest = Literal["t", "gsprt"]
ReadingStatus = Literal["value", "failed", "pending", "exhausted"]

# Sequential defaults: with normal noise the simulated type I error stays below 5 % at a little over half of
# the fixed-n pairs. Smaller minimums save little and hold worse when gains are left-skewed (error_table.json).
DEFAULT_ALPHA = Decimal("0.05")
DEFAULT_BETA = Decimal("0.05")
DEFAULT_H1_SD = Decimal("0.5")
DEFAULT_BATCH = 4
DEFAULT_MIN_PAIRS = 20
DEFAULT_PAIRS = 8
# The truncation of a sequential test, in multiples of the fixed-n test with the same errors: wide enough
# that with normal noise fewer than 1 % of simulated climbs at H0 or H1 end undecided.
MAX_PAIRS_OVER_FIXED = 3
# More pairs than anybody measures; seeds for all of them are drawn and stored at submission.
MOST_PAIRS = 10_000
# "k >= 5" base measurements make a cached baseline; fewer don't estimate their own error.
FEWEST_CACHED = 5
# Replicate numbers below this one belong to cached baselines, which climbs share on purpose.
FIRST_FRESH_REPLICATE = 1024


class RuleError(ValueError):
    """The decision rule of a benchmark is not usable; `problems` lists every reason."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class EvidenceError(ValueError):
    """The readings can't be compared as they are (a broken pair, an unequal machine): no verdict follows."""


@dataclass(frozen=True)
class Threshold:
    """Accept one pair whose gain is above zero and reaches the benchmark's floor."""

    kind: Literal["threshold"] = "threshold"
    ladder: bool = False


@dataclass(frozen=True)
class Paired:
    """Accept n pairs whose mean gain reaches the floor and whose one-sided sign-flip test is significant."""

    alpha: Decimal = DEFAULT_ALPHA
    pairs: int = DEFAULT_PAIRS
    all_pairs: bool = False
    kind: Literal["paired"] = "paired"
    ladder: bool = False

    def __post_init__(self) -> None:
        problems = [*_level_problems("alpha", self.alpha)]
        if not 1 <= self.pairs <= MOST_PAIRS:
            problems.append(f"pairs = {self.pairs} must be between 1 and {MOST_PAIRS}")
        elif not problems and self.pairs < (need := fewest_pairs(self.alpha)):
            problems.append(
                f"pairs = {self.pairs} can never be significant at alpha = {self.alpha}: the smallest p of"
                f" a sign-flip test on {self.pairs} pairs is 2^-{self.pairs}; use pairs >= {need}"
            )
        if problems:
            raise RuleError(tuple(problems))


@dataclass(frozen=True)
class Sequential:
    """Measure pairs in fixed batches until the log-likelihood ratio leaves Wald's bounds.

    h0 and h1 are mean gains: in units of the standard deviation of the paired gains (`units = "sd"`) or in
    the metric's own unit (`"absolute"`). `max_pairs = 0` stands for MAX_PAIRS_OVER_FIXED times the pairs
    that a fixed-n test with the same errors needs, and is replaced when the rule is built.
    """

    test: SequentialTest = "t"
    h0: Decimal = Decimal(0)
    h1: Decimal = DEFAULT_H1_SD
    units: Units = "sd"
    alpha: Decimal = DEFAULT_ALPHA
    beta: Decimal = DEFAULT_BETA
    batch: int = DEFAULT_BATCH
    min_pairs: int = DEFAULT_MIN_PAIRS
    max_pairs: int = 0
    kind: Literal["sequential"] = "sequential"
    ladder: bool = False

    def __post_init__(self) -> None:
        problems = [*_level_problems("alpha", self.alpha), *_level_problems("beta", self.beta)]
        if self.test not in ("t", "gsprt"):
            problems.append(f'test = "{self.test}" must be "t" or "gsprt"')
        if self.units not in ("sd", "absolute"):
            problems.append(f'units = "{self.units}" must be "sd" or "absolute"')
        hypotheses_usable = self.h0.is_finite() and self.h1.is_finite()
        if not hypotheses_usable:
            problems.append("h0 and h1 must be finite")
        elif self.h0 < 0:
            problems.append(f"h0 = {self.h0} must not be negative: it would call a loss a gain")
        elif self.h1 <= self.h0:
            problems.append(f"h1 = {self.h1} must be greater than h0 = {self.h0}")
        if self.batch < 1:
            problems.append(f"batch = {self.batch} must be at least 1")
        if self.min_pairs < 2:
            problems.append(f"min_pairs = {self.min_pairs} must be at least 2: one pair has no variance")
        if not problems and self.max_pairs == 0:
            object.__setattr__(self, "max_pairs", self._default_max_pairs())
        elif self.max_pairs != 0 and self.max_pairs < self.min_pairs:
            problems.append(f"max_pairs = {self.max_pairs} must be at least min_pairs = {self.min_pairs}")
        if self.max_pairs > MOST_PAIRS:
            problems.append(f"max_pairs = {self.max_pairs} must be at most {MOST_PAIRS}")
        if problems:
            raise RuleError(tuple(problems))

    def _default_max_pairs(self) -> int:
        if self.units == "absolute":
            return max(200, self.min_pairs)
        normal = NormalDist()
        quantiles = normal.inv_cdf(1 - float(self.alpha)) + normal.inv_cdf(1 - float(self.beta))
        fixed = (quantiles / float(self.h1 - self.h0)) ** 2
        return min(MOST_PAIRS, max(self.min_pairs, math.ceil(MAX_PAIRS_OVER_FIXED * fixed)))


Rule = Threshold | Paired | Sequential


def fewest_pairs(alpha: Decimal) -> int:
    """The fewest pairs with which a sign-flip test can reach p <= alpha: ceil(log2(1/alpha))."""
    pairs = 1
    while Decimal(2) ** -pairs > alpha:
        pairs += 1
    return pairs


def _level_problems(name: str, level: Decimal) -> list[str]:
    if not level.is_finite() or not Decimal("1e-9") <= level < Decimal("0.5"):
        return [f"{name} = {level} must be at least 1e-9 and below 0.5"]
    return []


@dataclass(frozen=True)
class Regression:
    """How much a sibling may lose, as fractions of the absolute value of its own baseline.

    A mean loss of at most `free` passes, provided that its upper confidence bound is at most `max`; a loss
    between them passes only if the climbed gain is at least `requires_gain` of the climbed baseline.
    """

    free: Decimal = Decimal(0)
    max: Decimal = Decimal(0)
    requires_gain: Decimal = Decimal(0)

    def __post_init__(self) -> None:
        problems = [
            f"regression.{name} = {number} must be a finite number that is not negative"
            for name, number in (("free", self.free), ("max", self.max), ("requires_gain", self.requires_gain))
            if not number.is_finite() or number < 0
        ]
        if not problems and self.free > self.max:
            problems.append(f"regression.free = {self.free} must not exceed regression.max = {self.max}")
        if problems:
            raise RuleError(tuple(problems))


@dataclass(frozen=True)
class Guard:
    """Another metric of the same output line that must not get worse by more than what is declared.

    `max_loss` is in the metric's unit, `max_loss_rel` a fraction of the baseline's absolute value. With both
    declared both must hold, except that the relative one says nothing at baseline zero.
    """

    metric: str
    direction: Direction = "min"
    max_loss: Decimal | None = None
    max_loss_rel: Decimal | None = None

    def __post_init__(self) -> None:
        problems = []
        if not self.metric:
            problems.append("a guard needs a metric")
        if self.direction not in ("min", "max"):
            problems.append(f'guard {self.metric}: direction = "{self.direction}" must be "min" or "max"')
        for name, number in (("max_loss", self.max_loss), ("max_loss_rel", self.max_loss_rel)):
            if number is not None and (not number.is_finite() or number < 0):
                problems.append(f"guard {self.metric}: {name} = {number} must be finite and not negative")
        if problems:
            raise RuleError(tuple(problems))


@dataclass(frozen=True)
class BenchmarkRule:
    """What judging needs to know of a benchmark.

    `min_delta` is in the metric's unit, `min_delta_rel` a fraction of the baseline's absolute value.
    `noise_sd` is the standard deviation of one measurement across seeds, from a noise study, if there is
    one: it changes no decision, it lets `explain` say how often noise alone would decide.
    """

    name: str
    metric: str
    direction: Direction
    min_delta: Decimal = Decimal(0)
    min_delta_rel: Decimal = Decimal(0)
    rule: Rule = field(default_factory=Threshold)
    regression: Regression | None = None
    guards: tuple[Guard, ...] = ()
    baseline: Literal["paired", "cached"] = "paired"
    seeded: bool = False
    deterministic: bool = False
    cached_k: int = FEWEST_CACHED
    noise_sd: Decimal | None = None

    def __post_init__(self) -> None:
        problems = []
        if not self.name:
            problems.append("a benchmark needs a name")
        if self.direction not in ("min", "max"):
            problems.append(f'direction = "{self.direction}" must be "min" or "max"')
        for name, number in (("min_delta", self.min_delta), ("min_delta_rel", self.min_delta_rel)):
            if not number.is_finite() or number < 0:
                problems.append(f"{name} = {number} must be a finite number that is not negative")
        metrics = [self.metric, *(guard.metric for guard in self.guards)]
        for metric in sorted({metric for metric in metrics if metrics.count(metric) > 1}):
            problems.append(f'the metric "{metric}" is used twice (as metric and guard, or by two guards)')
        if self.baseline == "cached":
            if self.rule.kind != "threshold":
                problems.append(
                    f'baseline = "cached" pairs nothing, so it can\'t go with rule.kind = "{self.rule.kind}":'
                    ' use baseline = "paired", or rule.kind = "threshold"'
                )
            if self.deterministic and not self.seeded:
                problems.append(
                    'baseline = "cached" needs several differing base measurements, but the benchmark is'
                    ' deterministic: use baseline = "paired" (its base is measured once anyway)'
                )
            if not FEWEST_CACHED <= self.cached_k < FIRST_FRESH_REPLICATE:
                problems.append(
                    f"a cached baseline needs at least {FEWEST_CACHED} measurements (and fewer than"
                    f" {FIRST_FRESH_REPLICATE}), not {self.cached_k}"
                )
        elif self.single_valued and self.rule.kind != "threshold":
            problems.append(
                f'rule.kind = "{self.rule.kind}" needs pairs that differ, but the benchmark is deterministic'
                ' and has no seed_env: use rule.kind = "threshold"'
            )
        if problems:
            raise RuleError(tuple(f"benchmark {self.name}: {problem}" for problem in problems))

    @property
    def single_valued(self) -> bool:
        """Whether a tree has exactly one value: no seed enters and the benchmark is declared deterministic."""
        return self.deterministic and not self.seeded


@dataclass(frozen=True)
class ClimbPlan:
    """Everything that decides which measures a climb needs, fixed when it is submitted.

    pair_seeds
        One seed per pair, shared by both sides, for as many pairs as the rule can ever need
        (`seeds_needed`); all 0 for a benchmark without a seed variable.
    suite_seeds
        The same for each sibling, by name. A seeded sibling needs as many as the climb can have pairs.
    eager
        Siblings are asked for together with the first pairs. It changes when, never whether, they decide.
    alpha_share
        The part of the rule's alpha that this asking may use (`alpha_share(n_asks)`); 1 when first asked.
    prior_pairs
        Pairs that earlier askings already decided on. They come first in `pair_seeds`, count as evidence
        and are not looked at again on their own.
    replicate_start
        For benchmarks that are noisy without a seed: a number fresh to this run (kept when asking again),
        at least FIRST_FRESH_REPLICATE; pair k uses `replicate_start + 2k` (base) and `+ 2k + 1`.
    cached_seeds
        For a seeded benchmark with a cached baseline: the seeds of the base measurements, the same in every
        climb. Empty derives them from the benchmark's name.
    """

    climbed: BenchmarkRule
    siblings: tuple[BenchmarkRule, ...] = ()
    pair_seeds: tuple[int, ...] = ()
    suite_seeds: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    eager: bool = False
    alpha_share: Decimal = Decimal(1)
    prior_pairs: int = 0
    replicate_start: int = 0
    cached_seeds: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        problems: list[str] = []
        names = [self.climbed.name, *(sibling.name for sibling in self.siblings)]
        for name in sorted({name for name in names if names.count(name) > 1}):
            problems.append(f"the benchmark {name} is in the plan twice")
        if not Decimal(0) < self.alpha_share <= 1:
            problems.append(f"alpha_share = {self.alpha_share} must be above 0 and at most 1")
        if self.prior_pairs < 0:
            problems.append(f"prior_pairs = {self.prior_pairs} must not be negative")
        need = seeds_needed(self.climbed.rule, self.prior_pairs)
        problems += _seed_problems(self.climbed, self.pair_seeds, need)
        for sibling in self.siblings:
            pairs = 1 if sibling.single_valued else need
            problems += _seed_problems(sibling, self.suite_seeds.get(sibling.name, (0,) * pairs), pairs)
        if self.cached_seeds:
            problems += _seed_problems(self.climbed, self.cached_seeds, self.climbed.cached_k)
        unseeded = [b.name for b in (self.climbed, *self.siblings) if not b.seeded and not b.deterministic]
        if unseeded and self.replicate_start < FIRST_FRESH_REPLICATE:
            problems.append(
                f"{unseeded[0]} is noisy without a seed, so replicate_start must be a number fresh to this run,"
                f" at least {FIRST_FRESH_REPLICATE}, not {self.replicate_start}"
            )
        if problems:
            raise EvidenceError("; ".join(problems))


def seeds_needed(rule: Rule, prior_pairs: int = 0) -> int:
    """How many pairs, and so seeds, the rule can ever ask for, counting those of earlier askings."""
    if isinstance(rule, Threshold):
        return prior_pairs + 1
    if isinstance(rule, Paired):
        return prior_pairs + rule.pairs
    return prior_pairs + rule.max_pairs


def _seed_problems(benchmark: BenchmarkRule, seeds: tuple[int, ...], need: int) -> list[str]:
    if len(seeds) < need:
        return [f"{benchmark.name} can need {need} pairs but has {len(seeds)} seeds"]
    if not benchmark.seeded:
        return [f"{benchmark.name} takes no seed but was given {seed}" for seed in seeds if seed != 0][:1]
    problems = [
        f"{benchmark.name} takes a seed, and {seed} is none (seeds are drawn from 1 up)" for seed in seeds if seed < 1
    ][:1]
    seen: dict[int, int] = {}
    for pair, seed in enumerate(seeds):
        if seed in seen:
            problems.append(f"{benchmark.name}: pairs {seen[seed]} and {pair} have the same seed {seed}")
            break
        seen[seed] = pair
    return problems


@dataclass(frozen=True)
class MeasureRequest:
    """One evaluation that the climb needs. `seed = 0` means that none is injected."""

    role: str
    benchmark: str
    side: Side
    pair: int
    seed: int
    replicate: int = 0


@dataclass(frozen=True)
class Facts:
    """What is known about how a reading came about. None or "" where it is not known."""

    cpus_seen: int | None = None
    image: str | None = None
    node: str = ""
    job_id: str = ""
    slot: str = ""
    attempt: int = 0
    seed: int = 0


@dataclass(frozen=True)
class Reading:
    """What is known of one measure.

    `value` and `guards` carry the decimal text that the command printed. `reason` is a code (NO_METRIC,
    EXIT_3, TIMEOUT, …) and `detail` its sentence, for the states `failed` and `exhausted`.
    """

    role: str
    status: ReadingStatus
    value: Decimal | None = None
    guards: Mapping[str, Decimal] = field(default_factory=dict)
    reason: str = ""
    detail: str = ""
    facts: Facts = field(default_factory=Facts)

    def __post_init__(self) -> None:
        if self.status == "value" and self.value is None:
            raise EvidenceError(f"the reading of {self.role} has the status value but no value")

"""Noise studies: one tree measured many times -> its spread, a floor, a rule, and the pairs a gain needs.

Covers: spread across seeds, across replicates of one seed and across nodes, the recommended floor and rule.
Does not cover: measuring, or writing the contract.

The recommendation rests on √2 · sd across seeds, not on paired differences of the same tree: those are zero,
while a candidate that merely consumes its random numbers differently has the full unpaired noise.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal

from outerloop.climb.comparison import sample_sd
from outerloop.climb.exact import from_float, mean, rounded, why_incomparable
from outerloop.climb.model import DEFAULT_PAIRS, Paired, Rule, RuleError, Sequential, Threshold, fewest_pairs
from outerloop.climb.power import pairs_needed

# "on ≥ 20 seeds over ≥ 4 nodes where there are that many"
ENOUGH_SEEDS = 20
ENOUGH_NODES = 4
# Below this many values a standard deviation is worth nothing.
FEWEST_VALUES = 3
# Significance below which a difference between nodes is reported as real.
NODE_ALPHA = 0.01
# Up to here all pairs of a fixed test go out at once; above, a sequential test saves about half of them.
MOST_PAIRS_AT_ONCE = 20
# The gain, in sd of a paired gain, that is worth finding when nobody named one: a medium effect.
DEFAULT_EFFECT = 0.5
_FLOOR_DIGITS = 3


@dataclass(frozen=True)
class NoiseValue:
    """One measurement of the base tree. `seed = 0`: the benchmark takes none."""

    value: Decimal
    seed: int = 0
    node: str = ""
    replicate: int = 0


@dataclass(frozen=True)
class NodeSpread:
    """The values of one node."""

    node: str
    values: int
    mean: Decimal
    sd: Decimal | None


@dataclass(frozen=True)
class PairsForGain:
    """How many pairs find a gain of this size (metric units) with these errors; None: more than anybody runs."""

    gain: Decimal
    effect_sd: float
    alpha: Decimal
    beta: Decimal
    fixed: int | None


@dataclass(frozen=True)
class NoiseStudy:
    """What a noise study found.

    sd: standard deviation of one value across seeds (across replicates without a seed); sd_interval is its
    95 % confidence interval for normal noise. difference_sd: √2·sd, the noise of one unpaired difference.
    within_seed_sd: spread of repeated values of one seed, None if nothing was repeated. node_p: p value of
    "all nodes have one mean" (one-way analysis of variance), None with fewer than two nodes of two values.
    floor: the smallest gain that noise alone reaches with probability at most alpha in one pair.
    """

    values: int
    seeds: int
    mean: Decimal
    sd: Decimal
    sd_interval: tuple[Decimal, Decimal]
    relative_sd: Decimal | None
    difference_sd: Decimal
    within_seed_sd: Decimal | None
    nodes: tuple[NodeSpread, ...]
    node_p: float | None
    alpha: Decimal
    floor: Decimal
    rule: Rule
    pairs: tuple[PairsForGain, ...]
    advice: tuple[str, ...]


def study_noise(
    values: Iterable[NoiseValue],
    *,
    wanted_gain: Decimal | None = None,
    alpha: Decimal = Decimal("0.05"),
    beta: Decimal = Decimal("0.05"),
) -> NoiseStudy:
    """Spread and recommendations. `wanted_gain` is the smallest gain, in metric units, worth finding.

    Raises ValueError for fewer than FEWEST_VALUES values, a value that is not finite, or a gain that is not
    positive.
    """
    measured = tuple(values)
    if len(measured) < FEWEST_VALUES:
        raise ValueError(f"a noise study needs at least {FEWEST_VALUES} values, not {len(measured)}")
    for entry in measured:
        if (why := why_incomparable(entry.value)) is not None:
            raise ValueError(f"the value of seed {entry.seed} on {entry.node or 'a node'} can't be used: {why}")
    if wanted_gain is not None and not wanted_gain > 0:
        raise ValueError(f"a gain worth finding is above zero, not {wanted_gain}")
    by_seed = _by_seed(measured)
    seeded = len(by_seed) > 1
    # one value per seed, so that replicates of one seed don't pass for independent seeds
    independent = [mean(group) for group in by_seed.values()] if seeded else [e.value for e in measured]
    sd = sample_sd(independent) or Decimal(0)
    within = _pooled_sd(list(by_seed.values())) if seeded else None
    total_sd = _total_sd(sd, within, by_seed) if seeded else sd
    difference_sd = rounded(total_sd * Decimal(2).sqrt())
    centre = mean(independent)
    nodes, node_p = _nodes(measured)
    floor = _floor(difference_sd, len(independent) - 1, alpha)
    rule = recommended_rule(difference_sd, wanted_gain, alpha, beta)
    gains = (
        [wanted_gain]
        if wanted_gain is not None
        else [difference_sd * factor for factor in (Decimal("0.25"), Decimal("0.5"), Decimal(1), Decimal(2))]
    )
    return NoiseStudy(
        values=len(measured),
        seeds=len(by_seed) if seeded else 0,
        mean=centre,
        sd=total_sd,
        sd_interval=_sd_interval(total_sd, len(independent)),
        relative_sd=None if centre == 0 else rounded(total_sd / abs(centre)),
        difference_sd=difference_sd,
        within_seed_sd=within,
        nodes=nodes,
        node_p=node_p,
        alpha=alpha,
        floor=floor,
        rule=rule,
        pairs=tuple(pairs_for_gain(gain, difference_sd, alpha, beta) for gain in gains if gain > 0),
        advice=_advice(measured, len(independent), seeded, total_sd, within, nodes, node_p),
    )


def pairs_for_gain(gain: Decimal, difference_sd: Decimal, alpha: Decimal, beta: Decimal) -> PairsForGain:
    """The pairs of a fixed one-sided t-test that finds this gain. Without noise one pair shows everything."""
    if difference_sd == 0:
        return PairsForGain(gain, math.inf, alpha, beta, 1)
    effect = float(gain / difference_sd)
    return PairsForGain(gain, effect, alpha, beta, pairs_needed(effect, float(alpha), float(beta)))


def recommended_rule(difference_sd: Decimal, gain: Decimal | None, alpha: Decimal, beta: Decimal) -> Rule:
    """Threshold without noise or for gains that one pair shows; few pairs at once; else a sequential test."""
    if difference_sd == 0:
        return Threshold()
    effect = DEFAULT_EFFECT if gain is None else float(gain / difference_sd)
    needed = pairs_needed(effect, float(alpha), float(beta))
    # one pair is enough when both errors fit between 0 and the gain: (z(alpha) + z(beta)) · sd ≤ gain
    if effect >= _normal_quantiles(alpha, beta):
        return Threshold()
    if needed is not None and needed <= MOST_PAIRS_AT_ONCE:
        return Paired(alpha=alpha, pairs=max(needed, fewest_pairs(alpha), DEFAULT_PAIRS))
    h1 = Decimal(f"{effect:.2g}")
    try:
        return Sequential(h1=h1, alpha=alpha, beta=beta)
    except RuleError as error:
        raise ValueError(
            f"a gain of {gain} is only {effect:.2g} times the noise of a pair ({difference_sd}): {error}"
        ) from None


def _normal_quantiles(alpha: Decimal, beta: Decimal) -> float:
    from statistics import NormalDist

    normal = NormalDist()
    return normal.inv_cdf(1 - float(alpha)) + normal.inv_cdf(1 - float(beta))


def _floor(difference_sd: Decimal, df: int, alpha: Decimal) -> Decimal:
    """t(1−alpha, n−1) · √2·sd, rounded up to three digits."""
    if difference_sd == 0:
        return Decimal(0)
    from scipy.special import stdtrit

    factor = from_float(float(stdtrit(df, 1 - float(alpha))))
    return Context(prec=_FLOOR_DIGITS, rounding=ROUND_CEILING).plus(factor * difference_sd)


def _sd_interval(sd: Decimal, n: int) -> tuple[Decimal, Decimal]:
    from scipy.special import chdtri

    # chdtri(v, p) is the value that chi-square with v degrees of freedom exceeds with probability p
    factors = (math.sqrt((n - 1) / float(chdtri(n - 1, tail))) for tail in (0.025, 0.975))
    low, high = (rounded(sd * from_float(factor)) for factor in factors)
    return low, high


def _by_seed(values: Sequence[NoiseValue]) -> dict[int, list[Decimal]]:
    groups: dict[int, list[Decimal]] = defaultdict(list)
    for entry in values:
        groups[entry.seed].append(entry.value)
    return dict(groups)


def _pooled_sd(groups: Sequence[Sequence[Decimal]]) -> Decimal | None:
    """The standard deviation inside the groups, pooled over those with several values."""
    repeated = [group for group in groups if len(group) > 1]
    if not repeated:
        return None
    squares = sum(((sample_sd(group) or Decimal(0)) ** 2 * (len(group) - 1) for group in repeated), Decimal(0))
    return rounded((squares / sum(len(group) - 1 for group in repeated)).sqrt())


def _total_sd(sd_of_means: Decimal, within: Decimal | None, by_seed: dict[int, list[Decimal]]) -> Decimal:
    """The sd of one value of a fresh seed, from means of several values per seed.

    A mean of m values has the variance between² + within²/m, one value between² + within².
    """
    if not within:
        return sd_of_means
    inverse = sum((Decimal(1) / len(group) for group in by_seed.values()), Decimal(0)) / len(by_seed)
    return rounded((sd_of_means**2 + within**2 * (1 - inverse)).sqrt())


def _advice(
    values: Sequence[NoiseValue],
    independent: int,
    seeded: bool,
    sd: Decimal,
    within: Decimal | None,
    nodes: Sequence[NodeSpread],
    node_p: float | None,
) -> tuple[str, ...]:
    advice = []
    if independent < ENOUGH_SEEDS:
        what = "seeds" if seeded else "repeats"
        advice.append(f"{independent} {what} leave the spread uncertain; {ENOUGH_SEEDS} or more are better")
    if len(nodes) < ENOUGH_NODES:
        advice.append(
            f"the values come from {len(nodes)} node{'s' if len(nodes) != 1 else ''}; differences between nodes"
            f" show from {ENOUGH_NODES} on"
        )
    if node_p is not None and node_p < NODE_ALPHA:
        advice.append(
            f"nodes differ (p = {node_p:.2g}): a pair that runs on two nodes carries that difference;"
            " colocate = true runs both sides on one"
        )
    if sd == 0:
        advice.append(
            "all values are equal: declare deterministic = true if that is meant, and any gain above zero counts"
        )
    elif seeded and within is not None and within > 0:
        advice.append("repeating one seed gives other values: the seed does not control all of the noise")
    elif seeded and within is None and len(values) == independent:
        advice.append("no seed was repeated, so noise that the seed does not control is not told apart")
    return tuple(advice)


def _nodes(values: Sequence[NoiseValue]) -> tuple[tuple[NodeSpread, ...], float | None]:
    groups: dict[str, list[Decimal]] = defaultdict(list)
    for entry in values:
        groups[entry.node].append(entry.value)
    spreads = tuple(
        NodeSpread(node, len(group), mean(group), sample_sd(group)) for node, group in sorted(groups.items())
    )
    return spreads, _one_way_p([group for group in groups.values() if len(group) > 1])


def _one_way_p(groups: Sequence[Sequence[Decimal]]) -> float | None:
    """The p value of a one-way analysis of variance (Fisher 1925); None without two groups of two values."""
    if len(groups) < 2:
        return None
    from scipy.special import fdtrc

    everything = [value for group in groups for value in group]
    centre = mean(everything)
    between = sum((len(g) * (mean(g) - centre) ** 2 for g in groups), Decimal(0))
    within = sum(((value - mean(g)) ** 2 for g in groups for value in g), Decimal(0))
    if within == 0:
        return 1.0 if between == 0 else 0.0
    df_between, df_within = len(groups) - 1, len(everything) - len(groups)
    statistic = float(between / within) * df_within / df_between
    return float(fdtrc(df_between, df_within, statistic))


def contract_fragment(study: NoiseStudy) -> str:
    """The lines of a benchmark's table that the study recommends, as TOML.

    A threshold needs the floor against noise; rules with several pairs have a test for that, and no floor.
    """
    floor = study.floor if isinstance(study.rule, Threshold) else Decimal(0)
    return f"min_delta = {_toml_number(floor)}\nrule = {rule_toml(study.rule)}\n"


def rule_toml(rule: Rule) -> str:
    """The rule as a TOML inline table that `parse_rule` reads back. Keys at their default are left out."""
    default = type(rule)()
    fields = [f'kind = "{rule.kind}"']
    for name in rule.__dataclass_fields__:
        value = getattr(rule, name)
        if name == "kind" or (value == getattr(default, name) and name not in ("h1", "pairs")):
            continue
        if isinstance(value, bool):
            fields.append(f"{name} = {str(value).lower()}")
        elif isinstance(value, Decimal):
            fields.append(f"{name} = {_toml_number(value)}")
        else:
            fields.append(f'{name} = "{value}"' if isinstance(value, str) else f"{name} = {value}")
    return "{ " + ", ".join(fields) + " }"


def _toml_number(value: Decimal) -> str:
    text = f"{value:f}" if -6 <= value.adjusted() <= 15 or value == 0 else f"{value:e}"
    return text if any(mark in text for mark in ".e") else f"{text}.0"

"""Error rates of the rules by simulation.

Covers: vectorised climbs whose paired gains are noise plus a known effect, for every rule and for noise that
is normal, heavy-tailed, skewed, discrete or absent; the error table that is shipped with the package. Does
not cover: floors other than a threshold's, siblings, guards, dependence between pairs.

The generator is passed in, so a table can be recomputed to the last digit. Gains are in units of their own
standard deviation; the likelihood ratios and the sign-flip counts are the functions that decide real climbs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from outerloop.climb.llr import log_ratio
from outerloop.climb.model import Paired, Rule, Sequential, SequentialTest, Threshold
from outerloop.climb.power import pairs_needed, rate_lower_bound, rate_upper_bound
from outerloop.climb.sequential import look_schedule, wald_bounds
from outerloop.climb.signflip import MOST_EXACT_PAIRS, RESAMPLES, random_signs, reaching

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Noise = Callable[[np.random.Generator, tuple[int, ...]], Floats]

# Confidence with which a simulated rate is called above or below the nominal one.
CONFIDENCE = 0.99
# Memory of one block of sign-flip sums, in numbers.
_BLOCK = 4_000_000
TABLE_SCHEMA = 1
_TESTS: tuple[SequentialTest, ...] = ("t", "gsprt")
TABLE_CLIMBS = 20_000
TABLE_SEED = 20_190_401


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    return rng.standard_normal(shape)


def _t3(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    # Student's t with 3 degrees of freedom has variance 3
    return rng.standard_t(3, shape) / 3**0.5


def _skewed_left(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    return 1 - rng.standard_exponential(shape)


def _skewed_right(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    return rng.standard_exponential(shape) - 1


def _discrete(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    # one step down, none, none, one step up: variance 1/2
    steps = rng.integers(0, 2, shape) + rng.integers(0, 2, shape) - 1
    return steps.astype("float64") * 2**0.5


def _zero_variance(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    import numpy as np

    return np.zeros(shape)


# All have mean 0 and standard deviation 1, except the last.
NOISES: dict[str, Noise] = {
    "normal": _normal,
    "t3": _t3,
    "skewed-left": _skewed_left,
    "skewed-right": _skewed_right,
    "discrete": _discrete,
    "zero-variance": _zero_variance,
}


@dataclass(frozen=True)
class ErrorRow:
    """Simulated climbs under one rule, one noise and one true mean gain (`effect`, in sd of the gains).

    accepted, undecided: shares of the climbs. `ratio`: mean pairs over the pairs of the fixed-n t-test with the
    same errors. `nominal`: what the rule promises for `accepted` at this effect (alpha at 0, 1 − beta at h1), None
    where it promises nothing; `holds`: False when the simulation shows with 99 % confidence that it fails.
    """

    rule: dict[str, Any]
    noise: str
    effect: float
    climbs: int
    accepted: float
    undecided: float
    mean_pairs: float
    fixed_pairs: int | None
    ratio: float | None
    nominal: float | None
    holds: bool | None


def simulate(
    rule: Rule, noise: str, effect: float, climbs: int, rng: np.random.Generator, floor_sd: float = 0.0
) -> ErrorRow:
    """Decide so many climbs. `floor_sd` is a threshold's floor in sd of the gain. Raises KeyError for the noise."""
    import numpy as np

    source = NOISES[noise]
    if isinstance(rule, Sequential):
        accepted, undecided, pairs = sequential_climbs(rule, source, effect, climbs, rng)
    elif isinstance(rule, Paired):
        gains = source(rng, (climbs, rule.pairs)) + effect
        accepted = paired_climbs(rule, gains, int(rng.integers(2**62)))
        undecided, pairs = np.zeros(climbs, dtype=bool), np.full(climbs, rule.pairs)
    else:
        gain = source(rng, (climbs,)) + effect
        accepted = (gain > 0) & (gain >= floor_sd)
        undecided, pairs = np.zeros(climbs, dtype=bool), np.ones(climbs, dtype=int)
    return _row(rule, noise, effect, accepted, undecided, pairs, floor_sd)


def sequential_climbs(
    rule: Sequential, source: Noise, effect: float, climbs: int, rng: np.random.Generator
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """(accepted, undecided, pairs used) of each climb, pairs drawn batch by batch until all have stopped."""
    import numpy as np

    lower, upper = wald_bounds(float(rule.alpha), float(rule.beta))
    h0, h1 = float(rule.h0), float(rule.h1)
    accepted = np.zeros(climbs, dtype=bool)
    undecided = np.ones(climbs, dtype=bool)
    used = np.full(climbs, rule.max_pairs)
    active = np.arange(climbs)
    gains = np.empty((climbs, 0))
    for count in look_schedule(rule):
        fresh = source(rng, (len(active), count - gains.shape[1])) + effect
        gains = np.concatenate([gains, fresh], axis=1)
        mean = gains.mean(axis=1)
        sd = gains.std(axis=1, ddof=1)
        # equal gains have no variance, whatever rounding makes of their mean
        sd[(gains == gains[:, :1]).all(axis=1)] = 0.0
        llr = log_ratio(rule.test, rule.units, count, mean, sd, h0, h1)
        stopped = (llr >= upper) | (llr <= lower)
        accepted[active[(llr >= upper) & (mean > 0)]] = True
        undecided[active[stopped]] = False
        used[active[stopped]] = count
        active, gains = active[~stopped], gains[~stopped]
        if not len(active):
            break
    return accepted, undecided, used


def paired_climbs(rule: Paired, gains: Floats, signs_seed: int) -> npt.NDArray[np.bool_]:
    """Which rows of `gains` (climbs, pairs) the paired rule accepts, with no floor but zero."""
    import numpy as np

    climbs, pairs = gains.shape
    exact = pairs <= MOST_EXACT_PAIRS
    signs = all_signs(pairs) if exact else random_signs(signs_seed, RESAMPLES, pairs)
    block = max(1, _BLOCK // len(signs))
    counts = np.concatenate([reaching(gains[start : start + block], signs) for start in range(0, climbs, block)])
    p_values = counts / len(signs) if exact else (counts + 1) / (len(signs) + 1)
    accepted: npt.NDArray[np.bool_] = (gains.sum(axis=1) > 0) & (p_values <= float(rule.alpha))
    if rule.all_pairs:
        accepted &= (gains >= 0).all(axis=1)
    return accepted


def all_signs(pairs: int) -> Floats:
    """All 2^n sign patterns, as a (2^n, n) array of ±1."""
    import numpy as np

    patterns = np.arange(2**pairs)[:, None] >> np.arange(pairs)
    return (patterns & 1).astype(np.float64) * 2 - 1


def _row(
    rule: Rule,
    noise: str,
    effect: float,
    accepted: npt.NDArray[np.bool_],
    undecided: npt.NDArray[np.bool_],
    pairs: npt.NDArray[np.int64],
    floor_sd: float,
) -> ErrorRow:
    climbs, count = len(accepted), int(accepted.sum())
    nominal = holds = fixed = None
    if not isinstance(rule, Threshold) and effect == 0:
        nominal = float(rule.alpha)
        holds = rate_lower_bound(count, climbs, CONFIDENCE) <= nominal
    elif isinstance(rule, Sequential) and effect == float(rule.h1):
        nominal = 1 - float(rule.beta)
        holds = rate_upper_bound(count, climbs, CONFIDENCE) >= nominal
    if isinstance(rule, Sequential) and rule.units == "sd":
        fixed = pairs_needed(float(rule.h1 - rule.h0), float(rule.alpha), float(rule.beta))
    mean_pairs = float(pairs.mean())
    return ErrorRow(
        rule=describe(rule, floor_sd),
        noise=noise,
        effect=effect,
        climbs=climbs,
        accepted=round(count / climbs, 5),
        undecided=round(float(undecided.mean()), 5),
        mean_pairs=round(mean_pairs, 2),
        fixed_pairs=fixed,
        ratio=None if fixed is None else round(mean_pairs / fixed, 3),
        nominal=nominal,
        holds=holds,
    )


def describe(rule: Rule, floor_sd: float = 0.0) -> dict[str, Any]:
    """The rule as plain JSON values, decimals as numbers; a threshold with its floor in sd of the gain."""
    fields = {
        key: float(value) if isinstance(value, Decimal) else value
        for key, value in asdict(rule).items()
        if key != "ladder"
    }
    return {"floor_sd": floor_sd, **fields} if isinstance(rule, Threshold) else fields


def published_rules() -> Iterator[tuple[Rule, float, tuple[float, ...]]]:
    """(rule, threshold floor, effects) of every block of rows in the shipped table."""
    for floor in (0.0, 1.0, 2.0, 3.0):
        yield Threshold(), floor, (0.0, 1.0, 3.0)
    for alpha, counts in (("0.05", (5, 8, 12, 20, 50)), ("0.01", (7, 12, 20, 50))):
        for pairs in counts:
            yield Paired(Decimal(alpha), pairs), 0.0, (0.0, 0.5, 1.0)
    for h1, alpha, beta, minimums in (
        ("0.25", "0.05", "0.05", (8, 20)),
        ("0.5", "0.05", "0.05", (4, 8, 12, 20, 40)),
        ("0.5", "0.01", "0.10", (8, 20, 40)),
        ("1", "0.05", "0.05", (4, 8, 12, 20)),
    ):
        for min_pairs in minimums:
            for test in _TESTS:
                rule = Sequential(
                    test=test,
                    h1=Decimal(h1),
                    alpha=Decimal(alpha),
                    beta=Decimal(beta),
                    min_pairs=min_pairs,
                )
                yield rule, 0.0, (0.0, float(h1))


def error_rows(
    climbs: int,
    rng: np.random.Generator,
    rules: Sequence[tuple[Rule, float, tuple[float, ...]]] | None = None,
    noises: Sequence[str] = tuple(NOISES),
) -> Iterator[ErrorRow]:
    """Simulated rows for these rules (the published ones by default), noise by noise and effect by effect."""
    for rule, floor, effects in published_rules() if rules is None else rules:
        for noise in noises:
            for effect in effects:
                yield simulate(rule, noise, effect, climbs, rng, floor)

"""The one-sided sign-flip (randomisation) test of paired gains.

Covers: the exact p value for n ≤ 14 pairs by counting all 2^n sign patterns in integer arithmetic, and the
Monte Carlo p value (b+1)/(B+1) above that. Does not cover: gains whose distribution is not symmetric about
zero under the null hypothesis — symmetry is this test's only assumption, and its error rates under skewed
noise are in error_table.json.

Source: Fisher, The Design of Experiments (1935), §21; (b+1)/(B+1): Phipson and Smyth, "Permutation p-values
should never be zero", Statistical Applications in Genetics and Molecular Biology 9(1), 2010.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

from outerloop.climb.exact import exact, scaled_floats, total

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MOST_EXACT_PAIRS = 14
RESAMPLES = 9_999
# Sums of floats that differ by less than this (relative to the sum of magnitudes) count as ties; a tie
# counts against the candidate, so rounding can only make the test more cautious.
TIE_TOLERANCE = 1e-12


def sign_flip_p(gains: Sequence[Decimal], seed: int) -> tuple[float, int | None]:
    """The p value of "the mean gain is above zero", and the number of resamples (None: all were counted).

    `seed` fixes the Monte Carlo patterns, so that anybody recomputes the same p value. All-zero gains give 1.
    """
    if len(gains) <= MOST_EXACT_PAIRS:
        return exact_p(gains), None
    return monte_carlo_p(gains, seed), RESAMPLES


def exact_p(gains: Sequence[Decimal]) -> float:
    """The share of the 2^n sign patterns whose sum is at least the observed one, ties included."""
    observed = total(gains)
    with exact():
        sums = [Decimal(0)]
        for gain in gains:
            sums = [s + signed for s in sums for signed in (gain, -gain)]
    return sum(s >= observed for s in sums) / len(sums)


def monte_carlo_p(gains: Sequence[Decimal], seed: int, resamples: int = RESAMPLES) -> float:
    """(b+1)/(B+1) over B random sign patterns, of which b reach the observed sum."""
    import numpy as np

    floats, _ = scaled_floats(gains)
    values = np.array(floats)
    reached = int(reaching(values[None, :], random_signs(seed, resamples, len(floats)))[0])
    return (reached + 1) / (resamples + 1)


def random_signs(seed: int, resamples: int, pairs: int) -> npt.NDArray[np.float64]:
    """A (resamples, pairs) array of ±1, from raw PCG64 words: numpy guarantees those across releases."""
    import numpy as np

    words = -(-resamples * pairs // 64)
    raw = np.random.PCG64(seed).random_raw(words).astype("<u8").view(np.uint8)
    bits = np.unpackbits(raw, bitorder="little")[: resamples * pairs]
    return bits.reshape(resamples, pairs).astype(np.float64) * 2 - 1


def reaching(gains: npt.NDArray[np.float64], signs: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """For each row of `gains` (climbs, pairs), how many rows of `signs` give at least its observed sum."""
    tolerance = TIE_TOLERANCE * abs(gains).sum(axis=1)
    return (gains @ signs.T >= (gains.sum(axis=1) - tolerance)[:, None]).sum(axis=1)  # type: ignore[no-any-return]


def seed_from(benchmark: str, seeds: Sequence[int]) -> int:
    """A 64-bit Monte Carlo seed that the plan determines."""
    text = f"sign-flip\0{benchmark}\0{','.join(map(str, seeds))}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")

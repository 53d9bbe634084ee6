"""Property attacked: the sign-flip p value is the share of sign patterns, ties counted against the candidate."""

from __future__ import annotations

import itertools
from decimal import Decimal

import numpy as np
import pytest

from outerloop.climb.signflip import (
    MOST_EXACT_PAIRS,
    RESAMPLES,
    exact_p,
    monte_carlo_p,
    random_signs,
    sign_flip_p,
)


def brute_force(gains: list[Decimal]) -> float:
    patterns = list(itertools.product((1, -1), repeat=len(gains)))
    observed = sum(gains)
    reach = sum(sum(s * g for s, g in zip(p, gains, strict=True)) >= observed for p in patterns)
    return reach / len(patterns)


@pytest.mark.parametrize("seed", range(5))
def test_the_exact_p_value_counts_all_patterns(seed: int) -> None:
    rng = np.random.default_rng(seed)
    gains = [Decimal(int(x)) / 10 for x in rng.integers(-5, 12, 9)]
    assert exact_p(gains) == brute_force(gains)


def test_all_gains_positive_reach_the_smallest_p_value() -> None:
    assert exact_p([Decimal(i) for i in range(1, 11)]) == 2**-10


def test_ties_count_against_the_candidate() -> None:
    assert exact_p([Decimal(0)] * 6) == 1.0
    # 0.1 + 0.2 − 0.3 is exactly zero in decimals and not in binary floats
    assert exact_p([Decimal("0.1"), Decimal("0.2"), Decimal("-0.3")]) == brute_force(
        [Decimal(1), Decimal(2), Decimal(-3)]
    )


def test_scale_does_not_matter() -> None:
    gains = [Decimal(x) for x in ("3", "-1", "2", "5", "-2", "1")]
    assert len({exact_p([g.scaleb(e) for g in gains]) for e in (-390, 0, 390)}) == 1


def test_monte_carlo_agrees_with_counting_and_never_gives_zero() -> None:
    rng = np.random.default_rng(4)
    gains = [Decimal(repr(float(x))) for x in rng.normal(0.4, 1, 14)]
    assert monte_carlo_p(gains, seed=1) == pytest.approx(exact_p(gains), abs=0.01)
    certain = [Decimal(1)] * 60
    assert monte_carlo_p(certain, seed=1) == 1 / (RESAMPLES + 1)


def test_the_switch_is_at_fourteen_pairs_and_the_seed_fixes_the_answer() -> None:
    rng = np.random.default_rng(5)
    gains = [Decimal(repr(float(x))) for x in rng.normal(0.3, 1, MOST_EXACT_PAIRS + 1)]
    assert sign_flip_p(gains[:-1], seed=1)[1] is None
    first, second = sign_flip_p(gains, seed=1), sign_flip_p(gains, seed=1)
    assert first == second
    assert first[1] == RESAMPLES
    assert first != sign_flip_p(gains, seed=2)


def test_random_signs_are_the_same_in_every_numpy_release() -> None:
    signs = random_signs(20_190_401, 3, 5)
    assert signs.shape == (3, 5)
    assert set(np.unique(random_signs(1, 100, 20))) == {-1.0, 1.0}
    assert abs(random_signs(1, 20_000, 20).mean()) < 0.01
    # PCG64's raw stream is part of numpy's compatibility promise; these are its first 15 bits
    word = int(np.random.PCG64(20_190_401).random_raw(1)[0])
    assert signs.ravel().tolist() == [1.0 if word >> bit & 1 else -1.0 for bit in range(15)]

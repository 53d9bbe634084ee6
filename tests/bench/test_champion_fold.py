"""Holds the ledger's cost: 50,000 evaluations fold in under 2 s, and the next event costs what it did at 500."""

from __future__ import annotations

from tests.bench.bench_champion_fold import measure

FOLD_SECONDS = 2.0
APPEND_RATIO = 2.0


def test_a_large_ledger_folds_fast_and_appends_at_the_price_of_a_small_one() -> None:
    found = measure()
    assert found.fold_large_s < FOLD_SECONDS
    assert found.append_ratio <= APPEND_RATIO
    assert found.next_ratio <= APPEND_RATIO

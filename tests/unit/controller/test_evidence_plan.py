"""Rounds: what asking again keeps, what a noise study measures; and readings that carry what has to be equal."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from outerloop.climb.noise_odds import best_of_noise
from outerloop.climb.plan import cached_seed
from outerloop.contract import Contract, parse_contract
from outerloop.controller.ledger import LedgerEvent
from outerloop.controller.noise import SAME_SEED_REPEATS, NoSeries, series_measures
from outerloop.controller.plan import Prior, Round, draw_round, reading_of_slot
from outerloop.controller.reuse_text import MANY_DECISIONS, reuse_sentences


def contract(rule: str = '{ kind = "paired", pairs = 5 }', more: str = "") -> Contract:
    return parse_contract(
        '[[benchmarks]]\nname = "speed"\ncommand = "x"\nmetric = "cost"\ndirection = "min"\n'
        f'seed_env = "S"\nsuite = ["size"]\nrule = {rule}\n{more}\n'
        '[[benchmarks]]\nname = "size"\ncommand = "y"\nmetric = "bytes"\ndirection = "min"\nseed_env = "S"\n'
        '[scope]\nallowed = ["src/"]\nshared = ["lib/"]\n'
    )


def drawn(found: Contract, prior: Prior | None = None, **noise: Decimal) -> Round:
    body = draw_round(
        found,
        "speed",
        number=0,
        base_commit="c",
        base_tree="t",
        champion_seq=0,
        promotable=True,
        changed=["lib/x"],
        prior=prior or Prior(),
        noise_sd=noise,
    )
    return Round.of(LedgerEvent(0, "round", body, datetime.now(UTC)))


def test_asking_again_keeps_seeds_of_pairs_and_suite_and_draws_as_many_as_the_rule_can_need() -> None:
    found = contract()
    first = drawn(found)
    assert len(first.pair_seeds) == len(first.suite_seeds["size"]) == 5
    again = drawn(found, Prior(asking=2, round_=first, pairs=5))
    assert again.pair_seeds[:5] == first.pair_seeds and len(set(again.pair_seeds)) == 10
    assert again.suite_seeds["size"][:5] == first.suite_seeds["size"] and len(again.suite_seeds["size"]) == 10
    assert (again.prior_pairs, again.asking, again.replicate_start) == (5, 2, first.replicate_start)


def test_pairs_that_nobody_decided_on_are_no_prior_ones() -> None:
    found = contract('{ kind = "sequential", h1 = 1, min_pairs = 4, batch = 2, max_pairs = 20 }')
    first = drawn(found)
    again = drawn(found, Prior(asking=2, round_=first, pairs=6))
    assert again.prior_pairs == 6 and again.pair_seeds[:20] == first.pair_seeds and len(again.pair_seeds) == 26


def test_going_on_after_a_cancel_is_the_same_round() -> None:
    found = contract()
    first = drawn(found)
    assert drawn(found, Prior(asking=1, round_=first, unfinished=True)) == first


def test_noise_of_other_benchmarks_is_left_out_of_the_round_and_survives_its_json() -> None:
    round_ = drawn(contract(), speed=Decimal("0.10"), size=Decimal("1e-7"), other=Decimal(1))
    assert round_.noise_sd == {"speed": Decimal("0.10"), "size": Decimal("1e-7")}


@pytest.mark.parametrize("image", [None, "", "sha256:a"])
def test_a_reading_carries_the_image_and_cpus_of_its_slot(image: str | None) -> None:
    body = {"metric": {"text": "1.50"}, "cpus_seen": 4, "host": "n1"}
    reading = reading_of_slot(
        "candidate", state="done", body=body, reason="", detail="", digest="d", attempt=1, node="", seed=3, image=image
    )
    assert (reading.value, reading.facts.cpus_seen, reading.facts.image) == (Decimal("1.50"), 4, image)


def test_a_longer_study_begins_with_the_shorter_one_and_repeats_its_first_seed() -> None:
    benchmark = contract().benchmark("speed")
    short, long = series_measures(benchmark, 3), series_measures(benchmark, 6)
    assert {(m.seed, m.replicate) for m in short} < {(m.seed, m.replicate) for m in long}
    assert [m.seed for m in long[:6]] == [cached_seed("speed", i) for i in range(6)]
    assert sum(m.seed == long[0].seed for m in long) == 1 + SAME_SEED_REPEATS
    assert len({m.role for m in long}) == len(long)
    with pytest.raises(NoSeries, match="at least 3"):
        series_measures(benchmark, 2)


def test_the_best_of_k_by_noise_is_within_what_is_known() -> None:
    # exact expected maxima of k standard normals (Harter 1961, table 1)
    for k, exact in ((1, 0.0), (2, 0.56419), (5, 1.16296), (20, 1.86748), (100, 2.50759)):
        assert best_of_noise(k) == pytest.approx(exact, abs=0.03)


def test_many_decisions_are_a_warning_with_its_number() -> None:
    few, many = (reuse_sentences(k, fresh_seeds=False) for k in (MANY_DECISIONS - 1, MANY_DECISIONS))
    assert len(few) == 1 and "19 verdicts" in few[0]
    assert many[1].startswith("Warning: the best of 20") and "1.9 standard errors" in many[1]

"""Property attacked: recommendations follow from the measured noise; the Ladder can't be boosted."""

from __future__ import annotations

import tomllib
from decimal import Decimal

import numpy as np
import pytest

from outerloop.climb import Paired, Sequential, Threshold, parse_rule
from outerloop.climb.ladder import ladder_step
from outerloop.climb.noise import NoiseValue, contract_fragment, pairs_for_gain, rule_toml, study_noise


def values(sd: float, seeds: int = 40, nodes: int = 4, shift: float = 0.0, rng_seed: int = 1, repeats: int = 1):
    rng = np.random.default_rng(rng_seed)
    listed = []
    for seed in range(1, seeds + 1):
        centre = 100 + rng.normal(0, sd)
        for replicate in range(repeats):
            node = seed % nodes
            listed.append(NoiseValue(Decimal(repr(float(centre + shift * node))), seed, f"node{node}", replicate))
    return listed


def test_the_spread_is_that_across_seeds_and_the_floor_covers_an_unpaired_difference() -> None:
    study = study_noise(values(2.0))
    assert study.seeds == 40
    low, high = study.sd_interval
    assert low < 2 < high
    assert study.difference_sd == pytest.approx(study.sd * Decimal(2).sqrt())
    # t(0.95, 39) = 1.6849
    assert float(study.floor) == pytest.approx(1.6849 * float(study.difference_sd), rel=0.01)
    assert study.floor >= Decimal("1.6849") * study.difference_sd
    assert study.advice == ("no seed was repeated, so noise that the seed does not control is not told apart",)


def test_an_unchanged_candidate_clears_the_recommended_floor_about_as_rarely_as_stated() -> None:
    rng = np.random.default_rng(9)
    cleared = 0
    for study_seed in range(40):
        floor = float(study_noise(values(1.0, seeds=20, rng_seed=study_seed)).floor)
        cleared += int((rng.normal(0, 2**0.5, 500) >= floor).sum())
    assert 0.03 < cleared / 20_000 < 0.07


def test_a_program_without_noise_needs_one_pair() -> None:
    study = study_noise(values(0.0))
    assert (study.sd, study.floor, study.rule) == (0, 0, Threshold())
    assert any("deterministic = true" in line for line in study.advice)


@pytest.mark.parametrize(("gain", "kind"), [("20", Threshold), ("5", Paired), ("1", Sequential)])
def test_the_rule_depends_on_the_gain_worth_finding(gain: str, kind: type) -> None:
    study = study_noise(values(2.0), wanted_gain=Decimal(gain))
    assert isinstance(study.rule, kind)
    assert study.pairs[0].gain == Decimal(gain)


def test_pairs_for_a_gain_are_those_of_the_fixed_test() -> None:
    found = pairs_for_gain(Decimal("0.5"), Decimal(2), Decimal("0.05"), Decimal("0.05"))
    assert (found.effect_sd, found.fixed) == (0.25, 175)
    assert pairs_for_gain(Decimal(1), Decimal(0), Decimal("0.05"), Decimal("0.05")).fixed == 1


def test_nodes_that_differ_are_found_and_equal_ones_are_not() -> None:
    assert study_noise(values(1.0, seeds=80)).node_p > 0.01
    shifted = study_noise(values(1.0, seeds=80, shift=2.0))
    assert shifted.node_p < 1e-6
    assert any("colocate" in line for line in shifted.advice)
    assert len(shifted.nodes) == 4


def test_replicates_of_a_seed_are_not_counted_as_seeds() -> None:
    once, thrice = study_noise(values(1.0, repeats=1)), study_noise(values(1.0, repeats=3))
    assert thrice.sd == once.sd
    assert thrice.within_seed_sd == 0
    assert (thrice.values, thrice.seeds) == (120, 40)


def test_noise_inside_a_seed_is_part_of_one_value() -> None:
    rng = np.random.default_rng(3)
    listed = [
        NoiseValue(Decimal(repr(float(rng.normal(0, 1)))), seed, "n", replicate)
        for seed in range(1, 401)
        for replicate in range(4)
    ]
    study = study_noise(listed)
    # no spread between seeds at all: the means of four have sd 1/2, one value has sd 1
    assert float(study.sd) == pytest.approx(1.0, abs=0.05)


def test_studies_that_say_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 3 values"):
        study_noise(values(1.0, seeds=2))
    with pytest.raises(ValueError, match="not a number"):
        study_noise([*values(1.0), NoiseValue(Decimal("NaN"), 99)])
    with pytest.raises(ValueError, match="above zero"):
        study_noise(values(1.0), wanted_gain=Decimal(0))
    few = study_noise(values(1.0, seeds=5, nodes=1))
    assert len(few.advice) == 3


def boost(items: int, attempts: int, *, ladder: bool) -> tuple[float, float]:
    """Blum and Hardt's attack: random labelings, keep those that score below 1/2, submit their majority vote.

    Labels are coin flips, so the true loss of every submission is 1/2. Returns what the vote is answered and
    its loss on the hidden items.
    """
    rng = np.random.default_rng(2015)
    hidden = rng.integers(0, 2, items)
    best, kept = None, []

    def released(guess) -> float:
        nonlocal best
        losses = (guess != hidden).astype(float)
        if not ladder:
            return float(losses.mean())
        answer = ladder_step(best, losses.tolist())
        best = answer.rung
        return answer.released

    released(np.zeros(items, dtype=int))
    for _ in range(attempts):
        guess = rng.integers(0, 2, items)
        if released(guess) < 0.5:
            kept.append(guess)
    assert len(kept) > attempts // 4
    vote = (np.mean(kept, axis=0) > 0.5).astype(int)
    return released(vote), float((vote != hidden).mean())


def test_the_boosting_attack_succeeds_without_the_ladder_and_fails_with_it() -> None:
    answered, overfitted = boost(500, 800, ladder=False)
    assert answered == overfitted < 0.30
    answered, overfitted = boost(500, 800, ladder=True)
    # the answers told nothing about the labels, so the vote is a coin flip; what is left is the luckiest of 800
    assert overfitted > 0.45
    assert answered > 0.42


def test_real_progress_still_climbs_the_ladder() -> None:
    rng = np.random.default_rng(7)
    first = (rng.random(2000) < 0.30).astype(float)
    better = first * (rng.random(2000) < 0.8)
    start = ladder_step(None, first.tolist())
    up = ladder_step(start.rung, better.tolist())
    assert up.improved
    assert up.released == pytest.approx(better.mean(), abs=1 / 2000)
    same = ladder_step(up.rung, better.tolist())
    assert (same.improved, same.released, same.rung) == (False, up.released, up.rung)


def test_a_gain_within_its_standard_error_is_withheld() -> None:
    first = [1.0] * 50 + [0.0] * 50
    start = ladder_step(None, first)
    assert start.released == 0.5
    # three fixed, two broken: better by 0.01, with a standard error of 0.022
    within = ladder_step(start.rung, [0.0] * 3 + [1.0] * 49 + [0.0] * 48)
    assert within.loss == pytest.approx(0.49)
    assert within.step == pytest.approx((0.05 - 0.01**2) ** 0.5 / 10)
    assert (within.improved, within.released, within.rung) == (False, 0.5, start.rung)
    # nine fixed, none broken: better by 0.09, with a standard error of 0.029
    beyond = ladder_step(start.rung, [0.0] * 9 + first[9:])
    assert (beyond.improved, beyond.released) == (True, pytest.approx(0.41))


def test_ladders_refuse_other_or_unusable_items() -> None:
    start = ladder_step(None, [0.0, 1.0])
    with pytest.raises(ValueError, match="2 items, not 3"):
        ladder_step(start.rung, [0.0, 1.0, 1.0])
    with pytest.raises(ValueError, match="not finite"):
        ladder_step(None, [float("nan")])
    with pytest.raises(ValueError, match="at least one item"):
        ladder_step(None, [])


@pytest.mark.parametrize("gain", [None, "20", "5", "1", "0.2"])
def test_the_recommendation_is_toml_that_the_contract_reads(gain: str | None) -> None:
    wanted = None if gain is None else Decimal(gain)
    study = study_noise(values(2.0), wanted_gain=wanted, alpha=Decimal("0.01"))
    table = tomllib.loads(contract_fragment(study), parse_float=Decimal)
    assert parse_rule(table["rule"]) == study.rule
    assert table["min_delta"] == (study.floor if study.rule == Threshold() else 0)


@pytest.mark.parametrize(
    "rule",
    [
        Threshold(ladder=True),
        Paired(pairs=9, all_pairs=True),
        Sequential(test="gsprt", units="absolute", h0=Decimal("1e-9"), h1=Decimal("1E+20"), max_pairs=77),
    ],
)
def test_every_rule_can_be_written_and_read_back(rule) -> None:
    assert parse_rule(tomllib.loads(f"rule = {rule_toml(rule)}", parse_float=Decimal)["rule"]) == rule

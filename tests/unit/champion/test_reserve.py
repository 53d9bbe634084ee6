"""The reserve check's arithmetic, against scipy and against simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from outerloop.champion import CheckError, Objective, RowError, fisher_p, hold_up, rejection_rate, two_proportion_z
from outerloop.champion.optimism import selection_optimism

SIZES = [(0, 10, 0, 10), (1, 10, 9, 10), (40, 400, 60, 400), (40, 400, 20, 400), (3, 7, 19, 23), (10, 10, 10, 10)]


def _row(fail: int, passed: int, items: int = 400) -> dict[str, int]:
    return {
        "fail_to_pass_count": fail,
        "fail_count": items,
        "pass_to_fail_count": passed,
        "pass_count": items,
    }


@pytest.mark.parametrize(("a", "n", "b", "m"), SIZES)
def test_z_is_the_pooled_statistic_whose_square_is_chi_squared(a: int, n: int, b: int, m: int) -> None:
    z, p = two_proportion_z(a, n, b, m)
    if a + b in (0, n + m):
        assert (z, p) == (0.0, 1.0)
        return
    table = [[a, n - a], [b, m - b]]
    chi2 = stats.chi2_contingency(table, correction=False).statistic
    assert z**2 == pytest.approx(chi2)
    assert math.copysign(1, z) == math.copysign(1, b / m - a / n)
    assert p == pytest.approx(stats.norm.sf(z))


@pytest.mark.parametrize(("a", "n", "b", "m"), [*SIZES, (5000, 50_000, 5150, 50_000), (500, 1000, 3, 1000)])
def test_fisher_equals_scipys(a: int, n: int, b: int, m: int) -> None:
    expected = stats.fisher_exact([[b, m - b], [a, n - a]], alternative="greater").pvalue
    assert fisher_p(a, n, b, m) == pytest.approx(expected, rel=1e-8)


def test_empty_sets_and_impossible_counts_are_refused() -> None:
    with pytest.raises(CheckError, match="test set has no items"):
        two_proportion_z(0, 0, 1, 2)
    with pytest.raises(CheckError, match="reserve set has no items"):
        fisher_p(0, 5, 0, 0)
    with pytest.raises(CheckError, match="3 errors among 2 items of the reserve set"):
        two_proportion_z(0, 2, 3, 2)


@pytest.mark.parametrize("rule", ["z", "fisher"])
@pytest.mark.parametrize("new_rate", [0.10, 0.15])
def test_rejection_rate_is_what_simulation_finds(rule: str, new_rate: float) -> None:
    exact = rejection_rate(200, 150, 0.10, new_rate, 0.05, rule=rule)  # type: ignore[arg-type]
    random = np.random.default_rng(7)
    draws = 4000
    pairs = zip(random.binomial(200, 0.10, draws), random.binomial(150, new_rate, draws), strict=True)
    test = fisher_p if rule == "fisher" else lambda *sizes: two_proportion_z(*sizes)[1]
    found = sum(test(int(a), 200, int(b), 150) < 0.05 for a, b in pairs) / draws
    # Four standard errors of the simulated share.
    assert found == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / draws))


def test_selection_raises_the_false_alarms_as_the_design_measured() -> None:
    plain = rejection_rate(400, 400, 0.10, 0.10, 0.01)
    selected = rejection_rate(400, 400, 0.10, 0.10, 0.01, selected_from=200)
    random = np.random.default_rng(3)
    best = random.binomial(400, 0.10, (3000, 200)).min(axis=1)
    fresh = random.binomial(400, 0.10, 3000)
    found = np.mean([two_proportion_z(int(a), 400, int(b), 400)[1] < 0.01 for a, b in zip(best, fresh, strict=True)])
    assert plain == pytest.approx(0.01, abs=0.001)
    assert selected == pytest.approx(float(found), abs=0.035)
    assert 0.30 < selected < 0.36
    assert rejection_rate(400, 400, 0.10, 0.15, 0.01) == pytest.approx(0.43, abs=0.01)


def test_one_risen_objective_is_enough_for_luck_and_a_fallen_one_never_is() -> None:
    base = _row(40, 40)
    assert hold_up(base, _row(40, 40)).holds
    assert hold_up(base, _row(0, 0)).holds
    for worse in (_row(80, 40), _row(40, 80)):
        verdict = hold_up(base, worse, selected_from=200)
        assert not verdict.holds
        assert sorted(line.p < verdict.alpha for line in verdict.lines) == [False, True]
    line = hold_up(base, _row(44, 40), selected_from=200).lines[0]
    assert (line.test_count, line.test_total, line.reserve_count, line.reserve_total) == (40, 400, 44, 400)
    assert line.false_alarm < 0.011 < line.false_alarm_selected
    assert line.power == pytest.approx(0.43, abs=0.02)


def test_alpha_is_strict_and_checked() -> None:
    _, p = two_proportion_z(40, 400, 60, 400)
    assert hold_up(_row(40, 40), _row(60, 40), alpha=p).holds
    assert not hold_up(_row(40, 40), _row(60, 40), alpha=p * 1.001).holds
    for alpha in (0.0, 1.0, -1.0):
        with pytest.raises(CheckError, match="alpha"):
            hold_up(_row(1, 1), _row(1, 1), alpha=alpha)


def test_rows_of_other_objectives_are_refused() -> None:
    with pytest.raises(RowError, match="fail_to_pass_count must be a whole number"):
        hold_up({"errors": 1}, _row(1, 1))
    own = (Objective(name="errors", count="errors", total="items"),)
    assert hold_up({"errors": 1, "items": 9}, {"errors": 1, "items": 9}, objectives=own).holds


def test_optimism_shifts_the_base_rate_and_is_asked_for_by_its_rule_alone() -> None:
    test, reserve = _row(20, 40), _row(40, 40)
    assert not hold_up(test, reserve).holds
    assert hold_up(test, reserve, rule="optimism", optimism=(0.05, 0.0)).holds
    # A selection can't make a champion look worse, so a negative estimate counts as none.
    assert hold_up(test, reserve, rule="optimism", optimism=(-1.0, 0.0)).lines[0].optimism == 0.0
    for arguments in ({"rule": "optimism"}, {"optimism": (0.0, 0.0)}, {"rule": "optimism", "optimism": (0.0,)}):
        with pytest.raises(CheckError, match="optimism"):
            hold_up(test, reserve, **arguments)  # type: ignore[arg-type]


def test_the_bootstrap_estimates_what_selection_really_gains() -> None:
    random = np.random.default_rng(11)
    true, gained = 0.10, []
    estimates = []
    for seed in range(30):
        errors = random.random((100, 200)) < true
        estimates.append(selection_optimism([errors], resamples=150, seed=seed)[0])
        gained.append(true - errors.mean(axis=1).min())
    # Mean over 30 sets: the bootstrap of a minimum is conservative here, but not blind.
    assert 0.5 * np.mean(gained) < np.mean(estimates) < 1.5 * np.mean(gained)


def test_optimism_of_a_single_checkpoint_is_nothing_and_the_seed_decides_the_rest() -> None:
    random = np.random.default_rng(5)
    alone = random.random((1, 300)) < 0.2
    assert abs(selection_optimism([alone], resamples=2000)[0]) < 0.003
    many = [random.random((20, 50)) < 0.2, random.random((20, 80)) < 0.2]
    assert selection_optimism(many, seed=1) == selection_optimism(many, seed=1)
    assert selection_optimism(many, seed=1) != selection_optimism(many, seed=2)
    with pytest.raises(CheckError, match="same checkpoints"):
        selection_optimism([many[0], many[1][:5]])
    with pytest.raises(CheckError, match="non-empty"):
        selection_optimism([])

"""Property attacked: the likelihood ratios are those of the densities they claim, at every size."""

from __future__ import annotations

import math

import numpy as np
import pytest

from outerloop.climb.llr import (
    MOST_LLR,
    absolute_log_ratio,
    gsprt_log_ratio,
    log_ratio,
    standardised_direction,
    t_log_ratio,
)


def r_of(t: float, n: int) -> np.ndarray:
    return np.array([t / math.sqrt(n - 1 + t * t)])


@pytest.mark.parametrize("n", [2, 3, 8, 20, 60])
@pytest.mark.parametrize("d", [0.25, 0.5, 1.0])
@pytest.mark.parametrize("t", [-3.0, -0.5, 0.0, 1.0, 4.0])
def test_the_t_ratio_is_that_of_scipy_s_densities(n: int, d: float, t: float) -> None:
    from scipy import stats

    expected = stats.nct.logpdf(t, n - 1, d * math.sqrt(n)) - stats.t.logpdf(t, n - 1)
    assert t_log_ratio(n, r_of(t, n), 0.0, d)[0] == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("n", [20, 175, 600])
def test_it_equals_the_hypergeometric_form_where_that_does_not_cancel(n: int) -> None:
    from scipy.special import gammaln, hyp1f1

    d, t, df = 0.25, 2.5, n - 1
    z = d * math.sqrt(n) * float(r_of(t, n)[0])
    series = hyp1f1((df + 1) / 2, 0.5, z * z / 2)
    series += (
        math.sqrt(2) * z * math.exp(gammaln(df / 2 + 1) - gammaln((df + 1) / 2)) * hyp1f1(df / 2 + 1, 1.5, z * z / 2)
    )
    assert t_log_ratio(n, r_of(t, n), 0.0, d)[0] == pytest.approx(-n * d * d / 2 + math.log(series), abs=1e-9)


@pytest.mark.parametrize("test", ["t", "gsprt"])
def test_ratios_stay_finite_and_rise_with_the_mean_up_to_thousands_of_pairs(test: str) -> None:
    for n in (2, 20, 600, 10_000):
        means = np.linspace(-3, 3, 41)
        ratios = log_ratio(test, "sd", n, means, np.ones(41), 0.0, 0.5)  # type: ignore[arg-type]
        assert np.isfinite(ratios).all()
        assert (np.diff(ratios) > 0).all()


def test_gains_without_variance_are_as_much_evidence_as_their_number() -> None:
    for n in (2, 20, 200):
        up, down, none = (
            log_ratio("t", "sd", n, np.array([m]), np.array([0.0]), 0.0, 0.5)[0] for m in (1.0, -1.0, 0.0)
        )
        assert up > 0 > none > down
        assert none == pytest.approx(-n * 0.25 / 2)
    assert standardised_direction(5, np.array([0.0]), np.array([0.0]))[0] == 0.0


def test_the_gsprt_ratio_is_the_maximised_normal_likelihood() -> None:
    from scipy.optimize import minimize_scalar

    rng = np.random.default_rng(3)
    x = rng.normal(0.3, 2, 25)

    def best(d: float) -> float:
        def negative(log_sigma: float) -> float:
            sigma = math.exp(log_sigma)
            return float(len(x) * log_sigma + ((x - d * sigma) ** 2).sum() / (2 * sigma**2))

        return -float(minimize_scalar(negative, bounds=(-3, 4), method="bounded", options={"xatol": 1e-10}).fun)

    direction = standardised_direction(25, np.array([x.mean()]), np.array([x.std(ddof=1)]))
    assert gsprt_log_ratio(25, direction, 0.1, 0.5)[0] == pytest.approx(best(0.5) - best(0.1), abs=1e-6)


def test_the_absolute_ratio_is_the_ratio_of_sums_of_squares() -> None:
    x = np.array([0.5, 1.5, 0.7, 2.0])
    mean, sd = np.array([x.mean()]), np.array([x.std(ddof=1)])
    expected = 4 / 2 * math.log((x**2).sum() / ((x - 1) ** 2).sum())
    assert absolute_log_ratio(4, mean, sd, 0.0, 1.0)[0] == pytest.approx(expected)
    exactly_h1 = log_ratio("t", "absolute", 4, np.array([1.0]), np.array([0.0]), 0.0, 1.0)
    assert exactly_h1[0] == MOST_LLR

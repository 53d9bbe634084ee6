"""Young's interval and its bounds."""

from __future__ import annotations

import math

import pytest

from outerloop.planner import checkpoint_interval_s, suggest_checkpoint_interval


def test_youngs_interval() -> None:
    """A minute of writing, a failure a day: √(2 × 60 × 86,400) s, about 54 minutes."""
    assert checkpoint_interval_s(60, 86_400) == pytest.approx(math.sqrt(2 * 60 * 86_400))
    assert checkpoint_interval_s(60, 86_400) / 60 == pytest.approx(53.7, abs=0.1)


def test_where_writing_takes_half_the_mtbf_the_interval_is_the_mtbf() -> None:
    assert checkpoint_interval_s(50, 100) == 100


def test_more_hosts_fail_more_often_and_steps_are_counted() -> None:
    one = suggest_checkpoint_interval(30, 0.001, hosts=1, step_s=2.0)
    four = suggest_checkpoint_interval(30, 0.001, hosts=4, step_s=2.0)
    assert four.interval_seconds == pytest.approx(one.interval_seconds / 2)
    assert one.every_steps == round(one.interval_seconds / 2.0)
    assert 0 < one.overhead < four.overhead < 0.1


def test_youngs_interval_is_where_the_expected_overhead_is_least() -> None:
    advice = suggest_checkpoint_interval(30, 0.001)
    mtbf = 3600 / 0.001
    for other in (0.5, 0.8, 1.25, 2.0):
        tau = advice.interval_seconds * other
        assert 30 / tau + tau / (2 * mtbf) > advice.overhead


@pytest.mark.parametrize(("cost", "mtbf"), [(0, 100), (-1, 100), (1, 0), (math.nan, 1), (1, math.inf)])
def test_figures_that_are_not_positive_and_finite_are_refused(cost: float, mtbf: float) -> None:
    with pytest.raises(ValueError, match="must be a positive number of seconds"):
        checkpoint_interval_s(cost, mtbf)


def test_a_step_time_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="step time"):
        suggest_checkpoint_interval(30, 0.001, step_s=0)

"""Property attacked: a rule table is either one usable rule or a list of everything that is wrong with it."""

from __future__ import annotations

from decimal import Decimal

import pytest

from outerloop.climb import Paired, RuleError, Sequential, Threshold, fewest_pairs, parse_rule
from tests.unit.climb.builders import benchmark


def test_the_default_is_one_pair_and_a_floor() -> None:
    assert parse_rule({}) == Threshold()
    assert parse_rule({"kind": "threshold"}) == Threshold()


def test_floats_mean_their_decimal_text() -> None:
    rule = parse_rule({"kind": "paired", "alpha": 0.05, "pairs": 6, "all_pairs": True})
    assert rule == Paired(alpha=Decimal("0.05"), pairs=6, all_pairs=True)


def test_sequential_defaults_allow_three_times_the_fixed_pairs() -> None:
    rule = parse_rule({"kind": "sequential", "h1": 0.25})
    assert isinstance(rule, Sequential)
    assert (rule.test, rule.min_pairs, rule.batch, rule.max_pairs) == ("t", 20, 4, 520)


@pytest.mark.parametrize(("alpha", "fewest"), [("0.05", 5), ("0.01", 7), ("0.25", 2), ("0.0625", 4)])
def test_fewest_pairs_is_the_log2_bound(alpha: str, fewest: int) -> None:
    assert fewest_pairs(Decimal(alpha)) == fewest
    assert parse_rule({"kind": "paired", "alpha": Decimal(alpha), "pairs": fewest})
    with pytest.raises(RuleError, match=f"use pairs >= {fewest}"):
        parse_rule({"kind": "paired", "alpha": Decimal(alpha), "pairs": fewest - 1})


def test_every_problem_is_reported_at_once() -> None:
    with pytest.raises(RuleError) as caught:
        parse_rule({"kind": "sequential", "alfa": 0.1, "alpha": 2, "batch": "4", "h0": 0.5, "h1": 0.25, "pairs": 3})
    assert caught.value.problems == (
        'alfa is not a key of a "sequential" rule; did you mean "alpha"?',
        "batch = '4' must be a whole number",
        'pairs belongs to rule.kind = "paired", not to "sequential"',
        "alpha = 2 must be at least 1e-9 and below 0.5",
        "h1 = 0.25 must be greater than h0 = 0.5",
    )


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"kind": "treshold"}, 'did you mean "threshold"'),
        ({"kind": "threshold", "alpha": 0.05}, 'alpha belongs to rule.kind = "paired"'),
        ({"kind": "paired", "pairs": True}, "pairs = True must be a whole number"),
        ({"kind": "paired", "pairs": 0}, "pairs = 0 must be between 1 and"),
        ({"kind": "paired", "all_pairs": 1}, "all_pairs = 1 must be true or false"),
        ({"kind": "paired", "alpha": "0.05"}, "alpha = '0.05' must be a number"),
        ({"kind": "paired", "alpha": float("nan")}, "alpha = NaN must be"),
        ({"kind": "sequential", "test": "z"}, 'test = "z" must be "t" or "gsprt"'),
        ({"kind": "sequential", "units": "absolute"}, "h1 is required"),
        ({"kind": "sequential", "units": "sigma"}, 'units = "sigma"'),
        ({"kind": "sequential", "h0": -0.1}, "h0 = -0.1 must not be negative"),
        ({"kind": "sequential", "h1": float("inf")}, "h0 and h1 must be finite"),
        ({"kind": "sequential", "min_pairs": 1}, "min_pairs = 1 must be at least 2"),
        ({"kind": "sequential", "max_pairs": 8}, "max_pairs = 8 must be at least min_pairs = 20"),
        ({"kind": "sequential", "max_pairs": 0}, "max_pairs = 0 must be at least min_pairs"),
        ({"kind": "sequential", "max_pairs": 99999}, "max_pairs = 99999 must be at most"),
        ({"kind": "sequential", "batch": 0}, "batch = 0 must be at least 1"),
        ({"kind": "sequential", "test": 3}, "test = 3 must be a string"),
    ],
)
def test_unusable_rules_say_why(table: dict[str, object], message: str) -> None:
    with pytest.raises(RuleError) as caught:
        parse_rule(table)
    assert any(message in problem for problem in caught.value.problems), caught.value.problems


def test_a_benchmark_refuses_rules_that_can_t_work_on_it() -> None:
    with pytest.raises(RuleError, match="pairs nothing"):
        benchmark(baseline="cached", rule=Paired())
    with pytest.raises(RuleError, match="at least 5 measurements"):
        benchmark(baseline="cached", cached_k=4)
    with pytest.raises(RuleError, match="needs pairs that differ"):
        benchmark(seeded=False, deterministic=True, rule=Sequential())
    with pytest.raises(RuleError) as caught:
        benchmark(direction="down", min_delta=Decimal(-1), min_delta_rel=Decimal("NaN"))
    assert len(caught.value.problems) == 3

"""Property attacked: floors are exact at every scale, and a verdict does not depend on the order of arrival."""

from __future__ import annotations

import json
from decimal import Decimal

from hypothesis import given, settings
from hypothesis import strategies as st

from outerloop.climb import (
    Guard,
    NeedMore,
    Paired,
    Reading,
    Sequential,
    Threshold,
    Verdict,
    Waiting,
    judge,
    next_step,
    plan_measures,
)
from outerloop.climb.exact import exact
from outerloop.climb.explain import render
from tests.unit.climb.builders import Lab, benchmark, failed, paired_values, plan

exponents = st.integers(-300, 300)
digits = st.integers(-(10**17), 10**17)
positive = st.integers(1, 10**17)


@st.composite
def decimals(draw, mantissas=digits) -> Decimal:
    """A number as a program prints it: up to 17 digits, at any scale of a double."""
    return Decimal(draw(mantissas)).scaleb(draw(exponents))


def ulp(*values: Decimal) -> Decimal:
    """One unit in the last place that any of these values has."""
    return Decimal(1).scaleb(min(int(value.as_tuple().exponent) for value in values))


def outcome(direction: str, base: Decimal, candidate: Decimal, **floors: Decimal) -> str:
    climb = plan(benchmark(direction=direction, **floors))
    lab = Lab({"baseline": base, "candidate": candidate})
    verdict = lab.run(climb)
    assert isinstance(verdict, Verdict)
    assert max(map(len, render(verdict, climb, lab.readings).splitlines())) <= 80
    assert Verdict.from_json(json.loads(json.dumps(verdict.to_json(), allow_nan=False))) == verdict
    return verdict.outcome


def better(direction: str, base: Decimal, gain: Decimal) -> Decimal:
    with exact():
        return base - gain if direction == "min" else base + gain


@given(st.sampled_from(["min", "max"]), decimals(), decimals(positive))
@settings(deadline=None)
def test_a_gain_equal_to_an_absolute_floor_is_accepted_and_one_ulp_less_is_not(
    direction: str, base: Decimal, floor: Decimal
) -> None:
    with exact():
        below = floor - ulp(base, floor)
    assert outcome(direction, base, better(direction, base, floor), min_delta=floor) == "accepted"
    assert outcome(direction, base, better(direction, base, below), min_delta=floor) == "rejected"


@given(st.sampled_from(["min", "max"]), decimals(), st.sampled_from(["0.005", "0.1", "1e-9", "0.3333", "2"]))
@settings(deadline=None)
def test_relative_floors_are_exact_too(direction: str, base: Decimal, relative: str) -> None:
    fraction = Decimal(relative)
    with exact():
        floor = fraction * abs(base)
        below = floor - ulp(floor)
    at_floor = outcome(direction, base, better(direction, base, floor), min_delta_rel=fraction)
    assert at_floor == ("accepted" if base != 0 else "rejected")
    assert outcome(direction, base, better(direction, base, below), min_delta_rel=fraction) == "rejected"


@given(st.sampled_from(["min", "max"]), decimals(positive))
@settings(deadline=None)
def test_at_baseline_zero_only_the_absolute_floor_counts(direction: str, floor: Decimal) -> None:
    zero, huge = Decimal("0.000"), Decimal(1000)
    gain = better(direction, zero, floor)
    assert outcome(direction, zero, gain, min_delta=floor, min_delta_rel=huge) == "accepted"
    assert outcome(direction, zero, gain, min_delta_rel=huge) == "accepted"
    with exact():
        below = better(direction, zero, floor - ulp(floor))
    assert outcome(direction, zero, below, min_delta=floor, min_delta_rel=huge) == "rejected"


@given(
    st.sampled_from(["min", "max"]),
    decimals(),
    st.sampled_from(
        [
            Threshold(),
            Paired(pairs=5),
            Sequential(min_pairs=5, max_pairs=9),
            Sequential(units="absolute", h0=Decimal(1), h1=Decimal(2), min_pairs=5, max_pairs=9),
        ]
    ),
    st.sampled_from(["0", "1e-300", "5"]),
)
@settings(max_examples=60, deadline=None)
def test_no_gain_is_never_accepted(direction: str, base: Decimal, rule, floor: str) -> None:
    climb = plan(benchmark(direction=direction, rule=rule, min_delta=Decimal(floor)))
    verdict = Lab(paired_values([base] * 9, [base] * 9)).run(climb)
    assert isinstance(verdict, Verdict)
    assert verdict.outcome == "rejected"


@given(st.lists(st.tuples(decimals(), decimals()), min_size=5, max_size=5), decimals(positive))
@settings(deadline=None)
def test_the_mean_of_several_pairs_meets_its_floor_exactly(values, floor: Decimal) -> None:
    """The sum decides: shifting one pair by the exact difference to n times the floor lands on the floor."""
    rule = Paired(pairs=5, alpha=Decimal("0.49"))
    with exact():
        bases = [base for base, _ in values]
        candidates = [candidate for _, candidate in values]
        missing = 5 * floor - (sum(bases) - sum(candidates))
        candidates[0] -= missing
        tick = ulp(floor, *bases, *candidates)
        short = [candidates[0] + tick, *candidates[1:]]
    climb = plan(benchmark(rule=rule, min_delta=floor))
    reached = Lab(paired_values(bases, candidates)).run(climb)
    missed = Lab(paired_values(bases, short)).run(climb)
    assert isinstance(reached, Verdict)
    assert isinstance(missed, Verdict)
    assert render(reached, climb, {})
    assert reached.findings.climbed.clears_floor
    assert not missed.findings.climbed.clears_floor


RULES = st.sampled_from(
    [
        Threshold(),
        Paired(pairs=5),
        Sequential(min_pairs=4, batch=2, max_pairs=14),
        Sequential(test="gsprt", min_pairs=3, batch=3, max_pairs=12),
        Sequential(units="absolute", h1=Decimal(2), min_pairs=4, max_pairs=12),
    ]
)


def all_roles(climb) -> list[str]:
    stems = ["baseline", "candidate", "sib-k-base", "sib-k-cand"]
    return [stem if pair == 0 else f"{stem}-{pair}" for pair in range(14) for stem in stems]


@given(RULES, st.booleans(), st.data())
@settings(max_examples=40, deadline=None)
def test_the_order_of_arrival_and_eagerness_don_t_matter(rule, eager: bool, data) -> None:
    guard = Guard("mb", max_loss=Decimal(3))
    climb = plan(benchmark(rule=rule, guards=(guard,)), siblings=(benchmark("k"),), eager=eager)
    lazy = plan(benchmark(rule=rule, guards=(guard,)), siblings=(benchmark("k"),))
    numbers = data.draw(st.lists(st.integers(-3, 6), min_size=56, max_size=56))
    values = {}
    for role, noise in zip(all_roles(climb), numbers, strict=True):
        side = "base" in role
        values[role] = Decimal(100 - noise) if not side else Decimal(100)
    lab = Lab(values)

    def answer(request) -> Reading:
        from dataclasses import replace

        return replace(lab.answer(request), guards={"mb": Decimal(10)} if request.benchmark == "tsp" else {})

    readings: dict[str, Reading] = {}
    asked: tuple = ()
    while True:
        measures = plan_measures(climb, readings)
        assert measures[: len(asked)] == asked or set(asked) <= set(measures)
        assert len({m.role for m in measures}) == len(measures)
        asked = measures
        step = next_step(climb, readings)
        if isinstance(step, Verdict):
            break
        assert isinstance(step, NeedMore)
        chosen = data.draw(st.sampled_from(step.measures))
        readings[chosen.role] = answer(chosen)
    in_order: dict[str, Reading] = {}
    while isinstance(again := next_step(lazy, in_order), NeedMore):
        for request in again.measures:
            in_order[request.role] = answer(request)
    assert again == step
    assert max(map(len, render(step, climb, readings).splitlines())) <= 80
    assert judge(climb, {role: readings[role] for role in step.findings.roles}) == step
    assert Verdict.from_json(json.loads(json.dumps(step.to_json(), allow_nan=False))) == step


@given(st.sets(st.integers(0, 9), min_size=1), st.data())
@settings(max_examples=60, deadline=None)
def test_whatever_fails_no_candidate_is_charged_without_a_working_base(broken: set[int], data) -> None:
    climb = plan(benchmark(rule=Paired(pairs=5)))
    measures = plan_measures(climb, {})
    lab = Lab(paired_values([10] * 5, [9] * 5))
    readings: dict[str, Reading] = {}
    order = data.draw(st.permutations(range(10)))
    for index in order:
        request = measures[index]
        readings[request.role] = failed(request) if index in broken else lab.answer(request)
        step = next_step(climb, readings)
        if isinstance(step, Verdict):
            break
        assert isinstance(step, NeedMore | Waiting)
    assert isinstance(step, Verdict)
    assert step.outcome == "failed"
    for failure in step.findings.failures:
        if failure.side == "candidate":
            partner = f"baseline-{failure.pair}" if failure.pair else "baseline"
            assert readings[partner].status == "value"
    if step.reason == "candidate-error":
        assert all(failure.side == "candidate" for failure in step.findings.failures)
    else:
        assert step.reason == "base-error"

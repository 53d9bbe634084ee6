"""Property attacked: the explanation contains every number that decided, fits its width, and draws the path."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest

from outerloop.climb import Guard, Paired, Regression, Sequential, Verdict, scope_verdict
from outerloop.climb.explain import MOST_LOOKS_DRAWN, draw_path, render
from outerloop.climb.findings import Failure, Look, TestFinding
from outerloop.climb.text import number, percent, signed
from tests.unit.climb.builders import Lab, benchmark, paired_values, plan


def told(climb, values, width: int = 80) -> str:
    lab = Lab(values)
    verdict = lab.run(climb)
    assert isinstance(verdict, Verdict), verdict
    text = render(verdict, climb, lab.readings, width)
    assert max(map(len, text.splitlines())) <= width
    # a verdict from the record tells the same story
    assert render(Verdict.from_json(verdict.to_json()), climb, lab.readings, width) == text
    return text


def test_a_single_pair_reads_as_an_argument() -> None:
    climb = plan(benchmark(min_delta_rel=Decimal("0.005"), noise_sd=Decimal(10)))
    text = told(climb, {"baseline": "7542", "candidate": "7328.6"})
    for expected in (
        "Does the candidate make tour_length of tsp lower by at least 0.5 % of the",
        "0   101  7542     7328.6  +213.4  node1 job 770  node1 job 770",
        "min_delta_rel of the mean base): the floor is 37.71.",
        "The gain of 213.4 clears it.",
        # P(N(0, √2·10) ≥ 37.71) = 0.0038
        "an unchanged candidate clears this floor in 0.383 %",
        "It would have been rejected without a mean gain of at least 37.71",
    ):
        assert " ".join(expected.split()) in " ".join(text.split())


def test_unknown_noise_is_said_to_be_unknown() -> None:
    text = told(plan(), {"baseline": 10, "candidate": 9})
    assert "Not known: one pair does not show the noise." in text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_sequential_verdict_draws_its_path_and_its_error_rates(width: int) -> None:
    gains = np.round(np.random.default_rng(2).normal(0.3, 1, 130), 3)
    climb = plan(benchmark(rule=Sequential()))
    values = paired_values([100] * 130, [Decimal(100) - Decimal(repr(float(g))) for g in gains])
    text = told(climb, values, width)
    assert text.count("*") >= 1
    for expected in ("H0", "H1", "skewed-left", "does not hold its", "pairs     LLR"):
        assert expected in text


def test_siblings_guards_and_why_they_refuse() -> None:
    sibling = benchmark("k", metric="value", regression=Regression(Decimal(0), Decimal("0.02"), Decimal("0.5")))
    climb = plan(benchmark(), siblings=(sibling,))
    text = told(climb, {"baseline": 10, "candidate": 9, "sib-k-base": 100, "sib-k-cand": 101})
    assert "Sibling k" in text
    assert "only for a climbed gain of" in text
    assert "The point estimate stands in for a confidence bound" in text
    assert "A climbed gain of at least 5, or a loss of k of at most 0." in text
    guarded = plan(benchmark(guards=(Guard("peak_mb", max_loss=Decimal(1)),)))
    lab = Lab({"baseline": 10, "candidate": 9})
    for request in (m for m in [*_measures(guarded)]):
        answer = lab.answer(request)
        peak = Decimal(100 if request.side == "base" else 102)
        lab.readings[request.role] = replace(answer, guards={"peak_mb": peak})
    verdict = lab.run(guarded)
    assert isinstance(verdict, Verdict)
    text = render(verdict, guarded, lab.readings)
    assert "Guard peak_mb (tsp)" in text
    assert "Refused: guard peak_mb of tsp lost 2; it may lose 1 (max_loss = 1)." in text


def _measures(climb):
    from outerloop.climb import plan_measures

    return plan_measures(climb, {})


def test_failures_say_where_they_happened() -> None:
    from tests.unit.climb.builders import failed, reading

    climb = plan()
    base, candidate = _measures(climb)
    readings = {"baseline": reading(base, 1), "candidate": failed(candidate, "NO_METRIC", "no JSON line")}
    readings["candidate"] = replace(
        readings["candidate"], facts=replace(readings["candidate"].facts, node="n7", job_id="55", attempt=2)
    )
    verdict = Lab(readings).run(climb)
    assert isinstance(verdict, Verdict)
    text = render(verdict, climb, readings)
    assert "candidate ended with NO_METRIC: no JSON line (n7 job 55 attempt 2)." in text
    scope = scope_verdict("tsp", [Failure("bench/x.py", "SCOPE", "is outside scope.allowed")])
    assert "bench/x.py" in render(scope, climb, {})


def test_readings_may_be_gone() -> None:
    climb = plan(benchmark(rule=Paired(pairs=5)))
    verdict = Lab(paired_values([10] * 5, [9] * 5)).run(climb)
    assert isinstance(verdict, Verdict)
    assert "sign-flip p = 0.03125" in render(verdict, climb, {})


def path(*ratios: float) -> TestFinding:
    looks = tuple(Look(20 + 4 * i, llr, 0.0, Decimal(0), Decimal(1)) for i, llr in enumerate(ratios))
    return TestFinding("sequential-t", looks[-1].pairs, looks=looks, lower=-2.0, upper=4.0)


def test_the_path_is_drawn_to_scale_and_ends_outside_the_bound_it_crossed() -> None:
    head, *rows = draw_path(path(-1.0, 0.0, 1.0, 3.9, 4.0), 80)
    columns = [row.index("*") for row in rows]
    assert columns == sorted(columns)
    assert len(set(columns)) == 5
    assert rows[1].index("*") == head.index(" 0 ") + 1
    assert rows[-1].index("*") > rows[-1].index("|", 20)
    assert rows[-2].index("*") < rows[-2].rindex("|")
    (low,) = draw_path(path(-2.5), 80)[1:]
    assert low.index("*") < low.index("|")
    assert draw_path(replace(path(0.0), looks=()), 80) == []


def test_long_paths_are_thinned_and_say_so() -> None:
    lines = draw_path(path(*np.linspace(-1, 4, 100)), 80)
    assert len(lines) == MOST_LOOKS_DRAWN + 2
    assert lines[1].split()[0] == "20"
    assert lines[-2].split()[0] == str(20 + 4 * 99)
    assert lines[-1] == "(70 looks between these are not drawn)"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("7542", "7542"),
        ("7542.000", "7542"),
        ("0.1000000000000000055", "0.1000000000000000055"),
        ("9.000000000000001", "9"),
        ("0.30000000000000004", "0.3"),
        ("1E+3", "1000"),
        ("1.50E-9", "1.5e-9"),
        ("-2E+30", "-2e+30"),
        ("0E-50", "0"),
        ("100.4251388888888888888888888", "100.425"),
        ("123456789.4251388888888888888888", "123456789.43"),
    ],
)
def test_numbers_are_shown_whole_when_measured_and_cut_when_divided(text: str, shown: str) -> None:
    assert number(Decimal(text)) == shown


def test_signs_and_percentages() -> None:
    assert [signed(Decimal(x)) for x in ("1.5", "-1.5", "0")] == ["+1.5", "-1.5", "0"]
    assert [percent(x) for x in (0.005, Decimal("0.02829"), 250)] == ["0.5 %", "2.83 %", "25000 %"]

"""Property attacked: one pair is judged exactly at its floor, and complete evidence alone gives a verdict."""

from __future__ import annotations

from decimal import Decimal

import pytest

from outerloop.climb import (
    Blocked,
    EvidenceError,
    NeedMore,
    Regression,
    Verdict,
    Waiting,
    judge,
    next_step,
    plan_measures,
)
from tests.unit.climb.builders import Lab, benchmark, exhausted, failed, pending, plan, reading


def verdict_of(climb, values) -> Verdict:
    step = Lab(values).run(climb)
    assert isinstance(step, Verdict), step
    return step


def test_a_real_gain_is_accepted_with_its_numbers() -> None:
    climb = plan(benchmark(min_delta_rel=Decimal("0.005")))
    verdict = verdict_of(climb, {"baseline": "7542", "candidate": "7328.6"})
    assert (verdict.outcome, verdict.reason) == ("accepted", "")
    assert verdict.sentence == (
        "accepted: over 1 pair tour_length fell by 213.4 (2.83 %), from 7542 to 7328.6; the floor is 37.71"
    )


@pytest.mark.parametrize("candidate", ["7542", "7542.000", "7542.1"])
def test_no_gain_is_never_accepted_even_without_a_floor(candidate: str) -> None:
    verdict = verdict_of(plan(), {"baseline": "7542", "candidate": candidate})
    assert (verdict.outcome, verdict.reason) == ("rejected", "no-improvement")
    assert verdict.findings.climbed is not None
    assert verdict.findings.climbed.why == "gain"
    assert not verdict.findings.climbed.clears_floor


def test_measures_are_asked_for_in_order_and_once() -> None:
    sibling = benchmark("knapsack", metric="value", direction="max")
    climb = plan(siblings=(sibling,))
    first = plan_measures(climb, {})
    assert [(m.role, m.seed) for m in first] == [("baseline", 101), ("candidate", 101)]
    readings = {first[0].role: reading(first[0], 10)}
    step = next_step(climb, readings)
    assert isinstance(step, NeedMore)
    assert [m.role for m in step.measures] == ["candidate"]
    readings["candidate"] = pending(first[1])
    assert next_step(climb, readings) == Waiting(("candidate",))
    readings["candidate"] = reading(first[1], 9)
    step = next_step(climb, readings)
    assert isinstance(step, NeedMore)
    assert [(m.role, m.seed) for m in step.measures] == [
        ("sib-knapsack-base", 901),
        ("sib-knapsack-cand", 901),
    ]


def test_siblings_are_not_measured_for_a_candidate_that_fails_its_own_bar() -> None:
    climb = plan(siblings=(benchmark("knapsack"),))
    lab = Lab({"baseline": 10, "candidate": 11})
    assert isinstance(lab.run(climb), Verdict)
    assert set(lab.readings) == {"baseline", "candidate"}


def test_eager_measures_siblings_at_once_and_decides_the_same() -> None:
    values = {"baseline": 10, "candidate": 9, "sib-k-base": 5, "sib-k-cand": 6}
    verdicts = []
    for eager in (False, True):
        climb = plan(siblings=(benchmark("k"),), eager=eager)
        assert len(plan_measures(climb, {})) == (4 if eager else 2)
        verdicts.append(verdict_of(climb, values))
    assert verdicts[0] == verdicts[1]
    assert verdicts[0].reason == "suite-regression"


def test_eager_siblings_that_crash_or_hang_don_t_hold_up_a_rejection() -> None:
    climb = plan(siblings=(benchmark("k"),), eager=True)
    requests = {m.role: m for m in plan_measures(climb, {})}
    readings = {
        "baseline": reading(requests["baseline"], 10),
        "candidate": reading(requests["candidate"], 10),
        "sib-k-base": pending(requests["sib-k-base"]),
        "sib-k-cand": failed(requests["sib-k-cand"]),
    }
    verdict = next_step(climb, readings)
    assert isinstance(verdict, Verdict)
    assert verdict.reason == "no-improvement"
    assert verdict.findings.roles == ("baseline", "candidate")


def test_a_crashing_candidate_fails_with_its_reason_once_the_base_has_run() -> None:
    climb = plan()
    base, candidate = plan_measures(climb, {})
    readings = {"candidate": failed(candidate, "EXIT_139", "segfault"), "baseline": pending(base)}
    assert next_step(climb, readings) == Waiting(("baseline",))
    readings["baseline"] = reading(base, 10)
    verdict = next_step(climb, readings)
    assert isinstance(verdict, Verdict)
    assert (verdict.outcome, verdict.reason) == ("failed", "candidate-error")
    assert verdict.findings.failures[0].code == "EXIT_139"
    assert "segfault" in verdict.sentence
    assert judge(climb, {role: readings[role] for role in verdict.findings.roles}) == verdict


def test_a_broken_base_charges_nobody() -> None:
    climb = plan()
    base, candidate = plan_measures(climb, {})
    verdict = next_step(climb, {"baseline": failed(base), "candidate": failed(candidate)})
    assert isinstance(verdict, Verdict)
    assert (verdict.outcome, verdict.reason) == ("failed", "base-error")
    assert "baseline ended with EXIT_1" in verdict.sentence


def test_exhausted_infrastructure_blocks_and_names_the_roles() -> None:
    climb = plan()
    base, candidate = plan_measures(climb, {})
    step = next_step(climb, {"baseline": exhausted(base), "candidate": reading(candidate, 1)})
    assert step == Blocked(("baseline",), "baseline: three nodes failed")


@pytest.mark.parametrize("text", ["NaN", "sNaN", "Infinity", "-Infinity", "1e99999", "1e-99999"])
def test_unusable_numbers_never_decide(text: str) -> None:
    verdict = verdict_of(plan(), {"baseline": "10", "candidate": text})
    assert (verdict.outcome, verdict.reason) == ("failed", "candidate-error")
    verdict = verdict_of(plan(), {"baseline": text, "candidate": "10"})
    assert (verdict.outcome, verdict.reason) == ("failed", "base-error")


def test_a_sibling_loss_above_its_own_floor_is_refused_by_default() -> None:
    sibling = benchmark("k", metric="value", direction="max", min_delta=Decimal("0.5"))
    climb = plan(siblings=(sibling,))
    values = {"baseline": 10, "candidate": 9, "sib-k-base": 5, "sib-k-cand": "4.5"}
    assert verdict_of(climb, values).outcome == "accepted"
    verdict = verdict_of(climb, values | {"sib-k-cand": "4.4999"})
    assert verdict.reason == "suite-regression"
    assert "k lost 0.5001; it may lose 0.5" in verdict.sentence


def test_a_loss_between_free_and_max_must_be_bought() -> None:
    regression = Regression(free=Decimal("0.01"), max=Decimal("0.02"), requires_gain=Decimal("0.1"))
    sibling = benchmark("k", direction="max", regression=regression)
    climb = plan(siblings=(sibling,))
    values = {"baseline": 10, "candidate": 9, "sib-k-base": 100}
    found = {}
    for loss in ("1", "1.0001", "2", "2.0001"):
        for candidate in ("9", "9.0001"):
            told = verdict_of(climb, values | {"candidate": candidate, "sib-k-cand": Decimal(100) - Decimal(loss)})
            found[loss, candidate] = (told.outcome, told.findings.losses[0].why)
    assert found == {
        ("1", "9"): ("accepted", "within-free"),
        ("1", "9.0001"): ("accepted", "within-free"),
        ("1.0001", "9"): ("accepted", "bought-by-gain"),
        ("1.0001", "9.0001"): ("rejected", "gain-too-small"),
        ("2", "9"): ("accepted", "bought-by-gain"),
        ("2", "9.0001"): ("rejected", "gain-too-small"),
        ("2.0001", "9"): ("rejected", "loss-above-limit"),
        ("2.0001", "9.0001"): ("rejected", "loss-above-limit"),
    }


def test_judge_is_strict_about_what_is_missing() -> None:
    climb = plan()
    base, candidate = plan_measures(climb, {})
    with pytest.raises(EvidenceError, match="not measured yet: candidate"):
        judge(climb, {"baseline": reading(base, 1)})
    with pytest.raises(EvidenceError, match="no value yet: candidate"):
        judge(climb, {"baseline": reading(base, 1), "candidate": pending(candidate)})


def test_a_verdict_survives_json() -> None:
    sibling = benchmark("k", metric="value", direction="max", min_delta=Decimal("0.50"))
    climb = plan(siblings=(sibling,))
    values = {"baseline": "10.00", "candidate": "9.10", "sib-k-base": "5", "sib-k-cand": "4.5"}
    verdict = verdict_of(climb, values)
    import json

    data = json.loads(json.dumps(verdict.to_json(), allow_nan=False))
    assert data["findings"]["climbed"]["pairs"][0]["candidate"] == "9.10"
    assert Verdict.from_json(data) == verdict

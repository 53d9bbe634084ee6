"""Attacks: verdicts from noise, lost trials that count as wrong answers, wins that do not hold on the reserve."""

from __future__ import annotations

from decimal import Decimal

import pytest

from outerloop.posttrain.decision import compare, decide, hold_up, mcnemar_p
from outerloop.posttrain.outcomes import Outcome, RefusedEvaluationError, aggregates, merged, task_scores

ALPHA, NO_FLOOR = Decimal("0.05"), Decimal(0)


def binary(right: int, tasks: int = 100) -> dict[str, tuple[Decimal, ...] | None]:
    return {f"t{n}": (Decimal(n < right),) for n in range(tasks)}


def test_mcnemar_is_the_binomial_over_tasks_that_differ() -> None:
    assert mcnemar_p(0, 0) == 1
    assert mcnemar_p(5, 0) == 1 / 32
    assert mcnemar_p(0, 5) == 1
    assert mcnemar_p(3, 1) == 5 / 16


def test_one_trial_of_pass_or_fail_is_mcnemar_everything_else_sign_flip() -> None:
    assert compare(binary(60), binary(50), name="c", train_seeds=(1,)).test == "mcnemar"
    partial = {task: (Decimal("0.5"),) for task in binary(1)}
    assert compare(partial, binary(50), name="c", train_seeds=(1,)).test == "sign-flip"
    twice = merged([binary(60), binary(62)])
    found = compare(twice, binary(50), name="c", train_seeds=(1, 2))
    assert (found.test, found.gain, found.better, found.worse) == ("sign-flip", Decimal("0.11"), 12, 0)
    assert found == compare(twice, binary(50), name="c", train_seeds=(1, 2))


def test_a_clear_gain_is_accepted_and_an_equal_rejected() -> None:
    found = decide(compare(binary(60), binary(50), name="c", train_seeds=(1,)), alpha=ALPHA, min_delta=NO_FLOOR)
    assert (found.outcome, found.reason, found.comparison.gain) == ("accepted", "", Decimal("0.1"))
    assert found.comparison.p == pytest.approx(2.0**-10)
    equal = decide(compare(binary(50), binary(50), name="c", train_seeds=(1,)), alpha=ALPHA, min_delta=NO_FLOOR)
    assert (equal.outcome, equal.reason) == ("rejected", "no-improvement")


@pytest.mark.parametrize(
    ("ours", "tasks", "floor", "detail"),
    [
        (53, 100, "0", "not-significant"),
        (60, 100, "0.11", "below-floor"),
        (60, 100, "0.1", ""),
        (40, 100, "0", "not-above-zero"),
    ],
)
def test_the_floor_and_the_level_are_both_asked(ours: int, tasks: int, floor: str, detail: str) -> None:
    comparison = compare(binary(ours, tasks), binary(50, tasks), name="c", train_seeds=(1,))
    found = decide(comparison, alpha=ALPHA, min_delta=Decimal(floor))
    assert (found.reason, found.detail) == ("no-improvement" if detail else "", detail)


def test_a_suite_that_can_never_be_significant_says_so() -> None:
    comparison = compare(binary(4, 4), binary(0, 4), name="c", train_seeds=(1,))
    assert decide(comparison, alpha=ALPHA, min_delta=NO_FLOOR).reason == "too-few-tasks"


def test_a_task_lost_on_one_side_counts_for_neither() -> None:
    ours, theirs = binary(60), binary(50)
    ours["t55"], theirs["t0"] = None, None
    found = compare(ours, theirs, name="c", train_seeds=(1,))
    assert (found.tasks, found.dropped, found.better) == (98, 2, 9)
    with pytest.raises(ValueError, match="different tasks"):
        compare({"a": (Decimal(1),)}, theirs, name="c", train_seeds=(1,))
    with pytest.raises(ValueError, match="no task is left"):
        compare({"a": None}, {"a": (Decimal(1),)}, name="c", train_seeds=(1,))


def test_sides_with_different_numbers_of_trials_are_compared_by_their_means() -> None:
    ours = {"a": (Decimal(1), Decimal(0), Decimal(1)), "b": (Decimal(1),) * 3}
    theirs = {"a": (Decimal(0), Decimal(1)), "b": (Decimal(0), Decimal(0))}
    found = compare(ours, theirs, name="c", train_seeds=(1,))
    assert found.gain.quantize(Decimal("1e-9")) == Decimal("0.583333333")
    assert found.p == 0.25  # both gains are positive: one of four sign patterns


def test_a_win_that_vanishes_on_the_reserve_is_luck() -> None:
    suite = compare(binary(70), binary(50), name="c", train_seeds=(1,))
    lost = compare(binary(50), binary(52), name="r", train_seeds=(1,))
    held = compare(binary(66), binary(50), name="r", train_seeds=(1,))
    assert decide(suite, alpha=ALPHA, min_delta=NO_FLOOR, reserve=lost).reason == "reserve"
    assert decide(suite, alpha=ALPHA, min_delta=NO_FLOOR, reserve=held).outcome == "accepted"
    small = compare(binary(52), binary(50), name="r", train_seeds=(1,))
    assert not hold_up(suite, small).held and hold_up(suite, small).p < 0.01
    constant = compare(binary(100), binary(0), name="r", train_seeds=(1,))
    assert hold_up(constant, constant) == hold_up(constant, constant) and hold_up(constant, constant).p == 1


def test_what_is_shown_of_a_comparison_names_no_task() -> None:
    assert "gains" not in compare(binary(60), binary(50), name="c", train_seeds=(1,)).as_dict()


def outcomes(lost: int) -> list[Outcome]:
    return [
        Outcome(f"t{n}", trial, "infrastructure", None, 3)
        if n < lost and trial == 1
        else Outcome(f"t{n}", trial, "scored", Decimal(n % 2))
        for n in range(10)
        for trial in range(2)
    ]


def test_lost_trials_drop_their_task_and_too_many_refuse_the_evaluation() -> None:
    tasks = [f"t{n}" for n in range(10)]
    found = aggregates(outcomes(2), tasks, 2, max_infra_error_fraction=0.1)
    assert (found.dropped_tasks, found.infrastructure_errors, found.infrastructure_fraction) == (2, 2, 0.1)
    assert found.mean == 0.5
    assert task_scores(outcomes(2), tasks, 2)["t0"] is None
    with pytest.raises(RefusedEvaluationError, match=r"3 of 20 trials \(15.0%\)"):
        aggregates(outcomes(3), tasks, 2, max_infra_error_fraction=0.1)


def test_an_evaluation_is_whole_or_it_is_none() -> None:
    tasks = [f"t{n}" for n in range(10)]
    with pytest.raises(ValueError, match="fewer than 2 trials"):
        task_scores(outcomes(0)[:-1], tasks, 2)
    with pytest.raises(ValueError, match="doubled"):
        task_scores([*outcomes(0), outcomes(0)[0]], tasks, 2)
    with pytest.raises(ValueError, match="not in the suite's list"):
        task_scores(outcomes(0), tasks[1:], 2)


@pytest.mark.parametrize(
    ("status", "score"), [("infrastructure", "1"), ("scored", None), ("scored", "2"), ("scored", "NaN")]
)
def test_an_impossible_outcome_can_not_be_made(status: str, score: str | None) -> None:
    with pytest.raises(ValueError):
        Outcome("t", 0, status, None if score is None else Decimal(score))  # type: ignore[arg-type]

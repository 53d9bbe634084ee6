"""Dominance and the front on rows as the commands report them."""

from __future__ import annotations

import pytest

from outerloop.champion import Objective, RowError, dominates, insert, lexicographic_champion, pareto_front


def _row(fail: int, passed: int, rejected: int = 0, finished: int = 0) -> dict[str, int]:
    return {
        "fail_to_pass_count": fail,
        "fail_count": 50,
        "pass_to_fail_count": passed,
        "pass_count": 50,
        "rejected_total": rejected,
        "finished": finished,
    }


def test_a_row_dominates_when_nothing_is_higher_and_something_lower() -> None:
    assert dominates(_row(1, 2), _row(1, 3))
    assert dominates(_row(0, 0), _row(1, 1))
    assert not dominates(_row(1, 2), _row(1, 2))
    assert not dominates(_row(0, 3), _row(1, 2))


def test_rejections_count_only_when_they_are_an_objective() -> None:
    decided_more, decided_less = _row(2, 2, rejected=1), _row(1, 1, rejected=40)
    assert dominates(decided_less, decided_more)
    assert not dominates(decided_less, decided_more, reject_objective=True)


def test_ties_stay_on_the_front_in_order_of_arrival() -> None:
    rows = [_row(1, 3, finished=1), _row(3, 1, finished=2), _row(1, 3, finished=3), _row(2, 4, finished=4)]
    assert pareto_front(rows) == rows[:3]
    better = _row(1, 2, finished=5)
    assert insert(rows[:3], better) == [rows[1], better]
    assert insert(rows[:3], rows[3]) == rows[:3]


def test_the_lexicographic_champion_breaks_ties_by_rejections_and_then_by_sequence() -> None:
    rows = [_row(1, 1, 9, 1), _row(1, 1, 2, 7), _row(1, 1, 2, 5), _row(2, 0, 0, 2)]
    assert lexicographic_champion(rows) == rows[2]
    assert lexicographic_champion([]) is None


def test_rows_without_the_counts_are_refused_by_name() -> None:
    with pytest.raises(RowError, match="pass_to_fail_count must be a whole number of at least 0, it is missing"):
        dominates({"fail_to_pass_count": 1}, _row(1, 1))
    for wrong in (True, 1.0, -1, None):
        with pytest.raises(RowError, match="fail_to_pass_count"):
            pareto_front([{**_row(1, 1), "fail_to_pass_count": wrong}])


def test_other_objectives_are_compared_by_their_own_keys() -> None:
    own = (Objective(name="a", count="a", total="n"), Objective(name="b", count="b", total="n"))
    rows = [{"a": 1, "b": 2, "n": 9}, {"a": 2, "b": 2, "n": 9}]
    assert dominates(rows[0], rows[1], own)
    assert pareto_front(rows, own) == rows[:1]

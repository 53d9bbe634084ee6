"""Attacks: the one failed task of a sweep of hundreds that a list cut short does not show."""

from __future__ import annotations

from outerloop.cli.run_text import MOST_MEASURES, _most_telling_measures, _tasks_title, _value
from outerloop.controller.views import MeasureView


def task(number: int, state: str, reason: str = "") -> MeasureView:
    return MeasureView(
        role=f"task-{number:04d}", round=0, benchmark="", side="", pair=0, seed=0, replicate=0, kind="measure",
        slot="0" * 64, slot_id=number, state=state, reason=reason, detail="", failure_class=None, value=None,
        result=None, pinned_attempt=None, attempts_allowed=3, attempts_counted=0, next_try_at=None, settled_at=None,
    )  # fmt: skip


def test_a_list_of_tasks_cut_short_shows_the_troubled_and_the_open_ones_in_their_order() -> None:
    tasks = [task(n, "done") for n in range(100)]
    tasks[40], tasks[90] = task(40, "open"), task(90, "failed", "EXIT_3")
    shown = [item.role for item in _most_telling_measures(tasks)]
    assert shown == [f"task-{n:04d}" for n in (*range(MOST_MEASURES - 2), 40, 90)]


def test_the_title_counts_the_tasks_by_state() -> None:
    tasks = [task(0, "done"), task(1, "failed", "EXIT_3"), task(2, "done"), task(3, "open")]
    assert _tasks_title(tasks) == "Tasks: 2 done, 1 failed EXIT_3, 1 open"
    assert _tasks_title(tasks[:1]) == "Tasks"


def test_a_value_is_rounded_for_people() -> None:
    assert _value("0.30000000000000004") == "0.3" and _value("1.235756") == "1.235756"
    assert _value("nan") == "NaN" and _value("nothing") == "nothing"

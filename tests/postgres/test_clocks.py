"""A login node's clock that is wrong must not decide: weeks of budgets are counted by the record's clock.

Covered: requests stamped in the future, long ago and a while ago, taken in and rebuilt. Not covered: the trash
(tests/e2e/test_collect.py), what dispatch compares (tests/property, tests/simulation: the record's clock alone).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import text

from outerloop.controller.submit import checks_problem, enqueue, insert_run, week_budget_problem
from outerloop.record.models import Run
from outerloop.slots import StateRoot
from tests.postgres.test_contamination_checks import asked, record_of


@pytest.mark.parametrize("days", [400, 1 / 24, -1 / 24, -3, -20_000])
def test_a_week_is_a_week_whatever_the_login_nodes_clock_says(database: str, tmp_path: Path, days: float) -> None:
    record = record_of(database)
    stamped = datetime.now(UTC) + timedelta(days=days)
    first = asked("first").model_copy(update={"created_at": stamped.isoformat()})
    enqueue(record, StateRoot(tmp_path), first)
    with record.reading() as session:
        age = (datetime.now(UTC) - session.get_one(Run, first.id).created_at).total_seconds()
    # What waited in the inbox for an hour was asked an hour ago; what no clock can have said, was asked now.
    assert age == pytest.approx(3600 if days == -1 / 24 else 0, abs=300)
    assert "1 of 1" in str(checks_problem(record, asked("second")))
    assert "1 of 1" in str(week_budget_problem(record, first, [1]))
    with record.transaction("tx.operator") as session:
        session.execute(text("update runs set created_at = created_at - interval '7 days'"))
    assert checks_problem(record, asked("second")) is None and week_budget_problem(record, first, [1]) is None
    record.close()


def test_a_rebuilt_record_believes_the_past_and_not_the_future(database: str) -> None:
    record = record_of(database)
    now = datetime.now(UTC)
    stamps = {"old": now - timedelta(days=300), "future": now + timedelta(days=300)}
    with record.transaction("tx.rebuild") as session:
        for name, stamp in stamps.items():
            request = asked(name).model_copy(update={"created_at": stamp.isoformat()})
            session.execute(insert_run(record.realm_id, request))
    with record.reading() as session:
        assert session.get_one(Run, "run-old").created_at == stamps["old"]
        assert abs(session.get_one(Run, "run-future").created_at - now) < timedelta(minutes=5)
    record.close()

"""GPU-hours of one submitter, over all targets, reserved under a lock: two at once cannot exceed the limit together."""

from __future__ import annotations

import threading

import pytest
from sqlalchemy.orm import Session

from outerloop.dispatch.budget import Budget, BudgetExceeded, reserve, spent_by_submitter
from outerloop.record.models import Attempt, Slot
from outerloop.record.store import Record

HOUR = 60.0
LIMIT = Budget(submitter_gpu_hours=3.0)


@pytest.fixture
def record(database: str) -> Record:
    return Record(database, owner="svc", slot_root="/state")


def slot(session: Session, record: Record, submitter: str, target: str, digest: str) -> Slot:
    made = Slot(
        realm_id=record.realm_id, digest=digest, label="l", target=target, submitter=submitter, order={"gpus": 2}
    )
    session.add(made)
    session.flush()
    return made


def attempt(session: Session, of: Slot, hours: float, used: float | None = None) -> None:
    ended = {} if used is None else {"state": "settled", "outcome": "done"}
    session.add(
        Attempt(
            realm_id=of.realm_id,
            slot_id=of.id,
            n=1,
            job_name=of.digest,
            minutes=HOUR,
            command_minutes=HOUR,
            gpu_hours_reserved=hours,
            gpu_hours_used=used,
            **ended,
        )
    )
    session.flush()


def test_a_submitters_hours_are_counted_over_targets_and_not_with_others(record: Record) -> None:
    with record.transaction("tx.intent") as session:
        attempt(session, slot(session, record, "ada", "tsp", "a"), 2.0, used=0.5)
        attempt(session, slot(session, record, "bob", "tsp", "b"), 2.0)
        assert spent_by_submitter(session, record.realm_id, "ada") == 0.5
        # 0.5 used, two GPUs for an hour fit into 3; once reserved, another two do not.
        second = slot(session, record, "ada", "fold", "c")
        assert reserve(session, second, HOUR, LIMIT) == 2.0
        attempt(session, second, 2.0)
        with pytest.raises(BudgetExceeded, match=r"GPU-hours of ada: 2\.50 used or reserved of 3.*0\.50 remain"):
            reserve(session, slot(session, record, "ada", "tsp", "d"), HOUR, LIMIT)
        assert reserve(session, slot(session, record, "eve", "tsp", "e"), HOUR, LIMIT) == 2.0
    record.close()


def test_a_slot_that_two_share_is_held_against_the_limit_of_who_is_charged(record: Record) -> None:
    """Ada asked first and has much left; that bob, who wants the same, may use little is nothing to her slot."""
    limits = {"ada": 10.0, "bob": 1.0}
    of_each = Budget(submitter_gpu_hours=limits.get)
    with record.transaction("tx.intent") as session:
        attempt(session, slot(session, record, "ada", "tsp", "a"), 5.0)
        assert reserve(session, slot(session, record, "ada", "tsp", "shared"), HOUR, of_each) == 2.0
        with pytest.raises(BudgetExceeded, match=r"GPU-hours of bob: 0\.00 used or reserved of 1,"):
            reserve(session, slot(session, record, "bob", "tsp", "own"), HOUR, of_each)
        assert reserve(session, slot(session, record, "eve", "tsp", "any"), HOUR, of_each) == 2.0
    record.close()


def test_two_at_once_do_not_take_more_than_is_left(database: str) -> None:
    outcomes: list[str] = []
    inside, go_on = threading.Event(), threading.Event()

    def first() -> None:
        record = Record(database, owner="svc", slot_root="/state")
        with record.transaction("tx.intent") as session:
            mine = slot(session, record, "ada", "tsp", "x")
            reserve(session, mine, HOUR, LIMIT)
            inside.set()
            attempt(session, mine, 2.0)
            assert go_on.wait(60)
        outcomes.append("first")
        record.close()

    def second() -> None:
        record = Record(database, owner="svc", slot_root="/state")
        try:
            with record.transaction("tx.intent") as session:
                reserve(session, slot(session, record, "ada", "fold", "y"), HOUR, LIMIT)
            outcomes.append("both")
        except BudgetExceeded:
            outcomes.append("refused")
        record.close()

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    assert inside.wait(60)
    threads[1].start()
    threads[1].join(0.5)  # it waits for the first one's lock, or would have ended long ago
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert outcomes == ["first", "refused"]

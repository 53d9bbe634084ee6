"""Transactions of the record on a real server: readers write nothing, and leave the connection as they found it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from outerloop.record.store import Record


@pytest.fixture
def record(database: str) -> Iterator[Record]:
    made = Record(database, owner="ada", slot_root="/state")
    yield made
    made.close()


def realms(record: Record) -> int:
    with record.reading() as session:
        return int(session.execute(text("select count(*) from realms")).scalar_one())


WRITE = text("insert into realms (owner, slot_root) values ('bob', '/b')")


def test_a_reader_writes_nothing_and_the_next_transaction_of_its_connection_may(record: Record) -> None:
    for _ in range(3):
        with pytest.raises(DBAPIError, match="read-only transaction"), record.reading() as session:
            session.execute(WRITE)
    assert realms(record) == 0
    with record.transaction("tx.fold") as session:
        session.execute(WRITE)
    assert realms(record) == 1


def test_asking_for_the_time_makes_no_later_transaction_commit_by_halves(record: Record) -> None:
    """The clock is asked outside of any transaction; what comes after it on the same connection is whole or nothing."""
    times = [record.now() for _ in range(3)]
    assert times == sorted(times) and times[0] < times[2], "one transaction would show one instant"
    with pytest.raises(RuntimeError, match="killed"), record.transaction("tx.fold") as session:
        session.execute(WRITE)
        raise RuntimeError("killed")
    assert realms(record) == 0


def test_a_tick_uses_two_connections_and_keeps_them(record: Record) -> None:
    """Its lock holds one for as long as it works: the other must not be made anew by each tick."""

    def pids() -> set[int]:
        with record.tick_lock() as got, record.reading() as session:
            assert got
            mine = "select pid from pg_stat_activity where datname = current_database() and application_name = :n"
            return set(session.execute(text(mine), {"n": "outerloop"}).scalars())

    first = pids()
    assert len(first) == 2
    assert pids() == first

"""One clock for the simulated cluster and for Postgres.

The record takes every time from the database's `now()` and `clock_timestamp()`. Postgres looks names up along the
search path, with its own catalog first only as long as the path does not name it: a schema before `pg_catalog` that
has functions of these names puts the whole database on another clock, and the code under test is the production
code. Columns' defaults were bound when the tables were made, so they are bound anew.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.rows import namedtuple_row
from sqlalchemy import make_url

from outerloop.compute.simulated import Clock

SETUP = """
create schema simclock;
create table simclock.clock (at timestamptz not null);
insert into simclock.clock values (to_timestamp({start}));
create function simclock.clock_timestamp() returns timestamptz language sql stable as 'select at from simclock.clock';
create function simclock.now() returns timestamptz language sql stable as 'select at from simclock.clock';
"""

DEFAULTS = """
select table_name, column_name from information_schema.columns
 where table_schema = 'public' and column_default like '%now()%'
"""


class DatabaseClock(Clock):
    """Moves the database's time together with the cluster's."""

    def __init__(self, url: str) -> None:
        super().__init__()
        plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
        self._connection = psycopg.connect(plain, autocommit=True)
        execute = self._connection.execute
        execute(SETUP.format(start=self.seconds))  # type: ignore[arg-type]
        name = make_url(url).database
        execute(f'alter database "{name}" set plan_cache_mode = force_generic_plan')  # type: ignore[arg-type]
        execute(f'alter database "{name}" set search_path = simclock, public, pg_catalog')  # type: ignore[arg-type]
        for table, column in execute(DEFAULTS).fetchall():  # type: ignore[arg-type]
            execute(f"alter table {table} alter column {column} set default simclock.now()")  # type: ignore[arg-type]

    def move_to(self, seconds: float) -> None:
        if seconds > self.seconds:
            super().move_to(seconds)
            self._connection.execute("update simclock.clock set at = to_timestamp(%s)", (self.seconds,))

    def set(self, seconds: float) -> None:
        """Backwards too: between two worlds."""
        self.seconds = seconds
        self._connection.execute("update simclock.clock set at = to_timestamp(%s)", (seconds,))

    def rows(self, table: str) -> list[Any]:
        """A table as it stands, in one round trip: the checks after every step must cost little."""
        with self._connection.cursor(row_factory=namedtuple_row) as cursor:
            return cursor.execute(f"select * from {table} order by 1").fetchall()  # type: ignore[arg-type]

    def empty(self, tables: tuple[str, ...]) -> None:
        """Delete every row, in this order."""
        self._connection.execute("; ".join(f"delete from {table}" for table in tables))  # type: ignore[arg-type]

    def close(self) -> None:
        self._connection.close()

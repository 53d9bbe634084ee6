"""Personal deployments on one Postgres: each researcher's role reads and writes its own rows, by row-level security.

Attacked with real logins: other people's rows in every table, writing into their realm, taking it over; and a whole
climb, submitted, measured and decided through a role that may see nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url

from outerloop.controller.deployment import account
from outerloop.record.models import Base
from outerloop.record.roles import _OWN_ROWS, grant
from tests.controller_rig.world import World
from tests.postgres.conftest import _execute

PASSWORD = "a-word-for-tests"
ANNA, BERT, VIEWER = "ol_anna", "ol_bert", "ol_looks"


def as_role(url: str, role: str) -> str:
    return make_url(url).set(username=role, password=PASSWORD).render_as_string(hide_password=False)


def login(url: str, role: str) -> psycopg.Connection[tuple[object, ...]]:
    plain = make_url(as_role(url, role)).set(drivername="postgresql")
    return psycopg.connect(plain.render_as_string(hide_password=False), autocommit=True)


@pytest.fixture
def shared(database: str) -> Iterator[str]:
    """A record in which each of two accounts has one row in every table."""
    for realm, owner in ((1, ANNA), (2, BERT)):
        for statement in ROWS:
            _execute(database, statement.format(r=realm, owner=owner))
    for role, profile in ((ANNA, "researcher"), (BERT, "researcher"), (VIEWER, "viewer")):
        _execute(database, f"create role {role} login password '{PASSWORD}'")
        grant(database, role, profile)  # type: ignore[arg-type]
    yield database
    for role in (ANNA, BERT, VIEWER):
        _execute(database, f"drop owned by {role}")
        _execute(database, f"drop role {role}")


RUN = (
    "insert into runs (id, realm_id, kind, question, target, benchmark, definition, base_commit, base_tree,"
    " candidate_commit, candidate_tree, submitter, request) values ('{id}', {r}, 'climb', '{id}', 't', 'b', 'd', 'c',"
    " 't', 'c', 't', 's', '{{}}')"
)
ROWS = (
    "insert into realms (owner, slot_root) values ('{owner}', '/state')",
    RUN.replace("{id}", "c-{r}"),
    'insert into slots (realm_id, digest, label, target, submitter, "order")'
    " values ({r}, 'x', 'l', 't', 's', '{{}}')",
    "insert into arrays (realm_id, name, lane, count, map, intent_at) values ({r}, 'a', 'l', 2, '{{}}', now())",
    "insert into attempts (realm_id, slot_id, n, job_name, minutes, command_minutes) values ({r}, {r}, 1, 'j', 1, 1)",
    "insert into measures (run_id, slot_id, role, benchmark, side, pair)"
    " values ('c-{r}', {r}, 'baseline', 'b', 'base', 0)",
    "insert into awaits (run_id, attempt_id) values ('c-{r}', {r})",
    "insert into wakes (realm_id, run_id, number, job_name, awaited) values ({r}, 'c-{r}', 1, 'w', '{{}}')",
    "insert into heartbeats (realm_id, name, host, body) values ({r}, 'tick', 'h', '{{}}')",
    "insert into events (run_id, seq, kind, body, at) values ('c-{r}', 0, 'round', '{{}}', now())",
    "insert into leases (run_id, holder, epoch, expires_at) values ('c-{r}', 'h', 1, now())",
    "insert into campaign_events (run_id, seq, kind, line) values ('c-{r}', 0, 'run', '{{}}')",
    "insert into champions (realm_id, target, benchmark, definition, seq, run_id, commit, tree, value, gain)"
    " values ({r}, 't', 'b', 'd', 1, 'c-{r}', 'c', 't', '1', '1')",
)


def test_every_table_of_the_record_says_whose_its_rows_are() -> None:
    assert set(_OWN_ROWS) == set(Base.metadata.tables)


def test_a_researcher_sees_its_own_row_of_every_table_and_changes_no_other(shared: str) -> None:
    with login(shared, ANNA) as connection:
        for table in _OWN_ROWS:
            assert connection.execute(f"select count(*) from {table}").fetchone() == (1,), table  # type: ignore[arg-type]
            others = (
                "owner = 'ol_bert'" if table == "realms" else "realm_id = 2" if table in OF_REALM else "run_id = 'c-2'"
            )
            assert connection.execute(f"delete from {table} where {others}").rowcount == 0, table  # type: ignore[arg-type]
        assert connection.execute("update runs set label = 'mine'").rowcount == 1
        connection.execute(RUN.format(id="c-3", r=1))  # type: ignore[arg-type]
        refused = (
            RUN.format(id="c-4", r=2),
            "update runs set realm_id = 2 where id = 'c-3'",
            "update realms set owner = 'ol_bert'",
            "insert into realms (owner, slot_root) values ('ol_bert', '/elsewhere')",
            "insert into events (run_id, seq, kind, body, at) values ('c-2', 1, 'verdict', '{}', now())",
            "insert into champions (realm_id, target, benchmark, definition, seq, run_id, commit, tree, value, gain)"
            " values (2, 't', 'b', 'd', 2, 'c-1', 'c', 't', '1', '1')",
            "alter table runs disable row level security",
            "drop policy everybody on runs",
            "update alembic_version set version_num = '0'",
            "truncate events",
        )
        for statement in refused:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)  # type: ignore[arg-type]
    with login(shared, BERT) as connection:
        assert connection.execute("select label from runs").fetchall() == [("",)]


OF_REALM = {table for table, own in _OWN_ROWS.items() if own.startswith("realm_id")}


def test_whoever_may_see_all_still_does_and_a_role_is_bound_no_longer_than_its_profile(shared: str) -> None:
    with login(shared, VIEWER) as connection:
        assert connection.execute("select count(*) from runs").fetchone() == (2,)
    grant(shared, ANNA, "viewer")
    with login(shared, ANNA) as connection:
        assert connection.execute("select count(*) from events").fetchone() == (2,)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("update runs set label = 'x'")
    grant(shared, ANNA, "researcher")
    grant(shared, ANNA, "researcher")
    with login(shared, ANNA) as connection:
        assert connection.execute("select count(*) from events").fetchone() == (1,)


def test_a_climb_needs_no_more_than_its_own_rows(tmp_path: Path, database: str) -> None:
    """Through a role named like this account, next to somebody else's rows."""
    other = World(tmp_path / "other", database)
    _execute(database, "insert into realms (owner, slot_root) values ('somebody', '/else')")
    for statement in ROWS[1:]:
        _execute(database, statement.format(r=1, owner="somebody"))
    role = account()
    _execute(database, f"create role \"{role}\" login password '{PASSWORD}'")
    try:
        grant(database, role, "researcher")
        world = World(tmp_path / "mine", as_role(database, role))
        run_id = world.submit("better")
        world.ticks_until_rest()
        assert world.run(run_id).verdict == "accepted"
        world.check_invariants()
        assert [run.id for run in world.runs()] == [run_id]
        assert {run.id for run in other.runs()} == {run_id, "c-1"}, "the owner of the tables sees both"
    finally:
        _execute(database, f'drop owned by "{role}"')
        _execute(database, f'drop role "{role}"')

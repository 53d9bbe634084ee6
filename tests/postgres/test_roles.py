"""Least rights, tried: what each role's login may read and write of a record with runs of two submitters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner
from sqlalchemy import make_url

from outerloop.cli import app
from outerloop.cli.errors import ExitCode
from outerloop.record.roles import RoleError, grant
from tests.postgres.conftest import _execute

PASSWORD = "a-word-for-tests"
ROLES = {"ol_service": "service", "ol_viewer": "viewer", "ada": "submitter", "bob": "submitter"}


def login(url: str, role: str) -> psycopg.Connection[tuple[object, ...]]:
    plain = make_url(url).set(drivername="postgresql", username=role, password=PASSWORD)
    return psycopg.connect(plain.render_as_string(hide_password=False), autocommit=True)


@pytest.fixture
def granted(database: str) -> Iterator[str]:
    """A record with a run of ada's, a sealed one of hers and a run of bob's, and a login for each role."""
    rows = [("c-1", "ada", "false"), ("c-2", "ada", "true"), ("c-3", "bob", "false")]
    _execute(database, "insert into realms (owner, slot_root) values ('svc', '/state')")
    for run, submitter, sealed in rows:
        _execute(
            database,
            "insert into runs (id, realm_id, kind, question, target, benchmark, definition, base_commit, base_tree,"
            " candidate_commit, candidate_tree, submitter, request, state, verdict, sentence)"
            f" values ('{run}', 1, 'climb', '{run}', 't', 'b', 'd', 'c', 't', 'c', 't', '{submitter}',"
            f" '{{\"sealed\": {sealed}}}', 'ended', 'accepted', 'gained 3')",
        )
    for role in ROLES:
        _execute(database, f"create role {role} login password '{PASSWORD}'")
    for role, profile in ROLES.items():
        grant(database, role, profile)  # type: ignore[arg-type]
    yield database
    for role in ROLES:
        _execute(database, f"drop owned by {role}")
        _execute(database, f"drop role {role}")


WRITES = [
    "update runs set verdict = 'rejected' where id = 'c-3'",
    "delete from runs where id = 'c-3'",
    "insert into champions (realm_id, target, benchmark, definition, seq, run_id, commit, tree, value, gain)"
    " values (1, 't', 'b', 'd', 1, 'c-3', 'c', 't', '1', '1')",
    "insert into events (run_id, seq, kind, body, at) values ('c-3', 0, 'verdict', '{}', now())",
    "insert into slots (realm_id, digest, label, target, submitter, \"order\") values (1, 'x', 'l', 't', 'ada', '{}')",
    "update slots set state = 'done'",
    "delete from attempts",
    "truncate leases",
    "create table mine (x int)",
    "drop table runs",
    "alter table runs add column x int",
]


@pytest.mark.parametrize("role", ["ada", "ol_viewer"])
def test_who_may_only_look_can_write_nothing(granted: str, role: str) -> None:
    with login(granted, role) as connection:
        for statement in WRITES:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)  # type: ignore[arg-type]


def test_a_submitter_sees_its_own_runs_and_nothing_that_is_withheld(granted: str) -> None:
    with login(granted, "ada") as connection:
        rows = connection.execute("select id, sealed, verdict, sentence from submitted_runs order by id").fetchall()
        assert rows == [("c-1", False, "accepted", "gained 3"), ("c-2", True, None, None)]
        for table in ("runs", "slots", "attempts", "events", "champions", "measures", "realms"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(f"select * from {table}")  # type: ignore[arg-type]
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("set role bob")
        # A cheap function in the condition must not be shown rows before the view has dropped them.
        leak = "create function pg_temp.leak(text) returns bool cost 0.0001 language plpgsql as"
        leak += " $$begin raise notice '%', $1; return true; end$$"
        notices: list[str] = []
        connection.add_notice_handler(lambda notice: notices.append(str(notice.message_primary)))
        try:
            connection.execute(leak)  # type: ignore[arg-type]
        except psycopg.errors.InsufficientPrivilege:
            return
        connection.execute("select id from submitted_runs where pg_temp.leak(id)")
        assert set(notices) <= {"c-1", "c-2"}


def test_a_viewer_reads_everything(granted: str) -> None:
    with login(granted, "ol_viewer") as connection:
        assert connection.execute("select count(*) from runs").fetchone() == (3,)


def test_the_service_works_on_rows_and_not_on_tables(granted: str) -> None:
    with login(granted, "ol_service") as connection:
        connection.execute("update runs set label = 'x'")
        connection.execute("insert into events (run_id, seq, kind, body, at) values ('c-3', 0, 'verdict', '{}', now())")
        for statement in WRITES[-3:]:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)  # type: ignore[arg-type]


def test_a_role_that_becomes_a_viewer_loses_what_it_could_do_before(granted: str) -> None:
    grant(granted, "ol_service", "viewer")
    with login(granted, "ol_service") as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute("update runs set label = 'x'")
    grant(granted, "ol_viewer", "submitter")
    with login(granted, "ol_viewer") as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute("select * from runs")


def test_what_no_grant_could_bind_is_refused_in_words(
    granted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RoleError, match="there is no role nobody_here"):
        grant(granted, "nobody_here", "viewer")
    monkeypatch.setenv("OUTERLOOP_DATABASE_URL", granted)
    monkeypatch.setenv("OUTERLOOP_STATE", str(tmp_path))
    told = CliRunner().invoke(app, ["db", "grant", "outerloop", "--as", "viewer"])
    assert told.exit_code == ExitCode.REFUSED and "superuser" in told.output, told.output

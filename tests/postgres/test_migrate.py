"""Attacks: that the revisions build what the models say, and that upgrades may happen twice, at once or too late."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect
from sqlalchemy.pool import NullPool

from outerloop.record import migrate
from outerloop.record.models import Base


def execute(url: str, statement: str) -> None:
    with migrate.connect(url) as connection:
        connection.exec_driver_sql(statement)
        connection.commit()


def tables(url: str) -> set[str]:
    engine = create_engine(url, poolclass=NullPool)
    with engine.connect() as connection:
        return set(inspect(connection).get_table_names())


def test_an_upgrade_brings_an_empty_database_to_the_models(empty_database: str) -> None:
    assert migrate.current(empty_database) is None
    assert migrate.drift(empty_database) != []
    assert migrate.upgrade(empty_database) == (None, migrate.head())
    assert migrate.current(empty_database) == migrate.head()
    assert tables(empty_database) == {*Base.metadata.tables, "alembic_version"}
    assert migrate.drift(empty_database) == []


def test_check_constraints_and_partial_indexes_are_those_of_the_models(database: str, empty_database: str) -> None:
    # alembic's comparison does not look at them
    engine = create_engine(empty_database, poolclass=NullPool)
    Base.metadata.create_all(engine)
    question = (
        "select conrelid::regclass::text, conname, pg_get_constraintdef(oid) from pg_constraint"
        " where connamespace = 'public'::regnamespace and conrelid::regclass::text <> 'alembic_version'"
        " union all select tablename, indexname, indexdef from pg_indexes"
        " where schemaname = 'public' and tablename <> 'alembic_version'"
    )

    def described(url: str) -> set[tuple[str, ...]]:
        with migrate.connect(url) as connection:
            return {tuple(row) for row in connection.exec_driver_sql(question)}

    assert described(database) == described(empty_database)


def test_an_upgrade_again_changes_nothing(database: str) -> None:
    execute(database, "insert into realms (owner, slot_root) values ('me', '/s')")
    assert migrate.upgrade(database) == (migrate.head(), migrate.head())
    with migrate.connect(database) as connection:
        assert connection.exec_driver_sql("select count(*) from realms").scalar_one() == 1


def test_upgrades_at_once_are_one_upgrade(empty_database: str) -> None:
    code = f"from outerloop.record import migrate; print(migrate.upgrade({empty_database!r})[1])"
    upgrades = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    answers = [upgrade.communicate()[0].strip() for upgrade in upgrades]
    assert [upgrade.returncode for upgrade in upgrades] == [0, 0, 0]
    assert answers == [migrate.head()] * 3
    assert migrate.drift(empty_database) == []


def test_arrays_get_the_outcome_that_their_attempts_had_and_give_it_back(empty_database: str) -> None:
    """0005 and back, with an array that waits in the queue meanwhile."""
    from alembic import command

    config = migrate._config(empty_database)
    command.upgrade(config, "0004")
    for statement in (
        "insert into realms (owner, slot_root) values ('me', '/s')",
        'insert into slots (realm_id, digest, label, target, submitter, "order")'
        " select 1, 'd' || k, 'l', 't', 'me', '{}' from generate_series(0, 2) k",
        "insert into arrays (realm_id, name, state, job_id, lane, count, map)"
        " values (1, 'a', 'submitted', '77', '', 3, '{}')",
        "insert into attempts (realm_id, slot_id, n, state, job_name, array_id, array_task, array_name, job_id,"
        "                      cluster, minutes, command_minutes, submitted_at)"
        " select 1, k + 1, 1, 'submitted', 'j' || k, 1, k, 'a', '77_' || k, 'c', 1, 1, '2026-11-30 12:00:00+00'"
        "   from generate_series(0, 2) k",
    ):
        execute(empty_database, statement)
    told = "select job_id, cluster, submitted_at from attempts order by id"
    with migrate.connect(empty_database) as connection:
        before = connection.exec_driver_sql(told).all()
    migrate.upgrade(empty_database)
    with migrate.connect(empty_database) as connection:
        [array] = connection.exec_driver_sql("select job_id, cluster, submitted_at from arrays").all()
    assert array == ("77", "c", before[0].submitted_at)
    # Nobody handed it on yet when somebody goes back.
    execute(empty_database, "update attempts set state = 'intent', job_id = null, cluster = '', submitted_at = null")
    command.downgrade(config, "0004")
    with migrate.connect(empty_database) as connection:
        assert connection.exec_driver_sql(told).all() == before


def test_a_database_of_a_newer_installation_is_refused(database: str) -> None:
    execute(database, "update alembic_version set version_num = 'from_the_future'")
    with pytest.raises(migrate.MigrationError, match=r"from_the_future.*newer outerloop"):
        migrate.upgrade(database)


def test_a_missing_column_is_drift(database: str) -> None:
    execute(database, "alter table realms drop column created_at")
    assert any("created_at" in difference for difference in migrate.drift(database))


def test_revisions_are_found_in_the_wheel_when_there_is_no_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "outerloop"
    shipped = package / "_shipped" / "migrations"
    shipped.mkdir(parents=True)
    (shipped / "env.py").touch()
    monkeypatch.setattr(migrate, "__file__", str(package / "record" / "migrate.py"))
    assert migrate.migrations_folder() == shipped
    (shipped / "env.py").unlink()
    with pytest.raises(migrate.MigrationError, match="installation is incomplete"):
        migrate.migrations_folder()

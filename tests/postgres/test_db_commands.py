"""Attacks: that `outerloop db` works on a real server and shows the password only when asked to."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner, Result

from outerloop.cli.db import _for_libpq, db
from outerloop.record import embedded, migrate
from outerloop.record.server.binaries import find_binaries
from tests.postgres.conftest import open_folder


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    top = open_folder()
    monkeypatch.setenv("OUTERLOOP_STATE", str(top))
    monkeypatch.setenv("OUTERLOOP_CONFIG", str(top / "config.toml"))
    monkeypatch.setenv(embedded.FAST_VARIABLE, "1")
    monkeypatch.delenv("OUTERLOOP_DATABASE_URL", raising=False)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    (top / "config.toml").touch()
    yield top
    embedded.remove(top / "db")
    shutil.rmtree(top)


def run(*words: str) -> Result:
    return CliRunner().invoke(db, list(words))


def test_the_server_from_nothing_to_a_dump_that_restores(state: Path, tmp_path: Path) -> None:
    assert "there is none yet" in run("status").output
    missing = run("url")
    assert missing.exit_code == 4
    assert "outerloop db start" in missing.output

    assert run("start").output.startswith("running: process ")
    assert json.loads(run("current", "--json").output) == {"current": None, "head": migrate.head()}
    assert "run `outerloop db upgrade`" in run("current").output
    assert run("upgrade").output == f"upgraded from an empty database to {migrate.head()}\n"
    assert run("upgrade").output == f"up to date (revision {migrate.head()})\n"
    assert "(newest)" in run("current").output

    password = (state / "db" / "password").read_text().strip()
    shown = run("url").output.strip()
    assert password not in shown
    with_password = run("url", "--show-password").output.strip()
    with psycopg.connect(with_password) as connection:
        connection.execute("insert into realms (owner, slot_root) values ('me', '/s')")
    assert json.loads(run("url", "--json").output) == {"url": shown}

    file = tmp_path / "record.dump"
    dumped = run("dump", str(file))
    assert dumped.exit_code == 0, dumped.output
    assert run("dump", str(file)).exit_code == 2
    assert run("dump", str(file), "--force").exit_code == 0
    listing = subprocess.run(
        [find_binaries()[0].program("pg_restore"), "--data-only", "--table=realms", "--file=-", str(file)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "\tme\t/s\t" in listing.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["record.dump"]

    known = json.loads(run("status", "--json").output)
    assert known["running"]
    assert password not in json.dumps(known)
    assert run("stop").output == "stopped\n"
    assert run("stop").output == "it was not running\n"
    assert "not running; its data is in" in run("status").output


def test_a_server_of_the_site_is_neither_started_nor_stopped_by_us(
    state: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTERLOOP_DATABASE_URL", database)
    for command in ("start", "stop", "status"):
        refused = run(command)
        assert refused.exit_code == 3
        assert "database_url is set" in refused.output
    assert "(newest)" in run("current").output
    assert not (state / "db").exists()


def test_an_unreachable_server_is_a_sentence_and_its_code(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTERLOOP_DATABASE_URL", "postgresql://me:topsecret@127.0.0.1:1/x")
    for command in ("current", "upgrade"):
        answer = run(command)
        assert answer.exit_code == 4
        assert "the record is unavailable" in answer.output
        assert "topsecret" not in answer.output
        assert "Traceback" not in answer.output


def test_what_pg_dump_is_given_as_an_argument_holds_no_password() -> None:
    url = "postgresql+psycopg://me:topsecret@/x?host=%2Fa%20b%2B&port=5432"
    assert _for_libpq(url, password=False) == "postgresql://me@/x?host=%2Fa%20b%2B&port=5432"
    assert _for_libpq(url, password=True) == "postgresql://me:topsecret@/x?host=%2Fa%20b%2B&port=5432"


def test_a_wrong_setting_is_reported_before_anything_is_started(state: Path) -> None:
    (state / "config.toml").write_text('sate = "/x"\n')
    answer = run("start")
    assert answer.exit_code == 2
    assert 'config.toml:1: sate: unknown key; did you mean "state"?' in answer.output
    assert not (state / "db").exists()

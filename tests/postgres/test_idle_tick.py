"""A tick over thousands of parked runs to which nothing happened: what it asks, reads and writes.

Attacked: that its reads grow with the history (sequential scans), that it writes more for more runs, that it asks the
cluster more than once. Times and memory are benchmarks' (tests/bench/bench_tick.py).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import event, make_url, text

from outerloop.controller.deployment import Deployment, open_deployment
from outerloop.controller.tick import tick
from outerloop.record.models import Attempt, Run
from outerloop.settings import Settings
from tests.bench.parked import FIRST_JOB, load_parked, queue_text, replayed_tools

RUNS = 1_000
ENDED = 500
"""Ended runs besides: a scan over them would cost more with every week."""
LARGE = {"runs", "attempts", "slots", "measures", "awaits", "events", "leases"}


@pytest.fixture
def deployment(tmp_path: Path, database: str) -> Iterator[Deployment]:
    settings = Settings(
        state=tmp_path / "state",
        database_url=database,  # type: ignore[arg-type]
        backend="slurm",
        deployment="bench",
        slurm={"bin_dir": replayed_tools(tmp_path / "tools", queue_text(RUNS))},  # type: ignore[arg-type]
        lanes={"default": {}},  # type: ignore[arg-type]
    )
    (tmp_path / "state").mkdir()
    opened = open_deployment(settings, config=None, migrate=False)
    realm = opened.record.realm_id
    opened.close()  # a connection that ends flushes its statistics; the next statement opens another one
    load_parked(database, realm, RUNS)
    load_parked(database, realm, ENDED, first=RUNS)
    with _connection(database) as connection:
        ended = f"run_id >= 'parked{RUNS:06d}'"
        connection.execute(f"delete from awaits where {ended}")
        connection.execute(f"update attempts set state = 'settled', outcome = 'done' where id >= {_of(RUNS)}")
        connection.execute(f"update runs set state = 'ended', verdict = 'rejected', released = true where {ended[4:]}")
        connection.execute("vacuum analyze")
    yield opened
    opened.close()


def _of(run: int) -> int:
    return 1_000_000 + run * 5


def _connection(url: str) -> psycopg.Connection[Any]:
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    return psycopg.connect(plain, autocommit=True)


def _written(connection: psycopg.Connection[Any]) -> dict[str, int]:
    """Rows written so far, by table. Waits for the other connections to be gone: a server counts what they did then."""
    others = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    deadline = time.monotonic() + 60
    while connection.execute(others + " and backend_type = 'client backend'").fetchone() != (0,):
        assert time.monotonic() < deadline, "a connection was left open"
        time.sleep(0.02)
    rows = connection.execute(
        "select relname, n_tup_ins + n_tup_upd + n_tup_del from pg_stat_user_tables where relname <> 'alembic_version'"
    )
    return {str(name): int(count) for name, count in rows}


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", []):
        yield from _nodes(below)


def test_an_idle_tick_asks_once_scans_nothing_and_writes_its_heartbeat(deployment: Deployment, database: str) -> None:
    statements: list[tuple[str, Any]] = []
    settings: list[str] = []
    engine = deployment.record._engine
    event.listen(engine, "before_cursor_execute", lambda *given: statements.append((given[2], given[3])))
    tools = deployment.settings.slurm.bin_dir
    assert tools is not None
    with _connection(database) as connection:
        before = _written(connection)
        report = tick(deployment)
        deployment.close()
        after = _written(connection)
    assert report.ran and report.queue_answered and not report.broken
    assert (report.settled, report.advanced, report.notes) == (0, [], [])
    assert (tools / "calls").read_text().split() == ["squeue"]
    assert {t: n - before[t] for t, n in after.items() if n != before[t]} == {"heartbeats": 1}

    index_only = 0
    for statement, parameters in statements:
        if not statement.lstrip().lower().startswith(("select", "update", "insert", "delete")):
            continue
        if "advisory" in statement:
            continue
        if "set_config" in statement:
            settings.append(statement)
            continue
        with _connection(database) as connection, connection.cursor() as cursor:
            cursor.execute("begin")
            for setting in settings if "FROM attempts" in statement else ():
                cursor.execute(setting)  # type: ignore[arg-type]
            cursor.execute(f"explain (format json) {statement}", parameters)  # type: ignore[arg-type]
            row = cursor.fetchone()
        assert row is not None
        for node in _nodes((row[0] if isinstance(row[0], list) else json.loads(row[0]))[0]["Plan"]):
            scanned = node["Node Type"] == "Seq Scan" and node["Relation Name"] in LARGE
            assert not scanned, f"{statement}\n{json.dumps(row[0], indent=1)}"
            if node.get("Relation Name") == "attempts":
                assert (node["Node Type"], node["Index Name"]) == ("Index Only Scan", "live_attempts"), statement
                index_only += 1
    assert index_only == 1, "at most one read over live attempts"


def test_jobs_that_only_move_on_are_noted_in_few_statements_and_the_ended_one_is_looked_at(
    deployment: Deployment, database: str
) -> None:
    tools = deployment.settings.slurm.bin_dir
    assert tools is not None
    lines = (tools / "queue").read_text().splitlines()
    waits = [line.replace("|RUNNING|", "|PENDING|").replace("|None|", "|Resources|") for line in lines[:1500]]
    gone = lines[1501:]
    (tools / "queue").write_text("\n".join([*waits, *gone]) + "\n")
    statements: list[str] = []
    event.listen(deployment.record._engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    report = tick(deployment)
    assert (tools / "calls").read_text().split() == ["squeue", "sacct"]
    assert len(statements) < 100, "one statement each would be thousands"
    with deployment.record.reading() as session:
        query = (
            "select slurm_state || ' ' || slurm_reason as seen, count(*) as n from attempts"
            " where state = 'submitted' group by 1"
        )
        found = {row.seen: row.n for row in session.execute(text(query))}
        absent = session.query(Attempt.job_id).filter(Attempt.absent_at.is_not(None)).all()
        assert session.query(Run).filter(Run.state != "waiting", Run.state != "ended").count() == 0
    assert found == {"pending Resources": 1500, "running ": RUNS * 5 - 1500}
    assert [row.job_id for row in absent] == [str(FIRST_JOB + 1500)] and report.settled == 0

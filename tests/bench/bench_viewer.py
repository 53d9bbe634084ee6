"""How long the web view takes for each page of a large record: `python -m tests.bench viewer`.

A record of 10,000 runs with 100,000 measures (9,000 ended, 1,000 open with 10,000 live jobs), 40 targets and
benchmarks, 1,500 champions, one run of 400 measures, a campaign of 5,000 evaluations in 500 rounds. Prints for each
page and its JSON what one call costs over a real socket: CPU time of this process (server and client) and of Postgres's
backends, which is the server's time on an idle machine, the wall time's median, and the number of statements; and of
the first call, which folds a campaign's ledger, the CPU time.
Asserts nothing itself; test_viewer.py does, on the CPU time and the statements, because the wall time of a busy machine
says nothing. Then the same for the first call that a freshly started server answers, each address in a process of its
own. Not covered: concurrent readers, slow file systems.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Engine, event, text

from outerloop.champion import events_to_jsonl
from tests.bench.bench_champion_fold import ledger
from tests.rows import World, make_world
from tests.viewer.serving import PATIENCE, viewing

RUNS = 10_000
MEASURES = 100_000
CALLS = 7
LARGE = "c-00001"
CAMPAIGN = "s-00001"
EVALUATIONS = 5_000

_ROWS = (
    # evidence as large as that of a climb of five pairs
    "insert into runs (id, realm_id, kind, question, target, benchmark, definition, base_commit, base_tree,"
    " candidate_commit, candidate_tree, submitter, label, request, state, state_reason, verdict, verdict_reason,"
    " sentence, evidence, created_at, ended_at, due_at)"
    " select 'c-' || lpad(i::text, 5, '0'), :r, case when i % 50 = 7 then 'training' else 'climb' end, i::text,"
    " 'target-' || (i % 8), 'bench-' || (i % 40), md5((i % 40)::text), md5(i::text), 'x', md5(i::text), 'x',"
    " 'author-' || (i % 12), 'change number ' || i, jsonb_build_object('expected', null, 'pad', repeat('x', 1500)),"
    " case when i % 10 = 0 then (array['waiting', 'queued', 'blocked'])[1 + i / 10 % 3] else 'ended' end,"
    " case when i % 10 = 0 then (array['JOBS', '', 'CONTRACT'])[1 + i / 10 % 3] else '' end,"
    " case when i % 10 = 0 then null else (array['accepted', 'rejected', 'rejected', 'failed'])[1 + i % 4] end,"
    " '', 'rejected: over 5 pairs cost fell by 0.1, from 10 to 9.9; the floor is 0.2',"
    " case when i % 10 = 0 then null else jsonb_build_object('findings', jsonb_build_object('climbed',"
    " jsonb_build_object('metric', 'cost', 'direction', 'min', 'mean_base', '10', 'mean_candidate',"
    " (9 + (i % 97) / 100.0)::text, 'gain', '0.1', 'pad', repeat('y', 3000)))) end,"
    " now() - make_interval(mins => i), case when i % 10 = 0 then null else now() - make_interval(mins => i - 1) end,"
    " case when i % 10 = 0 then now() + interval '1 hour' end"
    " from generate_series(1, :runs) i",
    'insert into slots (realm_id, digest, label, target, submitter, "order", state, pinned_attempt, result)'
    " select :r, md5(i::text) || md5(i::text), 'l', 'target-' || (i % 8), 'a', '{\"lane\": {\"name\": \"cpu\"}}',"
    " case when i % 10 = 0 then 'open' else 'done' end, case when i % 10 = 0 then null else 1 end,"
    " case when i % 10 = 0 then null else jsonb_build_object('outcome', 'ok', 'metric',"
    " jsonb_build_object('name', 'cost', 'text', '9.5'), 'host', 'n1', 'pad', repeat('z', 600)) end"
    " from generate_series(1, :measures) i",
    # 400 measures of one run, the others spread evenly
    "insert into measures (run_id, slot_id, role, benchmark, side, pair)"
    " select 'c-' || lpad((case when i <= 400 then 1 else 1 + i % :runs end)::text, 5, '0'), id, 'r' || i,"
    " 'bench-' || ((case when i <= 400 then 1 else 1 + i % :runs end) % 40),"
    " (array['base', 'candidate'])[1 + i % 2], i / 2 % 200 from"
    " (select id, row_number() over (order by id) as i from slots where realm_id = :r) numbered",
    "insert into attempts (realm_id, slot_id, n, state, outcome, job_name, job_id, minutes, command_minutes,"
    " slurm_state, slurm_reason, node, submitted_at, settled_at)"
    " select :r, id, 1, 'settled', 'done', 'j' || id, id::text, 5, 2, 'completed', '', 'n1', now(), now()"
    " from slots where realm_id = :r and state = 'done'",
    "insert into attempts (realm_id, slot_id, n, state, job_name, job_id, minutes, command_minutes, slurm_state,"
    " slurm_reason, submitted_at) select :r, id, 1, 'submitted', 'l' || id, 'l' || id, 5, 2,"
    " (array['pending', 'running'])[1 + id / 10 % 2], (array['Priority', ''])[1 + id / 10 % 2], now()"
    " from slots where realm_id = :r and state = 'open' and id % 5 = 0",
    'insert into events (run_id, seq, kind, body, at) select id, 0, \'round\', \'{"round": 0, "base_commit": "x"}\','
    " created_at from runs where realm_id = :r",
    "insert into champions (realm_id, target, benchmark, definition, seq, run_id, commit, tree, value, gain)"
    " select :r, 'target-' || (i % 8), 'bench-' || (i % 40), md5((i % 40)::text), 1 + i / 40,"
    " 'c-' || lpad(i::text, 5, '0'), 'x', 'x', (10 - i / 400.0)::text, '0.1' from generate_series(1, 1500) i",
)


@dataclass(frozen=True)
class Timed:
    """One call of an address, in seconds."""

    path: str
    cpu: float
    wall: float
    bytes: int
    statements: int
    first: float
    """CPU of the first call."""


PATHS = (
    "/",
    "/runs",
    "/runs?offset=9900",
    "/runs?text=number+77",
    "/runs?target=target-3&author=author-5&state=ended",
    "/runs?state=waiting&limit=500",
    f"/runs/{LARGE}",
    "/runs/c-05000",
    f"/runs/{LARGE}/logs",
    "/benchmarks",
    "/benchmarks/target-1/bench-1",
    "/campaigns",
    f"/campaigns/{CAMPAIGN}",
    f"/campaigns/{CAMPAIGN}/events",
    f"/campaigns/{CAMPAIGN}/events?kind=eval&offset=4000&limit=500",
    f"/api/campaigns/{CAMPAIGN}/events?limit=500",
    f"/api/charts/campaigns/{CAMPAIGN}/front",
    f"/api/charts/campaigns/{CAMPAIGN}/history",
    "/trainings",
    "/queue",
    "/queue?state=pending&reason=Priority&offset=500",
    "/plans",
    "/api/status",
    "/api/runs?limit=500",
    f"/api/runs/{LARGE}",
    f"/api/runs/{LARGE}/argument",
    "/api/benchmarks",
    "/api/queue?limit=500",
)


def fill(world: World) -> None:
    """The large record, and statistics as autovacuum would have them."""
    values = {"r": world.record.realm_id, "runs": RUNS, "measures": MEASURES}
    for statement in _ROWS:
        with world.session() as session:
            session.execute(text(statement), values)
    _campaign(world)
    with world.session() as session:
        session.execute(text("analyze"))


def _campaign(world: World) -> None:
    """A campaign that has gone on for weeks."""
    world.run(CAMPAIGN, kind="campaign", benchmark="gates", state="waiting", state_reason="JOBS")
    rows = [
        {"run": CAMPAIGN, "seq": event.seq, "kind": event.kind, "line": events_to_jsonl([event])}
        for event in ledger(EVALUATIONS)
    ]
    with world.session() as session:
        session.execute(
            text("insert into campaign_events (run_id, seq, kind, line) values (:run, :seq, :kind, :line)"), rows
        )


def _backends(world: World) -> float:
    """CPU seconds that Postgres's backends of this database have used (proc(5), fields 14 and 15)."""
    with world.record.reading() as session:
        pids = session.scalars(text("select pid from pg_stat_activity where datname = current_database()")).all()
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


@contextmanager
def _counted() -> Iterator[list[str]]:
    """The statements that this process sends."""
    sent: list[str] = []

    def note(_conn: object, _cursor: object, statement: str, *_more: object) -> None:
        sent.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        event.remove(Engine, "before_cursor_execute", note)


def measure(world: World) -> list[Timed]:
    """Time every address, each after a first call that is told apart."""
    found = []
    with viewing(world) as asking:
        asking.get("/plans?first=1")  # what is imported and compiled once for a server belongs to no page
        for path in PATHS:
            backends, own = _backends(world), time.process_time()
            answer = asking.get(path)
            first = time.process_time() - own + _backends(world) - backends
            with _counted() as sent:
                answer = asking.get(path)
            walls = []
            backends, own = _backends(world), time.process_time()
            for _ in range(CALLS):
                began = time.perf_counter()
                answer = asking.get(path)
                walls.append(time.perf_counter() - began)
                assert answer.status == 200, (path, answer.text[:2000])
            own = time.process_time() - own
            cpu = (own + _backends(world) - backends) / CALLS
            found.append(Timed(path, cpu, statistics.median(walls), len(answer.body), len(sent), first))
    return found


@dataclass(frozen=True)
class Cold:
    """The first call that a server answers after its start, in seconds."""

    path: str
    cpu: float
    wall: float
    start: float
    """From starting the process until it says that it listens."""


@contextmanager
def started(world: World) -> Iterator[tuple[int, int]]:
    """(port, process id) of a view in a process of its own."""
    command = [sys.executable, "-m", "tests.bench.viewer_process", world.url, world.record.owner, str(world.state)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline()), process.pid
        finally:
            process.terminate()


def _cpu_of(pid: int) -> float:
    """CPU seconds of a process (proc(5), fields 14 and 15)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure_first(world: World, paths: Sequence[str] = PATHS) -> list[Cold]:
    """Time the first call after a start, with a start for each address."""
    found = []
    for path in paths:
        began = time.perf_counter()
        with started(world) as (port, pid):
            start = time.perf_counter() - began
            before = _cpu_of(pid) + _backends(world)
            began = time.perf_counter()
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE) as answer:
                answer.read()
            wall = time.perf_counter() - began
            found.append(Cold(path, _cpu_of(pid) + _backends(world) - before, wall, start))
    return found


@contextmanager
def large_record() -> Iterator[World]:
    from outerloop.record import migrate
    from tests.nightly import server
    from tests.postgres.conftest import _database_url, _execute

    with server() as url, tempfile.TemporaryDirectory(prefix="ol-bench-") as folder:
        _execute(url, "create database bench_viewer")
        database = _database_url(url, "bench_viewer")
        migrate.upgrade(database)
        world = make_world(database, Path(folder) / "state")
        try:
            fill(world)
            yield world
        finally:
            world.record.close()


def main() -> None:
    with large_record() as world:
        print(f"{RUNS:,} runs, {MEASURES:,} measures")
        for timed in measure(world):
            figures = (
                f"{timed.cpu * 1000:7.1f} ms CPU {timed.wall * 1000:7.1f} ms wall {timed.first * 1000:7.1f} ms first"
            )
            print(f"{figures} {timed.statements:3d} statements  {timed.path}", flush=True)
        print("the first call after a start")
        for cold in measure_first(world):
            figures = f"{cold.cpu * 1000:7.1f} ms CPU {cold.wall * 1000:7.1f} ms wall {cold.start:5.2f} s to start"
            print(f"{figures}  {cold.path}", flush=True)


if __name__ == "__main__":
    main()

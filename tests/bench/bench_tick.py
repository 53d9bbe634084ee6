"""What a tick costs with thousands of parked runs: `python -m tests.bench tick`.

A record made by COPY (tests/bench/parked.py), a queue that is printed back, a Postgres of its own; medians of a few
ticks, each a process of its own (`outerloop tick`, as cron starts it):
* calls of Slurm's tools, rows written, CPU seconds (its own and its tools') and peak memory at 1, 100 and 10,000 parked
  runs of 5 running jobs each, to none of which anything happened;
* the same CPU without starting the interpreter and importing, in one process, for who runs `tick --loop`: when squeue
  says the very same as the last time, and when a line of it differs (a node's name, which is nothing to decide);
* a tick that ends 50 runs, alone and beside 10,000 parked ones.
Asserts nothing itself; test_scale.py does. Not covered: squeue's own time, which is Slurm's.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import make_url

from outerloop.compute.slurm import SlurmCli
from outerloop.controller import deployment as deployment_module
from outerloop.controller.deployment import Deployment, open_deployment
from outerloop.controller.tick import tick
from outerloop.job import claim, files, layout
from outerloop.job.report import Report
from outerloop.record import embedded, migrate
from outerloop.record.models import Attempt, Run, Slot
from tests.bench.parked import MEASURES, load_parked, queue_text, replayed_tools
from tests.controller_rig.world import CONTRACT, World

FEW, MANY = 100, 10_000
FINISHED = 50
TICKS = 5
LOOPED = 10
"""Ticks in one process, of which the least counts: they take some hundredths of a second."""


@dataclass(frozen=True)
class Idle:
    """One tick over so many parked runs, nothing finished."""

    runs: int
    calls: int
    """Of Slurm's tools."""
    rows: int
    """Written to the record."""
    cpu_s: float
    """User and system, of the process and of the tools that it called."""
    inside_cpu_s: float
    """The tick alone, in a process that had one before and heard the very same of squeue."""
    changed_cpu_s: float
    """The same when one line of squeue's answer is another one each time."""
    memory_mb: float
    """Peak resident set of the process."""


@dataclass(frozen=True)
class Finished:
    """One tick that ends FINISHED runs of two measures, seconds of wall and CPU time in the process."""

    wall_s: float
    cpu_s: float


@contextmanager
def server(home: Path) -> Iterator[str]:
    url = embedded.ensure_running(home / "db")
    try:
        yield url
    finally:
        embedded.remove(home / "db")


def fresh_database(url: str, name: str) -> str:
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute(f"create database {name}")  # type: ignore[arg-type]
    made = make_url(url).set(database=name).render_as_string(hide_password=False)
    migrate.upgrade(made)
    return made


def _rows_written(url: str) -> int:
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    others = (
        "select count(*) from pg_stat_activity where datname = current_database()"
        " and pid <> pg_backend_pid() and backend_type = 'client backend'"
    )
    with psycopg.connect(plain, autocommit=True) as connection:
        while connection.execute(others).fetchone() != (0,):
            time.sleep(0.02)
        row = connection.execute("select sum(n_tup_ins + n_tup_upd + n_tup_del) from pg_stat_user_tables").fetchone()
    assert row is not None
    return int(row[0])


def idle(url: str, home: Path, runs: int, ticks: int = TICKS) -> Idle:
    """`outerloop tick` over `runs` parked runs."""
    state = home / "state"
    state.mkdir(parents=True)
    tools = replayed_tools(home / "tools", queue_text(runs))
    config = home / "config.toml"
    config.write_text(
        f'state = "{state}"\ndatabase_url = "{url}"\nbackend = "slurm"\ndeployment = "bench"\n'
        f'[slurm]\nbin_dir = "{tools}"\napi = "cli"\n[lanes.default]\n'
    )
    from outerloop.settings import Settings

    deployment = open_deployment(Settings.load(config), config=config, migrate=False)
    load_parked(url, deployment.record.realm_id, runs)
    command = [sys.executable, "-m", "outerloop.cli", "tick"]
    environment = {**os.environ, "OUTERLOOP_CONFIG": str(config)}
    costs, memories, calls, rows, inside = [], [], 0, 0, []
    for _ in range(ticks):
        deployment.close()
        (tools / "calls").unlink(missing_ok=True)
        before = _rows_written(url)
        cpu, memory = _run(command, environment)
        rows = _rows_written(url) - before
        calls = len((tools / "calls").read_text().split())
        costs.append(cpu)
        memories.append(memory)
    for number in range(2 * LOOPED + 1):
        if number > LOOPED:
            (tools / "queue").write_text(queue_text(runs).replace("node000", f"node{number}x", 1))
        own = time.process_time()
        report = tick(deployment)
        inside.append(time.process_time() - own)
        assert report.ran and not report.advanced and not report.settled, report
    deployment.close()
    return Idle(
        runs,
        calls,
        rows,
        statistics.median(costs),
        min(inside[1 : LOOPED + 1]),
        min(inside[LOOPED + 1 :]),
        statistics.median(memories),
    )


def _run(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """(CPU seconds of the process and its children, peak memory in MB)."""
    starter = [sys.executable, "-I", "-S", "-c", _STARTER, *command]
    done = subprocess.run(starter, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True)
    code, cpu_s, peak_kib = json.loads(done.stdout)
    assert code == 0, f"exit code {code}"
    return cpu_s, peak_kib * 1024 / 1e6


# A process is charged the memory of the one that started it, until it executes its program (getrusage(2), ru_maxrss): a
# test run of hundreds of megabytes must not start it itself.
_STARTER = """
import json, os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
process.returncode = os.waitstatus_to_exitcode(status)
print(json.dumps([process.returncode, usage.ru_utime + usage.ru_stime, usage.ru_maxrss]))
"""


class _Bench(World):
    """The rig's target with a queue that is printed back; its jobs leave results without running."""

    def __init__(self, folder: Path, database: str, parked: int) -> None:
        # Its queue lists none of these jobs, and none of them is lost.
        super().__init__(folder, database, grace_seconds=3600.0, gone_grace_seconds=3600.0)
        self.tools = replayed_tools(folder / "tools", queue_text(parked))
        self.settings = self.settings.model_copy(
            update={"wake": self.settings.wake.model_copy(update={"mode": "never"})}
        )

    def contract(self) -> str:
        return CONTRACT.replace('suite = ["size"]\n', "")

    def open(self) -> Deployment:
        deployment_module.open_compute = lambda settings, root: SlurmCli(bin_dir=self.tools)  # type: ignore[assignment]
        return open_deployment(self.settings, config=self.folder / "config.toml", migrate=False)

    def finish_everything(self) -> int:
        """Every live attempt has claimed and left a result that changes nothing. Returns how many."""
        slots = {slot.id: slot for slot in self.rows(Slot)}
        live = [attempt for attempt in self.rows(Attempt) if attempt.state == "submitted"]
        for attempt in live:
            digest = slots[attempt.slot_id].digest
            slot = self.state.slot(digest)
            folder = slot / layout.ATTEMPTS / str(attempt.n)
            folder.mkdir(parents=True, exist_ok=True)
            me = claim.Identity(attempt.job_id, 0, "n1", "n1")
            claim.claim(str(folder), digest, attempt.n, me, os.environ, False)
            report = Report(str(slot), digest, attempt.n, me, {})
            report.body.update(outcome="ok", metric={"name": "cost", "text": "10.0"}, exit_code=0)
            files.replace(str(folder / layout.RESULT), files.encode(report.body))
        return len(live)


def finished(url: str, home: Path, parked: int) -> Finished:
    """A tick that ends FINISHED runs beside `parked` others."""
    world = _Bench(home, url, parked)
    for number in range(FINISHED):
        world.branch(f"c{number}", cost="10", note=str(number))
        world.submit(f"c{number}")
    jobs = world.finish_everything()
    deployment = world.open()
    try:
        if parked:
            load_parked(url, deployment.record.realm_id, parked)
        wall, own = time.perf_counter(), _cpu()
        report = tick(deployment)
        found = Finished(time.perf_counter() - wall, _cpu() - own)
    finally:
        deployment.close()
    assert report.settled == jobs and not report.broken, report
    ended = [run for run in world.rows(Run) if run.state == "ended"]
    assert len(ended) == FINISHED and {run.verdict for run in ended} == {"rejected"}, report
    return found


def _cpu() -> float:
    """Of this process and of the tools and gits that it waited for."""
    found: Any = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return float(sum(usage.ru_utime + usage.ru_stime for usage in found))


@dataclass(frozen=True)
class Measured:
    """All of it."""

    one: Idle
    few: Idle
    many: Idle
    alone: Finished
    beside: Finished

    @property
    def cpu_ratio(self) -> float:
        return self.many.cpu_s / self.few.cpu_s

    @property
    def looped_ratio(self) -> float:
        """Of a tick in a loop, the worse of: the queue says the same, a line of it differs."""
        return max(self.many.inside_cpu_s / self.few.inside_cpu_s, self.many.changed_cpu_s / self.few.changed_cpu_s)

    @property
    def finished_ratio(self) -> float:
        return self.beside.cpu_s / self.alone.cpu_s


def measure(ticks: int = TICKS) -> Measured:
    """Start a server, measure, remove everything."""
    home = Path(tempfile.mkdtemp(prefix="ol-b-", dir="/tmp"))
    try:
        with server(home) as url:
            sweeps = [idle(fresh_database(url, f"idle{n}"), home / f"idle{n}", n, ticks) for n in (1, FEW, MANY)]
            ends = [finished(fresh_database(url, f"end{n}"), home / f"end{n}", n) for n in (0, MANY)]
            return Measured(*sweeps, *ends)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def main() -> None:
    found = measure()
    print(f"an idle tick over parked runs of {MEASURES} jobs:")
    for row in (found.one, found.few, found.many):
        print(
            f"{row.runs:8,} runs: {row.calls} calls of Slurm's tools, {row.rows} rows written,"
            f" {row.cpu_s:.2f} s CPU, {row.memory_mb:.0f} MB; the tick itself in a loop: {row.inside_cpu_s:.3f} s CPU,"
            f" {row.changed_cpu_s:.3f} s when a line differs"
        )
    print(f"CPU at {MANY:,} against {FEW}:   {found.cpu_ratio:.2f} x; in a loop   {found.looped_ratio:.2f} x")
    print(
        f"a tick that ends {FINISHED} runs: {found.alone.cpu_s:.2f} s CPU ({found.alone.wall_s:.2f} s) alone,"
        f" {found.beside.cpu_s:.2f} s ({found.beside.wall_s:.2f} s) beside {MANY:,} parked:"
        f"   {found.finished_ratio:.2f} x"
    )


if __name__ == "__main__":
    main()

"""From the end of a run's last measure to its verdict, by wake jobs alone: `python -m tests.bench wake`.

On a development cluster, in turns: a climb of two measures that nothing but its wake job ends, from the moment at which
its last measure's result was written to the moment at which the verdict is seen in the record; and a bare pair of jobs,
the second with `afterany` on the first, from the end of the first's script to the start of the second's. The clock is
the machine's own for both. Medians. Slurm starts jobs in passes, once a second on this cluster, and a job that was
started by a pass and runs for a fixed time always ends at the same distance from the next one; so climbs and pairs end
at a moment that is drawn evenly from a second, and both wait for passes alike. Asserts nothing itself; test_wake.py
does. Not covered: clusters whose scheduler is busy; what Slurm takes there stands in its own part.
"""

from __future__ import annotations

import random
import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psycopg
from sqlalchemy import make_url

from outerloop.job import layout
from outerloop.record.models import Attempt, Slot
from tests.bench.bench_tick import fresh_database, server
from tests.controller_rig.world import CONTRACT
from tests.slurm.cluster import DevCluster
from tests.slurm.world import SlurmWorld

ROUNDS = 20
SECONDS = 180.0
PASS_SECONDS = 1.0
"""Between two scheduler passes: sched_interval and batch_sched_delay of slurm/devcluster/up.sh."""
POLL_SECONDS = 0.02
"""How late an ending may be seen; it counts against us."""


@dataclass(frozen=True)
class Measured:
    """Seconds, medians."""

    verdict_s: float
    """From the last result to the verdict in the record."""
    slurm_s: float
    """From the end of a script to the start of the job that waits for it."""

    @property
    def ours_s(self) -> float:
        return self.verdict_s - self.slurm_s


class _World(SlurmWorld):
    def contract(self) -> str:
        return CONTRACT.replace('suite = ["size"]\n', "")


def to_verdict(world: _World, url: str, candidate: str) -> float:
    """Seconds from the last of a climb's two results to its verdict."""
    run_id = world.submit(candidate)
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    deadline = time.monotonic() + SECONDS
    with psycopg.connect(plain, autocommit=True) as connection:
        while connection.execute("select state from runs where id = %s", (run_id,)).fetchone() != ("ended",):
            assert time.monotonic() < deadline, world.describe()
            time.sleep(POLL_SECONDS)
        seen = time.time()
        rows = connection.execute(
            f"select digest, n from {Slot.__tablename__} s join {Attempt.__tablename__} a on a.slot_id = s.id"
            " join measures m on m.slot_id = s.id where m.run_id = %s",
            (run_id,),
        ).fetchall()
    assert len(rows) >= 2, rows
    written = [world.state.slot(digest) / layout.ATTEMPTS / str(n) / layout.RESULT for digest, n in rows]
    return seen - max(path.stat().st_mtime for path in written)


def of_slurm(cluster: DevCluster, folder: Path, seconds: float) -> float:
    """Seconds from the end of a script, which sleeps so long, to the start of a job that has `afterany` on it."""
    first, second = folder / "first", folder / "second"
    for path in (first, second):
        path.unlink(missing_ok=True)
    options = ["--parsable", "-p", "cpu", "-t", "5", "-o", "/dev/null", "-D", "/"]
    one = cluster.run("sbatch", *options, f"--wrap=sleep {seconds:.3f}; date +%s.%N > {first}").strip()
    cluster.run("sbatch", *options, f"--dependency=afterany:{one}", f"--wrap=date +%s.%N > {second}")
    cluster.wait(lambda: second.exists() and second.read_text().endswith("\n"), SECONDS, "the pair to end")
    return float(second.read_text()) - float(first.read_text())


def measure(rounds: int = ROUNDS) -> Measured:
    """Start a cluster and a server, measure, remove both."""
    phase = random.Random("wake")

    def seconds() -> float:
        return 1.0 + phase.random() * PASS_SECONDS

    home = Path(tempfile.mkdtemp(prefix="ol-b-", dir="/tmp"))
    home.chmod(0o755)
    try:
        with server(home) as base, DevCluster(home / "c", nodes=2) as cluster:
            url = fresh_database(base, "wakes")
            world = _World(home / "w", url, cluster, wakes="always")
            verdicts, pairs = [], []
            for number in range(rounds):
                world.branch(f"c{number}", cost="10", extra=f"sleep {seconds():.3f}\n")
                verdicts.append(to_verdict(world, url, f"c{number}"))
                pairs.append(of_slurm(cluster, home, seconds()))
            return Measured(statistics.median(verdicts), statistics.median(pairs))
    finally:
        shutil.rmtree(home, ignore_errors=True)


def main() -> None:
    found = measure()
    print(f"from the last measure's result to the verdict, {ROUNDS} climbs:   {found.verdict_s:.2f} s")
    print(f"Slurm's own afterany, as many bare pairs in turns:   {found.slurm_s:.2f} s")
    print(f"our part:   {found.ours_s:.2f} s")


if __name__ == "__main__":
    main()

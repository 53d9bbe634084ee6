"""What it costs to hand 200 measures of one shape to Slurm: `python -m tests.bench.bench_submit`.

On a development cluster whose nodes are drained (nothing runs beside the clock), medians of a few rounds of
* ours: intents, task map, one sbatch, outcomes, and the wake job, on a Postgres that really flushes;
* 200 bare `sbatch` calls of a one-line script, one after the other;
* submitit's job array of 200 tasks, as it is and with its files flushed, in turns with ours;
what the parts of ours cost on their own (a call of sbatch, a flushed commit, a flushed file, the client's CPU); and
ours against the bare calls once more when every call of a Slurm tool takes 100 ms longer, as on a busy site.
Asserts nothing itself; test_submit.py does. Not covered: planning the measures, running them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import func, select

from outerloop.compute.protocol import Accepted, JobSpec, Lane
from outerloop.compute.slurm import TOOLS, SlurmCli
from outerloop.controller.work import lane_mapping
from outerloop.dispatch.awaited import awaited_jobs
from outerloop.dispatch.budget import Budget
from outerloop.dispatch.context import Context, Patience
from outerloop.dispatch.outcomes import share_outcomes
from outerloop.dispatch.submit import submit_ready
from outerloop.dispatch.wakes import Doorbell, WakePolicy, hang_doorbell, ring_later
from outerloop.record import embedded, migrate
from outerloop.record.models import Array, Attempt, Run, Slot, Wake
from outerloop.record.store import Record
from outerloop.slots import StateRoot
from outerloop.slots.files import replace
from tests.slurm.cluster import DevCluster

MEASURES = 200
ROUNDS = 5
DELAY_SECONDS = 0.1
LANE = Lane("default", partition="cpu")


@dataclass(frozen=True)
class Measured:
    """Seconds of wall time, medians, and what our submission asked of Slurm."""

    ours_s: float
    bare_s: float
    submitit_s: float
    submitit_flushed_s: float
    """With an fsync of each file that it wrote and of their folder: still no record, but a crash takes nothing."""
    ours_slow_s: float
    bare_slow_s: float
    commit_s: float
    """One flushed transaction that writes next to nothing."""
    file_s: float
    """One small file, flushed with its folder."""
    cpu_s: float
    """Of our client for the whole submission."""
    handed_on_s: float
    """What comes after the wake and counts for none of these: the attempts' own rows learn their job ids."""
    calls: tuple[str, ...]
    """The tools that one of our submissions called, in order."""

    @property
    def against_bare(self) -> float:
        return self.bare_s / self.ours_s

    @property
    def sbatch_s(self) -> float:
        return self.bare_s / MEASURES

    @property
    def against_submitit(self) -> float:
        return self.submitit_s / self.ours_s

    @property
    def against_bare_when_slow(self) -> float:
        return self.bare_slow_s / self.ours_slow_s


def wrapped_tools(cluster: DevCluster, folder: Path, delay: float) -> Path:
    """A folder with Slurm's tools that write down each call, and take `delay` seconds longer."""
    folder.mkdir()
    for tool in TOOLS:
        sleep = f"sleep {delay}\n" if delay else ""
        script = folder / tool
        script.write_text(f'#!/bin/sh\necho {tool} >> {folder}/calls\n{sleep}exec {cluster.bin / tool} "$@"\n')
        script.chmod(0o755)
    return folder


def calls_of(folder: Path) -> list[str]:
    path = folder / "calls"
    return path.read_text().split() if path.exists() else []


class Ours:
    """A record and a state folder with slots that wait to be submitted."""

    def __init__(self, folder: Path, url: str, cluster: DevCluster, bin_dir: Path) -> None:
        self.root = StateRoot(folder)
        self.record = Record(url, owner="bench", slot_root=str(folder))
        self.context = Context(
            record=self.record,
            compute=SlurmCli(bin_dir=bin_dir, slurm_conf=cluster.slurm_conf),
            root=self.root,
            patience=Patience(),
            deployment="bench",
            python=sys.executable,
            owner_uid=str(os.getuid()),
        )
        self._run = 0
        self.shared_s: list[float] = []

    def prepare(self) -> tuple[str, list[int]]:
        """A run and the slots that its planning left: rows, folders and spec.json."""
        self._run += 1
        run_id = f"r{self._run:05d}{time.time_ns() % 10**9:09d}"
        order = {"minutes": 2.0, "lane": lane_mapping(LANE), "cpus": 1, "gpus": 0, "nodes": 1}
        with self.record.transaction("tx.plan") as session:
            run = Run(
                id=run_id,
                realm_id=self.record.realm_id,
                kind="climb",
                question=hashlib.sha256(run_id.encode()).hexdigest(),
                target="bench",
                benchmark="speed",
                definition="d",
                submitter="bench",
                request={},
                **dict.fromkeys(("base_commit", "base_tree", "candidate_commit", "candidate_tree"), "0" * 40),
            )
            slots = [
                Slot(
                    realm_id=self.record.realm_id,
                    digest=hashlib.sha256(f"{run_id} {number}".encode()).hexdigest(),
                    label="speed",
                    target="bench",
                    submitter="bench",
                    order=order,
                )
                for number in range(MEASURES)
            ]
            session.add(run)
            session.add_all(slots)
            session.flush()
            ids = [slot.id for slot in slots]
        for slot in slots:
            self.context.slot(slot.digest).write_spec({"command": "true"}, {})
        return run_id, ids

    def submit(self, run_id: str, ids: list[int]) -> float:
        """Seconds until everything and its wake is handed over and on record: the intents of all attempts, flushed,
        and the job id with their array. Handing that on to the attempts' own rows comes after the wake."""
        policy = WakePolicy("always", LANE, 5, 1000, 60.0)
        began = time.perf_counter()
        lease = self.record.take_lease(run_id, seconds=300)
        assert lease is not None
        report = submit_ready(self.context, lease, ids, Budget(), lease_seconds=300)
        with self.record.fenced("tx.park", lease, seconds=300) as session:
            awaited = awaited_jobs(session, ids)
            bell = hang_doorbell(session, self.context, policy, run_id, awaited)
        assert isinstance(bell, Doorbell), bell
        rung = ring_later(self.context, policy, bell)
        took = time.perf_counter() - began
        assert len(report.accepted) == MEASURES and rung == "rings" and len(awaited) == 1, (report, rung, awaited)
        began = time.perf_counter()
        share_outcomes(self.context, report.arrays)
        self.shared_s.append(time.perf_counter() - began)
        with self.record.reading() as session:
            stands = session.scalar(select(func.count()).where(Attempt.slot_id.in_(ids), Attempt.state == "submitted"))
            assert stands == MEASURES
            assert session.scalar(select(func.count()).select_from(Wake).where(Wake.run_id == run_id)) == 1
            assert session.scalar(select(Array.count).order_by(Array.id.desc()).limit(1)) == MEASURES
        return took


def bare(cluster: DevCluster, bin_dir: Path, folder: Path) -> float:
    """Seconds for 200 sbatch calls, as a shell loop makes them."""
    script = folder / "bare.sh"
    script.write_text("#!/bin/sh\ntrue\n")
    line = [str(bin_dir / "sbatch"), "--parsable", "-p", "cpu", "-t", "5", "-o", "/dev/null", str(script)]
    began = time.perf_counter()
    for _ in range(MEASURES):
        subprocess.run(line, env=cluster.env, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    return time.perf_counter() - began


def with_submitit(cluster: DevCluster, folder: Path, *, flushed: bool = False) -> float:
    """Seconds for submitit's array of 200 calls of a function; with `flushed`, also for flushing what it wrote."""
    import submitit

    before = dict(os.environ)
    os.environ.update(cluster.env)
    try:
        written = Path(tempfile.mkdtemp(prefix="submitit-", dir=folder))
        executor = submitit.SlurmExecutor(folder=written)
        executor.update_parameters(time=5, partition="cpu", array_parallelism=MEASURES)
        began = time.perf_counter()
        jobs = executor.map_array(abs, range(MEASURES))
        for path in [*written.iterdir(), written] if flushed else []:
            handle = os.open(path, os.O_RDONLY)
            os.fsync(handle)
            os.close(handle)
        took = time.perf_counter() - began
    finally:
        os.environ.clear()
        os.environ.update(before)
    assert len(jobs) == MEASURES
    return took


@contextmanager
def drained(cluster: DevCluster) -> Iterator[None]:
    nodes = ",".join(sorted(set(cluster.run("sinfo", "-h", "-N", "-o", "%N").split())))
    cluster.run("scontrol", "update", f"nodename={nodes}", "state=drain", "reason=bench")
    yield


def _median(once: Callable[[], float], rounds: int, cluster: DevCluster) -> float:
    found = []
    for _ in range(rounds):
        found.append(once())
        cluster.cancel_all()
    return statistics.median(found)


def _in_turns(once: Sequence[Callable[[], float]], rounds: int, cluster: DevCluster) -> list[float]:
    """Medians of each, all of them measured in every round, so that a busy machine is busy for all."""
    found: list[list[float]] = [[] for _ in once]
    for _ in range(rounds):
        for call, seconds in zip(once, found, strict=True):
            seconds.append(call())
            cluster.cancel_all()
    return [statistics.median(seconds) for seconds in found]


def _seconds(once: Callable[[], object]) -> float:
    found = []
    for _ in range(15):
        began = time.perf_counter()
        once()
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def _commit(record: Record) -> None:
    with record.transaction("tx.tick") as session:
        session.scalar(select(func.txid_current()))  # a transaction with a number is one that is flushed


def measure(rounds: int = ROUNDS) -> Measured:
    """Start a cluster and a server, measure, and remove both."""
    home = Path(tempfile.mkdtemp(prefix="ol-b-", dir="/tmp"))
    home.chmod(0o711)
    opened: list[Ours] = []
    try:
        url = embedded.ensure_running(home / "db")
        migrate.upgrade(url)
        with DevCluster(home / "c", nodes=2) as cluster, drained(cluster):
            quick = wrapped_tools(cluster, home / "quick", 0.0)
            slow = wrapped_tools(cluster, home / "slow", DELAY_SECONDS)
            ours = Ours(home / "state", url, cluster, cluster.bin)
            counted = Ours(home / "counted", url, cluster, quick)
            slowed = Ours(home / "slowed", url, cluster, slow)
            opened += [ours, counted, slowed]
            probe = SlurmCli(bin_dir=cluster.bin, slurm_conf=cluster.slurm_conf)
            _one_job(probe, home)
            counted.submit(*counted.prepare())
            cluster.cancel_all()
            cpu: list[float] = []

            def submitted() -> float:
                run_id, ids = ours.prepare()
                before = time.process_time()
                took = ours.submit(run_id, ids)
                cpu.append(time.process_time() - before)
                return took

            ours_s, submitit_s, flushed_s = _in_turns(
                [
                    submitted,
                    lambda: with_submitit(cluster, home),
                    lambda: with_submitit(cluster, home, flushed=True),
                ],
                rounds,
                cluster,
            )
            return Measured(
                ours_s=ours_s,
                bare_s=_median(lambda: bare(cluster, cluster.bin, home), min(rounds, 3), cluster),
                submitit_s=submitit_s,
                submitit_flushed_s=flushed_s,
                commit_s=_seconds(lambda: _commit(ours.record)),
                file_s=_seconds(lambda: replace(home / "flushed", "text\n", name="attempt.prepare")),
                cpu_s=statistics.median(cpu),
                handed_on_s=statistics.median(ours.shared_s),
                ours_slow_s=_median(lambda: slowed.submit(*slowed.prepare()), min(rounds, 3), cluster),
                bare_slow_s=bare(cluster, slow, home),
                calls=tuple(calls_of(quick)),
            )
    finally:
        for one in opened:
            one.record.close()
        embedded.remove(home / "db")
        shutil.rmtree(home, ignore_errors=True)


def _one_job(compute: SlurmCli, folder: Path) -> None:
    """The cluster takes jobs: what is measured is no first contact."""
    script = folder / "one.sh"
    script.write_text("#!/bin/sh\ntrue\n")
    outcome = compute.submit(JobSpec("ol-bench-one-0-0", script, folder / "one.log", folder, LANE, 5))
    assert isinstance(outcome, Accepted), outcome


def main() -> None:
    found = measure()
    print(f"{MEASURES} measures of one shape, submitted, recorded and with their wake:   {found.ours_s:8.3f} s")
    print(f"calls of Slurm's tools for it:   {' '.join(found.calls)}")
    print(f"{MEASURES} bare sbatch calls:   {found.bare_s:8.3f} s   ({found.against_bare:.2f} x ours)")
    print(f"submitit's array of {MEASURES}:   {found.submitit_s:8.3f} s   ({found.against_submitit:.2f} x ours)")
    print(f"the same with its files flushed:   {found.submitit_flushed_s:8.3f} s")
    print(
        f"parts: a call of sbatch {found.sbatch_s * 1000:.1f} ms, a flushed commit {found.commit_s * 1000:.1f} ms, a"
        f" flushed file {found.file_s * 1000:.1f} ms; CPU of our client {found.cpu_s * 1000:.0f} ms"
    )
    print(f"afterwards, handing the outcome on to {MEASURES} attempts: {found.handed_on_s * 1000:.1f} ms")
    print(
        f"with {DELAY_SECONDS * 1000:.0f} ms more per call:   ours {found.ours_slow_s:.3f} s, bare"
        f" {found.bare_slow_s:.3f} s   ({found.against_bare_when_slow:.1f} x ours)"
    )


if __name__ == "__main__":
    main()

"""Packs on a real Slurm: pairs that share a job and a node, and one member killed in the middle of it."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from outerloop.record.models import Array, Attempt, Measure, Slot
from tests.postgres.conftest import database, pg_url, template_database
from tests.slurm.cluster import DevCluster
from tests.slurm.world import SlurmWorld

__all__ = ["database", "pg_url", "template_database"]

pytestmark = pytest.mark.slurm

CONTRACT = """\
[[benchmarks]]
name = "speed"
command = "sh bench.sh"
metric = "cost"
direction = "min"
seed_env = "BENCH_SEED"
minutes = 1
min_delta = 0.5
colocate = true
pack = 4
rule = { kind = "paired", pairs = 4, alpha = 0.1 }

[scope]
allowed = ["src/"]
"""


class PackWorld(SlurmWorld):
    def contract(self) -> str:
        return CONTRACT


@pytest.mark.usefixtures("cluster")
def test_four_pairs_are_two_jobs_and_a_killed_member_is_measured_again(
    tmp_path: Path, database: str, cluster: DevCluster
) -> None:
    world = PackWorld(tmp_path / "w", database, cluster)
    gate, first = world.folder / "gate", world.folder / "first"
    # The first candidate that comes stops at a gate, so that the test can kill it in the middle of its pack.
    world.branch(
        "better", cost="8", extra=f"if mkdir {first} 2>/dev/null; then while ! [ -e {gate} ]; do sleep 0.1; done; fi\n"
    )
    run_id = world.ask("better")
    packs = world.rows(Array)
    assert [row.count for row in packs] == [4, 4]
    cluster.wait(first.exists, 60, "the first candidate's start")
    [claim] = [
        body
        for path in (world.state.path / "slots").glob("*/*/attempts/1/claim.json")
        if not (path.parent / "result.json").exists()
        and (body := json.loads(path.read_text()))["job_id"] in {row.job_id for row in packs}
        and stands_at_the_gate(body["pid"], str(gate))
    ]
    os.kill(claim["pid"], signal.SIGKILL)
    gate.touch()
    world.until_ended(run_id, ticks=True)
    run = world.run(run_id)
    assert (run.verdict, run.verdict_reason) == ("accepted", ""), run.sentence
    world.check_invariants()
    ended = Counter((a.n, a.outcome) for a in world.rows(Attempt))
    assert ended == {(1, "done"): 7, (1, "infrastructure"): 1, (2, "done"): 1}, ended
    pairs_share_a_job(world)
    # One side of one pair was measured again, alone: its verdict says so.
    assert "1 of 4 pairs did not share a job" in " ".join(world.cli("explain", run_id).stdout.split())


def stands_at_the_gate(pid: int, gate: str) -> bool:
    """Whether a descendant of the wrapper `pid` waits for the gate: its script has the gate's name."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, names = [pid], ""
    while found:
        one = found.pop()
        found += children.get(one, [])
        try:
            names += Path(f"/proc/{one}/cmdline").read_text()
        except OSError:
            continue
    return "src/extra" in names


def pairs_share_a_job(world: PackWorld) -> None:
    places = {m.slot_id: (m.pair, m.side) for m in world.rows(Measure)}
    slots = {slot.id: slot for slot in world.rows(Slot)}
    jobs: dict[int, set[tuple[str | None, str]]] = {}
    for attempt in world.rows(Attempt):
        if attempt.n == 1:
            jobs.setdefault(places[attempt.slot_id][0], set()).add((attempt.job_id, attempt.node))
        folder = world.state.slot(slots[attempt.slot_id].digest) / "attempts" / str(attempt.n)
        assert (folder / "r0" / "slurm.log").exists()
    assert all(len(where) == 1 for where in jobs.values()), f"both sides of a pair in one job on one node: {jobs}"

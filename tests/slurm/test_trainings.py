"""Trainings on a real Slurm through `outerloop submit training`: DDP over two nodes, FSDP2, preemption, lost jobs.

The loss curves of interrupted trainings are compared with uninterrupted ones, bit for bit. Attacked: preemption, a node
that goes down, a time limit, scancel, jobs of a task array killed in several ways.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outerloop.record.models import Array, Attempt
from outerloop.settings import Settings
from tests.postgres.conftest import database, pg_url, template_database
from tests.slurm.cluster import DevCluster
from tests.slurm.world import SlurmWorld

__all__ = ["database", "pg_url", "template_database"]

pytestmark = pytest.mark.slurm

SECONDS = 60.0
ROOT = Path(__file__).parents[2]

# The training that the tests of outerloop.torch kill, with a gate: it waits at one step until a file is there.
TRAIN = """\
import json, sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.torch import training
config = json.loads(sys.argv[1])
def gate(kill, step, rank):
    if step == 7:
        (Path(config["out"]) / f"reached-{{rank}}").touch()
        end = time.monotonic() + 600
        while not (Path(config["out"]) / "go").exists() and time.monotonic() < end:
            time.sleep(0.02)
training._signal_self = gate
training.main(config)
"""

LANES = """\
[lanes.train]
partition = "cpu"
prologue = 'export PATH={path}:$PATH SLURM_CONF={conf}'
[lanes.spare]
partition = "preempt"
prologue = 'export PATH={path}:$PATH SLURM_CONF={conf}'
"""


class TrainingCluster(SlurmWorld):
    """A world with a training script in its tree, and lanes where it can run."""

    def __init__(self, folder: Path, database: str, cluster: DevCluster) -> None:
        super().__init__(folder, database, cluster, wakes="never")
        tools = folder / "tools"
        tools.mkdir()
        # A torchrun and a python of this environment, wherever the tests run.
        (tools / "torchrun").write_text(f'#!/bin/sh\nexec {sys.executable} -m torch.distributed.run "$@"\n')
        (tools / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        for tool in tools.iterdir():
            tool.chmod(0o755)
        lanes = LANES.format(path=f"{tools}:{cluster.bin}", conf=cluster.slurm_conf)
        config = self.config.read_text().replace("[wake]", lanes + "[wake]")
        self.config.write_text(config.replace(f'"{cluster.bin}"', f'"{self._counting(cluster)}"'))
        self.settings = Settings.load(self.config)
        (self.repo / "train.py").write_text(TRAIN.format(root=str(ROOT)))
        self.git("add", "train.py")
        self.git("commit", "-qm", "a training")

    def _counting(self, cluster: DevCluster) -> Path:
        """Slurm's tools, of which sbatch notes the name of what it is given, before it is given it."""
        folder = self.folder / "slurm-bin"
        folder.mkdir()
        for tool in cluster.bin.iterdir():
            (folder / tool.name).symlink_to(tool)
        sbatch = folder / "sbatch"
        sbatch.unlink()
        note = f'case $word in --job-name=*) echo "${{word#--job-name=}}" >> {self.folder}/sbatch.log;; esac'
        sbatch.write_text(f'#!/bin/sh\nfor word; do {note}; done\nexec {cluster.bin}/sbatch "$@"\n')
        sbatch.chmod(0o755)
        return folder

    def submissions(self) -> list[str]:
        """Names of everything that sbatch was asked for, in its order."""
        return (self.folder / "sbatch.log").read_text().split()

    def plan(self, name: str, **fields: Any) -> str:
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(fields))
        return str(path)

    def train(self, plan: str, *options: str, command: tuple[str, ...] = ()) -> str:
        words = ["--", *command] if command else []
        done = self.cli("submit", "training", plan, "--json", *options, *words)
        return str(json.loads(done.stdout)["run"])

    def out(self, name: str, *, go: bool) -> Path:
        """A shared folder for the losses of one training; `go` opens its gate from the beginning."""
        folder = self.folder / name
        folder.mkdir()
        if go:
            (folder / "go").touch()
        return folder

    def losses(self, out: Path, rank: int) -> dict[int, str]:
        """Loss by step, the last line of a repeated step; all lines of one step must be equal."""
        found: dict[int, str] = {}
        for line in (out / f"losses-{rank}.jsonl").read_text().splitlines():
            row = json.loads(line)
            assert found.setdefault(row["step"], row["loss"]) == row["loss"], (
                f"step {row['step']} differs when repeated"
            )
        return found

    def attempts(self) -> list[Attempt]:
        return sorted(self.rows(Attempt), key=lambda attempt: (attempt.slot_id, attempt.n))

    def slots_of(self, run_id: str) -> list[Path]:
        """Folders of the slots of a run."""
        return [self.state.slot(m["slot"]) for m in self.facts(run_id)["measures_detail"]]

    def the_job(self) -> str:
        [attempt] = [a for a in self.attempts() if a.state == "submitted"]
        return str(attempt.job_id)

    def until_blocked(self, run_id: str) -> None:
        def blocked() -> bool:
            self.cli("tick")
            return self.run(run_id).state == "blocked"

        self.slurm.wait(blocked, 2 * SECONDS, "the block", every=0.3)

    def state_of(self, job: str) -> list[str]:
        return self.slurm.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%T %r").split()

    def start_again(self, job: str) -> None:
        """Slurm holds a requeued job back for minutes; cut that short, but not below cred_expire (test_job.py)."""
        self.slurm.wait(lambda: self.state_of(job)[:1] == ["PENDING"], SECONDS, f"{job} is requeued")
        self.slurm.run("scontrol", "update", f"job={job}", "StartTime=now+6")


@pytest.fixture
def world(tmp_path: Path, database: str, cluster: DevCluster) -> TrainingCluster:
    return TrainingCluster(tmp_path / "w", database, cluster)


def config_of(out: Path, **more: Any) -> str:
    return json.dumps({"out": str(out), "steps": 12, "every": 3, **more})


@pytest.mark.torch
@pytest.mark.slow
def test_ddp_over_two_nodes_survives_preemption_with_the_same_losses(
    world: TrainingCluster, cluster: DevCluster
) -> None:
    pytest.importorskip("torch")
    plan = world.plan("ddp", family="ddp", command=["python"], nodes=2, processes_per_node=1)
    calm, spare = world.out("calm", go=True), world.out("spare", go=False)
    first = world.train(plan, "--lane", "train", command=("python", "train.py", config_of(calm)))
    second = world.train(plan, "--lane", "spare", command=("python", "train.py", config_of(spare)))
    cluster.wait(lambda: (spare / "reached-1").exists() and (spare / "reached-0").exists(), 240, "step 7 of both ranks")
    world.until_ended(first, ticks=True)
    assert world.run(first).verdict == "finished", world.describe()
    job = world.the_job()
    cluster.run("sbatch", "-p", "cpu", "--nodes=4", "--exclusive", "-t", "1", "-o", "/dev/null", "--wrap", "true")
    world.start_again(job)
    (spare / "go").touch()
    world.until_ended(second, ticks=True, seconds=150)
    assert world.run(second).verdict == "finished", world.describe()
    mine = [a for a in world.attempts() if a.job_id == job]
    assert [(a.n, a.outcome) for a in mine] == [(1, "done")], "the same attempt went on"
    for rank in (0, 1):
        assert world.losses(spare, rank) == world.losses(calm, rank)
        assert sorted(world.losses(calm, rank)) == list(range(12))
    shown = world.facts(second)
    report = shown["training"]["reports"]["train"]
    assert report["starts"] == 2 and report["world_size"] == 2 and report["checkpoint"]["count"] >= 1
    assert report["peak_memory_mb"]["rss"] > 0 and report["step_seconds"]["median"] > 0
    assert shown["training"]["lane_losses"]["lost"] >= 1 and shown["training"]["checkpoint_interval"]["seconds"] > 0
    world.check_invariants()


@pytest.mark.torch
@pytest.mark.slow
def test_fsdp2_on_two_ranks_goes_on_after_scancel_with_the_same_losses(
    world: TrainingCluster, cluster: DevCluster
) -> None:
    pytest.importorskip("torch")
    plan = world.plan("fsdp2", family="fsdp2", command=["python"], nodes=1, processes_per_node=2)
    calm, cut = world.out("calm", go=True), world.out("cut", go=False)
    script = ("python", "train.py", config_of(cut, fsdp=True))
    second = world.train(plan, "--lane", "train", command=script)
    # The one that nobody interrupts is a launch line of the researcher's own.
    line = ["torchrun", "--nproc-per-node=2", "train.py", config_of(calm, fsdp=True)]
    own = world.plan("own", family="own_command", command=line, processes_per_node=2)
    first = world.train(own, "--lane", "train")
    cluster.wait(lambda: all((cut / f"reached-{rank}").exists() for rank in (0, 1)), 240, "step 7 of both ranks")
    world.until_ended(first, ticks=True, seconds=240)
    cluster.run("scancel", world.the_job())
    world.until_blocked(second)
    (cut / "go").touch()
    world.cli("retry", second)
    world.until_ended(second, ticks=True, seconds=240)
    for run_id in (first, second):
        assert world.run(run_id).verdict == "finished", world.describe()
    for rank in (0, 1):
        assert sorted(world.losses(calm, rank)) == list(range(12))
        assert world.losses(cut, rank) == world.losses(calm, rank)
    slot = world.slots_of(second)[0]
    manifest = json.loads((slot / "state" / "step-0000000009" / "manifest.json").read_text())
    assert (manifest["format"], manifest["world_size"]) == ("sharded", 2)
    assert world.facts(second)["training"]["reports"]["train"]["starts"] == 2
    world.check_invariants()


# Counts its starts in its checkpoint folder, as a script without torch would: complete only with a manifest.
STEPS = """\
cd "$OUTERLOOP_CKPT_DIR"; n=$(ls -d step-* 2>/dev/null | wc -l); n=$((n + 1)); d=$(printf step-%010d $n)
mkdir "$d"; echo '{}' > "$d/manifest.json"; echo $n >> MARKS
[ $n -ge 3 ] || [ -e MARKS.go ] || exec sleep 600
"""


def plain(world: TrainingCluster) -> str:
    script = STEPS.replace("MARKS", str(world.marks))
    return world.plan("plain", family="local_process", command=["sh", "-c", script])


def started(world: TrainingCluster, times: int) -> Callable[[], bool]:
    return lambda: world.executions() >= times


def test_a_time_limit_is_met_with_continuations_of_the_same_training(world: TrainingCluster) -> None:
    run_id = world.train(plain(world), "--minutes", "0.05")
    world.until_ended(run_id, ticks=True)
    assert world.run(run_id).verdict == "finished", world.describe()
    assert [(a.outcome, a.reason) for a in world.attempts()] == [
        ("continue", "TIMEOUT"),
        ("continue", "TIMEOUT"),
        ("done", ""),
    ]
    world.check_invariants()


def test_a_node_that_goes_down_costs_no_step_that_was_saved(world: TrainingCluster, cluster: DevCluster) -> None:
    run_id = world.train(plain(world))
    cluster.wait(started(world, 1), SECONDS, "the first start")
    job = world.the_job()
    node = cluster.run("squeue", "-h", "-j", job, "-o", "%N").strip()
    cluster.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    try:
        Path(f"{world.marks}.go").touch()
        world.start_again(job)
        world.until_ended(run_id, ticks=True)
    finally:
        # The node may have come back by itself: then there is nothing to resume.
        cluster.run("scontrol", "update", f"nodename={node}", "state=resume", check=False)
    assert world.run(run_id).verdict == "finished", world.describe()
    assert world.marks.read_text().split() == ["1", "2"]
    world.check_invariants()


def test_scancel_by_a_person_blocks_until_retry(world: TrainingCluster, cluster: DevCluster) -> None:
    run_id = world.train(plain(world))
    cluster.wait(started(world, 1), SECONDS, "the first start")
    cluster.run("scancel", world.the_job())
    world.until_blocked(run_id)
    assert world.run(run_id).state_reason == "CANCELLED"
    Path(f"{world.marks}.go").touch()
    world.cli("retry", run_id)
    world.until_ended(run_id, ticks=True)
    assert world.run(run_id).verdict == "finished"
    assert world.marks.read_text().split() == ["1", "2"], "it went on from its checkpoint"
    world.check_invariants()


def tasks(world: TrainingCluster, count: int, doomed: set[int]) -> str:
    # Doomed tasks wait to be killed the first time.
    script = (
        f"echo {{n}} >> {world.marks}; if [ {{doomed}} = true ] && [ ! -e {world.marks}.{{n}} ];"
        f" then touch {world.marks}.{{n}}; exec sleep 600; fi"
    )
    parameters = [{"n": n, "doomed": n in doomed} for n in range(count)]
    return world.plan("tasks", family="lease_tasks", command=["sh", "-c", script], tasks=parameters)


def killed_tasks_alone_are_redone(
    world: TrainingCluster, cluster: DevCluster, count: int, doomed: set[int], seconds: float
) -> None:
    """`doomed` must be fewer than the cluster's CPUs, since they hold theirs until all of them are there."""
    run_id = world.train(tasks(world, count, doomed), "--lane", "train")
    [first] = world.rows(Array)
    assert world.submissions() == [first.name], "one request for all tasks"
    cluster.wait(
        lambda: all(Path(f"{world.marks}.{n}").exists() for n in doomed), seconds, f"{len(doomed)} tasks that wait"
    )
    shown = world.facts(run_id)["measures_detail"]
    slots = {m["role"]: world.state.slot(m["slot"]) for m in shown}
    for n in doomed:
        # The wrapper dies without a word, as when a node that runs out of memory kills it.
        claim = json.loads((slots[f"task-{n:04d}"] / "attempts" / "1" / "claim.json").read_text())
        os.kill(claim["pid"], signal.SIGKILL)
    world.until_ended(run_id, ticks=True, seconds=seconds)
    assert world.run(run_id).sentence == f"all {count} tasks finished", world.describe()
    ran: dict[int, int] = {}
    for line in world.marks.read_text().split():
        ran[int(line)] = ran.get(int(line), 0) + 1
    assert ran == {n: 2 if n in doomed else 1 for n in range(count)}
    arrays = {row.id: row for row in world.rows(Array)}
    assert arrays[first.id].count == count
    # What was redone went out together too, as far as it was found lost together; never one job for each.
    again = [a for a in world.attempts() if a.n == 2]
    assert len(again) == len(doomed) and {a.n for a in world.attempts()} == {1, 2}
    assert len(world.submissions()) - 1 <= max(1, len(doomed) // 2), world.submissions()
    world.check_invariants()


def test_of_sixty_tasks_only_the_killed_ones_are_redone(world: TrainingCluster, cluster: DevCluster) -> None:
    killed_tasks_alone_are_redone(world, cluster, 60, set(range(3, 60, 7)), 240)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not os.environ.get("OUTERLOOP_NIGHTLY"), reason="minutes: set OUTERLOOP_NIGHTLY")
def test_of_five_hundred_tasks_only_the_killed_ones_are_redone(world: TrainingCluster, cluster: DevCluster) -> None:
    world.patience = 900
    killed_tasks_alone_are_redone(world, cluster, 500, set(range(3, 500, 14)), 1200)

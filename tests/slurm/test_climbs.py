"""Climbs on a real Slurm through the command line: wakes alone, ticks alone, both at once, outages, hostile code."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.postgres.conftest import database, pg_url, template_database
from tests.slurm.cluster import DevCluster
from tests.slurm.world import SlurmWorld

__all__ = ["database", "pg_url", "template_database"]

pytestmark = pytest.mark.slurm


@pytest.fixture
def world_of(tmp_path: Path, database: str, cluster: DevCluster) -> Callable[..., SlurmWorld]:
    return lambda **options: SlurmWorld(tmp_path / "w", database, cluster, **options)


def test_wake_jobs_alone_reach_every_verdict(world_of: Callable[..., SlurmWorld]) -> None:
    world = world_of()
    runs = {name: world.ask(name) for name in ("better", "same", "bigger")}
    world.until_ended(*runs.values())
    assert world.verdicts() == {
        "better": ("accepted", ""),
        "same": ("rejected", "no-improvement"),
        "bigger": ("rejected", "suite-regression"),
    }
    world.check_once()


def test_ticks_alone_reach_the_verdict_when_every_wake_is_cancelled_by_hand(
    world_of: Callable[..., SlurmWorld], cluster: DevCluster
) -> None:
    world = world_of()
    run_id = world.ask("bigger")
    cancelled = 0
    deadline = time.monotonic() + 120
    while not world.ended(run_id):
        for job_id, name, state, _reason in world.queue():
            if name.startswith(f"ol-{world.settings.deployment}-wake") and state in {"PENDING", "RUNNING"}:
                cluster.run("scancel", job_id, check=False)
                cancelled += 1
        world.cli("tick")
        assert time.monotonic() < deadline, world.describe()
    assert cancelled > 0
    assert world.run(run_id).verdict_reason == "suite-regression"
    world.check_once()


def test_submits_wakes_and_ticks_at_once_give_one_job_per_attempt_and_one_verdict(
    world_of: Callable[..., SlurmWorld],
) -> None:
    world = world_of()
    arguments = ("submit", "climb", "speed", "--base", "main", "--candidate", "bigger", "--json")
    first = [world.command(*arguments) for _ in range(4)]
    first += [world.command("tick", "--json") for _ in range(2)]
    answers = [process.communicate(timeout=120)[0] for process in first]
    runs = {json.loads(out)["run"] for out in answers[:4]}
    assert len(runs) == 1, answers
    run_id = runs.pop()
    for _ in range(6):
        storm = [world.command("wake", run_id) for _ in range(2)] + [world.command("tick")]
        for process in storm:
            _out, err = process.communicate(timeout=120)
            assert process.returncode == 0, err
        if world.ended(run_id):
            break
    world.until_ended(run_id, ticks=True)
    assert world.run(run_id).verdict_reason == "suite-regression"
    assert world.executions() == 4
    world.check_once()


def test_a_stopped_controller_costs_nothing_but_time(world_of: Callable[..., SlurmWorld], cluster: DevCluster) -> None:
    world = world_of(wakes="never")
    run_id = world.ask("better")
    before = world.snapshot()
    cluster.stop_controller()
    try:
        told = world.cli("tick", codes=(5,))
        assert "did not answer" in told.stderr and "Traceback" not in told.stderr
        answered = world.cli("submit", "climb", "speed", "--base", "main", "--candidate", "same", "--json")
        other = str(json.loads(answered.stdout)["run"])
        assert world.snapshot()["attempts"][: len(before["attempts"])] is not None
        assert world.run(run_id).state == "waiting" and world.run(other).state in {"waiting", "queued"}
    finally:
        cluster.start_controller()
    world.until_ended(run_id, other, ticks=True)
    assert world.verdicts() == {"better": ("accepted", ""), "same": ("rejected", "no-improvement")}
    world.check_once()


def test_a_submission_that_hangs_is_found_again_and_not_repeated(
    world_of: Callable[..., SlurmWorld], cluster: DevCluster
) -> None:
    """sbatch gives up while the controller is suspended; the controller takes the job when it goes on."""
    world = world_of(wakes="never")
    with cluster.paused():
        done = world.cli("submit", "climb", "speed", "--base", "main", "--candidate", "better", "--json")
        run_id = str(json.loads(done.stdout)["run"])
        assert "no answer" in done.stderr
    world.until_ended(run_id, ticks=True)
    assert world.run(run_id).verdict == "accepted"
    assert world.executions() == 2
    world.check_once()


HOSTILE = {
    "nan": ('printf \'{"cost": NaN, "bytes": 1}\\n\'; exit 0', "NO_METRIC"),
    "true": ('printf \'{"cost": true, "bytes": 1}\\n\'; exit 0', "NO_METRIC"),
    "huge": ("printf '{\"cost\": 1'; head -c 400 /dev/zero | tr '\\\\0' 0; echo '}'; exit 0", "NO_METRIC"),
    "nested": ("head -c 300000 /dev/zero | tr '\\\\0' '['; exit 0", "NO_METRIC"),
    "silent": ("exit 0", "NO_METRIC"),
    "crash": ("exit 3", "EXIT_3"),
}


def test_hostile_candidates_get_their_verdict_and_harm_no_other_run(world_of: Callable[..., SlurmWorld]) -> None:
    world = world_of()
    bench = (world.repo / "bench.sh").read_text()
    # The candidate's own code runs in the same shell as the benchmark: the worst case.
    (world.repo / "bench.sh").write_text(bench.replace("sh src/extra || exit $?", ". src/extra"))
    world.git("commit", "-qam", "source the candidate")
    for name, (code, _reason) in HOSTILE.items():
        world.branch(name, cost="1", extra=code.replace("\\\\", "\\") + "\n")
    # Better than the daemon too: whichever becomes champion first, this one is accepted.
    world.branch("good", cost="7")
    daemon = "( trap '' TERM HUP; while :; do echo noise; sleep 1; done ) &\n"
    world.branch("daemon", cost="8", extra=daemon)
    runs = {name: world.ask(name) for name in (*HOSTILE, "daemon", "good")}
    world.until_ended(*runs.values(), seconds=240)
    for name, (_code, reason) in HOSTILE.items():
        run = world.run(runs[name])
        assert (run.verdict, run.verdict_reason) == ("failed", "candidate-error"), (name, run.sentence)
        assert reason in str(run.sentence), (name, run.sentence)
    # The daemon's line after the metric is no metric; what was printed before it counts only if it is the last.
    assert world.run(runs["daemon"]).state == "ended"
    assert world.run(runs["good"]).verdict == "accepted"
    assert not [p for p in Path("/proc").glob("[0-9]*/cmdline") if b"echo noise" in _read(p)]
    world.check_once()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_measured_command_sees_nothing_of_the_submitter(world_of: Callable[..., SlurmWorld], tmp_path: Path) -> None:
    world = world_of()
    seen = tmp_path / "seen"
    world.branch("looker", cost="8", extra=f"env > {seen}.$(cat src/cost)\n")
    secrets = {
        "SLURM_CPU_BIND": "quiet,mask_cpu:0x1",
        "SLURM_CPUS_PER_TASK": "1",
        "SBATCH_PARTITION": "gpu",
        "AWS_SECRET_ACCESS_KEY": "hidden-1",
        "HF_TOKEN": "hidden-2",
        "PGPASSWORD": "hidden-3",
        "DATABASE_URL": "postgresql://hidden-4",
    }
    run_id = world.ask("looker", **secrets)
    world.until_ended(run_id)
    assert world.run(run_id).verdict == "accepted"
    environment = Path(f"{seen}.8").read_text()
    names = [line.split("=")[0] for line in environment.splitlines()]
    assert not [n for n in names if n.startswith(("SLURM", "SBATCH", "SRUN", "PMI"))], names
    assert "hidden" not in environment and "postgresql" not in environment
    assert "BENCH_SEED" in names


@pytest.mark.skipif(not Path("/usr/bin/bwrap").exists(), reason="bubblewrap is not installed")
def test_in_a_sandbox_the_candidate_reaches_nothing(world_of: Callable[..., SlurmWorld], tmp_path: Path) -> None:
    world = world_of(isolation="bwrap")
    # In the sandbox the rig's mark file cannot be written either; what the candidate could see it prints itself.
    bench = (world.repo / "bench.sh").read_text().splitlines()
    (world.repo / "bench.sh").write_text("\n".join(bench[1:]) + "\n")
    world.git("commit", "-qam", "no marks")
    probes = (
        f"ls {world.state.path} >&2 && echo SEES-STATE >&2\n"
        f"touch {world.state.path}/x && echo WRITES-STATE >&2\n"
        f"ls {world.repo}/.git >&2 && echo SEES-REPO >&2\n"
        f"ls {world.slurm.folder} >&2 && echo SEES-MUNGE >&2\n"
        'test "$(ls -d /proc/[0-9]* | wc -l)" -gt 20 && echo SEES-PROCESSES >&2\n'
        "(exec 3<>/dev/tcp/127.0.0.1/22) 2>/dev/null && echo SEES-NETWORK >&2\n"
        "ls /sys/class/net | grep -v lo && echo SEES-DEVICES >&2\n"
        "exit 0\n"
    )
    world.branch("spy", cost="8", extra=probes)
    run_id = world.ask("spy")
    world.until_ended(run_id)
    run = world.run(run_id)
    assert run.verdict == "accepted", run.sentence
    errors = world.cli("logs", run_id, "candidate", "--stderr").stdout
    assert "SEES" not in errors and "WRITES" not in errors, errors
    assert not (world.state.path / "x").exists()

"""At most one execution of an attempt: claims by link, restarts, losers that touch nothing."""

from __future__ import annotations

import json
import os
import signal
import socket

from outerloop.job import layout
from tests.unit.job.rig import Rig, Slot, until

COUNTING = 'echo run >> "$COUNT"; echo "m 1"'


def counted(rig: Rig, **options: dict[str, object]) -> Slot:
    determinants = {"env": {"COUNT": str(rig.root / "count")}, **options.pop("determinants", {})}
    return rig.slot(COUNTING, determinants=determinants, **options)


def runs(rig: Rig) -> int:
    path = rig.root / "count"
    return len(path.read_text().split()) if path.exists() else 0


def test_row_20_the_claim_says_who_and_what_hardware(rig: Rig) -> None:
    slot = counted(rig)
    assert slot.run(env={"SLURMD_NODENAME": "n7", "CUDA_VISIBLE_DEVICES": "0,3"}) == 0
    claim, result = slot.claim(), slot.result()
    assert claim["digest"] == slot.digest == result["digest"]
    assert (claim["attempt"], claim["job_id"], claim["restart"]) == (1, "900123", 0)
    assert (claim["node"], claim["host"]) == ("n7", socket.gethostname())
    assert claim["cpus_seen"] == len(os.sched_getaffinity(0)) == result["cpus_seen"]
    assert claim["gpus_seen"] == ["0", "3"] == result["gpus_seen"]
    assert claim["pid"] > 1 and claim["pid_start"] > 1
    assert (result["job_id"], result["restart"]) == ("900123", 0)
    assert not list(slot.attempt().glob(".*")), "temporary files were left"


def test_array_tasks_and_local_jobs_have_ids_of_their_own(rig: Rig) -> None:
    slot = counted(rig)
    slot.order(2)
    slot.run(1, {"SLURM_ARRAY_JOB_ID": "900200", "SLURM_ARRAY_TASK_ID": "4", "SLURM_JOB_ID": "900204"})
    slot.run(2, {"OUTERLOOP_LOCAL_JOB_ID": "local-7", "SLURM_JOB_ID": "1", "SLURM_RESTART_COUNT": "3"})
    assert slot.claim(1)["job_id"] == "900200_4"
    assert (slot.claim(2)["job_id"], slot.claim(2)["restart"]) == ("local-7", 0)


def test_a_second_job_exits_95_and_touches_nothing(rig: Rig) -> None:
    slot = counted(rig)
    assert slot.run() == 0
    before = slot.snapshot()
    assert slot.run(env={"SLURM_JOB_ID": "900124"}) == layout.EXIT_NOT_CLAIMANT
    assert "900123" in slot.said
    assert slot.run(env={"SLURM_JOB_ID": "900123"}) == layout.EXIT_NOT_CLAIMANT
    assert slot.snapshot() == before
    assert runs(rig) == 1


def test_of_many_claimants_at_once_one_runs(rig: Rig) -> None:
    for _ in range(3):
        slot = counted(rig)
        before = runs(rig)
        jobs = [slot.start(env={"SLURM_JOB_ID": str(900000 + number)}) for number in range(6)]
        for job in jobs:
            job.communicate(timeout=60)
        codes = sorted(job.returncode for job in jobs)
        assert codes == [0] + [layout.EXIT_NOT_CLAIMANT] * 5
        assert runs(rig) == before + 1
        assert slot.result()["job_id"] == slot.claim()["job_id"]
        assert not list(slot.attempt().glob(".*"))


def test_row_67_a_restart_that_cannot_resume_exits_99_and_old_files_stay(rig: Rig) -> None:
    slot = counted(rig)
    wrapper = start_and_kill(slot)
    assert wrapper == -signal.SIGKILL
    before = slot.snapshot()
    assert slot.run(env={"SLURM_RESTART_COUNT": "1"}) == layout.EXIT_RESTARTED
    assert slot.snapshot() == before
    assert runs(rig) == 1


def start_and_kill(slot: Slot, restart: str = "") -> int:
    job = slot.start(env={"SLURM_RESTART_COUNT": restart, "OUTERLOOP_TEST": "1"})
    until(lambda: runs(slot.rig), "the command ran")
    job.kill()
    job.communicate(timeout=60)
    return job.returncode


RESUMING = """
echo run >> "$COUNT"
n=$(cat "$OUTERLOOP_CKPT_DIR/step" 2>/dev/null || echo 0)
echo $((n + 1)) > "$OUTERLOOP_CKPT_DIR/step"
echo "metrics $n" > "$OUTERLOOP_OUTPUT_DIR/metrics.txt"
[ "$n" -ge 1 ] || sleep 600
echo "m $n"
"""


def test_a_restart_that_can_resume_takes_over_and_goes_on(rig: Rig) -> None:
    env = {"COUNT": str(rig.root / "count")}
    slot = rig.slot(RESUMING, determinants={"env": env, "outputs": ["metrics.txt"]}, work={"resumable": True})
    job = slot.start()
    until(lambda: (slot.attempt() / "r0" / "out" / "metrics.txt").exists(), "live metrics are visible")
    job.kill()
    job.communicate(timeout=60)
    assert slot.run(env={"SLURM_JOB_ID": "900999", "SLURM_RESTART_COUNT": "1"}) == layout.EXIT_NOT_CLAIMANT
    assert slot.run(env={"SLURM_RESTART_COUNT": "1"}) == 0
    assert slot.claim()["restart"] == slot.result()["restart"] == 1
    assert slot.result()["metric"]["text"] == "1"
    assert (slot.path / "state" / "step").read_text() == "2\n"
    assert (slot.attempt() / "r0" / "out" / "metrics.txt").read_text() == "metrics 0\n"
    assert (slot.attempt() / "r1" / "out" / "metrics.txt").read_text() == "metrics 1\n"
    assert slot.run(env={"SLURM_RESTART_COUNT": "1"}) == layout.EXIT_NOT_CLAIMANT
    assert slot.run() == layout.EXIT_NOT_CLAIMANT


def test_row_66_a_settled_attempt_is_neither_begun_nor_gone_on_with(rig: Rig) -> None:
    """Believed lost or held, its job comes to run all the same, or Slurm restarts it: another attempt has its place."""
    slot = counted(rig)
    (slot.attempt() / layout.SETTLED).write_text("{}")
    before = slot.snapshot()
    assert slot.run() == layout.EXIT_NOT_CLAIMANT and "settled" in slot.said
    assert slot.snapshot() == before and runs(rig) == 0
    resumable = rig.slot(RESUMING, determinants={"env": {"COUNT": str(rig.root / "count")}}, work={"resumable": True})
    job = resumable.start()
    until(lambda: (resumable.path / "state" / "step").exists(), "it has a checkpoint")
    job.kill()
    job.communicate(timeout=60)
    (resumable.attempt() / layout.SETTLED).write_text("{}")
    before = resumable.snapshot()
    assert resumable.run(env={"SLURM_RESTART_COUNT": "1"}) == layout.EXIT_NOT_CLAIMANT
    assert resumable.snapshot() == before and runs(rig) == 1


def test_a_zombie_of_an_earlier_start_writes_no_result_over_a_later_one(rig: Rig) -> None:
    """A frozen first start wakes up after its restart took over."""
    command = 'echo run >> "$COUNT"; while [ ! -e "$GO" ]; do sleep 0.02; done; echo "m $(wc -l < "$COUNT")"'
    env = {"COUNT": str(rig.root / "count"), "GO": str(rig.root / "go")}
    slot = rig.slot(command, determinants={"env": env}, work={"resumable": True})
    first = slot.start()
    until(lambda: runs(rig) == 1, "the first start runs")
    os.kill(first.pid, signal.SIGSTOP)
    second = slot.start(env={"SLURM_RESTART_COUNT": "1"})
    until(lambda: runs(rig) == 2, "the restart runs")
    os.kill(first.pid, signal.SIGCONT)
    (rig.root / "go").touch()
    first.communicate(timeout=60)
    second.communicate(timeout=60)
    assert (first.returncode, second.returncode) == (layout.EXIT_NOT_CLAIMANT, 0)
    assert slot.result()["restart"] == slot.claim()["restart"] == 1


def test_a_claim_over_ours_by_an_earlier_start_is_put_right(rig: Rig) -> None:
    slot = rig.slot('while [ ! -e "$GO" ]; do sleep 0.02; done; echo m 1', work={"resumable": True},
                    determinants={"env": {"GO": str(rig.root / "go")}})  # fmt: skip
    path = slot.attempt() / layout.CLAIM
    path.write_text(json.dumps({"job_id": "900123", "restart": 0}))
    job = slot.start(env={"SLURM_RESTART_COUNT": "2"})
    until(lambda: slot.claim()["restart"] == 2, "it took over")
    path.write_text(json.dumps({"job_id": "900123", "restart": 1}))
    (rig.root / "go").touch()
    job.communicate(timeout=60)
    assert job.returncode == 0
    assert slot.claim()["restart"] == slot.result()["restart"] == 2


def test_without_a_job_id_or_a_slot_nothing_is_touched(rig: Rig) -> None:
    slot = counted(rig)
    before = slot.snapshot()
    env = {"SLURM_JOB_ID": ""}
    assert slot.run(env=env) == layout.EXIT_SPEC
    assert "no job id" in slot.said
    assert slot.run(9) == layout.EXIT_SPEC
    assert "no attempt 9" in slot.said
    assert slot.snapshot() == before
    assert "Traceback" not in slot.said

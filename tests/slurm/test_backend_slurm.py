"""Attacks the Slurm backend on a real cluster: outages, refusals, holds, dependencies, arrays, foreign jobs.

What every backend promises is in test_backend_contract.py; what no cluster does on demand is attacked with a fake in
tests/unit/compute/test_slurm_fake.py.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from outerloop.compute.protocol import (
    Accepted,
    JobState,
    Lane,
    NoAnswer,
    Refused,
    SiteLimits,
    Unavailable,
    Unknown,
    When,
)
from outerloop.compute.reasons import Clears, pending_reason
from outerloop.compute.slurm import SlurmCli
from outerloop.compute.walltime import parse_walltime
from outerloop.dispatch.observe import Observation
from tests.slurm.cluster import DevCluster
from tests.unit.compute.contract import Bench

pytestmark = pytest.mark.slurm


@pytest.fixture
def bench(cluster: DevCluster, tmp_path: Path) -> Iterator[Bench]:
    yield Bench(SlurmCli(bin_dir=cluster.bin, slurm_conf=cluster.slurm_conf), tmp_path)
    cluster.resume()
    cluster.cancel_all()


# ------------------------------------------------------------------------------------------------ outages


def test_row_01_a_submit_that_timed_out_is_unknown_and_the_job_that_it_made_is_found_by_name(
    cluster: DevCluster, bench: Bench
) -> None:
    job = bench.job("ol-d1-ghost-0123456789abcdef-1", "sleep 600")
    with cluster.paused():
        outcome = bench.compute.submit(job)
    assert isinstance(outcome, Unknown) and "timed out" in outcome.why
    bench.until(lambda: bench.listing().by_name().get(job.name), "the job that sbatch knows nothing of")
    assert len(bench.listing().by_name()[job.name]) == 1


def test_row_02_our_own_deadline_does_not_undo_a_request_either(cluster: DevCluster, bench: Bench) -> None:
    hasty = SlurmCli(bin_dir=cluster.bin, submit_timeout=0.7)
    job = bench.job("ol-d1-hasty-0123456789abcdef-1", "sleep 600")
    with cluster.paused():
        outcome = hasty.submit(job)
    assert isinstance(outcome, Unknown) and "no answer within" in outcome.why
    bench.until(lambda: len(bench.listing().by_name().get(job.name, [])) == 1, "the job to be listed")


def test_row_43_a_suspended_controller_gives_no_answer_about_anything(cluster: DevCluster, bench: Bench) -> None:
    hasty = SlurmCli(bin_dir=cluster.bin, query_timeout=0.5)
    job_id = bench.submit(bench.job("alive", "sleep 600"))
    with cluster.paused():
        assert isinstance(hasty.listing(), NoAnswer)
        assert isinstance(hasty.limits(), NoAnswer)
        assert isinstance(hasty.cancel([job_id]), NoAnswer)
    bench.until_state(job_id, JobState.RUNNING, JobState.PENDING, JobState.CANCELLED)


def test_row_43_a_stopped_controller_refuses_for_now_and_its_jobs_are_not_gone(
    cluster: DevCluster, bench: Bench
) -> None:
    job_id = bench.submit(bench.job("alive", "sleep 600"))
    bench.until_state(job_id, JobState.RUNNING)
    cluster.stop_controller()
    try:
        outcome = bench.compute.submit(bench.job("refused", "exit 0"))
        assert isinstance(outcome, Refused) and (outcome.reason, outcome.when) == ("ControllerDown", When.LATER)
        answer = bench.compute.listing()
        assert isinstance(answer, NoAnswer) and "contact" in answer.why
        assert isinstance(bench.compute.cancel([job_id]), NoAnswer)
        assert isinstance(bench.compute.limits(), NoAnswer)
    finally:
        cluster.start_controller()
    bench.until_state(job_id, JobState.RUNNING)
    assert "refused" not in bench.listing().by_name()


def test_row_51_accounting_that_does_not_answer_is_no_answer_and_not_unavailable(
    cluster: DevCluster, bench: Bench
) -> None:
    job_id = bench.submit(bench.job("unaccounted", "exit 0"))
    bench.until_state(job_id, JobState.COMPLETED)
    hasty = SlurmCli(bin_dir=cluster.bin, query_timeout=0.7)
    database = int((cluster.folder / "run" / "slurmdbd.pid").read_text())
    os.kill(database, signal.SIGSTOP)
    try:
        assert isinstance(hasty.history(bench.began, [job_id], []), NoAnswer)
    finally:
        os.kill(database, signal.SIGCONT)
    bench.until(lambda: job_id in bench.history([job_id]), "accounting to know the job")


def test_row_50_without_accounting_the_history_is_unavailable_and_the_queue_does(
    slurm_installed: None, cluster_root: Path, tmp_path: Path
) -> None:
    with DevCluster(cluster_root / "noacct", nodes=1, gpu_nodes=0, message_timeout=3) as plain:
        bench = Bench(SlurmCli(bin_dir=plain.bin), tmp_path)
        job_id = bench.submit(bench.job("plain", "exit 0"))
        bench.until_state(job_id, JobState.COMPLETED)
        for _ in range(2):
            assert isinstance(bench.compute.history(bench.began, [job_id], []), Unavailable)
        limits = bench.compute.limits()
        assert isinstance(limits, SiteLimits) and limits.accounting is False


# ----------------------------------------------------------------------------------------------- refusals


def test_a_refusal_for_resources_leaves_a_record_that_can_be_told_from_a_job(bench: Bench) -> None:
    job = bench.job("shadow", "exit 0", gpus=99, lane=Lane("gpu", partition="gpu"))
    outcome = bench.compute.submit(job)
    assert isinstance(outcome, Refused) and (outcome.reason, outcome.when) == ("BadConstraints", When.NEVER)
    (row,) = bench.listing().by_name()["shadow"]
    assert (row.state, row.reason) == (JobState.FAILED, "BadConstraints")


@pytest.mark.parametrize(
    ("lane", "reason", "when"),
    [
        (Lane("x", partition="nowhere"), "InvalidPartition", When.NEVER),
        (Lane("x", reservation="nothing"), "InvalidReservation", When.NEVER),
        (Lane("x", extra=("--gres=gpux:1",)), "EXTRA_OPTION", When.CONFIG),
        (Lane("x", extra=("--no-such-option",)), "OptionError", When.CONFIG),
        (Lane("x", extra=("--constraint=moon",)), "BadConstraints", When.NEVER),
    ],
)
def test_refusals_of_a_real_controller_are_classified(bench: Bench, lane: Lane, reason: str, when: When) -> None:
    outcome = bench.compute.submit(bench.job("refused", "exit 0", lane=lane))
    assert isinstance(outcome, Refused), outcome
    assert (outcome.reason, outcome.when) == (reason, when), outcome.detail


def test_row_12_a_script_that_a_real_controller_finds_too_large(cluster: DevCluster, bench: Bench) -> None:
    job = bench.job("large", "exit 0")
    job.script.write_bytes(b"#!/bin/sh\n" + b"#" * (5 << 20))
    careless = SlurmCli(bin_dir=cluster.bin, max_script_bytes=1 << 30)
    for backend in (bench.compute, careless):
        outcome = backend.submit(job)
        assert isinstance(outcome, Refused) and (outcome.reason, outcome.when) == ("SCRIPT_TOO_LARGE", When.NEVER)


def test_row_28_more_time_than_the_partition_grants_pends_for_a_reason_that_never_clears(bench: Bench) -> None:
    job_id = bench.submit(bench.job("long", "exit 0", minutes=120, lane=Lane("short", partition="short")))
    bench.until(lambda: (row := bench.row(job_id)) and row.reason == "PartitionTimeLimit", "the reason")
    assert pending_reason("PartitionTimeLimit").clears is Clears.NEVER
    limits = bench.compute.limits()
    assert isinstance(limits, SiteLimits)
    assert parse_walltime(limits.partitions["short"]["MaxTime"]) == 30 * 60
    assert parse_walltime(limits.partitions["cpu"]["MaxTime"]) is None


def test_the_limits_of_the_site_are_read(bench: Bench) -> None:
    limits = bench.compute.limits()
    assert isinstance(limits, SiteLimits)
    assert (limits.cluster, limits.max_array_size, limits.message_timeout_seconds) == ("lab", 10001, 3)
    assert (limits.kill_wait_seconds, limits.preempt_mode, limits.accounting) == (2, "REQUEUE", True)
    assert limits.version[0].isdigit() and set(limits.partitions) == {"cpu", "gpu", "preempt", "short"}


# ------------------------------------------------------------------------------------ holds, deps, arrays


def test_row_62_a_held_job_is_not_waiting(bench: Bench) -> None:
    job_id = bench.submit(bench.job("held", "exit 0", lane=Lane("held", extra=("--hold",))))
    bench.until(lambda: (row := bench.row(job_id)) and row.reason == "JobHeldUser", "the reason")
    assert pending_reason("JobHeldUser").held


def test_row_32_a_dependency_that_is_never_satisfied_shows(cluster: DevCluster, bench: Bench) -> None:
    failed = bench.submit(bench.job("failed", "sleep 1; exit 1"))
    waiter = cluster.run(
        "sbatch", "--parsable", "-o", "/dev/null", f"--dependency=afterok:{failed}", "--wrap", "true"
    ).strip()
    bench.until(lambda: (row := bench.row(waiter)) and row.reason == "DependencyNeverSatisfied", "the reason")
    assert bench.state(waiter) is JobState.PENDING
    assert pending_reason("DependencyNeverSatisfied").clears is Clears.NEVER


def test_an_array_is_listed_task_by_task_pending_ones_too(cluster: DevCluster, bench: Bench) -> None:
    array = cluster.run(
        "sbatch", "--parsable", "-o", "/dev/null", "-J", "array", "--array=0-70:2%2", "--wrap", "sleep 600"
    ).strip()
    expected = {f"{array}_{task}" for task in range(0, 71, 2)}
    bench.until(lambda: expected <= set(bench.listing().by_id()), "every task to be listed")
    bench.until(lambda: bench.state(f"{array}_2") is JobState.RUNNING, "two tasks to run")
    assert bench.state(f"{array}_70") is JobState.PENDING
    waiter = bench.submit(bench.job("waiter", "exit 0", after=(f"{array}_2",)))
    assert bench.compute.cancel([f"{array}_0", f"{array}_2"]) is None
    bench.until_state(f"{array}_2", JobState.CANCELLED)
    bench.until_state(waiter, JobState.COMPLETED)
    assert bench.state(f"{array}_70") is JobState.PENDING
    bench.until(lambda: f"{array}_2" in bench.history([array]), "the history to know the task by the array's id")


def test_a_thousand_ids_fit_into_one_dependency_and_one_cancel(cluster: DevCluster, bench: Bench) -> None:
    array = cluster.run("sbatch", "--parsable", "-o", "/dev/null", "--hold", "--array=0-699", "--wrap", "true").strip()
    ids = tuple(f"{array}_{task}" for task in range(700))
    waiter = bench.submit(bench.job("waiter", "exit 0", after=ids))
    assert bench.compute.cancel(ids) is None
    bench.until_state(waiter, JobState.COMPLETED)


# --------------------------------------------------------------------------------- the world around a job


def test_row_15_a_job_submitted_from_inside_a_job_gets_what_it_asks_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = {
        "SLURM_JOB_ID": "1",
        "SLURM_CPU_BIND": "quiet,mask_cpu:0x1",
        "SLURM_CPUS_PER_TASK": "1",
        "SLURM_MEM_PER_CPU": "1",
        "SBATCH_PARTITION": "nowhere",
        "SBATCH_EXPORT": "NONE",
        "SBATCH_ARRAY_INX": "0-3",
        "SLURM_GPUS_PER_NODE": "1",
        "SQUEUE_FORMAT": "%j",
        "SACCT_FORMAT": "JobID",
        "SQUEUE_STATES": "PENDING",
        "SLURM_TIME_FORMAT": "relative",
        "TZ": "Asia/Kolkata",
    }
    for name, value in hostile.items():
        monkeypatch.setenv(name, value)
    time.tzset()
    try:
        job = bench.job("inner", "echo $SLURM_CPUS_PER_TASK $SLURM_JOB_PARTITION", cpus=3, memory_mb=100)
        job_id = bench.submit(job)
        row = bench.until_state(job_id, JobState.COMPLETED)
        bench.until(lambda: job.log.read_text(), "the log")
        assert job.log.read_text() == "3 cpu\n"
        assert row.submitted is not None and abs(row.submitted - time.time()) < 60
        bench.until(lambda: job_id in bench.history([job_id]), "the history")
        assert bench.history([job_id])[job_id].submitted == row.submitted
    finally:
        monkeypatch.undo()
        time.tzset()


def test_row_25_foreign_jobs_with_odd_names_neither_hide_nor_break_ours(cluster: DevCluster, bench: Bench) -> None:
    odd = {"pipe": "ol|weird|RUNNING", "percent": "%i %j", "wide": "名前 é", "empty": " "}
    ids = {
        kind: cluster.run("sbatch", "--parsable", "-o", "/dev/null", "--hold", "-J", name, "--wrap", "true").strip()
        for kind, name in odd.items()
    }
    ours = bench.submit(bench.job("ours", "sleep 600"))
    listing = bench.listing().by_id()
    assert listing[ids["pipe"]].name == odd["pipe"] and listing[ids["wide"]].name == odd["wide"]
    assert listing[ours].name == "ours"


def test_row_25_a_name_with_a_newline_hides_nobody(cluster: DevCluster, bench: Bench) -> None:
    broken = cluster.run(
        "sbatch", "--parsable", "-o", "/dev/null", "--hold", "-J", "two\nlines", "--wrap", "true"
    ).strip()
    ours = bench.submit(bench.job("ours", "sleep 600"))
    listing = bench.listing().by_id()
    assert (listing[broken].name, listing[ours].name) == ("two\nlines", "ours")


def test_a_log_folder_that_does_not_exist_is_made_before_the_submit(bench: Bench) -> None:
    job = bench.job("deep", "echo here", log=bench.folder / "a" / "b" / "c.log")
    bench.until_state(bench.submit(job), JobState.COMPLETED)
    bench.until(lambda: job.log.exists() and job.log.read_text() == "here\n", "the log")


def test_row_64_a_preempted_job_that_runs_again_stays_one_job(cluster: DevCluster, bench: Bench) -> None:
    runs = bench.folder / "runs"
    victim = bench.submit(
        bench.job(
            "victim",
            f"echo ${{SLURM_RESTART_COUNT:-0}} >> {runs}; sleep 600",
            cpus=16,
            nodes=4,
            requeue=True,
            lane=Lane("p", partition="preempt"),
        )
    )
    bench.until_state(victim, JobState.RUNNING)
    bench.until(runs.exists, "its first run")
    urgent = bench.submit(bench.job("urgent", "sleep 1", cpus=16, nodes=4))
    bench.until_state(urgent, JobState.COMPLETED)
    bench.until(lambda: runs.read_text().split() == ["0", "1"], "its second run")
    rows = bench.listing().by_name()["victim"]
    assert [row.job_id for row in rows] == [victim] and not rows[0].state.final


def test_row_66_without_requeue_a_preempted_job_is_preempted_and_final(bench: Bench) -> None:
    job = bench.job("victim", "sleep 600", cpus=16, nodes=4, lane=Lane("p", partition="preempt"))
    victim = bench.submit(job)
    bench.until_state(victim, JobState.RUNNING)
    urgent = bench.submit(bench.job("urgent", "sleep 600", cpus=16, nodes=4))
    bench.until_state(victim, JobState.PREEMPTED)
    assert bench.compute.cancel([urgent]) is None
    again = bench.compute.submit(replace(job, name="again", exclude=("n1",), nodes=1))
    assert isinstance(again, Accepted)
    assert bench.until_state(again.job_id, JobState.RUNNING).node not in ("", "n1")


def test_row_80_who_cancelled_a_job_that_the_queue_still_lists_is_told_by_accounting(
    cluster: DevCluster, bench: Bench
) -> None:
    job_id = bench.submit(bench.job("ol-d1-cut-0123456789abcdef-1", "sleep 600"))
    bench.until_state(job_id, JobState.RUNNING)
    cluster.run("scancel", job_id)
    bench.until_state(job_id, JobState.CANCELLED)

    def asked() -> Observation:
        seen = Observation(datetime.fromtimestamp(bench.began, UTC), bench.listing(), bench.compute)
        assert seen.job(job_id, "ol-d1-cut-0123456789abcdef-1").canceller_open, "the listing does not say by whom"
        seen.ask_history(datetime.fromtimestamp(bench.began, UTC), [job_id], [])
        return seen

    bench.until(
        lambda: (row := asked().job(job_id, "ol-d1-cut-0123456789abcdef-1").row) and row.cancelled_by, "accounting"
    )
    sighting = asked().job(job_id, "ol-d1-cut-0123456789abcdef-1")
    assert sighting.listed and not sighting.canceller_open and sighting.row is not None
    assert sighting.row.cancelled_by == str(os.getuid())


def test_row_65_a_partitions_own_preemption_counts(cluster: DevCluster, bench: Bench) -> None:
    def cancels(partition: str) -> bool:
        return Observation(datetime.now(UTC), bench.listing(), bench.compute).preemption_cancels(partition)

    assert not cancels("preempt") and not cancels("")
    cluster.run("scontrol", "update", "PartitionName=preempt", "PreemptMode=CANCEL")
    try:
        assert cancels("preempt") and not cancels("cpu") and not cancels("preempt,cpu")
    finally:
        cluster.run("scontrol", "update", "PartitionName=preempt", "PreemptMode=REQUEUE")

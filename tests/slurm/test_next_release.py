"""Attacks the command-line backend on the next Slurm release, beside the one that is installed here.

`.ci/setup test` unpacks Slurm 24.11 into .slurm/trixie; without it these tests are skipped. They are a selection, short
enough for every run: `make test-slurm SUITE=trixie` (or forky, 26.05) runs this whole folder on another release.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from outerloop.compute.protocol import Accepted, JobState, Lane, LooksUp, NoAnswer, Refused, SiteLimits, Unknown, When
from outerloop.compute.slurm import SlurmCli
from tests.slurm.cluster import DevCluster
from tests.slurm.test_backend_contract import SlurmBench
from tests.unit.compute.contract import Bench, ComputeContract

pytestmark = pytest.mark.slurm

UNPACKED = Path(__file__).resolve().parents[2] / ".slurm" / "trixie"


@pytest.fixture(scope="module")
def next_cluster(slurm_installed: None, cluster_root: Path) -> Iterator[DevCluster]:
    if not (UNPACKED / ".complete").exists():
        why = UNPACKED.with_suffix(".why")
        told = why.read_text().strip() if why.exists() else "slurm/devcluster/get-slurm.sh trixie .slurm/trixie"
        pytest.skip(f"Slurm 24.11 is not unpacked here: {told}")
    knobs = {"message_timeout": 3, "kill_wait": 2, "prefix": str(UNPACKED)}
    with DevCluster(cluster_root / "next", nodes=2, gpu_nodes=1, accounting=True, **knobs) as running:
        yield running


@pytest.fixture
def bench(next_cluster: DevCluster, tmp_path: Path) -> Iterator[Bench]:
    cli = SlurmCli(bin_dir=next_cluster.bin, slurm_conf=next_cluster.slurm_conf)
    yield SlurmBench(cli, tmp_path, lane=Lane("default"))
    next_cluster.resume()
    next_cluster.cancel_all()


class TestSelection:
    """Of the promises of every backend, those that hang most on what a release prints."""

    test_arguments_and_log = (
        ComputeContract.test_a_job_runs_with_its_arguments_in_its_folder_and_its_output_is_in_its_log
    )
    test_exit_code = ComputeContract.test_a_failing_job_is_failed_and_the_history_knows_its_exit_code
    test_environment = ComputeContract.test_a_job_sees_its_variables_and_nothing_of_the_submitter
    test_dependency = ComputeContract.test_a_job_waits_until_the_jobs_that_it_depends_on_have_ended_however
    test_lost_dependency = ComputeContract.test_a_dependency_that_nobody_knows_any_more_does_not_hold_a_job_or_is_named
    test_cancel = ComputeContract.test_cancelling_a_pending_job_keeps_it_from_ever_running
    test_greedy = ComputeContract.test_more_than_there_is_can_never_run


def test_it_is_another_release_whose_limits_are_read(bench: Bench) -> None:
    limits = bench.compute.limits()
    assert isinstance(limits, SiteLimits)
    assert limits.version.startswith("24.11.") and limits.accounting is True and limits.preempt_mode == "REQUEUE"
    assert set(limits.partitions) == {"cpu", "gpu", "preempt", "short"}


def test_row_01_a_timed_out_submit_is_unknown_and_its_job_is_found_by_name(
    next_cluster: DevCluster, bench: Bench
) -> None:
    job = bench.job("ol-d1-ghost-0123456789abcdef-1", "sleep 600")
    with next_cluster.paused():
        assert isinstance(bench.compute.submit(job), Unknown)
        assert isinstance(bench.compute.listing(), NoAnswer)
    bench.until(lambda: bench.listing().by_name().get(job.name), "the job that sbatch knows nothing of")


def test_an_array_is_listed_and_looked_up_task_by_task(bench: Bench) -> None:
    outcome = bench.compute.submit_array(bench.job("tasks", "exit $((SLURM_ARRAY_TASK_ID * 128))"), 2, None)
    assert isinstance(outcome, Accepted), outcome
    bench.until_state(f"{outcome.job_id}_0", JobState.COMPLETED)
    bench.until_state(f"{outcome.job_id}_1", JobState.FAILED)
    assert isinstance(bench.compute, LooksUp)
    seen = bench.compute.look_up(f"{outcome.job_id}_1")
    assert not isinstance(seen, NoAnswer) and seen is not None and seen.exit_code == 128


def test_refusals_are_classified(bench: Bench) -> None:
    for lane, expected in (
        (Lane("x", partition="nowhere"), ("InvalidPartition", When.NEVER)),
        (Lane("x", reservation="nothing"), ("InvalidReservation", When.NEVER)),
        (Lane("x", extra=("--constraint=moon",)), ("BadConstraints", When.NEVER)),
    ):
        outcome = bench.compute.submit(bench.job("refused", "exit 0", lane=lane))
        assert isinstance(outcome, Refused) and (outcome.reason, outcome.when) == expected

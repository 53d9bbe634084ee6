"""Arrays on a real Slurm: the backend's promises, and a climb of twelve measures through the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from outerloop.compute.protocol import Accepted, History, JobSpec, JobState, Lane, Refused, When
from outerloop.compute.slurm import SlurmCli
from outerloop.record.models import Array, Attempt, Wake
from tests.e2e.test_crash_points_arrays import MEASURES, PAIRED
from tests.postgres.conftest import database, pg_url, template_database
from tests.slurm.cluster import DevCluster
from tests.slurm.world import SlurmWorld
from tests.unit.compute.contract import Bench

__all__ = ["database", "pg_url", "template_database"]

pytestmark = pytest.mark.slurm


class PairedWorld(SlurmWorld):
    def contract(self) -> str:
        return PAIRED

    def batches(self) -> dict[str, set[str]]:
        """Name -> ids of all jobs of this deployment that the queue has seen; tasks of one array share an id."""
        seen: dict[str, set[str]] = {}
        for job_id, name, _state, _reason in self.queue():
            if name.startswith(f"ol-{self.settings.deployment}-"):
                seen.setdefault(name, set()).add(job_id.partition("_")[0])
        return seen

    def check(self, run_id: str) -> None:
        run = self.run(run_id)
        assert (run.verdict, run.verdict_reason) == ("accepted", ""), run.sentence
        assert self.executions() == MEASURES
        self.check_invariants()


@pytest.fixture
def world_of(tmp_path: Path, database: str, cluster: DevCluster) -> Callable[..., PairedWorld]:
    return lambda **options: PairedWorld(tmp_path / "w", database, cluster, **options)


@pytest.fixture
def bench(cluster: DevCluster, tmp_path: Path) -> Iterator[Bench]:
    yield Bench(SlurmCli(bin_dir=cluster.bin, slurm_conf=cluster.slurm_conf), tmp_path, lane=Lane("default"))
    cluster.cancel_all()


def _array(bench: Bench, job: JobSpec, count: int, throttle: int | None = None) -> str:
    outcome = bench.compute.submit_array(job, count, throttle)
    assert isinstance(outcome, Accepted), outcome
    return outcome.job_id


def test_tasks_run_under_their_ids_and_write_logs_of_their_own(bench: Bench) -> None:
    job = bench.job("ol-t-array-0123456789abcdef-0", 'echo "task $SLURM_ARRAY_TASK_ID"; exit $SLURM_ARRAY_TASK_ID')
    array = _array(bench, job, 3)
    for task in range(3):
        row = bench.until_state(f"{array}_{task}", JobState.COMPLETED, JobState.FAILED)
        assert row.name == job.name and row.state is (JobState.FAILED if task else JobState.COMPLETED)
        bench.until(
            lambda t=task: job.log.with_name(f"slurm.log.{t}").read_text() == f"task {t}\n", f"the log of task {task}"
        )
    answered = bench.compute.history(bench.began, [array], [])
    assert isinstance(answered, History)
    bench.until(
        lambda: (
            {
                r.job_id
                for r in bench.compute.history(bench.began, [array], []).jobs
                if r.state.final  # type: ignore[union-attr]
            }
            == {f"{array}_{task}" for task in range(3)}
        ),
        "accounting to show every task",
    )


def test_folded_tasks_are_listed_one_by_one_throttled_and_cancelled_in_one_request(bench: Bench) -> None:
    array = _array(bench, bench.job("ol-t-array-0123456789abcdef-1", "sleep 60"), 9, throttle=2)
    ids = {f"{array}_{task}" for task in range(9)}

    def states() -> dict[str, JobState]:
        return {row.job_id: row.state for row in bench.listing().jobs if row.job_id in ids}

    bench.until(lambda: list(states().values()).count(JobState.RUNNING) == 2, "two tasks at once")
    assert set(states()) == ids
    folded = sorted(job_id for job_id, state in states().items() if state is JobState.PENDING)
    assert bench.compute.cancel(folded[1:4]) is None
    bench.until(
        lambda: not [i for i in folded[1:4] if states().get(i, JobState.CANCELLED) is not JobState.CANCELLED],
        "the cancelled tasks to be gone",
    )
    # Not the others.
    assert {i for i, state in states().items() if not state.final} == ids - set(folded[1:4])


def test_an_array_that_is_too_large_is_refused_and_a_smaller_one_may_come(bench: Bench) -> None:
    limits = bench.compute.limits()
    largest = getattr(limits, "max_array_size", None)
    assert isinstance(largest, int)
    job = bench.job("ol-t-array-0123456789abcdef-2", "true")
    outcome = bench.compute.submit_array(job, largest + 1, None)
    assert isinstance(outcome, Refused) and (outcome.reason, outcome.when) == ("ArraySize", When.LATER), outcome
    array = _array(bench, bench.job("ol-t-array-0123456789abcdef-3", "true"), largest, throttle=1)
    assert bench.compute.cancel([f"{array}_{task}" for task in range(largest)]) is None
    bench.until(lambda: all(r.state.final for r in bench.listing().jobs if r.job_id.startswith(f"{array}_")), "its end")


@contextmanager
def no_node_free(cluster: DevCluster) -> Iterator[None]:
    """Whatever is submitted inside pends until the end, so that a test sees it before it runs."""
    nodes = ",".join(sorted(set(cluster.run("sinfo", "-h", "-N", "-o", "%N").split())))
    cluster.run("scontrol", "update", f"nodename={nodes}", "state=drain", "reason=test")
    try:
        yield
    finally:
        cluster.run("scontrol", "update", f"nodename={nodes}", "state=resume")


def test_a_climb_of_twelve_measures_is_one_array_and_one_wake(
    world_of: Callable[..., PairedWorld], cluster: DevCluster
) -> None:
    world = world_of()
    with no_node_free(cluster):
        run_id = world.ask("better", OUTERLOOP_LANES__DEFAULT__ARRAY_THROTTLE="5")
        [row] = world.rows(Array)
        [bell] = world.rows(Wake)
        assert bell.awaited == [row.job_id]
        assert {job_id for job_id, *_ in world.queue()} >= {f"{row.job_id}_[0-11%5]", bell.job_id}
    world.until_ended(run_id)
    world.check(run_id)
    assert world.batches() == {row.name: {row.job_id}, bell.job_name: {bell.job_id}}
    assert '"slurm.log"' in world.cli("logs", run_id, "--json").stdout


def test_one_task_cancelled_by_hand_while_folded_is_measured_anew(
    world_of: Callable[..., PairedWorld], cluster: DevCluster
) -> None:
    world = world_of()
    with no_node_free(cluster):
        run_id = world.ask("better")
        [array] = world.rows(Array)
        cluster.run("scancel", f"{array.job_id}_7")
        assert f"{array.job_id}_[0-6,8-11]" in cluster.run("squeue", "-h", "-o", "%i").split()
    world.until_ended(run_id, ticks=True)
    world.check(run_id)
    odd = [attempt for attempt in world.rows(Attempt) if attempt.outcome != "done"]
    assert [(a.job_id, a.reason) for a in odd] == [(f"{array.job_id}_7", "LOST")]
    names = [name for name in world.batches() if "-wake-" not in name]
    assert len(names) == 2, names


def test_an_array_whose_submission_hangs_is_found_again_and_not_repeated(
    world_of: Callable[..., PairedWorld], cluster: DevCluster
) -> None:
    world = world_of(wakes="never")
    with cluster.paused():
        run_id = world.ask("better")
        [array] = world.rows(Array)
        assert array.state == "intent"
    world.until_ended(run_id, ticks=True)
    world.check(run_id)
    batches = world.batches()
    assert set(batches) == {array.name} and len(batches[array.name]) == 1

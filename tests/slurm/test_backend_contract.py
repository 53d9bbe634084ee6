"""Attacks the Slurm backends on a real cluster: the contract that every backend keeps.

The pyslurm backend runs on a stand-in whose jobs really run on the cluster. With OUTERLOOP_TEST_PYSLURM set (`make
test-pyslurm`, on a machine with Slurm 25.11 and pyslurm) the same tests run on the real library, and with
OUTERLOOP_TEST_SITE on the site's own cluster.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from outerloop.compute import slurm_api
from outerloop.compute.protocol import (
    Accepted,
    JobRow,
    JobSpec,
    JobState,
    Lane,
    LooksUp,
    Refused,
    SiteLimits,
    Unknown,
    When,
)
from outerloop.compute.slurm import SlurmCli
from outerloop.compute.slurm_api import SlurmApi
from tests.slurm.cluster import DevCluster
from tests.slurm.running_site import SITE_SECONDS, RunningSite
from tests.standin import place as place_stand_in
from tests.unit.compute.contract import Bench, ComputeContract

pytestmark = pytest.mark.slurm

nightly_unless_pyslurm = pytest.mark.skipif(
    not (os.environ.get("OUTERLOOP_NIGHTLY") or os.environ.get("OUTERLOOP_TEST_PYSLURM")),
    reason="stops a cluster's controller: OUTERLOOP_NIGHTLY=1, and make test-pyslurm",
)


@dataclass
class SlurmBench(Bench):
    """Lanes that this cluster has."""

    stand_in: bool = False

    def job(self, name: str, body: str, **changes: Any) -> JobSpec:
        made = super().job(name, body, **changes)
        return replace(made, lane=replace(made.lane, partition="gpu")) if made.gpus else made


@pytest.fixture(scope="module")
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> DevCluster | RunningSite:
    """A throw-away cluster, or the site's own."""
    tools = os.environ.get("OUTERLOOP_TEST_SITE")
    if tools:
        return RunningSite(Path(tools), tmp_path_factory.getbasetemp())
    cluster: DevCluster = request.getfixturevalue("cluster")
    return cluster


_ASK_THE_ACCOUNTING = (
    "test_a_failing_job_is_failed_and_the_history_knows_its_exit_code",
    "test_a_job_is_found_by_its_name",
    "test_a_history_is_complete_and_empty_for_what_never_was",
    "test_the_site_says_its_name",
)
# Where a script calls sbatch, as on the throw-away cluster, its shell may export these (Red Hat's sh is bash).
_OF_SHELLS = ("SHLVL", "PWD", "OLDPWD", "_")
_WANT_GPUS = (
    "test_more_than_there_is_can_never_run",
    "test_gpus_are_given_out_one_by_one_and_hidden_from_jobs_without",
)


def _not_here(test: str, cli: SlurmCli, place: DevCluster | RunningSite) -> str:
    """Why this test says nothing about this cluster; empty when it does."""
    if test in _WANT_GPUS and isinstance(place, RunningSite):
        return "counts the pretend GPUs of a throw-away cluster"
    if test in _ASK_THE_ACCOUNTING:
        limits = cli.limits()
        assert isinstance(limits, SiteLimits), limits
        return "" if limits.accounting else "this cluster has no accounting"
    return ""


@pytest.fixture(params=["cli", "pyslurm"])
def bench(
    request: pytest.FixtureRequest, place: DevCluster | RunningSite, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> Iterator[SlurmBench]:
    cli = SlurmCli(bin_dir=place.bin, slurm_conf=place.slurm_conf)
    not_here = _not_here(request.node.originalname, cli, place)
    if not_here:
        pytest.skip(not_here)
    site = isinstance(place, RunningSite)
    lane = place.lane if isinstance(place, RunningSite) else Lane("default")
    seconds = SITE_SECONDS if site else 30.0
    if request.param == "cli":
        yield SlurmBench(cli, tmp_path, seconds=seconds, lane=lane)
        place.cancel_all()
        return
    real = os.environ.get("OUTERLOOP_TEST_PYSLURM", "")
    if real:
        path = Path(real) if Path(real).is_absolute() else None
    else:
        path = place_stand_in(tmp_path / "library", bin=str(place.bin))
    api = SlurmApi(cli, path=path, warm_up=0, cluster_version=None if real else "25.11.7")
    assert api.why_not() == ""
    caplog.set_level(logging.DEBUG, logger=slurm_api.__name__)
    yield SlurmBench(api, tmp_path, seconds=seconds, lane=lane, stand_in=not real)
    why_not = api.why_not()
    api.close()
    place.cancel_all()
    assert why_not == "", "a request lost its process"
    told = [record.getMessage() for record in caplog.get_records("call")]
    assert not [line for line in told if "does not take it" in line], "the command line did the library's work"


class TestContract(ComputeContract):
    """The promises of every backend."""

    def test_tasks_of_an_array_run_and_each_is_known_by_its_own_id(self, bench: Bench) -> None:
        # A file for each task: tasks on several nodes that append to one of a shared folder may lose lines.
        marks = {str(bench.folder / f"ran.{task}") for task in range(3)}
        job = bench.job("tasks", f"touch {bench.folder}/ran.$SLURM_ARRAY_TASK_ID")
        outcome = bench.compute.submit_array(job, 3, 2)
        assert isinstance(outcome, Accepted), outcome
        for task in range(3):
            bench.until_state(f"{outcome.job_id}_{task}", JobState.COMPLETED)
        bench.until(lambda: {str(path) for path in bench.folder.glob("ran.*")} == marks, "all tasks to have run")
        logs = ["slurm.log.0", "slurm.log.1", "slurm.log.2"]
        bench.until(lambda: sorted(path.name for path in job.log.parent.iterdir()) == logs, "a log of each task")

    def test_one_job_is_looked_up_with_its_true_exit_code(self, bench: Bench) -> None:
        assert isinstance(bench.compute, LooksUp)
        codes = {bench.submit(bench.job(f"coded-{code}", f"exit {code}")): code for code in (0, 7, 128, 137, 255)}
        for job_id, code in codes.items():
            bench.until_state(job_id, JobState.FAILED if code else JobState.COMPLETED)
            row, listed = bench.compute.look_up(job_id), bench.row(job_id)
            assert isinstance(row, JobRow) and listed is not None
            assert (row.job_id, row.name, row.exit_code, row.signal) == (job_id, f"coded-{code}", code, None)
            assert (row.state, row.reason, row.node) == (listed.state, listed.reason, listed.node)
            assert (row.submitted, row.started, row.ended) == (listed.submitted, listed.started, listed.ended)
        assert bench.compute.look_up("60000003") is None

    def test_the_jobs_umask_and_name_are_those_of_the_submitter(self, bench: Bench) -> None:
        before = os.umask(0o027)
        try:
            job = bench.job("masked", "umask; echo $SLURM_JOB_NAME; echo $SLURM_SUBMIT_DIR")
            job_id = bench.submit(job)
        finally:
            os.umask(before)
        bench.until_state(job_id, JobState.COMPLETED)
        bench.until(lambda: job.log.read_text().count("\n") == 3, "the log")
        assert job.log.read_text() == f"0027\nmasked\n{Path.cwd()}\n"

    def test_a_job_has_the_environment_and_the_limits_that_sbatch_gives_it(
        self, bench: SlurmBench, place: DevCluster | RunningSite
    ) -> None:
        """srun and mpirun inside a job read what sbatch told it of its request, and users' scripts do."""
        by_sbatch = SlurmCli(bin_dir=place.bin, slurm_conf=place.slurm_conf)
        job = replace(bench.job("told", "env"), cpus=3, memory_mb=500, requeue=True, env={"SEED": "7"})
        job = replace(job, args=("a b", str(job.script)))
        jobs = [replace(job, log=bench.folder / which / "log") for which in ("theirs", "ours")]
        ids = [by_sbatch.submit(jobs[0]), bench.compute.submit(jobs[1])]
        for outcome in ids:
            assert isinstance(outcome, Accepted), outcome
            bench.until_state(outcome.job_id, JobState.COMPLETED)
        theirs, ours = (
            {
                name: value
                for name, value in (line.split("=", 1) for line in each.log.read_text().splitlines() if "=" in line)
                if not re.search(r"ID$|JOBID$|TIME$", name) and name not in _OF_SHELLS
            }
            for each in jobs
        )
        assert theirs.items() <= ours.items()
        if not bench.stand_in:
            # What 25.11 tells a job more than 22.05 does, the stand-in is told on 22.05 too.
            assert ours == theirs
        shown = [
            re.findall(
                r" ((?:TimeLimit|ReqTRES|MinMemory\w+|CPUs/Task|Requeue|Command|StdIn|WorkDir|NumNodes|Account)=\S*)",
                place.run("scontrol", "-o", "show", "job", outcome.job_id),
            )
            for outcome in ids
            if isinstance(outcome, Accepted)
        ]
        assert shown[0] == shown[1] and len(shown[0]) >= 6

    def test_a_script_arrives_byte_for_byte_or_is_refused(self, bench: Bench) -> None:
        job = bench.job("bytes", "printf 'a\rb' | od -An -c")
        bench.until_state(bench.submit(job), JobState.COMPLETED)
        bench.until(lambda: "b" in job.log.read_text(), "the log")
        assert job.log.read_text().split() == ["a", "\\r", "b"]
        job.script.write_bytes(b"#!/bin/sh\r\necho\r\n")
        refused = bench.compute.submit(replace(job, name="dos"))
        assert isinstance(refused, Refused) and refused.reason == "SCRIPT_TEXT"

    @nightly_unless_pyslurm
    def test_a_controller_that_hangs_leaves_a_submission_in_doubt_and_one_job(
        self, bench: SlurmBench, place: DevCluster | RunningSite
    ) -> None:
        if isinstance(place, RunningSite):
            pytest.skip("suspends the controller")
        name = f"ol-d1-doubt-{os.urandom(8).hex()}-1"
        with place.paused():
            outcome = bench.compute.submit(bench.job(name, "exit 0"))
        assert isinstance(outcome, Unknown), outcome
        bench.until(lambda: name in bench.listing().by_name(), "the job that is there all the same")
        (row,) = bench.listing().by_name()[name]
        bench.until_state(row.job_id, JobState.COMPLETED)

    @nightly_unless_pyslurm
    def test_a_controller_that_is_stopped_refuses_for_now_and_has_no_job(
        self, bench: SlurmBench, place: DevCluster | RunningSite
    ) -> None:
        if isinstance(place, RunningSite):
            pytest.skip("stops the controller")
        place.stop_controller()
        try:
            outcome = bench.compute.submit(bench.job("stopped", "exit 0"))
        finally:
            place.start_controller()
        assert isinstance(outcome, Refused), outcome
        assert (outcome.reason, outcome.when) == ("ControllerDown", When.LATER)
        assert "stopped" not in bench.listing().by_name()

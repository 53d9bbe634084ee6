"""What every backend of the Compute protocol promises: the same assertions for the local and the real Slurm backend.

A test class inherits `ComputeContract` and provides the fixture `bench`. Not covered here: what only one backend has.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from outerloop.compute.protocol import (
    Accepted,
    Compute,
    History,
    JobRow,
    JobSpec,
    JobState,
    Lane,
    Listing,
    Refused,
    SiteLimits,
    When,
)

_POLL_SECONDS = 0.05


@dataclass
class Bench:
    """A backend, a folder for one test, and how long things may take."""

    compute: Compute
    folder: Path
    seconds: float = 30.0
    lane: Lane = field(default_factory=lambda: Lane("default"))
    began: float = field(default_factory=lambda: time.time() - 5)

    def job(self, name: str, body: str, **changes: Any) -> JobSpec:
        script = self.folder / f"{name}.sh"
        script.write_text(f"#!/bin/sh\n{body}\n")
        log = self.folder / f"logs of {name}" / "slurm.log"
        return replace(
            JobSpec(name=name, script=script, log=log, workdir=self.folder, lane=self.lane, minutes=5.0), **changes
        )

    def submit(self, job: JobSpec) -> str:
        outcome = self.compute.submit(job)
        assert isinstance(outcome, Accepted), outcome
        return outcome.job_id

    def listing(self) -> Listing:
        listing = self.compute.listing()
        assert isinstance(listing, Listing), listing
        assert listing.bad_rows == 0
        return listing

    def row(self, job_id: str) -> JobRow | None:
        return self.listing().by_id().get(job_id)

    def until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + self.seconds
        while not condition():
            assert time.monotonic() < deadline, f"{what}: not within {self.seconds} s; {self.compute.listing()}"
            time.sleep(_POLL_SECONDS)

    def state(self, job_id: str) -> JobState | None:
        row = self.row(job_id)
        return row.state if row else None

    def until_state(self, job_id: str, *states: JobState) -> JobRow:
        self.until(lambda: self.state(job_id) in states, f"job {job_id} in {states}")
        row = self.row(job_id)
        assert row is not None
        return row

    def history(self, ids: list[str], names: list[str] | None = None) -> dict[str, JobRow]:
        history = self.compute.history(self.began, ids, names or [])
        assert isinstance(history, History), history
        return {row.job_id: row for row in history.jobs}


class ComputeContract:
    """The promises, one test each."""

    def test_a_job_runs_with_its_arguments_in_its_folder_and_its_output_is_in_its_log(self, bench: Bench) -> None:
        job = bench.job("args", 'pwd; for a in "$@"; do echo "[$a]"; done', args=("a b", "", "--x=$HOME", "-v"))
        job_id = bench.submit(job)
        bench.until_state(job_id, JobState.COMPLETED)
        bench.until(lambda: job.log.read_text().count("\n") == 5, "the log to be complete")
        assert job.log.read_text() == f"{bench.folder}\n[a b]\n[]\n[--x=$HOME]\n[-v]\n"

    def test_a_finished_job_stays_listed_as_final_with_its_times(self, bench: Bench) -> None:
        job_id = bench.submit(bench.job("done", "exit 0"))
        row = bench.until_state(job_id, JobState.COMPLETED)
        assert row.state.final and row.name == "done"
        assert row.submitted is not None and row.started is not None and row.ended is not None
        assert bench.began <= row.submitted <= row.started <= row.ended <= time.time() + 1

    def test_a_failing_job_is_failed_and_the_history_knows_its_exit_code(self, bench: Bench) -> None:
        job_id = bench.submit(bench.job("failing", "exit 7"))
        bench.until_state(job_id, JobState.FAILED)
        bench.until(lambda: bench.history([job_id]).get(job_id) is not None, "the history to know the job")
        bench.until(lambda: bench.history([job_id])[job_id].exit_code == 7, "the exit code")
        bench.until(lambda: bench.history([job_id])[job_id].name, "the name")
        row = bench.history([job_id])[job_id]
        assert (row.state, row.signal, row.name) == (JobState.FAILED, None, "failing")

    def test_a_job_sees_its_variables_and_nothing_of_the_submitter(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("DATABASE_URL", "AWS_SECRET_ACCESS_KEY", "SBATCH_PARTITION", "LD_PRELOAD", "SUBMITTERS_OWN"):
            monkeypatch.setenv(name, "/hidden" if name == "LD_PRELOAD" else "hidden")
        monkeypatch.delenv("LD_PRELOAD")
        job = bench.job("environment", "env -0 | tr '\\n\\0' ' \\n'", env={"SEED": "7", "ODD": "a,b=c d\te"})
        bench.until_state(bench.submit(job), JobState.COMPLETED)
        bench.until(lambda: "SEED=" in job.log.read_text(), "the log")
        seen = dict(line.partition("=")[::2] for line in job.log.read_text().splitlines())
        assert seen["SEED"] == "7" and seen["ODD"] == "a,b=c d\te"
        assert "hidden" not in job.log.read_text()
        assert seen["PATH"]

    def test_a_job_outlives_what_started_it_and_reads_no_input(self, bench: Bench) -> None:
        job = bench.job("input", "cat; ps -o sid= -p $$ 2>/dev/null || cut -d' ' -f6 /proc/$$/stat")
        bench.until_state(bench.submit(job), JobState.COMPLETED)
        bench.until(lambda: job.log.read_text().strip(), "the log")
        assert int(job.log.read_text()) != os.getsid(0)

    def test_a_job_waits_until_the_jobs_that_it_depends_on_have_ended_however(self, bench: Bench) -> None:
        gate = bench.folder / "gate"
        first = bench.submit(bench.job("first", f"while [ ! -e {gate} ]; do sleep 0.1; done; exit 3"))
        waiter = bench.submit(bench.job("waiter", f"[ -e {gate} ]", after=(first,)))
        bench.until_state(first, JobState.RUNNING)
        bench.until(lambda: (row := bench.row(waiter)) and row.reason == "Dependency", "the reason")
        assert bench.state(waiter) is JobState.PENDING
        gate.touch()
        bench.until_state(waiter, JobState.COMPLETED)
        assert bench.state(first) is JobState.FAILED

    def test_a_dependency_that_nobody_knows_any_more_does_not_hold_a_job_or_is_named(self, bench: Bench) -> None:
        outcome = bench.compute.submit(bench.job("orphan", "exit 0", after=("60000000",)))
        if isinstance(outcome, Refused):
            assert (outcome.reason, outcome.when) == ("Dependency", When.LATER)
        else:
            assert isinstance(outcome, Accepted), outcome
            bench.until_state(outcome.job_id, JobState.COMPLETED)

    def test_a_begin_time_is_waited_for(self, bench: Bench) -> None:
        job_id = bench.submit(bench.job("later", "exit 0", begin_seconds=600))
        row = bench.until_state(job_id, JobState.PENDING)
        bench.until(lambda: (row := bench.row(job_id)) and row.reason == "BeginTime", "the reason")
        assert row.started is None or row.started > time.time() + 300
        assert bench.compute.cancel([job_id]) is None
        bench.until_state(job_id, JobState.CANCELLED)

    def test_cancelling_ends_a_running_job_and_everything_that_it_started(self, bench: Bench) -> None:
        beat = bench.folder / "beat"
        body = f"trap '' TERM; (trap '' TERM; while :; do date +%s%N > {beat}; sleep 0.05; done) & wait"
        job_id = bench.submit(bench.job("stubborn", body))
        bench.until(beat.exists, "the job to run")
        assert bench.compute.cancel([job_id]) is None
        row = bench.until_state(job_id, JobState.CANCELLED)
        assert row.cancelled_by in ("", str(os.getuid()))

        def silent() -> bool:
            before = beat.read_bytes()
            time.sleep(0.3)
            return beat.read_bytes() == before

        bench.until(silent, "the child that ignores TERM to be dead")

    def test_cancelling_a_pending_job_keeps_it_from_ever_running(self, bench: Bench) -> None:
        mark = bench.folder / "ran"
        job_id = bench.submit(bench.job("never", f"touch {mark}", begin_seconds=600))
        assert bench.compute.cancel([job_id]) is None
        bench.until_state(job_id, JobState.CANCELLED)
        assert not mark.exists()

    def test_cancelling_what_has_ended_or_never_was_changes_nothing_and_is_fine(self, bench: Bench) -> None:
        job_id = bench.submit(bench.job("ended", "exit 0"))
        bench.until_state(job_id, JobState.COMPLETED)
        assert bench.compute.cancel([job_id, "60000001"]) is None
        assert bench.compute.cancel([]) is None
        assert bench.state(job_id) is JobState.COMPLETED

    def test_a_job_is_found_by_its_name(self, bench: Bench) -> None:
        # Other backends may have been here before: the cluster is shared, and a name is found as often as it was used.
        name = f"ol-d1-speed-{os.urandom(8).hex()}-1"
        job_id = bench.submit(bench.job(name, "exit 0"))
        assert [row.job_id for row in bench.listing().by_name()[name]] == [job_id]
        bench.until_state(job_id, JobState.COMPLETED)
        bench.until(lambda: job_id in bench.history([], [name]), "the history")
        assert set(bench.history([], ["nobody-has-this-name"])) == set()

    def test_the_script_is_what_it_was_when_it_was_submitted(self, bench: Bench) -> None:
        gate = bench.folder / "gate"
        job = bench.job("snapshot", f"while [ ! -e {gate} ]; do sleep 0.1; done; echo old")
        job_id = bench.submit(job)
        job.script.write_text("#!/bin/sh\necho new\n")
        gate.touch()
        bench.until_state(job_id, JobState.COMPLETED)
        bench.until(lambda: job.log.read_text(), "the log")
        assert job.log.read_text() == "old\n"

    def test_logs_are_appended_to_and_may_have_any_name(self, bench: Bench) -> None:
        log = bench.folder / "new folder" / "100% of %j.log"
        job = bench.job("log", "echo out; echo err >&2", log=log)
        log.parent.mkdir()
        log.write_text("before\n")
        bench.until_state(bench.submit(job), JobState.COMPLETED)
        bench.until(lambda: log.read_text().count("\n") == 3, "the log")
        assert sorted(log.read_text().splitlines()) == ["before", "err", "out"]

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"name": "two words"}, "JobName"),
            ({"name": "batch"}, "JobName"),
            ({"minutes": 0.0}, "TimeLimit"),
            ({"minutes": float("nan")}, "TimeLimit"),
            ({"cpus": 0}, "Resources"),
            ({"script": Path("/nowhere/job.sh")}, "SCRIPT_MISSING"),
            ({"after": ("12; rm",)}, "Dependency"),
            ({"env": {"SLURM_JOB_NAME": "x"}}, "Environment"),
            ({"lane": Lane("short", max_minutes=1)}, "LaneTimeLimit"),
            ({"lane": Lane("odd", extra=("--mem-per-cpu=4G",))}, "MEMORY_FORM"),
        ],
    )
    def test_nonsense_is_refused_and_leaves_no_job(self, bench: Bench, changes: dict[str, Any], reason: str) -> None:
        before = set(bench.listing().by_id())
        outcome = bench.compute.submit(replace(bench.job("nonsense", "exit 0"), **changes))
        assert isinstance(outcome, Refused) and outcome.reason == reason, outcome
        assert outcome.when is not When.LATER and outcome.detail
        assert set(bench.listing().by_id()) == before

    def test_more_than_there_is_can_never_run(self, bench: Bench) -> None:
        outcome = bench.compute.submit(bench.job("greedy", "exit 0", gpus=99))
        assert isinstance(outcome, Refused) and (outcome.reason, outcome.when) == ("BadConstraints", When.NEVER)

    def test_gpus_are_given_out_one_by_one_and_hidden_from_jobs_without(self, bench: Bench) -> None:
        gate = bench.folder / "gate"
        body = f'echo "[$CUDA_VISIBLE_DEVICES]"; while [ ! -e {gate} ]; do sleep 0.1; done'
        jobs = [bench.job(f"gpu{k}", body, gpus=1, lane=replace(bench.lane, name="gpu")) for k in range(2)]
        ids = [bench.submit(job) for job in jobs]
        for job_id in ids:
            bench.until_state(job_id, JobState.RUNNING)
        bench.until(lambda: all(job.log.exists() and job.log.read_text().endswith("]\n") for job in jobs), "the logs")
        seen = {job.log.read_text() for job in jobs}
        assert len(seen) == 2 and all(text.strip("[]\n").isdigit() for text in seen)
        gate.touch()
        for job_id in ids:
            bench.until_state(job_id, JobState.COMPLETED)
        without = bench.job("cpu", 'echo "[$CUDA_VISIBLE_DEVICES]"')
        bench.until_state(bench.submit(without), JobState.COMPLETED)
        bench.until(lambda: without.log.read_text(), "the log")
        assert without.log.read_text() == "[]\n"

    def test_a_history_is_complete_and_empty_for_what_never_was(self, bench: Bench) -> None:
        assert bench.history(["60000002"]) == {}
        assert bench.history([]) == {}

    def test_the_site_says_its_name(self, bench: Bench) -> None:
        limits = bench.compute.limits()
        assert isinstance(limits, SiteLimits)
        assert limits.version and limits.cluster and limits.partitions and limits.accounting is True

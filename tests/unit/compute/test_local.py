"""Attacks the local backend: the contract, and kills, reboots, fights for CPUs and GPUs, and other machines."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from outerloop.compute.local import Local
from outerloop.compute.local_spool import Identity, JobFolder, Spool
from outerloop.compute.protocol import Accepted, JobState, Lane, NoAnswer, Refused, When
from tests.unit.compute.contract import Bench, ComputeContract


def bench_of(tmp_path: Path, **settings: int | float) -> Bench:
    options = {"cpus": 4, "gpus": 2, **settings}
    return Bench(Local(tmp_path / "spool", **options), tmp_path)  # type: ignore[arg-type]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = bench_of(tmp_path)
    yield made
    ids = [row.job_id for row in made.listing().jobs if not row.state.final]
    made.compute.cancel(ids)
    for job_id in ids:
        made.until(lambda job_id=job_id: (state := made.state(job_id)) is None or state.final, "jobs to end")


class TestContract(ComputeContract):
    """The promises of every backend."""


def folder_of(bench: Bench, job_id: str) -> JobFolder:
    found = Spool(bench.folder / "spool").find(job_id)
    assert found is not None
    return found


def pid_of(bench: Bench, job_id: str, role: str) -> int:
    bench.until(lambda: folder_of(bench, job_id).identity(role), f"the {role}")
    identity = folder_of(bench, job_id).identity(role)
    assert identity is not None
    return identity.pid


def test_the_time_limit_ends_a_job_and_its_daemons(bench: Bench) -> None:
    beat = bench.folder / "beat"
    body = f"setsid sh -c 'while :; do date +%s%N > {beat}; sleep 0.05; done' & sleep 600"
    job_id = bench.submit(bench.job("slow", body, minutes=0.5 / 60))
    row = bench.until_state(job_id, JobState.TIMEOUT)
    assert row.ended is not None and row.started is not None and row.ended - row.started < 10
    before = beat.read_bytes()
    time.sleep(0.3)
    assert beat.read_bytes() == before


def test_a_daemon_that_a_job_leaves_behind_dies_with_it(bench: Bench) -> None:
    job = bench.job("daemon", "setsid sh -c 'trap \"\" TERM; sleep 600' & echo $!")
    bench.until_state(bench.submit(job), JobState.COMPLETED)
    # The daemon's shell may live long enough to say that its sleep was killed.
    assert Identity.of(int(job.log.read_text().split()[0])) is None


def test_a_job_knows_its_id(bench: Bench) -> None:
    job = bench.job("me", "echo $OUTERLOOP_LOCAL_JOB_ID; env | grep -c SUBMITIT")
    job_id = bench.submit(job)
    bench.until_state(job_id, JobState.FAILED)
    assert job.log.read_text() == f"{job_id}\n0\n"


def test_a_killed_job_is_failed_with_the_signal(bench: Bench) -> None:
    job_id = bench.submit(bench.job("victim", "kill -9 $$"))
    row = bench.until_state(job_id, JobState.FAILED)
    assert (row.exit_code, row.signal) == (0, 9)


def test_a_killed_runner_leaves_its_script_running_and_its_cpus_taken_until_the_script_ends(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, cpus=1)
    gate = tmp_path / "gate"
    job_id = bench.submit(bench.job("script", f"while [ ! -e {gate} ]; do sleep 0.05; done"))
    bench.until_state(job_id, JobState.RUNNING)
    os.kill(pid_of(bench, job_id, "runner"), signal.SIGKILL)
    bench.until(lambda: not folder_of(bench, job_id).alive("runner"), "the runner to die")
    assert bench.state(job_id) is JobState.RUNNING
    other = bench.submit(bench.job("other", "exit 0"))
    bench.until(lambda: (row := bench.row(other)) and row.reason == "Resources", "the other job to wait")
    gate.touch()
    row = bench.until_state(job_id, JobState.FAILED)
    assert row.signal == signal.SIGKILL
    bench.until_state(other, JobState.COMPLETED)


def test_cancelling_a_job_whose_runner_was_killed_ends_its_script(bench: Bench) -> None:
    job_id = bench.submit(bench.job("script", "sleep 600 & wait"))
    bench.until_state(job_id, JobState.RUNNING)
    os.kill(pid_of(bench, job_id, "runner"), signal.SIGKILL)
    bench.until(lambda: not folder_of(bench, job_id).alive("runner"), "the runner to die")
    assert bench.compute.cancel([job_id]) is None
    bench.until_state(job_id, JobState.CANCELLED)


def test_a_runner_killed_while_waiting_gives_its_turn_to_the_next(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, cpus=1)
    gate = tmp_path / "gate"
    holder = bench.submit(bench.job("holder", f"while [ ! -e {gate} ]; do sleep 0.05; done"))
    bench.until_state(holder, JobState.RUNNING)
    first = bench.submit(bench.job("first", "exit 0"))
    bench.until(lambda: (row := bench.row(first)) and row.reason == "Resources", "the first to wait")
    second = bench.submit(bench.job("second", "exit 0"))
    bench.until(lambda: (row := bench.row(second)) and row.reason == "Priority", "the second to wait behind it")
    os.kill(pid_of(bench, first, "runner"), signal.SIGKILL)
    gate.touch()
    bench.until_state(second, JobState.COMPLETED)
    assert bench.until_state(first, JobState.FAILED).signal == signal.SIGKILL


def test_after_a_reboot_what_ran_has_failed_with_its_node(bench: Bench) -> None:
    job_id = bench.submit(bench.job("rebooted", "sleep 600"))
    bench.until_state(job_id, JobState.RUNNING)
    folder = folder_of(bench, job_id)
    script, runner = pid_of(bench, job_id, "script"), pid_of(bench, job_id, "runner")
    os.kill(runner, signal.SIGKILL)
    os.killpg(script, signal.SIGKILL)
    for role in ("launcher", "runner", "script"):
        content = folder.read(role)
        assert content is not None
        folder.write(role, {**content, "boot": "an earlier boot"})
    assert bench.until_state(job_id, JobState.NODE_FAIL).ended is not None
    assert bench.until_state(job_id, JobState.NODE_FAIL).state.final


def test_a_pid_that_is_used_again_is_not_taken_for_the_job(bench: Bench) -> None:
    me = Identity.of(os.getpid())
    assert me is not None and me.alive
    assert not Identity(me.pid, me.start - 1, me.boot).alive
    assert not Identity(me.pid, me.start, "an earlier boot").alive


def test_a_job_that_nobody_launched_ends_as_launch_failed_after_a_grace(bench: Bench) -> None:
    bench.listing()
    spool = Spool(bench.folder / "spool")
    request = {"name": "lost", "submitted": time.time() - 3600, "after": [], "not_before": 0}
    old = spool.add(request, b"#!/bin/sh\n")
    new = spool.add({**request, "submitted": time.time()}, b"#!/bin/sh\n")
    assert bench.state(old.job_id) is JobState.LAUNCH_FAILED
    assert bench.state(new.job_id) is JobState.PENDING
    bench.compute.cancel([new.job_id])


def test_never_more_jobs_at_once_than_there_are_cpus(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, cpus=3)
    inside = tmp_path / "inside"
    inside.mkdir()
    body = (
        f"touch {inside}/$OUTERLOOP_LOCAL_JOB_ID; ls {inside} | wc -l; sleep 0.3; rm {inside}/$OUTERLOOP_LOCAL_JOB_ID"
    )
    jobs = [bench.job(f"job{k}", body, cpus=1 + k % 3) for k in range(5)]
    ids = [bench.submit(job) for job in jobs]
    for job_id in ids:
        bench.until_state(job_id, JobState.COMPLETED)
    rows = bench.listing().by_id()
    spans = [(rows[job_id].started, rows[job_id].ended, job.cpus) for job_id, job in zip(ids, jobs, strict=True)]
    for instant, _, _ in spans:
        assert sum(cpus for start, end, cpus in spans if start <= instant < end) <= 3  # type: ignore[operator]


def test_a_wide_job_is_not_starved_and_a_wake_takes_no_cpu(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, cpus=2)
    gate = tmp_path / "gate"
    hold = f"while [ ! -e {gate} ]; do sleep 0.05; done"
    narrow = bench.submit(bench.job("narrow", hold))
    bench.until_state(narrow, JobState.RUNNING)
    wide = bench.submit(bench.job("wide", "exit 0", cpus=2))
    bench.until(lambda: (row := bench.row(wide)) and row.reason == "Resources", "the wide one to wait")
    later = bench.submit(bench.job("later", "exit 0"))
    bench.until(lambda: (row := bench.row(later)) and row.reason == "Priority", "the later one to queue up")
    wake = bench.submit(bench.job("wake", "exit 0", lane=Lane("wake")))
    bench.until_state(wake, JobState.COMPLETED)
    gate.touch()
    bench.until_state(later, JobState.COMPLETED)
    rows = bench.listing().by_id()
    assert rows[wide].started < rows[later].started  # type: ignore[operator]


def test_old_jobs_leave_the_listing_and_stay_in_the_history(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, listed_seconds=0.2)
    job_id = bench.submit(bench.job("old", "exit 0"))
    bench.until(lambda: (row := bench.history([job_id]).get(job_id)) and row.state.final, "the job to end")
    bench.until(lambda: job_id not in bench.listing().by_id(), "the job to leave the listing")
    assert bench.history([job_id])[job_id].state is JobState.COMPLETED
    assert job_id in bench.history([], ["old"])
    assert bench.compute.history(time.time() + 60, [job_id], []).jobs == ()  # type: ignore[union-attr]
    dependent = bench.submit(bench.job("dependent", "exit 0", after=(job_id,)))
    bench.until(lambda: bench.history([dependent])[dependent].state is JobState.COMPLETED, "the dependent")


def test_ids_are_never_given_out_twice(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    bench.listing()
    spool = Spool(tmp_path / "spool")
    request = {"name": "x", "submitted": time.time()}
    first = spool.add(request, b"#!/bin/sh\n")
    (spool.path / "next-id").write_text("")
    second = spool.add(request, b"#!/bin/sh\n")
    assert int(second.job_id) > int(first.job_id)


def test_another_machine_on_the_same_folder_is_told_whose_jobs_these_are(bench: Bench) -> None:
    bench.listing()
    owner = bench.folder / "spool" / "machine"
    owner.write_text(json.dumps({"machine": "another", "name": "login2"}))
    listing = bench.compute.listing()
    assert isinstance(listing, NoAnswer) and "login2" in listing.why
    refused = bench.compute.submit(bench.job("elsewhere", "exit 0"))
    assert isinstance(refused, Refused) and refused.when is When.CONFIG and "login2" in refused.detail
    assert isinstance(bench.compute.history(0, ["1"], []), NoAnswer)
    assert isinstance(bench.compute.cancel(["1"]), NoAnswer)
    owner.unlink()


def test_a_launcher_that_cannot_start_is_a_refusal_that_leaves_no_job(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outerloop.compute.local.sys.executable", "/bin/false")
    outcome = bench.compute.submit(bench.job("unlaunched", "exit 0"))
    assert isinstance(outcome, Refused) and outcome.reason == "Launch"
    monkeypatch.undo()
    assert "unlaunched" not in bench.listing().by_name()


def test_a_script_that_cannot_be_executed_fails_with_a_sentence_in_its_log(bench: Bench) -> None:
    job = bench.job("unexecutable", "exit 0")
    job.script.write_text("#!/nowhere/shell\n")
    assert bench.until_state(bench.submit(job), JobState.FAILED).exit_code in (126, 127)
    assert "/script" in job.log.read_text()


def test_a_folder_that_is_gone_fails_the_job_with_a_sentence_in_its_log(bench: Bench) -> None:
    job = bench.job("homeless", "exit 0", workdir=bench.folder / "gone")
    assert bench.until_state(bench.submit(job), JobState.FAILED).exit_code == 1
    assert "cannot start" in job.log.read_text() and "gone" in job.log.read_text()


def test_requests_are_private_because_they_hold_environments(bench: Bench) -> None:
    job_id = bench.submit(bench.job("private", "exit 0", env={"URL": "postgresql://secret"}))
    assert folder_of(bench, job_id).request_file.stat().st_mode & 0o077 == 0
    assert (bench.folder / "spool").stat().st_mode & 0o077 == 0


def test_an_outcome_is_accepted_by_a_fresh_object_too(bench: Bench) -> None:
    job_id = bench.submit(bench.job("fresh", "exit 0"))
    again = Bench(Local(bench.folder / "spool", cpus=4), bench.folder)
    again.until_state(job_id, JobState.COMPLETED)
    assert isinstance(again.compute.submit(bench.job("more", "exit 0")), Accepted)


def test_a_job_that_a_job_submits_outlives_it(bench: Bench) -> None:
    """A wake job submits the next measures and ends; they are no part of it."""
    gate, code = bench.folder / "gate", bench.folder / "submit.py"
    inner = bench.job("inner", f"while [ ! -e {gate} ]; do sleep 0.05; done")
    code.write_text(
        "from pathlib import Path\n"
        "from outerloop.compute.local import Local\n"
        "from outerloop.compute.protocol import JobSpec, Lane\n"
        f"job = JobSpec(name='inner', script=Path({str(inner.script)!r}), log=Path({str(inner.log)!r}),\n"
        f"              workdir=Path({str(inner.workdir)!r}), lane=Lane('default'), minutes=1)\n"
        f"print(Local(Path({str(bench.folder / 'spool')!r}), cpus=4, gpus=2).submit(job).job_id)\n"
    )
    outer = bench.job("outer", f"exec {sys.executable} {code}")
    bench.until_state(bench.submit(outer), JobState.COMPLETED)
    inner_id = outer.log.read_text().strip()
    bench.until_state(inner_id, JobState.RUNNING)
    gate.touch()
    bench.until_state(inner_id, JobState.COMPLETED)

"""Attacks the pyslurm backend with everything that the real library was seen to do: exits at import, segfaults, calls
that hold the interpreter's lock, replies that are lost, errors that do not say what they mean, records with gaps.

The library is the stand-in of tests/standin, Slurm's tools are the scripted fake; what becomes of jobs is in
tests/slurm/test_backend_contract.py, which runs on the real library too (`make test-pyslurm`).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outerloop.compute.local_spool import Identity
from outerloop.compute.protocol import (
    Accepted,
    JobRow,
    JobSpec,
    JobState,
    Lane,
    Listing,
    LooksUp,
    NoAnswer,
    Refused,
    Unknown,
    When,
)
from outerloop.compute.pyslurm_words import CannotSay, describe, fits, read_error, read_records
from outerloop.compute.rows import squeue_listing
from outerloop.compute.slurm import SlurmCli
from outerloop.compute.slurm_api import WARM_UP_CALLS, SlurmApi, pyslurm_installed
from tests.fake_slurm import FakeSlurm
from tests.standin import place

RECORDED = Path(__file__).resolve().parents[2] / "fixtures" / "pyslurm" / "jobs-25.11.json"
PATIENCE = 30.0
"""Far more than a child needs to answer on a loaded machine."""

Make = Callable[..., SlurmApi]


@pytest.fixture
def fake(tmp_path: Path) -> FakeSlurm:
    return FakeSlurm(tmp_path)


@pytest.fixture
def make(fake: FakeSlurm, tmp_path: Path) -> Iterator[Make]:
    """A backend whose library has these faults; it is in use from the first call."""
    made: list[SlurmApi] = []

    def build(
        *, timeout: float = PATIENCE, cluster_version: str | None = "25.11.7", warm_up: int = 0, **said: Any
    ) -> SlurmApi:
        path = place(tmp_path / f"library {len(made)}", log=tmp_path / "log", **said)
        cli = SlurmCli(bin_dir=fake.bin, submit_timeout=timeout, query_timeout=timeout)
        api = SlurmApi(cli, path=path, warm_up=warm_up, load_seconds=PATIENCE, cluster_version=cluster_version)
        made.append(api)
        return api

    yield build
    for api in made:
        api.close()


@pytest.fixture
def job(tmp_path: Path) -> JobSpec:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n")
    return JobSpec(
        name="ol-d1-speed-4f2a-1",
        script=script,
        log=tmp_path / "slot" / "slurm.log",
        workdir=tmp_path,
        lane=Lane("default"),
        minutes=10,
    )


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def descriptions(tmp_path: Path) -> list[dict[str, Any]]:
    """What the library was asked to submit."""
    log = tmp_path / "log"
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


# ------------------------------------------------------------------------------------- is it used at all


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("exit", "Could not establish a configuration source"),
        ("segfault", "the process ended with -11"),
        ("raise", "libslurmfull.so"),
    ],
)
def test_a_library_that_cannot_be_loaded_leaves_the_work_to_the_command_line(
    fault: str, why: str, make: Make, fake: FakeSlurm, job: JobSpec
) -> None:
    fake.rule("sbatch", stdout="900123\n")
    api = make(faults={"import": fault})
    assert [api.submit(job), api.submit(job)] == [Accepted("900123"), Accepted("900123")]
    assert why in api.why_not()


def test_a_library_that_never_finishes_loading_is_given_up(fake: FakeSlurm, job: JobSpec, tmp_path: Path) -> None:
    fake.rule("sbatch", stdout="900123\n")
    path = place(tmp_path / "library", faults={"import": "hang"})
    api = SlurmApi(SlurmCli(bin_dir=fake.bin), path=path, warm_up=0, load_seconds=0.5, cluster_version="25.11.7")
    assert api.submit(job) == Accepted("900123")
    assert "no answer in time" in api.why_not()


@pytest.mark.parametrize(("cluster", "fitting"), [("25.11.0-1", True), ("24.11.5", False), ("", False)])
def test_only_the_release_that_it_was_built_for(
    cluster: str, fitting: bool, make: Make, fake: FakeSlurm, job: JobSpec
) -> None:
    fake.rule("sbatch", stdout="900123\n")
    api = make(cluster_version=cluster)
    assert api.submit(job) == Accepted("4711" if fitting else "900123")
    told = cluster or "that tells no version"
    assert api.why_not() == ("" if fitting else f"pyslurm 25.11.2 does not fit Slurm {told}")


@pytest.mark.parametrize(
    ("library", "cluster", "fitting"),
    [
        *(("25.11.2", version, True) for version in ("25.11.7", "25.11.0-1", "25.11.0rc1", "25.11", "25.11.0-0rc1")),
        *(("25.11.2", version, True) for version in ("slurm 25.11.0-1", "slurm-wlm 25.11.2", "slurm-wlm 25.11.2-1+b1")),
        *(("25.11.2", version, False) for version in ("25.05.3", "24.11.5", "2.25.11", "125.11", "25.110.1", "25.1")),
        *(("25.11.2", version, False) for version in ("", "N/A", "unknown", "11.25.11")),
        *(("26.5.0", "26.05.5", True), ("26.5.0", "26.11.0", False), ("", "25.11.2", False), ("", "", False)),
    ],
)
def test_years_and_months_of_releases_are_compared_as_numbers(library: str, cluster: str, fitting: bool) -> None:
    assert fits(library, cluster) is fitting


def test_the_clusters_version_is_asked_once_and_without_an_answer_the_command_line_does(
    make: Make, fake: FakeSlurm, job: JobSpec
) -> None:
    fake.rule("scontrol", argv="config", stdout="SLURM_VERSION = 25.11.7\nClusterName = lab\n")
    fake.rule("scontrol", argv="partition", stdout="")
    api = make(cluster_version=None)
    assert [api.submit(job), api.submit(job)] == [Accepted("4711"), Accepted("4711")]
    assert len(fake.calls("scontrol")) == 2


def test_an_outage_when_the_version_is_asked_is_no_verdict_on_the_library(
    make: Make, fake: FakeSlurm, job: JobSpec
) -> None:
    fake.rule("scontrol", rc=1, stderr="Unable to contact slurm controller (connect failure)\n")
    fake.rule("sbatch", stdout="900123\n")
    api = make(cluster_version=None)
    assert [api.submit(job) for _ in range(3)] == [Accepted("900123")] * 3
    assert len(fake.calls("scontrol")) == 2, "not with every request"
    assert "Unable to contact" in api.why_not()
    fake.clear()
    fake.rule("scontrol", argv="config", stdout="SLURM_VERSION = 25.11.7\nClusterName = lab\n")
    fake.rule("scontrol", argv="partition", stdout="")
    fake.rule("sbatch", stdout="900123\n")
    outcomes = [api.submit(job) for _ in range(WARM_UP_CALLS + 1)]
    assert outcomes == [Accepted("900123")] * WARM_UP_CALLS + [Accepted("4711")]
    assert api.why_not() == ""


def test_a_library_that_leaves_submissions_in_doubt_though_the_controller_answers_is_given_up(
    make: Make, fake: FakeSlurm, job: JobSpec
) -> None:
    fake.rule("sbatch", stdout="900123\n")
    api = make(faults={"submit": {"errno": 1007, "text": "Protocol authentication error"}})
    assert [type(api.submit(job)) for _ in range(3)] == [Unknown, Unknown, Accepted]
    hung = make(faults={"submit": {"errno": 5004, "text": "Socket timed out on send/recv operation"}})
    assert [type(hung.submit(job)) for _ in range(3)] == [Unknown] * 3


def test_a_configuration_that_is_not_there_is_not_waited_for(fake: FakeSlurm, job: JobSpec, tmp_path: Path) -> None:
    fake.rule("sbatch", stdout="900123\n")
    path = place(tmp_path / "library", faults={"import": "hang"})
    cli = SlurmCli(bin_dir=fake.bin, slurm_conf=tmp_path / "no-such.conf")
    api = SlurmApi(cli, path=path, warm_up=0, cluster_version="25.11.7")
    assert api.submit(job) == Accepted("900123")
    assert "no-such.conf cannot be read" in api.why_not()


def test_a_process_with_few_requests_never_starts_a_child(make: Make, fake: FakeSlurm, job: JobSpec) -> None:
    fake.rule("sbatch", stdout="900123\n")
    api = make(warm_up=2)
    assert [api.submit(job) for _ in range(3)] == [Accepted("900123"), Accepted("900123"), Accepted("4711")]
    assert len(fake.calls("sbatch")) == 2


def test_a_library_in_a_folder_of_its_own_is_found_without_importing_it(tmp_path: Path) -> None:
    assert not pyslurm_installed(tmp_path)
    assert pyslurm_installed(place(tmp_path, faults={"import": "exit"}))


# -------------------------------------------------------------------------------------- the three outcomes


@pytest.mark.parametrize("fault", ["hang", "hold the lock", "segfault", "exit"])
def test_row_02_a_submit_that_never_answers_is_unknown_and_never_sent_twice(
    fault: str, make: Make, fake: FakeSlurm, job: JobSpec, tmp_path: Path
) -> None:
    api = make(faults={"submit": fault})
    api.why_not()  # loading has a patience of its own
    api._cli.submit_timeout = 1.0
    began = time.monotonic()
    outcome = api.submit(job)
    assert isinstance(outcome, Unknown) and time.monotonic() - began < PATIENCE
    assert fake.calls("sbatch") == [] and len(descriptions(tmp_path)) == 1


def test_a_child_that_holds_the_lock_does_not_stop_this_process(make: Make, job: JobSpec) -> None:
    api = make(faults={"submit": "hold the lock"})
    api.why_not()
    api._cli.submit_timeout = 1.0
    outcomes: list[object] = []
    asking = threading.Thread(target=lambda: outcomes.append(api.submit(job)))
    asking.start()
    turns = 0
    while asking.is_alive():
        asking.join(0.02)
        turns += 1
    assert turns > 10 and isinstance(outcomes[0], Unknown)


def test_a_child_that_dies_before_it_began_has_sent_nothing(make: Make, fake: FakeSlurm, job: JobSpec) -> None:
    fake.rule("sbatch", stdout="900123\n")
    api = make()
    assert api.submit(job) == Accepted("4711")
    assert api._child is not None
    os.kill(api._child._process.pid, signal.SIGKILL)
    assert api.submit(job) == Accepted("900123")
    assert api.submit(job) == Accepted("4711"), "another child was started"


def test_a_fork_has_a_child_of_its_own_and_leaves_the_parents_alone(make: Make, job: JobSpec) -> None:
    api = make()
    assert api.submit(job) == Accepted("4711")
    mine = api._child
    assert mine is not None
    forked = os.fork()
    if forked == 0:
        code = 1
        with contextlib.suppress(BaseException):
            well = api.submit(job) == Accepted("4711") and api._child is not mine and api._child is not None
            api.close()
            code = 0 if well else 2
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 0
    assert api.submit(job) == Accepted("4711") and api._child is mine


def test_a_child_does_not_outlive_a_killed_parent(make: Make, job: JobSpec, tmp_path: Path) -> None:
    parent = os.fork()
    if parent == 0:
        with contextlib.suppress(BaseException):
            api = make()
            api.submit(job)
            assert api._child is not None
            (tmp_path / "pid").write_text(str(api._child._process.pid))
            signal.pause()
        os._exit(1)
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "the child's pid")
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    child = int((tmp_path / "pid").read_text())
    until(lambda: Identity.of(child) is None, "the child to end")


def test_after_two_lost_children_the_command_line_does_the_rest(
    make: Make, fake: FakeSlurm, job: JobSpec, caplog: pytest.LogCaptureFixture
) -> None:
    fake.rule("sbatch", stdout="900123\n")
    api = make(faults={"submit": "segfault"})
    with caplog.at_level(logging.WARNING):
        outcomes = [api.submit(job) for _ in range(4)]
    assert [type(outcome) for outcome in outcomes] == [Unknown, Unknown, Accepted, Accepted]
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("errno", "text", "printed", "expected"),
    [
        (2000, "Invalid partition name specified", "invalid partition specified: x", ("InvalidPartition", When.NEVER)),
        (2014, "Requested node configuration is not available", "", ("BadConstraints", When.NEVER)),
        (2038, "Job dependency problem", "", ("Dependency", When.LATER)),
        (2045, "Invalid account or account/partition combination specified", "", ("InvalidAccount", When.NEVER)),
        (2072, "Invalid generic resource (gres) specification", "", ("GPU_FLAG", When.CONFIG)),
        (2081, "Invalid job array specification", "", ("ArraySize", When.LATER)),
        (1800, "Unable to contact slurm controller (connect failure)", "", ("ControllerDown", When.LATER)),
        (
            2050,
            "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
            "AssocMaxSubmitJobLimit",
            ("AssocMaxSubmitJobLimit", When.LATER),
        ),
        (
            2050,
            "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
            "QOSMaxWallDurationPerJobLimit",
            ("QOSMaxWallDurationPerJobLimit", When.NEVER),
        ),
        (5004, "Socket timed out on send/recv operation", "", None),
        (1007, "Protocol authentication error", "", None),
        (1802, "Unable to contact slurm controller (receive failure)", "", None),
        (11, "Resource temporarily unavailable", "", None),
        (-1, "Unspecified error", "", None),
        (0, "No error", "", None),
    ],
)
def test_errors_of_the_controller_mean_what_sbatchs_would(
    errno: int, text: str, printed: str, expected: tuple[str, When] | None, make: Make, job: JobSpec
) -> None:
    line = f"python: error: {printed}\n" if printed else ""
    outcome = make(faults={"submit": {"errno": errno, "text": text, "printed": line}}).submit(job)
    if expected is None:
        assert isinstance(outcome, Unknown) and text in outcome.why
    else:
        assert isinstance(outcome, Refused), outcome
        assert (outcome.reason, outcome.when) == expected
        assert printed in outcome.detail


def test_what_the_library_printed_before_is_not_held_against_a_job(make: Make, job: JobSpec) -> None:
    api = make(faults={"load": {"errno": 2017, "text": "Invalid job id specified", "printed": "AssocMaxJobsLimit\n"}})
    api.look_up("5")
    assert api.submit(job) == Accepted("4711", notes="")


def test_text_on_stdout_is_no_answer(make: Make, job: JobSpec) -> None:
    outcome = make(faults={"submit": "chatter", "import": "chatter"}).submit(job)
    assert isinstance(outcome, Accepted) and outcome.job_id == "4711"
    assert "no answer" in outcome.notes and "another one" in outcome.notes


def test_an_id_that_is_none_is_unknown(make: Make, job: JobSpec) -> None:
    assert isinstance(make(faults={"submit": "wrong id"}).submit(job), Unknown)


# ------------------------------------------------------------------------------------- what is asked for


def test_a_job_says_everything_that_the_library_would_fill_in_differently(
    make: Make, job: JobSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SLURM_CPU_BIND", "SBATCH_PARTITION", "DATABASE_URL", "PYSLURM_DISABLE_AUTO_INIT"):
        monkeypatch.setenv(name, "leak")
    lane = Lane("gpu", partition="gpu,long", account="lab-b", qos="high", reservation="friday", gpu_type="a100")
    spec = replace(
        job,
        lane=replace(lane, extra=("--constraint=a&b",)),
        args=("--x", "two words"),
        cpus=3,
        memory_mb=1500,
        gpus=2,
        nodes=2,
        after=("7", "8_0"),
        begin_seconds=90,
        exclude=("n7", "n8"),
        env={"SEED": "7"},
        log=tmp_path / "slot" / "100% of %j.log",
    )
    assert make().submit_array(spec, 5, 2) == Accepted("4711")
    (said,) = descriptions(tmp_path)
    environment = said.pop("job_environment")
    assert said.pop("environment") == environment
    assert said.pop("profile") == []
    assert said == {
        "name": job.name,
        "script": str(job.script),
        "script_args": [str(job.script), "--x", "two words"],
        "standard_in": "/dev/null",
        "working_directory": str(tmp_path),
        "standard_output": f"{tmp_path}/slot/100%% of %%j.log.%a",
        "log_files_open_mode": "append",
        "time_limit": "0-00:10:00",
        "nodes": "2",
        "ntasks": 2,
        "ntasks_per_node": 1,
        "cpus_per_task": 3,
        "memory_per_node": 1500,
        "gres_per_node": {"gpu:a100": 2},
        "constraints": "a&b",
        "partitions": "gpu,long",
        "account": "lab-b",
        "qos": "high",
        "reservations": "friday",
        "array": "0-4%2",
        "dependencies": "afterany:7:8_0",
        "begin_time": "now+90",
        "excluded_nodes": "n7,n8",
        "is_requeueable": False,
    }
    assert environment["SEED"] == "7" and "leak" not in environment.values()
    slurms = {name: value for name, value in environment.items() if name.startswith("SLURM_")}
    assert slurms.keys() == {
        *("SLURM_JOB_NAME", "SLURM_CPUS_PER_TASK", "SLURM_TRES_PER_TASK", "SLURM_NTASKS_PER_NODE"),
        *("SLURM_SUBMIT_DIR", "SLURM_SUBMIT_HOST", "SLURM_UMASK", "SLURM_PRIO_PROCESS", "SLURM_GPUS_PER_NODE"),
    }
    assert (slurms["SLURM_JOB_NAME"], slurms["SLURM_SUBMIT_DIR"]) == (job.name, str(Path.cwd()))
    assert (slurms["SLURM_CPUS_PER_TASK"], slurms["SLURM_TRES_PER_TASK"]) == ("3", "cpu=3")
    assert slurms["SLURM_GPUS_PER_NODE"] == "a100:2"
    assert int(slurms["SLURM_UMASK"], 8) < 0o1000


@pytest.mark.parametrize(
    ("lane", "said"),
    [
        (Lane("x", gpu_flag="gpus"), {"gpus": 6}),
        (Lane("x", gpu_flag="gpus", gpu_type="h200"), {"gpus": {"gpu:h200": 6}}),
        (Lane("x", gpu_flag="gpus", gpu_type="gpu-big"), {"gpus": {"gpu:gpu-big": 6}}),
        (Lane("x", gpu_flag="gres"), {"gres_per_node": {"gpu": 2}}),
        (Lane("x", gpu_flag="none"), {}),
        (Lane("x", gpu_flag="none", memory_flag="none"), {}),
        (Lane("x", gpu_flag="none", memory_flag="mem-per-cpu"), {"memory_per_cpu": 334}),
    ],
)
def test_gpus_and_memory_in_the_spelling_of_the_lane(lane: Lane, said: dict[str, Any], job: JobSpec) -> None:
    spec = replace(job, lane=lane, gpus=2, nodes=3, cpus=3, memory_mb=1000)
    asked = describe(spec, None, {})
    wanted = {name: asked[name] for name in asked if "gpu" in name or "gres" in name or name == "memory_per_cpu"}
    assert wanted == said
    assert ("memory_per_node" in asked) == (lane.memory_flag == "mem")


@pytest.mark.parametrize(
    "changes",
    [
        {"args": ("a", "", "b")},
        {"lane": Lane("x", extra=("--exclusive",))},
        {"lane": Lane("x", extra=("--switches=1",))},
    ],
)
def test_what_the_library_would_get_wrong_goes_to_sbatch(
    changes: dict[str, Any], make: Make, fake: FakeSlurm, job: JobSpec, tmp_path: Path
) -> None:
    fake.rule("sbatch", stdout="900123\n")
    spec = replace(job, **changes)
    with pytest.raises(CannotSay):
        describe(spec, None, {})
    assert make().submit(spec) == Accepted("900123")
    assert descriptions(tmp_path) == []


@pytest.mark.parametrize("content", [b"\n# \x00\n", b"\n# \xff\n", b"\nprintf 'a\rb'\n", b"\r\n"])
def test_a_script_that_the_library_refuses_or_would_change_goes_to_sbatch(
    content: bytes, make: Make, fake: FakeSlurm, job: JobSpec, tmp_path: Path
) -> None:
    fake.rule("sbatch", stdout="900123\n")
    job.script.write_bytes(b"#!/bin/sh" + content)
    assert make().submit(job) == Accepted("900123")
    assert descriptions(tmp_path) == []


def test_more_than_a_pipe_holds_goes_to_sbatch(make: Make, fake: FakeSlurm, job: JobSpec) -> None:
    fake.rule("sbatch", stdout="900123\n")
    assert make().submit(replace(job, env={"LONG": "x" * 100_000})) == Accepted("900123")


# ---------------------------------------------------------------------------------------- cancel, look up


def test_whole_jobs_are_cancelled_by_the_library_and_tasks_by_scancel(make: Make, fake: FakeSlurm) -> None:
    fake.rule("scancel")
    assert make().cancel(["12", "7_1", "7_2", "x; rm"]) is None
    assert [call.argv for call in fake.calls("scancel")] == [["7_[1-2]"]]


@pytest.mark.parametrize("errno", [2002, 1800, 5004, 1007])
def test_a_cancel_that_fails_is_asked_of_scancel_again(errno: int, make: Make, fake: FakeSlurm) -> None:
    fake.rule("scancel", rc=1, stderr="scancel: error: Unable to contact slurm controller (connect failure)\n")
    api = make(faults={"cancel": {"errno": errno, "text": "no"}})
    assert isinstance(api.cancel(["12", "13"]), NoAnswer)
    assert [call.argv for call in fake.calls("scancel")] == [["12", "13"]]


def test_a_job_that_is_gone_needs_no_cancel(make: Make, fake: FakeSlurm) -> None:
    api = make(faults={"cancel": {"errno": 2017, "text": "Invalid job id specified"}})
    assert api.cancel(["12"]) is None and fake.calls("scancel") == []


def test_a_cancel_that_hangs_is_asked_of_scancel(make: Make, fake: FakeSlurm) -> None:
    fake.rule("scancel")
    api = make(faults={"cancel": "hold the lock"})
    api.why_not()
    api._cli.query_timeout = 1.0
    assert api.cancel(["12"]) is None
    assert [call.argv for call in fake.calls("scancel")] == [["12"]]


def test_an_exit_code_is_asked_of_scontrol(make: Make, fake: FakeSlurm) -> None:
    """255 shows as 127: no exit code of a failed job can be believed."""
    fake.rule(
        "scontrol",
        argv="show job 195",
        stdout=(
            "JobId=195 JobName=ExitCode=1:0 UserId=root(0) GroupId=root(0) Priority=1 JobState=FAILED"
            " Reason=NonZeroExitCode Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 ExitCode=255:0"
            " SubmitTime=2026-11-29T14:32:00 StartTime=2026-11-29T14:32:00 EndTime=2026-11-29T14:32:00 NodeList=n1\n"
        ),
    )
    api = make(records=RECORDED)
    assert isinstance(api, LooksUp)
    row = api.look_up("195")
    assert isinstance(row, JobRow)
    assert (row.exit_code, row.signal, row.name, row.state) == (255, None, "ExitCode=1:0", JobState.FAILED)
    assert len(fake.calls("scontrol")) == 1
    killed = api.look_up("196")
    assert isinstance(killed, JobRow) and (killed.exit_code, killed.signal) == (0, 9)
    assert len(fake.calls("scontrol")) == 1, "a signal is told rightly"


def test_a_job_that_nobody_knows_is_none_and_a_task_is_asked_of_scontrol(make: Make, fake: FakeSlurm) -> None:
    fake.rule("scontrol", rc=1, stderr="slurm_load_jobs error: Invalid job id specified\n")
    api = make(records=RECORDED)
    assert api.look_up("99999") is None
    assert api.look_up("211_0") is None
    assert [call.argv[-1] for call in fake.calls("scontrol")] == ["99999", "211_0"]


def test_a_look_up_without_an_answer_is_no_answer(make: Make, fake: FakeSlurm) -> None:
    fake.rule("scontrol", rc=1, stderr="slurm_load_jobs error: Unable to contact slurm controller\n")
    api = make(faults={"load": {"errno": 1800, "text": "Unable to contact slurm controller (connect failure)"}})
    assert isinstance(api.look_up("7"), NoAnswer) and fake.calls("scontrol") == []
    api = make(faults={"load": {"errno": 1007, "text": "Protocol authentication error"}})
    assert isinstance(api.look_up("7"), NoAnswer) and len(fake.calls("scontrol")) == 1


# ------------------------------------------------------------------------------------------- real records


def recorded() -> list[dict[str, Any]]:
    found = json.loads(RECORDED.read_text())["records"]
    return [record for record in found if record.get("Jobs.load") and record.get("squeue_-t_all")]


def test_every_recorded_job_reads_like_squeues_line_of_the_same_instant() -> None:
    """%i|%F|%K|%T|%r|%R|%N|%S|%e|%E|%k: the same id, state, reason and node, task 0 and folded tasks included."""
    compared = 0
    for record in recorded():
        rows = {row.job_id: row for row in read_records(record["Jobs.load"])}
        expected: dict[str, JobRow] = {}
        for line in record["squeue_-t_all"]:
            job_id, _, _, state, reason, _, node, _, _, _, _ = line.split("|", 10)
            name = next(iter(rows.values())).name
            listing = squeue_listing(f"row|{job_id}|{state}|N/A|N/A|N/A|{node}|{reason}|{name}\n")
            assert isinstance(listing, Listing)
            expected |= listing.by_id()
        assert rows.keys() == expected.keys(), record["scenario"]
        for job_id, row in rows.items():
            theirs = expected[job_id]
            assert (row.state, row.reason, row.node) == (theirs.state, theirs.reason, theirs.node), record["scenario"]
            compared += 1
    assert compared > 60


def test_no_recorded_exit_code_is_believed_that_scontrol_contradicts() -> None:
    compared = 0
    for record in recorded():
        shown = next((line for line in record.get("scontrol", []) if line.startswith("ExitCode=")), "")
        (row, *more) = read_records(record["Jobs.load"])
        if more or not shown or row.exit_code is None:
            continue
        code, _, killed = shown.removeprefix("ExitCode=").partition(":")
        assert (row.exit_code, row.signal) == (int(code), int(killed) or None), record["scenario"]
        compared += 1
    assert compared > 6


def test_a_forecast_is_no_end() -> None:
    for record in recorded():
        for row in read_records(record["Jobs.load"]):
            assert (row.ended is not None) == row.state.final, record["scenario"]
            assert row.submitted is not None


def test_an_error_that_names_no_limit_is_a_policy_that_may_pass() -> None:
    policy = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
    refused = read_error(2050, policy, "")
    assert isinstance(refused, Refused) and (refused.reason, refused.when) == ("AccountingPolicy", When.LATER)

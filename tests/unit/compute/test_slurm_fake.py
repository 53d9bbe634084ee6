"""Attacks the Slurm backend with what public reports say that tools print, one test per report row.

Every tool is the scripted fake. What a real cluster does on demand is attacked in tests/slurm/.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from outerloop.compute.local_spool import Identity
from outerloop.compute.protocol import (
    Accepted,
    History,
    JobSpec,
    JobState,
    Lane,
    Listing,
    NoAnswer,
    Refused,
    SiteLimits,
    SubmitOutcome,
    Unavailable,
    Unknown,
    When,
)
from outerloop.compute.reasons import pending_reason
from outerloop.compute.slurm import SlurmCli, find_tools
from tests.fake_slurm import HANG, FakeSlurm, squeue_row


@pytest.fixture
def fake(tmp_path: Path) -> FakeSlurm:
    return FakeSlurm(tmp_path)


@pytest.fixture
def compute(fake: FakeSlurm) -> SlurmCli:
    return SlurmCli(bin_dir=fake.bin, submit_timeout=5, query_timeout=5)


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


def submit(
    fake: FakeSlurm, compute: SlurmCli, job: JobSpec, stdout: str = "", stderr: str = "", rc: int = 0
) -> SubmitOutcome:
    fake.clear()
    fake.rule("sbatch", stdout=stdout, stderr=stderr, rc=rc)
    return compute.submit(job)


# ---------------------------------------------------------------------------------------------- submitting


def test_row_01_a_reply_that_timed_out_is_unknown_and_the_job_is_in_the_listing(
    fake: FakeSlurm, compute: SlurmCli, job: JobSpec
) -> None:
    fake.rule(
        "sbatch",
        rc=1,
        stderr="sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n",
        enqueue=[squeue_row("900123", "PENDING", job.name)],
    )
    fake.rule("squeue", stdout=None)
    assert isinstance(compute.submit(job), Unknown)
    listing = compute.listing()
    assert isinstance(listing, Listing)
    assert [row.job_id for row in listing.by_name()[job.name]] == ["900123"]
    assert len(fake.calls("sbatch")) == 1


def test_row_02_a_hanging_sbatch_is_killed_with_its_children_and_unknown(
    fake: FakeSlurm, job: JobSpec, tmp_path: Path
) -> None:
    fake.rule("sbatch", delay=HANG, effect=f"sleep 600 & echo $! > {tmp_path}/child")
    outcome = SlurmCli(bin_dir=fake.bin, submit_timeout=0.6).submit(job)
    assert isinstance(outcome, Unknown) and "no answer within" in outcome.why
    child = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + 60
    while Identity.of(child) is not None:
        assert time.monotonic() < deadline, "the tool's child lives on"


@pytest.mark.parametrize("rc", [-9, -15, 137, 1])
def test_row_02_a_killed_client_that_said_nothing_is_unknown(
    fake: FakeSlurm, compute: SlurmCli, job: JobSpec, rc: int
) -> None:
    assert isinstance(submit(fake, compute, job, rc=rc), Unknown)


def test_row_03_text_on_stderr_does_not_make_a_good_submit_a_failure(
    fake: FakeSlurm, compute: SlurmCli, job: JobSpec
) -> None:
    note = "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying"
    outcome = submit(fake, compute, job, "900123\n", note + "\n")
    assert outcome == Accepted("900123", "", note)


@pytest.mark.parametrize(
    ("stdout", "expected"),
    [
        ("900123\n", ("900123", "")),
        ("900123;alpha\n", ("900123", "alpha")),
        ("  900123  \n\n", ("900123", "")),
        ("--- Welcome to Cluster3 ---\n--> quota 12% OK\n900123\n", ("900123", "")),
        ("900123\nCharged to lab-b: 12 units\n", ("900123", "")),
    ],
    ids=["plain", "cluster", "blanks", "row_06_banner", "row_06_charge"],
)
def test_row_06_row_07_one_whole_line_is_the_id_and_the_rest_are_notes(
    fake: FakeSlurm, compute: SlurmCli, job: JobSpec, stdout: str, expected: tuple[str, str]
) -> None:
    outcome = submit(fake, compute, job, stdout)
    assert isinstance(outcome, Accepted)
    assert (outcome.job_id, outcome.cluster) == expected
    assert expected[0] not in outcome.notes


@pytest.mark.parametrize(
    "stdout",
    [
        "",
        "\n",
        "Submitted batch job 900123 on cluster alpha\n",
        "sbatch: your job 24 h limit was raised\nSubmitted batch job 900123\n",
        "900123\n900124\n",
        "-900123\n",
        "900123.0\n",
        "٩٠٠١٢٣\n",
        "900123;alpha;beta\n",
        "\x00900123\n",
    ],
    ids=["empty", "newline", "row_05", "row_06", "two ids", "negative", "step", "other digits", "two clusters", "nul"],
)
def test_row_05_row_07_a_success_without_exactly_one_id_is_unknown(
    fake: FakeSlurm, compute: SlurmCli, job: JobSpec, stdout: str
) -> None:
    assert isinstance(submit(fake, compute, job, stdout), Unknown)


def test_an_id_beside_a_failure_is_unknown(fake: FakeSlurm, compute: SlurmCli, job: JobSpec) -> None:
    outcome = submit(fake, compute, job, "900123\n", "wrapper: cannot write the accounting file\n", rc=1)
    assert isinstance(outcome, Unknown)


CLOSING = "sbatch: error: Batch job submission failed: "


@pytest.mark.parametrize(
    ("stderr", "reason", "when"),
    [
        (
            f"sbatch: error: AssocMaxSubmitJobLimit\n{CLOSING}Job violates accounting/QOS policy (job submit limit, "
            "user's size and/or time limits)\n",
            "AssocMaxSubmitJobLimit",
            When.LATER,
        ),
        (
            f"sbatch: error: QOSMaxSubmitJobPerUserLimit\n{CLOSING}Job violates accounting/QOS policy (…)\n",
            "QOSMaxSubmitJobPerUserLimit",
            When.LATER,
        ),
        (
            f"sbatch: error: qosmaxwalldurationperjoblimit\n{CLOSING}Job violates accounting/QOS policy (…)\n",
            "qosmaxwalldurationperjoblimit",
            When.NEVER,
        ),
        (
            f"sbatch: error: QOSMaxCpuPerJobLimit\n{CLOSING}Job violates accounting/QOS policy (…)\n",
            "QOSMaxCpuPerJobLimit",
            When.NEVER,
        ),
        (f"{CLOSING}Job violates accounting/QOS policy (…)\n", "AccountingPolicy", When.LATER),
        (f"{CLOSING}Pathname of a file, directory or other parameter too long\n", "SCRIPT_TOO_LARGE", When.NEVER),
        (
            "sbatch: error: --gpus=1 makes this a CPU job, refused\n" + CLOSING + "Unspecified\n",
            "GPU_FLAG",
            When.CONFIG,
        ),
        ("sbatch: error: Invalid generic resource (gres) specification\n", "GPU_FLAG", When.CONFIG),
        (
            "sbatch: fatal: --mem, --mem-per-cpu, and --mem-per-gpu are mutually exclusive.\n",
            "MEMORY_FORM",
            When.CONFIG,
        ),
        (f"{CLOSING}Job dependency problem\n", "Dependency", When.LATER),
        (f"{CLOSING}Unable to contact slurm controller (connect failure)\n", "ControllerDown", When.LATER),
        (
            f"sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying\n{CLOSING}Resource "
            "temporarily unavailable\n",
            "ControllerBusy",
            When.LATER,
        ),
        (f"{CLOSING}Invalid account or account/partition combination specified\n", "InvalidAccount", When.NEVER),
        (f"{CLOSING}Invalid qos specification\n", "InvalidQOS", When.NEVER),
        (f"{CLOSING}Requested time limit is invalid (missing or exceeds some limit)\n", "TimeLimit", When.NEVER),
        (f"{CLOSING}Requested node configuration is not available\n", "BadConstraints", When.NEVER),
        ("sbatch: error: site policy: be nice\n" + CLOSING + "A sentence from tomorrow\n", "Unrecognised", When.CONFIG),
    ],
    ids=lambda value: value if isinstance(value, str) and "\n" not in value else "",
)
def test_row_08_row_09_row_12_row_19_row_33_a_refusal_is_named_by_its_reason(
    fake: FakeSlurm, compute: SlurmCli, job: JobSpec, stderr: str, reason: str, when: When
) -> None:
    outcome = submit(fake, compute, job, "", stderr, rc=1)
    assert isinstance(outcome, Refused)
    assert (outcome.reason, outcome.when) == (reason, when)
    assert outcome.detail.splitlines()[0] == stderr.splitlines()[0]


@pytest.mark.parametrize(
    "sentence",
    [
        "Socket timed out on send/recv operation",
        "Zero Bytes were transmitted or received",
        "Unable to contact slurm controller (receive failure)",
        "Unable to contact slurm controller (send failure)",
        "Protocol authentication error",
        "Unspecified error",
    ],
)
def test_row_01_every_failure_of_the_conversation_is_unknown(
    fake: FakeSlurm, compute: SlurmCli, job: JobSpec, sentence: str
) -> None:
    assert isinstance(submit(fake, compute, job, "", CLOSING + sentence + "\n", rc=1), Unknown)


def test_row_12_a_large_script_never_leaves_the_house(fake: FakeSlurm, job: JobSpec) -> None:
    job.script.write_text("#!/bin/sh\n" + "#" * 2000)
    outcome = SlurmCli(bin_dir=fake.bin, max_script_bytes=1000).submit(job)
    assert isinstance(outcome, Refused) and (outcome.reason, outcome.when) == ("SCRIPT_TOO_LARGE", When.NEVER)
    assert fake.calls() == []


def test_row_12_arguments_that_the_kernel_refuses_are_a_refusal(
    fake: FakeSlurm, compute: SlurmCli, job: JobSpec
) -> None:
    outcome = compute.submit(replace(job, args=("x" * (1 << 21),)))
    assert isinstance(outcome, Refused) and (outcome.reason, outcome.when) == ("ARGUMENTS_TOO_LONG", When.NEVER)


def test_row_13_the_folder_of_the_log_is_there_when_sbatch_runs(
    fake: FakeSlurm, compute: SlurmCli, job: JobSpec
) -> None:
    fake.rule("sbatch", stdout="900123\n", effect=f"test -d '{job.log.parent}'")
    assert isinstance(compute.submit(job), Accepted)


def test_row_13_a_log_folder_that_cannot_be_made_is_refused_for_now(
    fake: FakeSlurm, compute: SlurmCli, job: JobSpec, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    outcome = compute.submit(replace(job, log=tmp_path / "file" / "log" / "slurm.log"))
    assert isinstance(outcome, Refused) and (outcome.reason, outcome.when) == ("LogFolder", When.LATER)
    assert fake.calls() == []


# --------------------------------------------------------------------------- environment, options, resources

HOSTILE = {
    "SLURM_CPU_BIND": "quiet,mask_cpu:0x1",
    "SLURM_CPUS_PER_TASK": "1",
    "SLURM_GPUS_PER_NODE": "1",
    "SLURM_JOB_ID": "1",
    "SLURM_CONF": "/elsewhere/slurm.conf",
    "SLURMD_NODENAME": "n1",
    "SBATCH_PARTITION": "dbg",
    "SRUN_CPUS_PER_TASK": "1",
    "SQUEUE_FORMAT": "%j",
    "SACCT_FORMAT": "JobID",
    "PMIX_RANK": "0",
    "DATABASE_URL": "postgresql://secret",
    "GITHUB_TOKEN": "secret",
    "LD_PRELOAD_OF_TESTS": "x",
    "LANG": "de_DE.UTF-8",
    "LC_ALL": "de_DE.UTF-8",
}


def test_row_15_row_16_row_52_nothing_of_the_caller_reaches_a_tool(
    fake: FakeSlurm, compute: SlurmCli, job: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in HOSTILE.items():
        monkeypatch.setenv(name, value)
    fake.rule("sbatch", stdout="900123\n")
    fake.rule("squeue", stdout=None)
    fake.rule("sacct")
    fake.rule("scancel")
    fake.rule("scontrol")
    compute.submit(replace(job, env={"SEED": "7"}))
    compute.listing()
    compute.history(0, ["900123"], [])
    compute.cancel(["900123"])
    compute.limits()
    assert {call.tool for call in fake.calls()} == {"sbatch", "squeue", "sacct", "scancel", "scontrol"}
    # The shell that starts the fake adds some of its own.
    allowed = {"HOME", "USER", "LOGNAME", "SHELL", "PATH", "LC_ALL", "PWD", "SHLVL", "_", "OLDPWD", "LC_CTYPE"}
    for call in fake.calls():
        assert call.env["LC_ALL"] == "C.UTF-8"
        extra = {"SEED"} if call.tool == "sbatch" else {"TZ", "SLURM_BITSTR_LEN"}
        assert set(call.env) <= allowed | extra, call.tool
    assert fake.calls("sbatch")[0].env["SEED"] == "7"


def test_a_slurm_conf_of_the_settings_is_handed_on(fake: FakeSlurm, job: JobSpec) -> None:
    fake.rule("sbatch", stdout="900123\n")
    fake.rule("squeue", stdout=None)
    compute = SlurmCli(bin_dir=fake.bin, slurm_conf=Path("/etc/other/slurm.conf"))
    compute.submit(job)
    compute.listing()
    assert {call.env["SLURM_CONF"] for call in fake.calls()} == {"/etc/other/slurm.conf"}


def test_row_21_variables_travel_in_the_environment_and_never_in_a_list(
    fake: FakeSlurm, compute: SlurmCli, job: JobSpec
) -> None:
    fake.rule("sbatch", stdout="900123\n")
    compute.submit(replace(job, env={"SEED": "7", "ODD": "a,b=c"}))
    (call,) = fake.calls("sbatch")
    assert [option for option in call.argv if option.startswith("--export")] == ["--export=ALL"]
    assert call.env["ODD"] == "a,b=c"


def test_row_42_tools_are_found_by_configured_paths_and_never_by_path(
    fake: FakeSlurm, job: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    fake.rule("sbatch", stdout="900123\n")
    assert isinstance(SlurmCli(bin_dir=fake.bin).submit(job), Accepted)
    with pytest.raises(ValueError, match="not absolute"):
        SlurmCli(tools={"sbatch": Path("sbatch")})
    assert find_tools(str(fake.bin)) == {
        tool: fake.bin / tool for tool in ("sbatch", "squeue", "sacct", "scancel", "scontrol")
    }
    assert find_tools("/nowhere") == {}


# ------------------------------------------------------------------------------------------------ questions


def listing_of(compute: SlurmCli) -> Listing:
    listing = compute.listing()
    assert isinstance(listing, Listing), listing
    return listing


@pytest.mark.parametrize(
    ("rc", "stderr", "delay"),
    [
        (1, "squeue: error: Munge encode failed: Failed to access munge socket\n", 0.0),
        (1, "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n", 0.0),
        (0, "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n", 0.0),
        (1, "", 0.0),
        (-11, "", 0.0),
        (0, "", HANG),
    ],
    ids=["munge", "down", "down with rc 0", "silent", "crash", "hang"],
)
def test_row_43_a_query_that_failed_is_no_answer(fake: FakeSlurm, rc: int, stderr: str, delay: float) -> None:
    compute = SlurmCli(bin_dir=fake.bin, query_timeout=0.6)
    fake.rule("squeue", rc=rc, stderr=stderr, delay=delay)
    fake.rule("sacct", rc=rc, stderr=stderr, delay=delay)
    assert isinstance(compute.listing(), NoAnswer)
    assert isinstance(compute.history(0, ["900123"], []), NoAnswer)


def test_row_43_half_an_answer_is_none(fake: FakeSlurm, compute: SlurmCli) -> None:
    fake.rule("squeue", stdout=squeue_row("900123", "RUNNING", "a") + "\n" + squeue_row("900124", "RUNNING", "b")[:20])
    fake.rule("sacct", stdout="900123|COMPLETED|0:0|2026-01-0")
    assert isinstance(compute.listing(), NoAnswer)
    assert isinstance(compute.history(0, ["900123"], []), NoAnswer)


def test_row_45_an_empty_queue_is_a_complete_answer(fake: FakeSlurm, compute: SlurmCli) -> None:
    fake.rule("squeue", stdout=None)
    fake.rule("sacct")
    assert compute.listing() == Listing(())
    assert compute.history(0, ["900123"], ["a"]) == History(())


def test_a_sites_noise_beside_an_answer_does_not_stop_everything(fake: FakeSlurm, compute: SlurmCli) -> None:
    fake.rule("squeue", stderr="squeue: error: AuthInfo=cred_expire=3 invalid\n", times=1)
    assert compute.listing() == Listing(())
    fake.rule("squeue", stdout=squeue_row("900123", "RUNNING", "a") + "\n", stderr="squeue: error: plugin x is old\n")
    assert set(listing_of(compute).by_id()) == {"900123"}


def test_row_25_the_separator_in_a_name_is_part_of_it_and_a_short_row_is_counted(
    fake: FakeSlurm, compute: SlurmCli, caplog: pytest.LogCaptureFixture
) -> None:
    fake.rule(
        "squeue",
        stdout="Welcome to Cluster3\n"
        + squeue_row("900123", "RUNNING", "ol|weird|x")
        + "\nrow|900124|RUNNING|ol\nrow|nonsense|"
        + "|" * 9
        + "\n"
        + squeue_row("900125", "RUNNING", "ours")
        + "\n",
    )
    listing = listing_of(compute)
    assert {row.job_id: row.name for row in listing.jobs} == {"900123": "ol|weird|x", "900125": "ours"}
    assert listing.bad_rows == 3
    assert "row|900124|RUNNING|ol" in caplog.text


def test_row_25_a_newline_in_a_name_is_part_of_it(fake: FakeSlurm, compute: SlurmCli) -> None:
    fake.queue(squeue_row("1", "RUNNING", "a\nb\n\n|c\u2028d"), squeue_row("2", "RUNNING", "ours"))
    fake.rule("squeue", stdout=None)
    listing = listing_of(compute)
    assert {row.job_id: row.name for row in listing.jobs} == {"1": "a\nb\n\n|c\u2028d", "2": "ours"}
    assert listing.bad_rows == 0


def test_row_25_nothing_but_bad_rows_is_no_answer(fake: FakeSlurm, compute: SlurmCli) -> None:
    fake.rule("squeue", stdout="JOBID|STATE\n")
    assert isinstance(compute.listing(), NoAnswer)


def test_bytes_that_are_no_text_do_not_break_a_listing(fake: FakeSlurm, compute: SlurmCli) -> None:
    fake.rule("squeue", stdout=squeue_row("900123", "RUNNING", "na\udcff\udcfeme") + "\n")
    assert listing_of(compute).by_id()["900123"].name == "na\ufffd\ufffdme"


def test_row_29_row_32_row_62_pending_reasons_are_kept_word_by_word(fake: FakeSlurm, compute: SlurmCli) -> None:
    reasons = [
        "DependencyNeverSatisfied",
        "launch failed requeued held",
        "ReqNodeNotAvail, UnavailableNodes:n1,n2",
        "(Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions)",
    ]
    fake.queue(*[squeue_row(str(k), "PENDING", "a", reason=reason) for k, reason in enumerate(reasons)])
    fake.rule("squeue", stdout=None)
    assert [row.reason for row in listing_of(compute).jobs] == reasons
    assert pending_reason(reasons[1]).held


def test_row_41_a_missing_tool_is_no_evidence(fake: FakeSlurm, tmp_path: Path, job: JobSpec) -> None:
    bare = FakeSlurm(tmp_path / "bare", tools=())
    for compute in (SlurmCli(bin_dir=bare.bin), SlurmCli(tools={})):
        assert isinstance(compute.listing(), NoAnswer)
        assert isinstance(compute.limits(), NoAnswer)
        assert isinstance(compute.cancel(["1"]), NoAnswer)
        assert isinstance(compute.history(0, ["1"], []), Unavailable)
        outcome = compute.submit(job)
        assert isinstance(outcome, Refused) and (outcome.reason, outcome.when) == ("TOOL_MISSING", When.CONFIG)


def test_row_41_a_tool_that_may_not_be_executed_is_no_evidence(fake: FakeSlurm, compute: SlurmCli) -> None:
    (fake.bin / "squeue").chmod(0o644)
    assert isinstance(compute.listing(), NoAnswer)


@pytest.mark.parametrize(
    "stderr", ["Slurm accounting storage is disabled\n", "sacct: error: Slurm accounting storage is disabled\n"]
)
def test_row_50_accounting_that_is_off_is_asked_once(
    fake: FakeSlurm, compute: SlurmCli, stderr: str, caplog: pytest.LogCaptureFixture
) -> None:
    fake.rule("sacct", rc=1, stderr=stderr)
    for _ in range(3):
        assert isinstance(compute.history(0, ["900123"], []), Unavailable)
    assert len(fake.calls("sacct")) == 1
    assert len([record for record in caplog.records if "accounting" in record.message]) == 1


def test_row_51_a_broken_accounting_database_is_no_answer_and_asked_again(fake: FakeSlurm, compute: SlurmCli) -> None:
    fake.rule("sacct", rc=1, stderr="sacct: error: slurmdbd: Unknown error 1021\n")
    for _ in range(2):
        assert isinstance(compute.history(0, ["900123"], []), NoAnswer)
    assert len(fake.calls("sacct")) == 2


def test_row_56_row_57_presence_means_nothing_the_state_does(fake: FakeSlurm, compute: SlurmCli) -> None:
    fake.queue(
        squeue_row("1", "COMPLETED", "a", ended="2026-01-02T03:04:09"),
        squeue_row("2", "COMPLETING", "b", ended="2026-01-02T03:04:09"),
        squeue_row("3", "A_STATE_FROM_TOMORROW", "c"),
    )
    fake.rule("squeue", stdout=None)
    rows = listing_of(compute).by_id()
    assert rows["1"].state.final and rows["1"].ended == 1767323049.0
    assert not rows["2"].state.final and rows["2"].ended is None
    assert rows["3"].state is JobState.UNKNOWN and rows["3"].raw_state == "A_STATE_FROM_TOMORROW"


def test_row_61_two_hundred_jobs_are_one_squeue_and_one_sacct(fake: FakeSlurm, compute: SlurmCli) -> None:
    fake.queue(*[squeue_row(str(k), "RUNNING", f"job-{k}") for k in range(200)])
    fake.rule("squeue", stdout=None)
    fake.rule("sacct", stdout="")
    assert len(listing_of(compute).jobs) == 200
    compute.history(0, [str(k) for k in range(200)], [f"job-{k}" for k in range(200)])
    assert (len(fake.calls("squeue")), len(fake.calls("sacct"))) == (1, 1)


def test_a_listing_asks_for_all_states_and_partitions_of_our_jobs_only(fake: FakeSlurm, compute: SlurmCli) -> None:
    fake.rule("squeue", stdout=None)
    compute.listing()
    SlurmCli(bin_dir=fake.bin, user="lab").listing()
    first, second = fake.calls("squeue")
    assert first.argv == ["-h", "-a", "-t", "all", "--me", "-o", "row|%i|%T|%V|%S|%e|%N|%r|%j"]
    assert "--user=lab" in second.argv and "--me" not in second.argv


def test_a_history_has_an_explicit_start_in_utc_and_asks_by_id_where_it_can(fake: FakeSlurm, compute: SlurmCli) -> None:
    fake.rule("sacct")
    compute.history(1767323045.9, ["900124", "900123_4", "rubbish; rm"], [])
    compute.history(1767323045.9, ["900124"], ["ol-d1-a-1"])
    by_id, by_name = fake.calls("sacct")
    assert by_id.argv[by_id.argv.index("-S") + 1] == "2026-01-02T03:04:05" and by_id.env["TZ"] == "UTC0"
    assert by_id.argv[by_id.argv.index("-j") + 1] == "900123_4,900124"
    assert "-j" not in by_name.argv and by_name.argv[by_name.argv.index("-u") + 1] == str(os.getuid())


def test_a_start_that_is_in_the_future_is_not_asked_for(fake: FakeSlurm, compute: SlurmCli) -> None:
    fake.rule("sacct")
    compute.history(1e11, ["1"], [])
    (call,) = fake.calls("sacct")
    assert call.argv[call.argv.index("-S") + 1] <= time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())


def test_a_history_keeps_what_was_asked_for_and_reads_sacct(fake: FakeSlurm, compute: SlurmCli) -> None:
    fake.rule(
        "sacct",
        stdout="1|COMPLETED|0:0|2026-01-02T03:04:05|2026-01-02T03:04:06|2026-01-02T03:04:07|n1|ours\n"
        "2|CANCELLED by 1234|0:15|2026-01-02T03:04:05|None|2026-01-02T03:04:07|None assigned|named\n"
        "3|FAILED|1:0|2026-01-02T03:04:05|Unknown|Unknown|n1|foreign|with|bars\n"
        "4_[0-1]|PENDING|0:0|2026-01-02T03:04:05|Unknown|Unknown|None assigned|array\n"
        "5|FAILED|7:0|2026-01-02T03:04:05|Unknown|Unknown|n1|allocation\n",
    )
    history = compute.history(0, ["1", "4", "5"], ["named"])
    assert isinstance(history, History)
    rows = {row.job_id: row for row in history.jobs}
    assert set(rows) == {"1", "2", "4_0", "4_1", "5"}
    assert (rows["1"].exit_code, rows["1"].signal, rows["1"].node, rows["1"].ended) == (0, None, "n1", 1767323047.0)
    assert (rows["2"].state, rows["2"].cancelled_by, rows["2"].signal) == (JobState.CANCELLED, "1234", 15)
    assert (rows["2"].started, rows["2"].node) == (None, "")
    assert rows["4_0"].exit_code is None
    assert rows["5"].name == ""


def test_row_25_a_newline_in_a_foreign_name_does_not_spoil_a_history(fake: FakeSlurm, compute: SlurmCli) -> None:
    row = "|COMPLETED|0:0|2026-01-02T03:04:05|2026-01-02T03:04:06|2026-01-02T03:04:07|n1|"
    fake.rule("sacct", stdout=f"1{row}two\nlines\n2{row}ours\n")
    history = compute.history(0, ["1"], ["ours"])
    assert isinstance(history, History)
    assert {job.job_id: job.name for job in history.jobs} == {"1": "two\nlines", "2": "ours"}


def test_a_history_with_a_row_that_cannot_be_read_is_no_answer(fake: FakeSlurm, compute: SlurmCli) -> None:
    fake.rule("sacct", stdout="1|COMPLETED|0:0|n1|ours\n")
    assert isinstance(compute.history(0, ["1"], []), NoAnswer)


# --------------------------------------------------------------------------------------------------- cancel


def test_cancelling_is_delivered_or_it_is_not(fake: FakeSlurm, compute: SlurmCli) -> None:
    fake.rule("scancel", times=1)
    assert compute.cancel(["2", "1", "rubbish"]) is None
    fake.rule("scancel", rc=1, stderr="scancel: error: Kill job error on job id 1: Invalid job id specified\n", times=1)
    assert compute.cancel(["1"]) is None
    fake.rule(
        "scancel",
        rc=8,
        stderr="scancel: error: Kill job error on job id 1: Unable to contact slurm controller (connect failure)\n",
        times=1,
    )
    assert isinstance(compute.cancel(["1"]), NoAnswer)
    fake.rule("scancel", rc=1, times=1)
    assert isinstance(compute.cancel(["1"]), NoAnswer)
    assert fake.calls("scancel")[0].argv == ["1", "2"]
    calls = len(fake.calls())
    assert compute.cancel([]) is None and len(fake.calls()) == calls


def test_limits_without_values_are_not_invented(fake: FakeSlurm, compute: SlurmCli) -> None:
    fake.rule(
        "scontrol", argv="config", stdout="Configuration data as of x\nMinJobAge  = 300 sec\nMaxArraySize = (null)\n"
    )
    fake.rule("scontrol", argv="partition", stdout="PartitionName=a MaxTime=1-00:00:00 TRES=cpu=4,mem=1G\n")
    limits = compute.limits()
    assert limits == SiteLimits(
        min_job_age_seconds=300, partitions={"a": {"MaxTime": "1-00:00:00", "TRES": "cpu=4,mem=1G"}}
    )


# ------------------------------------------------------------------------------------------- site's places


@pytest.mark.parametrize(
    "stderr", ["sbatch: error: Batch job submission failed: Access/permission denied\n", "MISSING TOOL"]
)
def test_row_40_a_site_that_takes_no_submissions_from_jobs_refuses_the_place_and_not_the_job(
    stderr: str, fake: FakeSlurm, job: JobSpec, tmp_path: Path
) -> None:
    fake.rule("sbatch", rc=1, stderr=stderr)
    bin_dir = tmp_path / "empty" if stderr == "MISSING TOOL" else fake.bin
    outside = SlurmCli(bin_dir=bin_dir, environ={"PATH": "/usr/bin"}).submit(job)
    inside = SlurmCli(bin_dir=bin_dir, environ={"PATH": "/usr/bin", "SLURM_JOB_ID": "7"}).submit(job)
    assert isinstance(outside, Refused) and outside.when is When.CONFIG
    assert isinstance(inside, Refused) and (inside.reason, inside.when) == ("NOT_FROM_JOBS", When.LATER)


def test_trying_a_job_out_submits_nothing(fake: FakeSlurm, compute: SlurmCli, job: JobSpec) -> None:
    fake.rule("sbatch", argv="--test-only.*--nodes=1", stderr="sbatch: Job 5 to start at 2026-01-02T03:04:05\n")
    fake.rule(
        "sbatch", argv="--test-only", rc=1, stderr="sbatch: error: Invalid generic resource (gres) specification\n"
    )
    assert isinstance(compute, SlurmCli)
    assert compute.try_out(job) is None
    refused = compute.try_out(replace(job, nodes=2))
    assert isinstance(refused, Refused) and refused.reason == "GPU_FLAG"
    assert all("--test-only" in call.argv for call in fake.calls("sbatch"))


@pytest.mark.parametrize(("accounting", "expected"), [("off", Unavailable), ("auto", Unavailable), ("on", NoAnswer)])
def test_the_settings_decide_what_a_site_without_accounting_is(
    accounting: Literal["auto", "on", "off"], expected: type, fake: FakeSlurm
) -> None:
    fake.rule("sacct", rc=1, stderr="Slurm accounting storage is disabled\n")
    compute = SlurmCli(bin_dir=fake.bin, accounting=accounting)
    assert isinstance(compute.history(0, ["1"], []), expected)
    assert len(fake.calls("sacct")) == (0 if accounting == "off" else 1)

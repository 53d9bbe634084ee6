"""Pins sbatch's command line, and attacks what a lane's extra options may smuggle in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from outerloop.compute.argv import ArrayRange, check_extra, check_job, sbatch_argv
from outerloop.compute.protocol import JobSpec, Lane, Refused, When

SBATCH = Path("/opt/slurm/bin/sbatch")
JOB = JobSpec(
    name="ol-d1-speed-run-1-0123456789abcdef-1",
    script=Path("/slots/ab/job.sh"),
    log=Path("/slots/ab/slurm.log"),
    workdir=Path("/slots/ab"),
    lane=Lane("default"),
    minutes=12.5,
)


def test_row_22_a_plain_job_states_every_resource_as_an_argument() -> None:
    assert sbatch_argv(SBATCH, JOB) == [
        "/opt/slurm/bin/sbatch",
        "--parsable",
        "--job-name=ol-d1-speed-run-1-0123456789abcdef-1",
        "--output=/slots/ab/slurm.log",
        "--open-mode=append",
        "--chdir=/slots/ab",
        "--time=0-00:12:30",
        "--nodes=1",
        "--ntasks-per-node=1",
        "--cpus-per-task=1",
        "--no-requeue",
        "--export=ALL",
        "/slots/ab/job.sh",
    ]


def test_row_11_a_full_job_says_where_it_runs_and_what_it_waits_for() -> None:
    lane = Lane("gpu", partition="gpu", account="lab-b", qos="high", reservation="r1", extra=("--constraint=a100",))
    job = replace(
        JOB,
        lane=lane,
        args=("--flag", "a b"),
        cpus=8,
        memory_mb=32000,
        gpus=4,
        nodes=2,
        after=("11", "12_3"),
        begin_seconds=30,
        requeue=True,
        exclude=("n7", "n8"),
    )
    assert sbatch_argv(SBATCH, job) == [
        "/opt/slurm/bin/sbatch",
        "--parsable",
        "--job-name=ol-d1-speed-run-1-0123456789abcdef-1",
        "--output=/slots/ab/slurm.log",
        "--open-mode=append",
        "--chdir=/slots/ab",
        "--time=0-00:12:30",
        "--nodes=2",
        "--ntasks-per-node=1",
        "--cpus-per-task=8",
        "--mem=32000M",
        "--gpus-per-node=4",
        "--partition=gpu",
        "--account=lab-b",
        "--qos=high",
        "--reservation=r1",
        "--requeue",
        "--export=ALL",
        "--dependency=afterany:11:12_3",
        "--begin=now+30",
        "--exclude=n7,n8",
        "--constraint=a100",
        "/slots/ab/job.sh",
        "--flag",
        "a b",
    ]


@pytest.mark.parametrize(
    ("lane", "option"),
    [
        (Lane("x"), "--gpus-per-node=2"),
        (Lane("x", gpu_type="a100"), "--gpus-per-node=a100:2"),
        (Lane("x", gpu_flag="gres"), "--gres=gpu:2"),
        (Lane("x", gpu_flag="gres", gpu_type="a100"), "--gres=gpu:a100:2"),
        (Lane("x", gpu_flag="gpus"), "--gpus=6"),
        (Lane("x", gpu_flag="gpus", gpu_type="a100"), "--gpus=a100:6"),
        (Lane("x", gpu_flag="none"), None),
    ],
)
def test_row_19_gpus_are_spelled_as_the_site_wants(lane: Lane, option: str | None) -> None:
    argv = sbatch_argv(SBATCH, replace(JOB, lane=lane, gpus=2, nodes=3))
    assert [word for word in argv if "gpu" in word] == ([option] if option else [])


@pytest.mark.parametrize(
    ("flag", "options"), [("mem", ["--mem=1001M"]), ("mem-per-cpu", ["--mem-per-cpu=334M"]), ("none", [])]
)
def test_row_17_memory_has_exactly_one_form(flag: str, options: list[str]) -> None:
    job = replace(JOB, lane=Lane("x", memory_flag=flag), memory_mb=1001, cpus=3)  # type: ignore[arg-type]
    assert [word for word in sbatch_argv(SBATCH, job) if word.startswith("--mem")] == options


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("--mem=4G", "MEMORY_FORM"),
        ("--mem-per-cpu=4G", "MEMORY_FORM"),
        ("--mem-per-gpu=4G", "MEMORY_FORM"),
        ("--mem-per-g=4G", "MEMORY_FORM"),
        ("--time=0", "EXTRA_OPTION"),
        ("-t10", "EXTRA_OPTION"),
        ("--part=gpu", "EXTRA_OPTION"),
        ("-pgpu", "EXTRA_OPTION"),
        ("--export=NONE", "EXTRA_OPTION"),
        ("--wrap=rm", "EXTRA_OPTION"),
        ("--array=1-9", "EXTRA_OPTION"),
        ("--test-only", "EXTRA_OPTION"),
        ("--", "EXTRA_OPTION"),
        ("gpu", "EXTRA_OPTION"),
        ("", "EXTRA_OPTION"),
    ],
)
def test_row_17_an_extra_option_that_repeats_ours_is_found_before_the_submit(option: str, reason: str) -> None:
    refused = check_extra(Lane("odd", extra=("--constraint=a100", option)))
    assert isinstance(refused, Refused) and (refused.reason, refused.when) == (reason, When.CONFIG)
    assert repr(option) in refused.detail and "'odd'" in refused.detail


def test_harmless_extra_options_pass() -> None:
    extra = (
        "--constraint=a100&nvlink",
        "--exclusive",
        "--hold",
        "--licenses=matlab:1",
        "--nice=100",
        "-C",
        "--comment=x y",
    )
    refused = check_extra(Lane("x", extra=extra))
    assert refused is None, refused


def test_patterns_in_a_log_name_are_not_replaced() -> None:
    argv = sbatch_argv(SBATCH, replace(JOB, log=Path("/slots/100%j/%x.log")))
    assert "--output=/slots/100%%j/%%x.log" in argv


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"script": Path("job.sh")}, "absolute"),
        ({"log": Path("slurm.log")}, "absolute"),
        ({"workdir": Path()}, "absolute"),
        ({"memory_mb": 0}, "memory_mb"),
        ({"gpus": -1}, "gpus"),
        ({"nodes": 0}, "nodes"),
        ({"exclude": ("n1,n2",)}, "exclude"),
        ({"exclude": ("",)}, "exclude"),
        ({"env": {"SBATCH_ACCOUNT": "x"}}, "SBATCH_ACCOUNT"),
        ({"env": {"A=B": "x"}}, "A=B"),
        ({"env": {"A": "x\0y"}}, "NUL"),
        ({"args": ("x\0y",)}, "NUL"),
        ({"minutes": -1.0}, "-1"),
        ({"minutes": float("inf")}, "inf"),
    ],
)
def test_what_is_wrong_with_a_job_is_said(tmp_path: Path, changes: dict[str, object], word: str) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n")
    refused = check_job(replace(replace(JOB, script=script), **changes))  # type: ignore[arg-type]
    assert isinstance(refused, Refused) and refused.when is When.CONFIG and word in refused.detail
    assert check_job(replace(JOB, script=script)) is None


def test_a_script_without_a_shebang_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("echo\n")
    refused = check_job(replace(JOB, script=script))
    assert isinstance(refused, Refused) and refused.reason == "SCRIPT_SHEBANG"


def test_an_array_is_the_same_line_with_its_tasks_and_a_log_for_each(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n")
    job = JobSpec("ol-d-array-0-0", script, tmp_path / "50%j.log", tmp_path, Lane("default"), 5)
    assert check_job(job, ArrayRange(3)) is None
    alone = sbatch_argv(Path("/bin/sbatch"), job)
    together = sbatch_argv(Path("/bin/sbatch"), job, ArrayRange(3, throttle=2))
    assert set(together) - set(alone) == {"--array=0-2%2", f"--output={tmp_path}/50%%j.log.%a"}
    assert "--array=0-2" in sbatch_argv(Path("/bin/sbatch"), job, ArrayRange(3))
    for wrong in (ArrayRange(0), ArrayRange(2, throttle=0)):
        refused = check_job(job, wrong)
        assert isinstance(refused, Refused) and (refused.reason, refused.when) == ("Array", When.CONFIG)

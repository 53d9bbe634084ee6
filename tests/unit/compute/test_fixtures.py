"""Replays recorded outputs of real releases through the backend: every file is read as what it means, or refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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
    Unavailable,
    Unknown,
    When,
)
from outerloop.compute.slurm import SlurmCli
from tests.fake_slurm import FakeSlurm

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "slurm"
RELEASES = sorted(path.name for path in FIXTURES.iterdir() if path.is_dir())

_FILE = re.compile(r"\$ (?P<command>.*?)\nrc=(?P<rc>\d+)\n--- stdout\n(?P<out>.*?)--- stderr\n(?P<err>.*)", re.DOTALL)

NEVER, LATER, CONFIG = When.NEVER, When.LATER, When.CONFIG
SUBMISSIONS: dict[str, tuple[str, When] | type[Accepted] | type[Unknown]] = {
    "sbatch-ok": Accepted,
    "sbatch-gres-too-many": ("BadConstraints", NEVER),
    "sbatch-gres-unknown": ("GPU_FLAG", CONFIG),
    "sbatch-partition": ("InvalidPartition", NEVER),
    "sbatch-reservation": ("InvalidReservation", NEVER),
    "sbatch-two-memory-forms": ("MEMORY_FORM", CONFIG),
    "sbatch-memory": ("BadConstraints", NEVER),
    "sbatch-cpus": ("BadConstraints", NEVER),
    "sbatch-time": ("OptionError", CONFIG),
    "sbatch-option": ("OptionError", CONFIG),
    "sbatch-dependency": ("Dependency", LATER),
    "sbatch-dependency-nonsense": ("Dependency", LATER),
    "sbatch-feature": ("BadConstraints", NEVER),
    "sbatch-array": ("ArraySize", LATER),
    "sbatch-large": ("SCRIPT_TOO_LARGE", NEVER),
    "sbatch-no-shebang": ("SCRIPT_SHEBANG", CONFIG),
    "sbatch-no-script": ("SCRIPT_MISSING", CONFIG),
    "sbatch-timed-out": Unknown,
    "sbatch-down": ("ControllerDown", LATER),
}
"""What each recorded sbatch means; where a release took what another refuses, its recording says so by its rc."""


def replay(fake: FakeSlurm, release: str, name: str) -> int:
    """Make the fake answer as recorded; the recorded exit code."""
    match = _FILE.fullmatch((FIXTURES / release / f"{name}.txt").read_text())
    assert match, name
    tool = match["command"].split()[0]
    fake.rule(
        tool,
        argv="partition" if "partition" in name and tool == "scontrol" else "",
        rc=int(match["rc"]),
        stdout=match["out"],
        stderr=match["err"],
    )
    return int(match["rc"])


@pytest.fixture
def fake(tmp_path: Path) -> FakeSlurm:
    return FakeSlurm(tmp_path)


@pytest.fixture
def compute(fake: FakeSlurm) -> SlurmCli:
    return SlurmCli(bin_dir=fake.bin)


@pytest.mark.parametrize("release", RELEASES)
def test_every_recorded_submission_has_its_meaning(release: str, tmp_path: Path) -> None:
    recorded = {path.stem for path in (FIXTURES / release).glob("sbatch-*.txt")}
    assert recorded == set(SUBMISSIONS)
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n")
    job = JobSpec("ol-d1-a-0-1", script, tmp_path / "log", tmp_path, Lane("x"), 1)
    for name, meaning in SUBMISSIONS.items():
        fake = FakeSlurm(tmp_path / name)
        rc = replay(fake, release, name)
        outcome = SlurmCli(bin_dir=fake.bin).submit(job)
        if rc == 0:
            assert isinstance(outcome, Accepted), (name, outcome)
        elif isinstance(meaning, tuple):
            assert isinstance(outcome, Refused), (name, outcome)
            assert (outcome.reason, outcome.when) == meaning, name
        else:
            assert isinstance(outcome, meaning), (name, outcome)


@pytest.mark.parametrize("release", RELEASES)
def test_a_recorded_queue_is_read_to_the_last_task(release: str, fake: FakeSlurm, compute: SlurmCli) -> None:
    replay(fake, release, "squeue")
    listing = compute.listing()
    assert isinstance(listing, Listing) and listing.bad_rows == 0
    names = listing.by_name()
    expected = {
        "completed": JobState.COMPLETED,
        "failed": JobState.FAILED,
        "killed": JobState.FAILED,
        "cancelled": JobState.CANCELLED,
        "preempted": JobState.PREEMPTED,
        "running": JobState.RUNNING,
        "urgent": JobState.RUNNING,
        "held": JobState.PENDING,
        "pipe|name": JobState.PENDING,
        "two\nlines": JobState.PENDING,
    }
    for name, state in expected.items():
        assert [row.state for row in names[name]] == [state], name
    reasons = {name: rows[0].reason for name, rows in names.items() if rows[0].state is JobState.PENDING}
    assert reasons["later"] == "BeginTime" and reasons["after"] == "Dependency"
    assert reasons["too-long"] == "PartitionTimeLimit" and reasons["never-satisfied"] == "DependencyNeverSatisfied"
    assert sorted(int(row.job_id.partition("_")[2]) for row in names["steps"]) == list(range(0, 21, 2))
    assert sorted(int(row.job_id.partition("_")[2]) for row in names["tasks"]) == [1, 3, 7, 8, 9]
    shadow = names["refused-gres-too-many"][0]
    assert (shadow.state, shadow.reason) == (JobState.FAILED, "BadConstraints")
    for row in listing.jobs:
        assert row.state is not JobState.UNKNOWN and row.submitted
        assert (row.ended is not None) == row.state.final
        assert row.state is not JobState.RUNNING or (row.started and row.node)


@pytest.mark.parametrize("release", RELEASES)
def test_a_recorded_history_is_read(release: str, fake: FakeSlurm, compute: SlurmCli) -> None:
    replay(fake, release, "sacct-by-id")
    history = compute.history(0, ["1", "2", "3", "99999"], [])
    assert isinstance(history, History)
    seen = {row.job_id: (row.name, row.state, row.exit_code, row.signal) for row in history.jobs}
    assert seen == {
        "1": ("completed", JobState.COMPLETED, 0, None),
        "2": ("failed", JobState.FAILED, 7, None),
        "3": ("killed", JobState.FAILED, 0, 9),
    }


@pytest.mark.parametrize("release", RELEASES)
def test_a_recorded_history_by_name_says_who_cancelled(release: str, fake: FakeSlurm, compute: SlurmCli) -> None:
    replay(fake, release, "sacct")
    history = compute.history(0, [], ["cancelled", "preempted", "refused-gres-too-many"])
    assert isinstance(history, History)
    rows = {row.name: row for row in history.jobs}
    assert (rows["cancelled"].state, rows["cancelled"].cancelled_by) == (JobState.CANCELLED, "0")
    assert rows["preempted"].state is JobState.PREEMPTED
    assert (rows["refused-gres-too-many"].state, rows["refused-gres-too-many"].node) == (JobState.FAILED, "")


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("outage", ["down", "timed-out"])
def test_recorded_outages_are_no_answers(release: str, outage: str, fake: FakeSlurm, compute: SlurmCli) -> None:
    replay(fake, release, f"squeue-{outage}")
    replay(fake, release, f"scancel-{outage}")
    replay(fake, release, "scontrol-down")
    replay(fake, release, "sacct-down")
    assert isinstance(compute.listing(), NoAnswer)
    assert isinstance(compute.cancel(["1"]), NoAnswer)
    assert isinstance(compute.limits(), NoAnswer)
    assert isinstance(compute.history(0, ["1"], []), NoAnswer)


@pytest.mark.parametrize("release", RELEASES)
def test_recorded_accounting_that_is_off_is_unavailable(release: str, fake: FakeSlurm, compute: SlurmCli) -> None:
    replay(fake, release, "sacct-disabled")
    assert isinstance(compute.history(0, ["1"], []), Unavailable)
    replay(fake, release, "scancel-unknown")
    assert compute.cancel(["99999"]) is None


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("config", "accounting"), [("scontrol-config", True), ("scontrol-config-without-accounting", False)]
)
def test_recorded_limits_are_read(
    release: str, config: str, accounting: bool, fake: FakeSlurm, compute: SlurmCli
) -> None:
    replay(fake, release, "scontrol-partition")
    replay(fake, release, config)
    limits = compute.limits()
    assert isinstance(limits, SiteLimits)
    assert limits.version.startswith(release) and limits.cluster == "lab"
    assert (limits.max_array_size, limits.message_timeout_seconds, limits.accounting) == (10001, 3, accounting)
    assert limits.partitions["short"]["MaxTime"] == "00:30:00"

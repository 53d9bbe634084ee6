"""Attacks local admission: the decision from values, what machines print, and jobs that wait for a real machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outerloop.compute.local import Local
from outerloop.compute.local_admission import Asked, Gpu, Machine, Start, Wait, admit
from outerloop.compute.local_machine import descendants, parse_gpus, pids_of_cgroup, read_gpus
from outerloop.compute.protocol import JobState
from outerloop.compute.reasons import Clears, pending_reason
from tests.unit.compute.contract import Bench

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "local"
MIB = 1024.0


def machine(*free_gb: float, total: float = 80.0, foreign: float = 0.0, **more: int) -> Machine:
    gpus = {n: Gpu(total * MIB, free * MIB, foreign * MIB) for n, free in enumerate(free_gb)}
    return Machine(gpus, **more)


# ------------------------------------------------------------------------------------------------ deciding


def test_the_reason_names_what_is_free_and_what_is_asked() -> None:
    assert admit(Asked(1, 8.0), machine(6.1), [0], 1, 0) == Wait("waits: 6.1 GiB free on GPU 0, 8 asked")


def test_the_gpu_with_most_memory_is_taken() -> None:
    assert admit(Asked(1, 8.0), machine(20.0, 79.0, 50.0), [0, 0, 0], 1, 0) == Start((1,))
    assert admit(Asked(2, 8.0), machine(20.0, 79.0, 50.0), [0, 0, 0], 1, 0) == Start((1, 2))
    assert admit(Asked(2, 60.0), machine(20.0, 79.0, 50.0), [0, 0, 0], 1, 0) == Wait(
        "waits: 50.0 GiB free on GPU 2, 60 asked"
    )


def test_a_held_gpu_is_not_taken_twice_unless_it_is_shared() -> None:
    assert admit(Asked(1, 8.0), machine(79.0), [1], 1, 1) == Wait("Resources")
    assert admit(Asked(1, 8.0), machine(79.0), [1], 2, 1) == Start((0,))


def test_a_job_that_has_just_begun_has_its_memory_reserved() -> None:
    # Nothing is used yet: 79 GiB are free, and 2 x 30 reserved.
    assert admit(Asked(1, 30.0), machine(79.0), [2], 4, 2) == Wait("waits: 20.0 GiB free on GPU 0, 30 asked")
    # A stranger holds 30; one of ours has reserved 30 and uses none of it yet.
    assert admit(Asked(1, 30.0), machine(50.0, foreign=30.0), [1], 4, 1) == Wait(
        "waits: 20.0 GiB free on GPU 0, 30 asked"
    )


def test_processes_are_counted_with_those_that_running_jobs_may_still_start() -> None:
    asked = Asked(processes=32)
    full = Machine(processes=950, limit=1000, unborn=30)
    assert admit(asked, full, [], 1, 1) == Wait("waits: 950 of 1000 processes run, 30 more are reserved, 32 asked")
    assert admit(asked, Machine(processes=950, limit=1000), [], 1, 1) == Start()
    assert admit(asked, Machine(processes=950, limit=None), [], 1, 1) == Start()


def test_the_only_job_starts_although_strangers_fill_the_control_group() -> None:
    assert admit(Asked(processes=32), Machine(processes=999, limit=1000), [], 1, 0) == Start()


def test_where_nobody_can_tell_the_tokens_decide_and_where_somebody_should_the_job_waits() -> None:
    assert admit(Asked(1, 8.0), Machine(), [0], 1, 0) == Start((0,))
    assert admit(Asked(1, 8.0), Machine({}), [0], 1, 0) == Start((0,))  # MIG: there, without figures
    assert admit(Asked(1, 8.0), Machine(None, "nvidia-smi: exit code 9"), [0], 1, 0) == Wait(
        "waits: nvidia-smi: exit code 9"
    )


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(st.floats(0, 80), st.floats(0, 80), st.integers(0, 3)), min_size=1, max_size=6),
    st.integers(0, 6),
    st.floats(0.1, 90),
    st.integers(1, 3),
)
def test_what_starts_fits(gpus: list[tuple[float, float, int]], count: int, each: float, share: int) -> None:
    figures = {
        n: Gpu(80 * MIB, min(free, 80 - foreign) * MIB, foreign * MIB) for n, (free, foreign, _) in enumerate(gpus)
    }
    held = [min(jobs, share) for _, _, jobs in gpus]
    found = admit(Asked(count, each), Machine(figures), held, share, 1)
    fitting = [
        n
        for n, jobs in enumerate(held)
        if jobs < share
        and figures[n].free / MIB >= each
        and (figures[n].total - figures[n].foreign) / MIB - jobs * each >= each
    ]
    if isinstance(found, Start):
        assert len(found.devices) == count and set(found.devices) <= set(fitting)
    else:
        assert len(fitting) < count


def test_the_reason_is_explained_as_one_that_may_clear() -> None:
    explained = pending_reason("waits: 6.1 GiB free on GPU 0, 8 asked")
    assert explained.clears is Clears.MAY and "no room" in explained.sentence


# ------------------------------------------------------------------------------------- what machines print


def said(name: str) -> str:
    return (FIXTURES / "nvidia-smi" / name).read_text()


def test_two_gpus_and_whose_memory_it_is() -> None:
    found = parse_gpus(said("two-gpus.txt"), said("two-gpus-processes.txt"), ours={4242})
    assert found == {0: Gpu(24576.0, 6246.0, 7680.0), 1: Gpu(24576.0, 24210.0, 0.0)}


def test_a_gpu_in_mig_mode_has_no_figures() -> None:
    assert parse_gpus(said("mig.txt"), "", set()) == {0: Gpu(40960.0, 40354.0, 0.0)}


@pytest.mark.parametrize("text", ["", "\n", "No devices were found\n", "garbage, more", "0, GPU-1, -5, x\n"])
def test_other_texts_are_no_gpus(text: str) -> None:
    assert parse_gpus(text, text, set()) == {}


def tree(tmp_path: Path, **limits: tuple[str, str]) -> Path:
    for folder, (current, most) in limits.items():
        place = tmp_path / folder
        place.mkdir(parents=True, exist_ok=True)
        (place / "pids.current").write_text(current + "\n")
        (place / "pids.max").write_text(most + "\n")
    return tmp_path


SLICE = "sys/fs/cgroup/user.slice"
SESSION = f"{SLICE}/user-1000.slice/session-3.scope"


@pytest.mark.parametrize(
    ("fixture", "limits", "found"),
    [
        ("cgroup-v2-systemd", {SESSION: ("12", "max"), f"{SLICE}/user-1000.slice": ("90", "100")}, (90, 100)),
        ("cgroup-v2-systemd", {SESSION: ("12", "20"), f"{SLICE}/user-1000.slice": ("90", "100")}, (12, 20)),
        ("cgroup-v2-systemd", {SESSION: ("12", "max"), SLICE: ("90", "max")}, None),
        ("cgroup-v2-container", {"sys/fs/cgroup": ("7", "512")}, (7, 512)),
        ("cgroup-v1-docker", {"sys/fs/cgroup/pids": ("7", "512")}, (7, 512)),
        ("cgroup-v1-hybrid", {"sys/fs/cgroup/pids": ("7", "512")}, (7, 512)),
        ("cgroup-v1-hybrid", {}, None),
    ],
)
def test_the_tightest_control_group_counts(
    tmp_path: Path, fixture: str, limits: dict[str, tuple[str, str]], found: tuple[int, int] | None
) -> None:
    assert pids_of_cgroup(FIXTURES / fixture, tree(tmp_path, **limits)) == found


def test_no_control_groups_at_all(tmp_path: Path) -> None:
    assert pids_of_cgroup(tmp_path) is None


@pytest.fixture
def control_group() -> Iterator[Path]:
    """A real control group with a limit of processes, below the one of this process."""
    for parent in (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup")):
        folder = parent / f"ol-test-{os.getpid()}"
        try:
            folder.mkdir()
            (folder / "pids.max").write_text("50")
        except OSError:
            if folder.is_dir():
                folder.rmdir()
            continue
        yield folder
        folder.rmdir()
        return
    pytest.skip("no control group can be made here")


def test_a_real_control_group_is_read(control_group: Path) -> None:
    program = "import sys; print('in', flush=True); sys.stdin.readline()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        (control_group / "cgroup.procs").write_text(str(process.pid))
        assert pids_of_cgroup(Path(f"/proc/{process.pid}")) == (1, 50)
        process.communicate(b"\n")


def test_descendants_are_those_that_run() -> None:
    with subprocess.Popen(["sh", "-c", "sleep 60 & sleep 60 & echo go; wait"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        family = descendants([process.pid])[process.pid]
        assert process.pid in family and len(family) == 3
        for pid in family - {process.pid}:
            os.kill(pid, 15)
        process.wait(20)
        assert descendants([process.pid]) == {process.pid: set()}


# ---------------------------------------------------------------------------------------------- real jobs


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for nvidia-smi, first in PATH, that prints what stands in two files."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "nvidia-smi"
    program.write_text(
        f"#!/bin/sh\n[ -e {folder}/fails ] && {{ cat {folder}/fails; exit 9; }}\n"
        f'case "$1" in *query-gpu*) cat {folder}/gpus;; *) cat {folder}/processes;; esac\n'
    )
    program.chmod(0o755)
    (folder / "gpus").write_text(said("two-gpus.txt"))
    (folder / "processes").write_text("")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def bench(tmp_path: Path, **settings: float) -> Bench:
    options = {"cpus": 4, "gpus": 2, **settings}
    return Bench(Local(tmp_path / "spool", **options), tmp_path)  # type: ignore[arg-type]


def test_a_job_waits_for_memory_with_a_reason_and_holds_up_nobody_else(tmp_path: Path, smi: Path) -> None:
    made = bench(tmp_path, gpus=1, gpu_memory_gb=8.0)
    big = made.job("big", "echo $CUDA_VISIBLE_DEVICES", gpus=1)
    waiting = made.submit(big)
    reason = "waits: 6.1 GiB free on GPU 0, 8 asked"
    made.until(lambda: (row := made.row(waiting)) and row.reason == reason, "the reason")
    small = made.submit(made.job("small", "exit 0"))
    made.until_state(small, JobState.COMPLETED)
    assert made.state(waiting) is JobState.PENDING
    (smi / "gpus").write_text(said("two-gpus.txt").replace("6246", "16246"))
    made.until_state(waiting, JobState.COMPLETED)
    assert big.log.read_text() == "0\n"


def test_the_device_with_room_is_given(tmp_path: Path, smi: Path) -> None:
    made = bench(tmp_path, gpu_memory_gb=8.0)
    job = made.job("one", "echo $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER", gpus=1)
    made.until_state(made.submit(job), JobState.COMPLETED)
    assert job.log.read_text() == "1 PCI_BUS_ID\n"


def test_a_failing_driver_is_a_reason_and_not_a_failed_job(tmp_path: Path, smi: Path) -> None:
    (smi / "fails").write_text(said("driver-gone.txt"))
    made = bench(tmp_path, gpu_memory_gb=8.0)
    waiting = made.submit(made.job("one", "exit 0", gpus=1))
    made.until(lambda: (row := made.row(waiting)) and "has failed because" in row.reason, "the driver's words")
    (smi / "fails").unlink()
    made.until_state(waiting, JobState.COMPLETED)


def test_two_jobs_share_a_gpu_and_a_third_waits_for_the_reservation(tmp_path: Path, smi: Path) -> None:
    made = bench(tmp_path, gpus=1, gpu_memory_gb=9.0, gpu_share=3)
    (smi / "gpus").write_text("0, GPU-1, 24576, 24576\n")  # the jobs never use what they reserved
    gate = tmp_path / "gate"
    ids = []
    for name in ("first", "second"):
        ids.append(made.submit(made.job(name, f"while [ ! -e {gate} ]; do sleep 0.05; done", gpus=1)))
        made.until_state(ids[-1], JobState.RUNNING)
    third = made.submit(made.job("third", "exit 0", gpus=1))
    reason = "waits: 6.0 GiB free on GPU 0, 9 asked"
    made.until(lambda: (row := made.row(third)) and row.reason == reason, "the third to wait")
    gate.touch()
    for job_id in [*ids, third]:
        made.until_state(job_id, JobState.COMPLETED)


def test_no_more_jobs_than_parallel(tmp_path: Path) -> None:
    made = bench(tmp_path, parallel=1)
    gate = tmp_path / "gate"
    first = made.submit(made.job("first", f"while [ ! -e {gate} ]; do sleep 0.05; done"))
    made.until_state(first, JobState.RUNNING)
    second = made.submit(made.job("second", "exit 0"))
    made.until(lambda: (row := made.row(second)) and row.reason == "Resources", "the second to wait")
    gate.touch()
    made.until_state(second, JobState.COMPLETED)


def test_nvidia_smi_that_is_not_there_is_no_trouble() -> None:
    assert read_gpus([], program="no-such-nvidia-smi") == (None, "")

"""Signals, limits, suspension, kill -9 and full disks: what the attempt leaves in each case."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from outerloop.job import layout, process, scratch
from outerloop.job.process import TURN_SECONDS, Clock, Signals
from tests.unit.job.rig import Rig, Slot, until
from tests.unit.job.test_hostile import alive

TRAPPING = """
trap 'echo got TERM; exit 0' TERM
trap 'echo got USR1' USR1
echo ready >> "$READY"
i=0; while [ $i -lt 1000 ]; do sleep 0.05; i=$((i+1)); [ ! -e "$READY.end" ] || break; done
echo "m 5"
"""


def trapping(rig: Rig, command: str = TRAPPING, **options: object) -> Slot:
    return rig.slot(command, determinants={"env": {"READY": str(rig.root / "ready")}}, **options)  # type: ignore[arg-type]


def ready(rig: Rig) -> bool:
    return (rig.root / "ready").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_row_72_a_signal_is_passed_on_and_named_in_the_result(rig: Rig, number: int) -> None:
    command = TRAPPING.replace("TERM; exit", "TERM; echo m 1; exit").replace("' TERM", "' TERM INT")
    slot = trapping(rig, command)
    job = slot.start()
    until(lambda: ready(rig), "the command runs")
    job.send_signal(number)
    job.communicate(timeout=20)
    assert job.returncode == 128 + number
    result = slot.result()
    assert (result["outcome"], result["reason"], result["phase"]) == ("failed", "CANCELLED", "command")
    assert result["signal"] == number
    assert result["metric"] is None, "a value printed on the way out is no measurement"
    assert b"got TERM" in slot.stdout()
    assert not list(rig.scratch.iterdir())


def test_a_command_that_ignores_term_is_killed_after_the_grace(rig: Rig) -> None:
    marker = f"deaf-{os.urandom(8).hex()}"
    slot = trapping(rig, f"trap '' TERM INT; echo ready > $READY; while :; do sleep 0.1; done; : {marker}")
    job = slot.start()
    until(lambda: ready(rig), "the command runs")
    started = time.monotonic()
    job.terminate()
    job.communicate(timeout=20)
    assert 0.5 <= time.monotonic() - started < 5
    assert slot.result()["reason"] == "CANCELLED"
    assert alive(marker) == []


def test_usr1_is_a_warning_and_a_finished_command_still_counts(rig: Rig) -> None:
    slot = trapping(rig)
    job = slot.start()
    until(lambda: ready(rig), "the command runs")
    job.send_signal(signal.SIGUSR1)
    until(lambda: b"got USR1" in slot.stdout(), "the warning arrived")
    (rig.root / "ready.end").touch()
    job.communicate(timeout=20)
    assert job.returncode == 0
    assert slot.result()["metric"]["text"] == "5"


def test_row_70_a_command_that_dies_of_the_warning_is_cancelled_not_blamed(rig: Rig) -> None:
    slot = trapping(rig, "echo ready > $READY; exec sleep 60")
    job = slot.start()
    until(lambda: ready(rig), "the command runs")
    time_of_exec = until(lambda: b"sleep" in child_line(job.pid), "sleep was executed")
    assert time_of_exec
    job.send_signal(signal.SIGUSR1)
    job.communicate(timeout=20)
    result = slot.result()
    assert (result["reason"], result["signal"]) == ("CANCELLED", signal.SIGUSR1)


def child_line(pid: int) -> bytes:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                    return (entry / "cmdline").read_bytes()
            except OSError:
                continue
    return b""


def test_resumable_work_that_asks_to_go_on_is_not_done(rig: Rig) -> None:
    command = 'trap \'echo "{}" > "$OUTERLOOP_CKPT_DIR/requeue.json"; exit 0\' USR1; echo ready > $READY; ' \
        "while :; do sleep 0.05; done"  # fmt: skip
    slot = rig.slot(
        command, determinants={"metric": "", "env": {"READY": str(rig.root / "ready")}}, work={"resumable": True}
    )
    job = slot.start()
    until(lambda: ready(rig), "the command runs")
    job.send_signal(signal.SIGUSR1)
    job.communicate(timeout=20)
    result = slot.result()
    assert (result["outcome"], result["reason"], result["signal"]) == ("failed", "CANCELLED", signal.SIGUSR1)
    assert "requeue.json" in result["detail"]


def test_an_old_requeue_mark_does_not_undo_a_finished_training(rig: Rig) -> None:
    slot = rig.slot("true", determinants={"metric": ""}, work={"resumable": True})
    (slot.path / "state").mkdir()
    (slot.path / "state" / "requeue.json").write_text("{}")
    os.utime(slot.path / "state" / "requeue.json", (1, 1))
    assert slot.run() == 0
    assert slot.result()["outcome"] == "ok"


def test_an_early_signal_ends_it_with_its_name_or_too_late(rig: Rig) -> None:
    slot = rig.slot("echo m 1")
    job = slot.start()
    until(lambda: (slot.attempt() / layout.CLAIM).exists() or job.poll() is not None, "it claimed")
    job.terminate()
    job.communicate(timeout=20)
    result = slot.result()
    assert result["outcome"] == "ok" or (result["reason"], result["signal"]) == ("CANCELLED", signal.SIGTERM)


def test_suspended_time_is_not_charged(rig: Rig) -> None:
    """As Slurm's suspend does it: every process of the job stopped, then continued."""
    slot = trapping(
        rig, 'echo $$ > "$READY.pid"; mv "$READY.pid" "$READY"; sleep 0.7; echo m 1', order={"minutes": 1.5 / 60}
    )
    job = slot.start()
    until(lambda: ready(rig), "the command runs")
    command = int((rig.root / "ready").read_text())
    for pid in (command, job.pid):
        os.kill(pid, signal.SIGSTOP)
    stopped = time.monotonic()
    until(lambda: time.monotonic() - stopped > 2.0, "two seconds went by")
    for pid in (command, job.pid):
        os.kill(pid, signal.SIGCONT)
    job.communicate(timeout=20)
    assert job.returncode == 0, slot.result()
    assert slot.result()["phases"]["command"]["seconds"] < 1.5


def test_the_clock_charges_gaps_without_sigcont() -> None:
    signals, times = Signals(), iter([0.0, 10.0, 110.0, 111.0])
    clock = Clock(signals, lambda: next(times))
    assert clock.tick() == 10.0
    signals.continued = True
    assert clock.tick() == 10.0 + TURN_SECONDS
    assert clock.tick() == 11.0 + TURN_SECONDS


def test_setup_time_is_not_lent_to_the_command(rig: Rig) -> None:
    slot = rig.slot("sleep 5; echo m 1", order={"minutes": 0.5 / 60})
    assert slot.run() == 1
    result = slot.result()
    assert result["reason"] == "TIMEOUT"
    assert 0.5 <= result["phases"]["command"]["seconds"] < 2
    assert set(result["phases"]) == {"setup", "command"}
    assert result["phases"]["setup"]["started"] <= result["phases"]["command"]["started"]


@pytest.mark.parametrize("isolation", ["none", "bwrap"])
def test_kill_9_of_the_wrapper_ends_the_command_too(rig: Rig, isolation: str) -> None:
    marker = f"orphan-{os.urandom(8).hex()}"
    slot = rig.slot(f"exec /usr/bin/python3 -c 'import time; time.sleep(600)' {marker}", order={"isolation": isolation})
    job = slot.start()
    until(lambda: any(b"time.sleep" in Path(f"/proc/{p}/cmdline").read_bytes() for p in safe(marker)), "it runs")
    job.kill()
    job.communicate(timeout=20)
    until(lambda: not alive(marker), "the command died with the wrapper")
    assert not (slot.attempt() / layout.RESULT).exists()


def safe(marker: str) -> list[int]:
    return [pid for pid in alive(marker) if Path(f"/proc/{pid}/cmdline").exists()]


@pytest.mark.skipif(not shutil.which("bwrap"), reason="needs bwrap")
def test_kill_9_while_the_sandbox_is_being_made_starts_no_command() -> None:
    """bwrap's processes ask to be killed with their parents; one whose parent died before it asked must not go on."""
    chance = random.Random(11)
    script = "import time; time.sleep(600)"
    for number in range(24):
        marker = f"orphan-{os.urandom(8).hex()}"
        command = process.behind_gate(["/usr/bin/python3", "-c", script, marker])
        argv = [
            str(shutil.which("bwrap")),
            "--die-with-parent",
            "--unshare-pid",
            "--unshare-net",
            "--ro-bind",
            "/",
            "/",
        ]
        wrapper = os.fork()
        if wrapper == 0:
            try:
                quiet = os.open(os.devnull, os.O_RDWR)
                pump = process._Pump(quiet)
                gate = pump.gate()
                process.start(
                    [*argv, "--proc", "/proc", "--dev", "/dev", "--", *command], {}, "/", (quiet, quiet), (), gate
                )
                os.close(gate)
                end = time.monotonic() + chance.uniform(0.0, 0.003 * number)
                while time.monotonic() < end:
                    pump.turn(0.001)
            finally:
                os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(wrapper, 0)
        until(lambda own=marker: not alive(own), "nothing is left")


def test_kill_9_at_any_moment_leaves_nothing_half_done(rig: Rig) -> None:
    """Killed at points spread over its whole life: no result or a whole one, and never a second execution."""
    chance = random.Random(7)
    env = {"COUNT": str(rig.root / "count")}
    outcomes = set()
    for _ in range(14):
        slot = rig.slot('echo run >> "$COUNT"; sleep 0.05; echo m 1', determinants={"env": env})
        before = count(rig)
        job = slot.start()
        moment = time.monotonic() + chance.uniform(0.02, 0.3)
        while time.monotonic() < moment and job.poll() is None:
            os.sched_yield()
        job.kill()
        job.communicate(timeout=20)
        outcome = "result" if (slot.attempt() / layout.RESULT).exists() else "none"
        outcomes.add(outcome)
        claimed = (slot.attempt() / layout.CLAIM).exists()
        if outcome == "result":
            assert slot.result()["metric"]["text"] == "1"
            assert claimed
        code = slot.run(env={"SLURM_JOB_ID": "900124"})
        assert code == (layout.EXIT_NOT_CLAIMANT if claimed else 0)
        assert count(rig) <= before + 1
    assert outcomes <= {"none", "result"}
    assert rig.slot("echo m 1").run() == 0
    # Killed between making its folder and signing it: nobody's, until it is too old to be about to be signed.
    for folder in rig.scratch.iterdir():
        assert not (folder / scratch.OWNER).exists(), "scratch folders of killed jobs are swept by the next one"
        long_ago = time.time() - 2 * scratch.ABANDONED_SECONDS
        os.utime(folder, (long_ago, long_ago))
    assert rig.slot("echo m 2").run() == 0
    assert not list(rig.scratch.iterdir()), "so are abandoned ones that nobody signed"


def count(rig: Rig) -> int:
    path = rig.root / "count"
    return len(path.read_text().split()) if path.exists() else 0


# -- full disks


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "outerloop-test", str(folder)], capture_output=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"no small disk can be mounted here: {done.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_row_31_a_scratch_disk_too_small_for_the_tree(rig: Rig, small_disk: Path) -> None:
    slot = rig.slot("echo m 1", {"big": "x" * 5_000_000})
    assert slot.run(env={"TMPDIR": str(small_disk)}) == layout.EXIT_CHECKOUT
    result = slot.result()
    assert (result["reason"], result["phase"]) == ("SCRATCH_FULL", "setup")
    assert not list(small_disk.iterdir())


def test_row_31_a_command_that_fails_on_a_full_scratch_disk_is_not_blamed(rig: Rig, small_disk: Path) -> None:
    slot = rig.slot('head -c 9000000 /dev/zero > "$TMPDIR/x" || exit 7; echo m 1')
    assert slot.run(env={"TMPDIR": str(small_disk)}) == 1
    assert slot.result()["reason"] == "SCRATCH_FULL"
    assert slot.result()["exit_code"] == 7


def test_a_full_slot_disk_leaves_no_result(rig: Rig, small_disk: Path) -> None:
    """And no half of one; the exit code says so."""
    disk = Rig(small_disk)
    slot = disk.slot(f"head -c 9000000 /dev/zero > {small_disk}/fill; echo m 1")
    assert slot.run(env={"TMPDIR": str(rig.scratch)}) == 74
    assert "could not be written" in slot.said
    assert "Traceback" not in slot.said
    assert not (slot.attempt() / layout.RESULT).exists()
    assert not list(slot.attempt().glob(".*"))
    assert slot.claim()["job_id"] == "900123"


def test_only_stale_scratch_folders_of_this_account_are_swept(rig: Rig) -> None:
    slot = rig.slot("echo m 1")
    stale = rig.scratch / f"outerloop-{os.getuid()}-abandoned"
    stale.mkdir()
    os.utime(stale, (1, 1))
    young = rig.scratch / f"outerloop-{os.getuid()}-young"
    young.mkdir()
    foreign = rig.scratch / "outerloop-99999999-other"
    foreign.mkdir()
    assert slot.run() == 0
    assert sorted(path.name for path in rig.scratch.iterdir()) == sorted([young.name, foreign.name])


def test_a_tree_of_locked_and_deep_folders_is_removed(rig: Rig) -> None:
    program = """
import os
os.chdir(os.environ["TMPDIR"])
for n in range(1200):
    os.mkdir("d" * 10); os.chdir("d" * 10)
os.chdir(os.environ["TMPDIR"]); os.mkdir("locked"); open("locked/x", "w").close(); os.chmod("locked", 0)
print("m 1")
"""
    slot = rig.slot("exec /usr/bin/python3 b.py", {"b.py": program})
    assert slot.run() == 0
    assert not list(rig.scratch.iterdir())

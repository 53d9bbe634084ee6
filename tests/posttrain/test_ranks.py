"""Attacks on several trainer processes: kill one, kill who started them, signal all, and compare bytes in the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.posttrain.conftest import Pipeline, Zygote, training_rows
from tests.posttrain.test_resume import SHORT

pytestmark = [
    pytest.mark.skipif(not os.environ.get("OUTERLOOP_NIGHTLY"), reason="minutes: set OUTERLOOP_NIGHTLY"),
    pytest.mark.timeout(3600),
]
DEADLINE = 1200.0
"""Seconds for one run: two processes import everything anew, and a loaded machine has little to give."""
TOP = Path(__file__).resolve().parents[2]
TWO = {"trainer_gpus": "0,1"}
GRPO = {**SHORT["grpo"], "per_device_train_batch_size": 2, "num_iterations": 1}
"""A generation of 8 is two micro-batches on each rank: two steps; one process would need four."""


class Ranks(Pipeline):
    """A pipeline whose trainings are two processes each; not forked, so that its ranks are real ones from the start."""

    process: subprocess.Popen[bytes]

    def begin(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "log.txt").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "outerloop.posttrain", str(self.folder / "config.toml"), "--out", str(self.out),
                 "--seed", "7", "--stage", "data", "--stage", "sft", "--stage", "grpo"],
                stdout=log, stderr=log, cwd=TOP, env={**os.environ, "OMP_NUM_THREADS": "2"},
            )  # fmt: skip

    def end(self) -> int:
        return self.process.wait(DEADLINE)

    def ranks(self) -> list[int]:
        """Process ids of the ranks that live."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                try:
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                if b"outerloop.posttrain.ranks" in words and any(str(self.out).encode() in word for word in words):
                    found.append(int(entry.name))
        return sorted(found)

    def wait_for_step(self, stage: str, step: int) -> None:
        """Until metrics tell of this step, while it still runs."""
        deadline = time.monotonic() + DEADLINE
        path = self.out / stage / "metrics.jsonl"
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log
            if path.exists() and len(path.read_text().splitlines()) >= step:
                return
            time.sleep(0.002)
        raise AssertionError(self.log)

    def nothing_is_left(self) -> bool:
        deadline = time.monotonic() + 30
        while self.ranks() and time.monotonic() < deadline:
            time.sleep(0.01)
        return not self.ranks()


def written(made: Ranks) -> Ranks:
    made.write(training_rows()[:60], sft={**SHORT["sft"], "max_steps": 40, "save_steps": 2}, grpo=GRPO, serving=TWO)
    return made


@pytest.fixture(scope="module")
def uninterrupted(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    made = written(Ranks(zygote, tmp_path_factory.mktemp("whole")))
    made.begin()
    assert made.end() == 0, made.log
    return made


def test_two_processes_train_one_model_and_report_as_one(uninterrupted: Ranks) -> None:
    assert [line["step"] for line in uninterrupted.metrics("sft")] == list(range(1, 41))
    assert [line["step"] for line in uninterrupted.metrics("grpo")] == list(range(1, 9))
    for stage in ("sft", "grpo"):
        record, run = uninterrupted.record(stage, "done.json"), uninterrupted.record(stage, "run.json")
        assert (record["processes"], record["threads"]) == (2, 1)
        assert (run["world_size"], run["state"], run["step"]) == (2, "finished", record["steps"])
        assert {path.name for path in (uninterrupted.out / stage / "ranks").iterdir()} == {"rank-0.json", "rank-1.json"}
        assert not (uninterrupted.out / stage / ".ranks.json").exists()
    assert uninterrupted.nothing_is_left()


def test_whichever_dies_all_end_and_the_weights_are_the_same_bytes(
    tmp_path: Path, zygote: Zygote, uninterrupted: Ranks
) -> None:
    made = written(Ranks(zygote, tmp_path / "killed"))
    for victim, stage, step in ((1, "sft", 3), (0, "sft", 10), (-1, "sft", 20), (1, "grpo", 5)):
        made.begin()
        made.wait_for_step(stage, step)
        if victim < 0:  # who started them
            os.kill(made.process.pid, signal.SIGKILL)
            assert made.end() == -signal.SIGKILL
        else:
            os.kill(made.ranks()[victim], signal.SIGKILL)
            assert made.end() == 69, made.log
            assert f"rank {victim} of {stage} was ended by SIGKILL" in made.log
        assert made.nothing_is_left()
    made.begin()
    made.wait_for_step("grpo", 6)
    os.kill(made.process.pid, signal.SIGTERM)
    assert made.end() in (0, 75), made.log
    made.begin()
    assert made.end() == 0, made.log
    assert made.weights() == uninterrupted.weights()


def test_a_signal_to_one_rank_ends_all_at_one_step(tmp_path: Path, zygote: Zygote, uninterrupted: Ranks) -> None:
    made = written(Ranks(zygote, tmp_path / "stopped"))
    made.begin()
    made.wait_for_step("sft", 5)
    os.kill(made.ranks()[1], signal.SIGUSR1)
    assert made.end() == 75, made.log
    saved = sorted((made.out / "sft" / "checkpoints").glob("checkpoint-*/outerloop.json"))
    step = max(int(path.parent.name.removeprefix("checkpoint-")) for path in saved)
    assert step == len(made.metrics("sft")) < 40
    made.begin()
    assert made.end() == 0, made.log
    assert made.record("sft", "run.json")["restored_step"] == step
    assert made.weights() == uninterrupted.weights()


def test_another_number_of_processes_is_another_training(
    pipeline: Callable[[str], Pipeline], uninterrupted: Ranks
) -> None:
    config = (uninterrupted.folder / "config.toml").read_text()
    (uninterrupted.folder / "config.toml").write_text(config.replace('"0,1"', '"0"'))
    uninterrupted.begin()
    assert uninterrupted.end() == 2
    assert "belongs to another configuration" in uninterrupted.log

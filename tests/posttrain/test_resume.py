"""Attacks: kills and signals around checkpoints, torn checkpoints, a folder that belongs to other data."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.posttrain.conftest import Pipeline, Zygote, training_rows

SHORT = {
    "sft": {"max_steps": 6, "save_steps": 2, "per_device_train_batch_size": 4},
    "grpo": {
        "max_steps": 8,
        "save_steps": 4,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 1,
        "generation_batch_size": 8,
        "num_generations": 4,
        "num_iterations": 2,
        "rewards": ["tests.posttrain.rewards:length"],
    },
}
"""A generation lasts four optimizer steps, so its boundaries matter; the reward differs from the first step on."""


def written(pipeline: Pipeline) -> Pipeline:
    pipeline.write(training_rows()[:60], **SHORT)
    return pipeline


@pytest.fixture(scope="module")
def uninterrupted(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    made = written(Pipeline(zygote, tmp_path_factory.mktemp("whole")))
    assert made.run("--seed", "7") == 0, made.log
    return made


def test_a_training_moves_the_weights_and_reports_every_step(uninterrupted: Pipeline) -> None:
    weights = uninterrupted.weights()
    assert set(weights) == {"sft", "grpo"} and weights["sft"] != weights["grpo"]
    assert [line["step"] for line in uninterrupted.metrics("sft")] == [1, 2, 3, 4, 5, 6]
    assert all(line["grad_norm"] > 0 for line in uninterrupted.metrics("sft"))
    rewards = uninterrupted.metrics("grpo")
    assert [line["step"] for line in rewards] == list(range(1, 9))
    assert any(line["reward_std"] > 0 and line["grad_norm"] > 0 for line in rewards)
    run = uninterrupted.record("grpo", "run.json")
    assert (run["state"], run["step"], run["checkpoint"]["count"]) == ("finished", 8, 2)
    assert not (uninterrupted.out / "sft" / "checkpoints").exists()


def test_after_kills_anywhere_the_weights_are_the_same_bytes(
    pipeline: Callable[[str], Pipeline], uninterrupted: Pipeline
) -> None:
    killed = written(pipeline("killed"))
    # sft: torn second checkpoint, so it continues from the first; then after the checkpoint of step 4
    assert killed.run("--seed", "7", fault=("before", 2, "SIGKILL")) == -signal.SIGKILL
    torn = killed.out / "sft" / "checkpoints" / "checkpoint-4"
    assert torn.is_dir() and not (torn / "outerloop.json").exists()
    assert killed.run("--seed", "7", fault=("after", 1, "SIGKILL")) == -signal.SIGKILL
    assert killed.record("sft", "run.json")["restored_step"] == 2
    # sft saves once more (step 6), then grpo's first checkpoint
    assert killed.run("--seed", "7", fault=("after", 2, "SIGKILL")) == -signal.SIGKILL
    assert killed.run("--seed", "7") == 0, killed.log
    assert killed.record("grpo", "run.json")["restored_step"] == 4
    assert killed.weights() == uninterrupted.weights()
    assert "sft: was done" in killed.log


def test_a_signal_ends_at_a_checkpoint_with_exit_code_75_and_the_weights_are_the_same(
    pipeline: Callable[[str], Pipeline], uninterrupted: Pipeline
) -> None:
    stopped = written(pipeline("stopped"))
    for number in (signal.SIGTERM, signal.SIGUSR1):
        pid = stopped.start("--seed", "7", fault=("after", 1, "SIGSTOP"))
        assert stopped.wait(pid) == "stopped"
        os.kill(pid, number)
        os.kill(pid, signal.SIGCONT)
        assert stopped.wait(pid) == 75, stopped.log
        assert f"stopped: {number.name} ended" in stopped.log
    assert stopped.run("--seed", "7") == 0, stopped.log
    assert stopped.weights() == uninterrupted.weights()


def test_a_checkpoint_that_lost_bytes_is_not_continued_from(
    pipeline: Callable[[str], Pipeline], uninterrupted: Pipeline
) -> None:
    damaged = written(pipeline("damaged"))
    assert damaged.run("--seed", "7", fault=("after", 3, "SIGKILL")) == -signal.SIGKILL
    weights = damaged.out / "sft" / "checkpoints" / "checkpoint-6" / "model.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-1] ^= 1
    weights.write_bytes(raw)
    # from step 4 to the last one, and killed when all is trained and nothing is published
    assert damaged.run("--seed", "7", fault=("after", 1, "SIGKILL")) == -signal.SIGKILL
    assert damaged.record("sft", "run.json")["restored_step"] == 4
    assert damaged.run("--seed", "7") == 0, damaged.log
    assert damaged.record("sft", "run.json")["restored_step"] == 6
    assert damaged.record("sft", "done.json")["steps"] == 6
    assert damaged.weights() == uninterrupted.weights()


def test_a_finished_run_is_not_done_again_and_its_folder_takes_no_other(uninterrupted: Pipeline) -> None:
    before = {path: path.stat().st_mtime_ns for path in uninterrupted.out.rglob("*.safetensors")}
    assert uninterrupted.run("--seed", "7") == 0
    assert {path: path.stat().st_mtime_ns for path in uninterrupted.out.rglob("*.safetensors")} == before
    assert uninterrupted.run("--seed", "8") == 2
    assert "belongs to another configuration, training set or seed" in uninterrupted.log


def test_another_seed_gives_other_weights(pipeline: Callable[[str], Pipeline], uninterrupted: Pipeline) -> None:
    other = pipeline("other")
    other.write(training_rows()[:60], **SHORT)
    assert other.run("--seed", "8", "--stage", "data", "--stage", "sft") == 0, other.log
    assert other.record("sft", "done.json")["weights_sha256"] != uninterrupted.weights()["sft"]
    assert not (other.out / "grpo").exists() and not (other.out / "evaluate").exists()


def test_nothing_is_trained_on_a_malformed_row(pipeline: Callable[[str], Pipeline]) -> None:
    broken = pipeline("broken")
    bad = [{"prompt": "p", "completion": number} for number in range(10)]
    broken.write([*training_rows()[:5], *bad], **SHORT)
    assert broken.run() == 2
    told = [line for line in broken.log.splitlines() if line.startswith("train.jsonl:")]
    assert len(told) == 10
    assert told[0] == "train.jsonl:6: completion: must be text or a list of messages, not a number"
    assert not broken.out.exists()


def test_an_engine_that_is_not_there_is_refused_before_training(pipeline: Callable[[str], Pipeline]) -> None:
    early = pipeline("early")
    early.write(training_rows()[:60], **SHORT, evaluation={"engine": "vllm"})
    assert early.run() == 2
    assert 'evaluation: engine = "vllm", but ' in early.log and "has no vllm; name the Python that has it" in early.log
    assert not early.out.exists()


def test_a_reporter_that_is_not_there_is_refused_before_training(pipeline: Callable[[str], Pipeline]) -> None:
    told = pipeline("told")
    told.write(training_rows()[:60], **SHORT, tracking={"report_to": ["tensorbord"]})
    assert told.run() == 2, told.log
    assert "tracking.report_to: tensorbord can't be used here, not installed or unknown" in told.log
    assert not (told.out / "sft" / "checkpoints").exists()


def test_adapters_are_merged_and_preferences_are_learned(pipeline: Callable[[str], Pipeline]) -> None:
    preferring = pipeline("dpo")
    pairs = [{"prompt": row["prompt"], "chosen": row["answer"], "rejected": "nothing"} for row in training_rows()[:40]]
    preferring.write(
        pairs,
        sft=None,
        grpo=None,
        dpo={"max_steps": 4, "learning_rate": 1e-3, "per_device_train_batch_size": 4, "save_steps": 2},
        runtime={"weights": "lora", "lora_r": 4},
    )
    assert preferring.run() == 0, preferring.log
    losses = [line["loss"] for line in preferring.metrics("dpo")]
    assert losses[-1] < losses[0]
    names = {path.name for path in (preferring.out / "dpo" / "model").iterdir()}
    assert "model.safetensors" in names and not any("adapter" in name for name in names)
    assert Path(preferring.out / "dpo" / "adapter" / "adapter_config.json").is_file()

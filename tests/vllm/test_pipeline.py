"""Attacks on training beside a real server: a killed trainer, weights that lag behind, rewards that do not rise."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from outerloop.compose import SHIPPED, compose, toml_text
from outerloop.posttrain.sums import rows
from tests.vllm.conftest import DEADLINE, gpu, session

STEPS = 24


def written(folder: Path, **over: Any) -> Path:
    lists = f"{SHIPPED / 'task-lists'}/"
    config = compose("tiny-llama", "tiny-sft-grpo", ["tiny-sums"], "train.jsonl", project="t", task_list_root=lists)
    config["sft"] |= {"max_steps": 40, "save_steps": 40}
    config["grpo"] |= {"engine": "vllm", "max_steps": STEPS, "save_steps": 6, "learning_rate": 5e-4}
    config["grpo"] |= {"rewards": ["tests.vllm.rewards:words"], "generation_batch_size": 64}
    config["grpo"] |= {"per_device_train_batch_size": 64, "lr_scheduler_type": "constant"}
    config["evaluation"] |= {"engine": "vllm", "batch_size": 16}
    config["serving"] = {
        "dtype": "float32",
        "max_model_len": 128,
        "max_num_seqs": 32,
        "enforce_eager": True,
        "gpu_memory_utilization": 0.3,
        "cpu_kv_cache_gb": 1,
        "cpu_kv_cache_blocks": 128,
        "start_timeout_sec": DEADLINE,
    }
    for name, table in over.items():
        config[name] |= table
    (folder / "config.toml").write_text(toml_text(config))
    # sft sees all sums, grpo the same eight at every step, so that few steps are enough
    fields = [("prompt", "completion")] * len(rows("training")) + [("prompt", "answer")] * 8
    chosen = [*rows("training"), *rows("training")[:8]]
    data = [{name: row[name] for name in names} for row, names in zip(chosen, fields, strict=True)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in data))
    return folder / "config.toml"


def start(config: Path, out: Path) -> subprocess.Popen[bytes]:
    with (out.parent / "log.txt").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "outerloop.posttrain", str(config), "--out", str(out), "--seed", "1"],
            stdout=log,
            stderr=log,
        )


def metrics(out: Path) -> list[dict[str, Any]]:
    path = out / "grpo" / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def keeper_of(trainer: int) -> int:
    [child] = Path(f"/proc/{trainer}/task/{trainer}/children").read_text().split()
    return int(child)


def test_rewards_rise_with_a_server_and_a_killed_trainer_leaves_none_behind(tmp_path: Path) -> None:
    config, out = written(tmp_path), tmp_path / "out"
    trainer = start(config, out)
    deadline = time.monotonic() + DEADLINE
    while len(metrics(out)) < 8:
        assert trainer.poll() is None and time.monotonic() < deadline, (tmp_path / "log.txt").read_text()
        time.sleep(0.1)
    keeper = keeper_of(trainer.pid)
    assert len(session(keeper)) >= 3
    trainer.send_signal(signal.SIGKILL)
    trainer.wait()
    killed = time.monotonic()
    while session(keeper):
        assert time.monotonic() < killed + DEADLINE, session(keeper)
        time.sleep(0.05)
    print(f"the server was gone {time.monotonic() - killed:.1f} s after its trainer was killed")
    assert list((out / "grpo" / "weights").iterdir()) != []
    trainer = start(config, out)
    assert trainer.wait(DEADLINE) == 0, (tmp_path / "log.txt").read_text()
    run = json.loads((out / "grpo" / "run.json").read_text())
    assert run["restored_step"] == 6 and run["state"] == "finished"
    assert not (out / "grpo" / "weights").exists()

    last = {line["step"]: line for line in metrics(out)}
    rewards = [last[step]["reward"] for step in sorted(last)]
    assert len(rewards) == STEPS
    early, late = statistics.mean(rewards[:6]), statistics.mean(rewards[-6:])
    print(f"reward {early:.3f} in the first six steps, {late:.3f} in the last: {rewards}")
    assert late > early + 0.1
    # what sampled is what is trained: the two engines agree about every token that was drawn
    differences = [last[step]["sampling/sampling_logp_difference/max"] for step in sorted(last)]
    print(f"largest difference of log-probabilities {max(differences):.2g}")
    if not gpu():
        assert max(differences) < 1e-3
    record = json.loads((out / "evaluate" / "tiny-sums.json").read_text())
    print(f"evaluated: {record['mean']} over {record['scored_tasks']} tasks")
    assert record["infrastructure_errors"] == 0 and record["scored_tasks"] == 100
    assert [path.is_relative_to(out / "sealed") for path in out.rglob("server.log")].count(True) == 1


def test_a_trainer_without_its_server_ends_with_69_and_its_log(tmp_path: Path) -> None:
    config, out = written(tmp_path, sft={"max_steps": 2, "save_steps": 2}), tmp_path / "out"
    trainer = start(config, out)
    deadline = time.monotonic() + DEADLINE
    while len(metrics(out)) < 2:
        assert trainer.poll() is None and time.monotonic() < deadline, (tmp_path / "log.txt").read_text()
        time.sleep(0.1)
    os.killpg(keeper_of(trainer.pid), signal.SIGKILL)
    assert trainer.wait(DEADLINE) == 69, (tmp_path / "log.txt").read_text()
    log = (tmp_path / "log.txt").read_text()
    assert "infrastructure: " in log and str(out / "grpo" / "server.log") in log and "Traceback" not in log
    assert json.loads((out / "grpo" / "run.json").read_text())["state"] == "failed"


def test_colocated_vllm_trains_on_a_gpu(tmp_path: Path) -> None:
    if not gpu():
        pytest.skip("needs a GPU")
    config, out = written(tmp_path), tmp_path / "out"
    text = config.read_text().replace("[serving]", '[serving]\nmode = "colocate"')
    config.write_text(text)
    assert start(config, out).wait(DEADLINE) == 0, (tmp_path / "log.txt").read_text()
    rewards = [line["reward"] for line in metrics(out)]
    assert statistics.mean(rewards[-6:]) > statistics.mean(rewards[:6]) + 0.1

"""Attacks: a layout that a challenge states and the pipeline never hears of."""

from __future__ import annotations

from typing import Any

from outerloop.compose import compose, needs_serving, serving, with_serving
from outerloop.posttrain.config import Config, config_problems

LAYOUT = {"flavor": "h200x4", "vllm_gpus": "2, 3", "tensor_parallel": 2, "trainer_gpus": "0"}


def composed(**tables: Any) -> dict[str, Any]:
    config = compose("qwen2.5-0.5b-instruct", "grpo-lora", ["gsm8k"], "train.jsonl", project="p")
    for name, table in tables.items():
        config[name] = {**config.get(name, {}), **table}
    return config


def test_the_layout_of_a_challenge_reaches_the_pipeline() -> None:
    config = composed(grpo={"engine": "vllm"}, serving={"mode": "colocate", "enforce_eager": True})
    found = with_serving(config, serving("qwen2.5-0.5b-instruct", "grpo-lora", LAYOUT))
    assert config_problems(found) == []
    table = Config.model_validate(found).serving
    assert (table.mode, table.vllm_gpus, table.trainer_gpus, table.tensor_parallel) == ("server", "2,3", "0", 2)
    assert (table.max_model_len, table.enforce_eager) == (4096, True)
    assert config["serving"] == {"mode": "colocate", "enforce_eager": True}
    shared = {"flavor": "l40sx1", "vllm_gpus": "0", "tensor_parallel": 1, "trainer_gpus": "0", "mode": "colocate"}
    colocated = with_serving(config, serving("qwen2.5-0.5b-instruct", "grpo-lora", shared))
    assert config_problems(colocated) == []
    assert Config.model_validate(colocated).serving.mode == "colocate"


def test_without_a_server_the_trainer_hears_of_its_gpus_alone() -> None:
    config = composed()
    assert not needs_serving(config)
    found = with_serving(config, serving("qwen2.5-0.5b-instruct", "grpo-lora", LAYOUT | {"trainer_gpus": "0, 1"}))
    assert {**found, "serving": {}} == {**config, "serving": {}} and found["serving"] == {"trainer_gpus": "0,1"}
    assert Config.model_validate(found).processes == 2 and Config.model_validate(config).processes == 1


def test_several_trainer_gpus_must_share_a_generation_and_have_no_server_beside_them() -> None:
    layout = LAYOUT | {"trainer_gpus": "0,1"}
    config = composed(grpo={"engine": "vllm"})
    [told] = config_problems(with_serving(config, serving("qwen2.5-0.5b-instruct", "grpo-lora", layout)))
    assert "2 trainer GPUs (0,1), but a vLLM server of its own takes the weights of one trainer process" in told
    batch = {"per_device_train_batch_size": 8, "generation_batch_size": 40, "gradient_accumulation_steps": 5}
    config = composed(grpo=batch)
    assert config_problems(config) == []
    [told] = config_problems(with_serving(config, serving("qwen2.5-0.5b-instruct", "grpo-lora", layout)))
    assert "generation_batch_size = 40 is no multiple of per_device_train_batch_size = 8 × 2 trainer GPUs" in told

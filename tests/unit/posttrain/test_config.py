"""Attacks: configurations that would fail only after hours, and messages without a place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outerloop.compose import check, compose, toml_text
from outerloop.posttrain.config import Config, ConfigError, config_problems, parse_config
from outerloop.posttrain.seeds import stage_seed, trial_seed


def composed(**over: Any) -> dict[str, Any]:
    config = compose("tiny-llama", "tiny-sft-grpo", ["tiny-sums"], "train.jsonl", project="p")
    for name, table in over.items():
        config[name] = {**config.get(name, {}), **table}
    return config


def test_every_shipped_method_is_a_configuration() -> None:
    assert check(pipeline=config_problems) == []


@pytest.mark.parametrize(
    ("table", "change", "message"),
    [
        ("grpo", {"save_steps": 3, "num_iterations": 2}, "save_steps = 3 is no multiple of 2"),
        ("grpo", {"num_generations": 5}, "is no multiple of num_generations = 5"),
        ("grpo", {"per_device_train_batch_size": 24}, "is no multiple of per_device_train_batch_size"),
        ("grpo", {"rewards": ["exakt"]}, 'did you mean "exact"?'),
        ("grpo", {"rewards": ["code"]}, "needs a sandbox"),
        ("eval_dataset", {"scorer": "numric"}, 'did you mean "numeric"?'),
        ("eval_dataset", {"scorer": "code"}, "needs a sandbox"),
        ("model", {"id": "builtin:tiny-lama"}, "no built-in model 'tiny-lama'; did you mean \"tiny-llama\"?"),
        ("model", {"id": "fil:/models/m"}, "begins with neither builtin: nor file:"),
        ("eval_dataset", {"repo_id": "builtin:sumz"}, "no built-in suite 'sumz'; did you mean \"sums\"?"),
        ("sft", {"max_step": 3}, 'did you mean "max_steps"?'),
        ("sft", {"learning_rate": 0}, "greater than 0"),
        ("runtime", {"weights": "lorra"}, 'did you mean "lora"?'),
    ],
)
def test_what_can_not_run_is_refused_with_a_sentence(table: str, change: dict[str, Any], message: str) -> None:
    found = config_problems(composed(**{table: change}))
    assert any(message in problem for problem in found), found


def test_a_checkpoint_lies_on_a_generation_boundary() -> None:
    base = {"max_steps": 8, "learning_rate": 1e-4, "rewards": ["exact"], "num_generations": 4}
    for batch, device, accumulation, iterations, steps in (
        (32, 32, 1, 1, 1),
        (32, 8, 1, 1, 4),
        (32, 8, 2, 1, 2),
        (32, 8, 4, 1, 1),
        (32, 8, 4, 3, 3),
        (32, 8, 8, 1, 1),
    ):
        grpo = {
            **base,
            "generation_batch_size": batch,
            "per_device_train_batch_size": device,
            "gradient_accumulation_steps": accumulation,
            "num_iterations": iterations,
            "save_steps": steps,
        }
        config = Config.model_validate({**composed(), "grpo": grpo})
        assert config.grpo is not None and config.grpo.steps_per_boundary() == steps


def test_a_file_with_several_mistakes_names_each_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(toml_text(composed()).replace("max_steps = 90", "max_steps = 0\nspeed = 9"))
    with pytest.raises(ConfigError) as caught:
        parse_config(path)
    lines = path.read_text().split("\n")
    expected = {f"{path}:{lines.index(text) + 1}: " for text in ("max_steps = 0", "speed = 9")}
    assert {problem[: problem.index(": ") + 2] for problem in caught.value.problems} == expected


def test_a_configuration_without_training_or_suites_is_none() -> None:
    config = {name: table for name, table in composed().items() if name not in ("sft", "grpo", "eval_dataset")}
    [message] = config_problems(config)
    assert "nothing is trained" in message and "[eval_dataset]" in message


def test_the_shipped_tiny_configuration_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(toml_text(composed()))
    found = parse_config(path)
    assert found.stages == ("sft", "grpo")
    assert [suite.label for suite in found.suites] == ["tiny-sums"]


def test_seeds_differ_in_everything_they_are_for() -> None:
    seeds = {trial_seed(evaluation, task, trial) for evaluation in "ab" for task in "xy" for trial in range(9)}
    assert len(seeds) == 36
    assert trial_seed("a", "bc", 1) != trial_seed("ab", "c", 1)
    assert trial_seed("a", "b", 1) == trial_seed("a", "b", 1) < 2**63
    assert 0 <= stage_seed(7, "sft") < 2**31 and stage_seed(7, "sft") != stage_seed(7, "grpo")


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"harness": {"engine": "inspect"}}, 'needs a server: evaluation.engine = "vllm"'),
        ({"harness": {"tools": ["calculator"]}}, 'are for conversations: harness.engine = "inspect"'),
        (
            {"harness": {"engine": "inspect", "tools": ["shell"]}, "evaluation": {"engine": "vllm"}},
            'there is no tool "shell"; calculator, or module:function',
        ),
        ({"serving": {"mode": "colocate", "vllm_gpus": "0", "trainer_gpus": "1"}}, "are the same"),
        ({"serving": {"vllm_gpus": "0, 1"}}, "serving.vllm_gpus"),
    ],
)
def test_servers_and_conversations_that_can_not_be_are_refused(tables: dict[str, Any], message: str) -> None:
    found = config_problems(composed(**tables))
    assert any(message in problem for problem in found), found

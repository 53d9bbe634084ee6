"""Attacks: tables that a method may not set, aliases between two compositions, everything wrong at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from outerloop.compose import ComposeError, UnknownIdError, compose, fragment
from tests.unit.compose.folders import Configs

TRAIN = {"repo_id": "me/data", "revision": "c" * 40, "path": "train.jsonl"}


def test_one_suite_is_the_eval_dataset_without_its_name(configs: Configs) -> None:
    configs.model("m")
    configs.suite("s")
    configs.method("x", {"runtime": {"a": 1}, "sft": {"max_steps": 5}}, multi_suite=False, note="hidden")
    config = compose("m", "x", ["s"], TRAIN, project="p", configs=configs.root)
    assert config == {
        "runtime": {"a": 1},
        "sft": {"max_steps": 5},
        "model": {"id": "org/m", "revision": "a" * 40},
        "train_dataset": TRAIN,
        "eval_dataset": {
            "repo_id": "org/s",
            "revision": "b" * 40,
            "path": "data.jsonl",
            "task_list": "../../task-lists/s.txt",
        },
        "tracking": {"project": "p"},
        "output": {"root": "../../runs"},
    }


def test_several_suites_are_listed_in_order_with_their_names(configs: Configs) -> None:
    configs.model("m")
    configs.suite("b", name="B")
    configs.suite("a", name="A")
    configs.method("x", multi_suite=True)
    config = compose("m", "x", ["b", "a"], "d.jsonl", project="p", task_list_root="/lists/", configs=configs.root)
    assert [(suite["name"], suite["task_list"]) for suite in config["eval_suites"]] == [
        ("B", "/lists/b.txt"),
        ("A", "/lists/a.txt"),
    ]
    assert "eval_dataset" not in config
    assert config["train_dataset"] == {"path": "d.jsonl"}


def test_the_composers_tables_are_not_the_methods_to_set(configs: Configs) -> None:
    configs.model("m")
    configs.suite("s")
    owned = {name: {"stolen": True} for name in ("model", "train_dataset", "eval_dataset", "eval_suites", "output")}
    configs.method("x", {**owned, "sft": {"max_steps": 1}, "tracking": {"project": "mine", "report_to": ["wandb"]}})
    config = compose("m", "x", ["s"], TRAIN, project="p", configs=configs.root)
    assert "stolen" not in str(config)
    assert config["tracking"] == {"project": "p", "report_to": ["wandb"]}
    configs.method("x", owned)
    with pytest.raises(ComposeError, match=r"x\.toml: the method has no tables"):
        compose("m", "x", ["s"], TRAIN, project="p", configs=configs.root)


def test_a_composition_shares_nothing_with_the_next_one(configs: Configs) -> None:
    configs.model("m")
    configs.suite("s")
    configs.method("x", {"sft": {"deep": {"list": [1]}}})
    train = {"path": "d", "columns": ["a"]}
    first = compose("m", "x", ["s"], train, project="p", configs=configs.root)
    first["sft"]["deep"]["list"].append(2)
    first["train_dataset"]["columns"].append("b")
    assert train == {"path": "d", "columns": ["a"]}
    assert fragment("methods", "x", configs=configs.root)["sft"]["deep"]["list"] == [1]


def test_every_unknown_id_is_named_at_once(configs: Configs) -> None:
    configs.suite("s")
    with pytest.raises(KeyError) as caught:
        compose("model?", "method?", ["s", "suite?", "suite!"], TRAIN, project="p", configs=configs.root)
    for name in ("model?", "method?", "suite?", "suite!"):
        assert f'"{name}"' in str(caught.value)


def test_every_misfit_is_named_at_once(configs: Configs) -> None:
    configs.model("m")
    (configs.root / "models" / "m.toml").write_text('[model]\nid = "x"\n')
    configs.suite("s", name="same")
    configs.suite("t", name="same")
    configs.method("x")
    with pytest.raises(ValueError) as caught:
        compose("m", "x", ["s", "t", "s"], TRAIN, project="p", configs=configs.root)
    message = str(caught.value)
    assert "m.toml: [model]: revision is missing" in message
    assert 'the method "x" takes one suite, not 3' in message
    assert '3 suites with the name "same": s, t, s' in message


def test_no_suites_are_refused(configs: Configs) -> None:
    configs.model("m")
    configs.method("x")
    with pytest.raises(ComposeError, match="no suites"):
        compose("m", "x", [], TRAIN, project="p", configs=configs.root)
    with pytest.raises(ComposeError, match="must be a list"):
        compose("m", "x", "gsm8k", TRAIN, project="p", configs=configs.root)


def test_misfits_are_named_beside_unknown_ids(configs: Configs, tmp_path: Path) -> None:
    configs.method("x")
    configs.suite("s", name="n")
    configs.suite("t", name="n")
    with pytest.raises(UnknownIdError) as caught:
        compose("nosuch", "x", ["s", "t"], TRAIN, project="p", configs=configs.root)
    assert len(caught.value.problems) == 3

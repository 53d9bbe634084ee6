"""Attacks: ids that are paths, task lists with oddities, domains with holes, the order of the registry."""

from __future__ import annotations

from pathlib import Path

import pytest

from outerloop.compose import (
    ComposeError,
    UnknownIdError,
    absent_sources,
    domain_counts,
    fragment,
    ids,
    registry,
    task_domains,
    task_ids,
)
from tests.unit.compose.folders import Configs


def test_adding_a_file_adds_a_model(configs: Configs) -> None:
    assert ids("models", configs=configs.root) == []
    configs.model("b")
    configs.model("a")
    assert ids("models", configs=configs.root) == ["a", "b"]


@pytest.mark.parametrize("wrong", ["../models/a", "a/b", "nosuch", "", ".", "..", "a\0b", ".hidden"])
def test_an_id_that_names_no_fragment_names_itself(configs: Configs, wrong: str) -> None:
    configs.model("a")
    configs.write("models", ".hidden", {})
    with pytest.raises(KeyError) as caught:
        fragment("models", wrong, configs=configs.root)
    assert f'there is no model "{wrong}"' in str(caught.value)


def test_an_unknown_kind_is_named_with_the_nearest_one(configs: Configs) -> None:
    with pytest.raises(UnknownIdError, match=r'"model" .*did you mean "models"'):
        ids("model", configs=configs.root)


def test_a_fragment_that_is_not_toml_names_its_file(configs: Configs) -> None:
    configs.model("a")
    (configs.root / "models" / "a.toml").write_text("[model\n")
    with pytest.raises(ValueError, match=r"models/a\.toml: not a TOML text"):
        fragment("models", "a", configs=configs.root)


def test_a_task_list_keeps_its_order_and_loses_its_comments(configs: Configs) -> None:
    configs.suite("s", "# all of them\r\nzeta\n\n  alpha  # easy\nissue#7\n\x85odd\n#end")
    assert task_ids("s", configs=configs.root) == ["zeta", "alpha", "issue#7", "odd"]


def test_a_task_that_is_listed_twice_is_refused_by_name(configs: Configs) -> None:
    configs.suite("s", "a\nb\na\nc\nb\n")
    with pytest.raises(ComposeError, match="more than once: a, b"):
        task_ids("s", configs=configs.root)


@pytest.mark.parametrize("tasks", ["", "\n\n# nothing\n"])
def test_a_list_without_tasks_is_refused(configs: Configs, tasks: str) -> None:
    configs.suite("s", tasks)
    with pytest.raises(ComposeError, match=r"s\.txt: no tasks"):
        task_ids("s", configs=configs.root)


@pytest.mark.parametrize("name", ["../models/m.toml", "/etc/passwd"])
def test_a_task_list_lies_in_its_folder(configs: Configs, name: str) -> None:
    suite = {"name": "s", "repo_id": "o/s", "revision": "b" * 40, "path": "p", "task_list": name}
    configs.model("m")
    configs.write("suites", "s", {"suite": suite})
    with pytest.raises(ComposeError, match="must be a file in task-lists/"):
        task_ids("s", configs=configs.root)


def test_every_task_needs_a_domain_and_extra_ones_are_ignored(configs: Configs) -> None:
    configs.suite("s", "a\nb\nc\nd\n", domains="d.json")
    configs.domains("d.json", {"d": "code", "a": "math", "b": "code", "c": "art", "other": "x"})
    assert list(task_domains("s", configs=configs.root).items()) == [
        ("a", "math"),
        ("b", "code"),
        ("c", "art"),
        ("d", "code"),
    ]
    assert domain_counts("s", configs=configs.root) == [
        {"name": "code", "task_count": 2},
        {"name": "art", "task_count": 1},
        {"name": "math", "task_count": 1},
    ]
    configs.domains("d.json", {"a": "math", "b": "", "c": 3})
    with pytest.raises(ComposeError, match="no domain for b, c, d"):
        task_domains("s", configs=configs.root)


@pytest.mark.parametrize(("text", "message"), [("[1]", "one object"), ("{", "not JSON")])
def test_domains_that_are_no_object_are_refused(configs: Configs, text: str, message: str) -> None:
    configs.suite("s", domains="d.json")
    configs.listed("d.json", text)
    with pytest.raises(ComposeError, match=message):
        domain_counts("s", configs=configs.root)


def test_a_suite_without_domains_has_none(configs: Configs) -> None:
    configs.suite("s")
    assert task_domains("s", configs=configs.root) == {}
    assert domain_counts("s", configs=configs.root) == []


def test_active_fragments_come_first_then_ids_in_order(configs: Configs) -> None:
    for name, status in (("d", "active"), ("a", "retired"), ("c", "active"), ("b", None)):
        configs.model(name, **({"status": status} if status else {}))
    assert [entry["id"] for entry in registry("models", configs=configs.root)] == ["c", "d", "a", "b"]


def test_later_keys_of_a_model_win(configs: Configs) -> None:
    configs.model("m", repo_id="shown/instead", note="n", serving={"flavor": "h200"})
    assert registry("models", configs=configs.root) == [
        {"id": "m", "repo_id": "shown/instead", "revision": "a" * 40, "note": "n", "serving": {"flavor": "h200"}}
    ]


def test_later_keys_of_a_suite_win(configs: Configs) -> None:
    configs.suite("s", "a\nb\n", name="Sums", task_count=99, default=1, domains="d.json", suite_name="no")
    configs.domains("d.json", {"a": "x", "b": "x"})
    [entry] = registry("suites", configs=configs.root)
    assert entry == {
        "id": "s",
        "repo_id": "org/s",
        "revision": "b" * 40,
        "task_count": 99,
        "default": True,
        "domains": [{"name": "x", "task_count": 2}],
        "suite_name": "Sums",
    }


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        (
            {
                "grpo": {"max_steps": 7, "num_generations": 4, "generation_batch_size": 34, "learning_rate": 0.5},
                "sft": {"max_steps": 3, "learning_rate": 0.1},
                "evaluation": {},
                "harness": {"agent_timeout_sec": 60},
            },
            (7, 4, 8, 0.5, 1, 60, 0.1),
        ),
        (
            {
                "sft": {"max_steps": 3, "learning_rate": 0.1},
                "evaluation": {"trials": 5},
                "harness": {"max_infra_error_fraction": 0.25},
            },
            (3, None, None, 0.1, 5, None, 0.25),
        ),
        ({"runtime": {"weights": "full"}}, (None, None, None, None, None, None, None)),
    ],
)
def test_a_methods_view_tells_what_it_costs(configs: Configs, tables: dict, expected: tuple) -> None:  # type: ignore[type-arg]
    configs.method("x", tables, status="active")
    [entry] = registry("methods", configs=configs.root)
    keys = ("steps", "group_size", "tasks_per_step", "learning_rate", "trials", "agent_timeout_sec")
    assert tuple(entry[key] for key in (*keys, "infra_error_fraction")) == expected
    assert entry["status"] == "active"


def test_a_site_folder_that_is_not_here_is_noted_and_no_problem(tmp_path: Path) -> None:
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites" / "mine.toml").write_text(
        f'[suite]\nname = "mine"\nrepo_id = "file:{tmp_path}/sealed"\nrevision = "1"\npath = "t.jsonl"\n'
    )
    [told] = absent_sources(configs=tmp_path)
    assert f"mine.toml: {tmp_path}/sealed/t.jsonl is not on this machine" in told
    (tmp_path / "sealed").mkdir()
    (tmp_path / "sealed" / "t.jsonl").touch()
    assert absent_sources(configs=tmp_path) == []

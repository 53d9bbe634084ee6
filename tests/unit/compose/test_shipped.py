"""Attacks: that a shipped challenge could not run, or that a built wheel has no fragments."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from outerloop.cli.compose import compose as command
from outerloop.compose import SHIPPED, challenge, check, compose, ids, registry, task_domains, task_ids
from outerloop.posttrain import sums
from tests.unit.compose.folders import SERVING, Configs


def test_the_shipped_fragments_are_good() -> None:
    assert check() == []
    for kind in ("models", "suites", "methods", "challenges"):
        assert len(ids(kind)) >= 3, kind


def test_the_wheel_takes_the_folder_of_fragments() -> None:
    top = Path(__file__).resolve().parents[3]
    shipped = tomllib.loads((top / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert shipped["force-include"]["configs"] == "outerloop/_shipped/configs"
    assert top / "configs" == SHIPPED


@pytest.mark.parametrize(("suite", "part"), [("tiny-sums", "heldout"), ("tiny-sums-reserve", "reserve")])
def test_the_tiny_suites_list_the_generators_tasks(suite: str, part: str) -> None:
    rows = sums.rows(part)
    assert task_ids(suite) == [row["id"] for row in rows]
    if suite == "tiny-sums":
        assert task_domains(suite) == {row["id"]: row["domain"] for row in rows}


def test_an_open_challenge_names_everything_wrong_with_it(configs: Configs) -> None:
    configs.model("m", serving={**SERVING, "flavor": "h100x9"})
    configs.suite("s")
    configs.suite("t", "a\na\n")
    configs.method("x", {"evaluation": {"engine": "vllm"}}, status="active")
    tables = {
        "meta": {"status": "active"},
        "challenge": {"model": "m", "method": "x", "suites": ["s"], "reserve": ["s", "nosuch"]},
    }
    configs.write("challenges", "c", tables)
    found = "\n".join(check(configs=configs.root))
    for words in (
        "t.txt: listed more than once: a",
        "can't both decide and be the reserve: s",
        'there is no suite "nosuch"',
        "no flavor 'h100x9'",
        "missing max_model_len, bridge_max_context",
    ):
        assert words in found, found
    configs.write("challenges", "c", {**tables, "meta": {"status": "closed"}})
    assert not any("challenges/c" in problem for problem in check(configs=configs.root))


def test_a_broken_challenge_is_told_line_by_line(configs: Configs) -> None:
    folder = configs.root / "challenges"
    folder.mkdir(parents=True)
    (folder / "c.toml").write_text('[challenge]\nmodle = "m"\nmethod = 3\nsuites = []\n\n[decision]\nalpha = 0.7\n')
    found = check(configs=configs.root)
    text = "\n".join(found)
    for words in (
        'c.toml:2: challenge.modle: unknown key; did you mean "model"?',
        "c.toml:3:",
        "c.toml:4:",
        "c.toml:7:",
    ):
        assert words in text, text
    assert "challenge.model: is missing" in text


def test_a_branch_is_no_revision(configs: Configs) -> None:
    configs.write("models", "m", {"model": {"id": "a/b", "revision": "main"}})
    configs.write("models", "Upper", {"model": {"id": "builtin:x", "revision": "1"}, "modle": {}})
    found = "\n".join(check(configs=configs.root))
    assert "40 hex digits" in found
    assert "an id is lower case" in found
    assert 'unknown table modle; did you mean "model"?' in found


def test_the_commands_show_what_the_functions_say(tmp_path: Path) -> None:
    import json

    run = CliRunner().invoke
    listed = run(command, ["list", "suites", "--json"])
    assert json.loads(listed.output) == registry("suites")
    for words in (["list"], ["check"], ["show", "suites", "tiny-sums"], ["show", "challenges", "tiny-sums"]):
        shown = run(command, words)
        assert shown.exit_code == 0, shown.output
        assert max(map(len, shown.output.splitlines())) <= 80
    rendered = run(command, ["render", "tiny-sums", "--train", "/data/train.jsonl"])
    expected = compose(
        "tiny-llama",
        "tiny-sft-grpo",
        ["tiny-sums"],
        {"path": "/data/train.jsonl"},
        project="tiny-sums",
        task_list_root=f"{SHIPPED}/task-lists/",
    )
    assert tomllib.loads(rendered.output) == expected


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["show", "models", "qwen2.5-0.5b"], 7, 'did you mean "qwen2.5-0.5b-instruct"?'),
        (["render", "--train", "x"], 2, "name a CHALLENGE"),
        (["render", "nosuch", "--train", "x"], 7, 'no challenge "nosuch"'),
    ],
)
def test_a_mistake_is_a_sentence_with_its_exit_code(words: list[str], code: int, message: str) -> None:
    answer = CliRunner().invoke(command, words)
    assert answer.exit_code == code
    assert message in answer.output


def test_check_of_a_folder_says_what_is_wrong_and_exits_2(configs: Configs) -> None:
    empty = CliRunner().invoke(command, ["check", "--configs", str(configs.root.parent)])
    assert (empty.exit_code, "no fragments" in empty.output) == (7, True)
    configs.write("models", "m", {"model": {"id": "a/b", "revision": "main"}})
    told = CliRunner().invoke(command, ["check", "--configs", str(configs.root)])
    assert (told.exit_code, "40 hex digits" in told.output) == (2, True)


def test_a_challenges_defaults_are_the_designs() -> None:
    found = challenge("tiny-sums")
    assert found.open and found.layout == {}
    assert challenge("gsm8k-qwen2.5-0.5b-h200").layout["flavor"] == "h200"
    assert challenge("gsm8k-qwen2.5-0.5b-h200").decision.train_seeds == 3

"""Attacks: that `outerloop contract` shows a person's mistake as a sentence with a place and a documented exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from outerloop.cli.contract import contract
from outerloop.contract import parse_contract

INIT = ["init", "--command", "python a.py", "--metric", "loss", "--direction", "min"]


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / ".git").mkdir()
    (tmp_path / "src" / "deep").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "src" / "deep")
    return tmp_path


def run(*words: str) -> Result:
    return CliRunner().invoke(contract, list(words))


def test_init_writes_at_the_top_of_the_repository_and_check_accepts_it(repo: Path) -> None:
    assert run(*INIT).exit_code == 0
    found = parse_contract((repo / ".outerloop.toml").read_text())
    assert found.benchmark("loss").command == "python a.py"
    checked = run("check")
    assert checked.exit_code == 0
    assert "loss: min loss, threshold rule, 10 minutes, suite: none" in checked.output


def test_init_never_replaces_a_contract_unasked(repo: Path) -> None:
    (repo / ".outerloop.toml").write_text("mine")
    refused = run(*INIT)
    assert refused.exit_code == 2
    assert "--force" in refused.output
    assert (repo / ".outerloop.toml").read_text() == "mine"
    assert run(*INIT, "--force").exit_code == 0
    assert parse_contract((repo / ".outerloop.toml").read_text())


def test_init_makes_a_name_of_any_metric(repo: Path) -> None:
    assert run("init", "--command", "x", "--metric", "val loss (%)", "--direction", "max").exit_code == 0
    assert parse_contract((repo / ".outerloop.toml").read_text()).benchmarks[0].name == "val-loss"


def test_init_says_what_is_wrong_with_a_value_and_writes_nothing(repo: Path) -> None:
    refused = run(*INIT, "--name", "a b", "--seed-env", "PATH", "--allow", "../x")
    assert refused.exit_code == 2
    for words in ("benchmarks[0].name", "PATH is set by the job itself", "must not contain .."):
        assert words in refused.output
    assert not (repo / ".outerloop.toml").exists()


def test_check_shows_every_problem_with_its_line(repo: Path) -> None:
    file = repo / "x.toml"
    file.write_text("[[benchmarks]]\nname = 3\n[scope]\nalowed = []\n")
    checked = run("check", str(file))
    assert checked.exit_code == 2
    assert f"{file}:2: benchmarks[0].name" in checked.output
    assert f'{file}:4: scope.alowed: unknown key; did you mean "allowed"?' in checked.output
    assert "Traceback" not in checked.output


def test_check_as_json_is_json_in_both_cases(repo: Path) -> None:
    file = repo / "x.toml"
    file.write_text("[[benchmarks]]\nname = 3\n")
    bad = run("check", str(file), "--json")
    assert bad.exit_code == 2
    listed = json.loads(bad.output)
    assert not listed["ok"]
    assert (2, "benchmarks[0].name") in {(problem["line"], problem["key"]) for problem in listed["problems"]}
    run(*INIT)
    good = json.loads(run("check", "--json").output)
    assert good["ok"]
    assert len(good["contract"]["benchmarks"][0]["definition"]) == 64
    assert good["contract"]["benchmarks"][0]["minutes"] == "10"


def test_a_missing_contract_is_not_found(repo: Path) -> None:
    checked = run("check")
    assert checked.exit_code == 7
    assert "outerloop contract init" in checked.output


def test_a_huge_contract_is_not_read_whole(repo: Path) -> None:
    file = repo / "huge.toml"
    with file.open("wb") as stream:
        stream.truncate(1 << 40)
    checked = run("check", str(file))
    assert checked.exit_code == 2
    assert "64 KiB" in checked.output

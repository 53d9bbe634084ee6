"""Attacks: asking this machine for what it never has. Dry or not, it is refused in words, and nothing is submitted."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from outerloop.cli import app
from outerloop.cli.errors import ExitCode

CONTRACT = """\
[[benchmarks]]
name = "speed"
command = "true"
metric = "cost"
direction = "min"
deterministic = true
{resources}

[scope]
allowed = ["src/"]
"""


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "target"
    (folder / "src").mkdir(parents=True)
    (folder / "src/a").write_text("1\n")
    who = {f"GIT_{role}_{what}": "t@localhost" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    for name, value in who.items():
        monkeypatch.setenv(name, value)
    config = tmp_path / "config.toml"
    config.write_text(
        f'state = "{tmp_path}/state"\nbackend = "local"\n[local]\ncpus = 2\ngpus = 1\n[lanes.default]\n[lanes.wide]\n'
    )
    monkeypatch.setenv("OUTERLOOP_CONFIG", str(config))
    return folder


def committed(repo: Path, contract: str) -> None:
    (repo / ".outerloop.toml").write_text(contract)
    for arguments in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-q", "-m", "base"]):
        subprocess.run(["git", *arguments], cwd=repo, env=os.environ, check=True, capture_output=True)


@pytest.mark.parametrize("dry", [["--dry-run"], []], ids=["dry", "real"])
@pytest.mark.parametrize(
    ("plan", "options", "said"),
    [
        ({"family": "local_process"}, ["--cpus", "99"], "the job wants 99 CPUs, local jobs may use 2 together"),
        (
            {"gpus_per_process": 1, "processes_per_node": 32},
            ["--lane", "wide"],
            "the job wants 32 GPUs, local jobs may use 1 together",
        ),
        ({"nodes": 2}, [], "the job wants 2 nodes, this is one machine"),
    ],
)
def test_a_training_that_never_fits(
    repo: Path, tmp_path: Path, plan: dict[str, object], options: list[str], said: str, dry: list[str]
) -> None:
    committed(repo, CONTRACT.format(resources=""))
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"family": "ddp", "command": ["python", "t.py"]} | plan))
    told = CliRunner().invoke(app, ["submit", "training", str(path), "--repo", str(repo), *options, *dry])
    assert told.exit_code == ExitCode.REFUSED, told.output
    assert said in " ".join(told.output.split())
    assert not list((tmp_path / "state").glob("runs/*")) and not list((tmp_path / "state").glob("inbox/*"))


@pytest.mark.parametrize("many", [["--candidate", "main"], ["--candidates", "main"]], ids=["one", "many"])
@pytest.mark.parametrize(
    ("resources", "said"),
    [("cpus = 99", "speed: the job wants 99 CPUs"), ("nodes = 2", "speed: the job wants 2 nodes")],
)
def test_a_climb_that_never_fits(repo: Path, tmp_path: Path, resources: str, said: str, many: list[str]) -> None:
    committed(repo, CONTRACT.format(resources=resources))
    told = CliRunner().invoke(app, ["submit", "climb", "speed", "--repo", str(repo), *many, "--dry-run"])
    assert told.exit_code == ExitCode.REFUSED, told.output
    assert said in " ".join(told.output.split())

"""Attacks: that the screens fit rows that only tests write. Here a real climb on this machine fills the record."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.e2e.cli.conftest import Outerloop
from tests.rows import World

CONTRACT = """\
[[benchmarks]]
name = "speed"
command = "sh bench.sh"
metric = "cost"
direction = "min"
seed_env = "BENCH_SEED"
minutes = 1
min_delta = 0.5

[scope]
allowed = ["src/"]
"""
BENCH = """\
echo "seed $BENCH_SEED"
sh src/extra.sh >&2
printf '{"cost": %s}\\n' "$(cat src/cost)"
"""


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A repository with a base, a candidate that is better, one that crashes and one out of scope."""
    repo = tmp_path / "target"
    (repo / "src").mkdir(parents=True)

    def git(*arguments: str) -> None:
        who = {f"GIT_{role}_{what}": "t@localhost" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **who}
        subprocess.run(["git", *arguments], cwd=repo, env=environment, check=True, capture_output=True)

    def commit(branch: str, files: dict[str, str], subject: str) -> None:
        git("checkout", "-q", "-B", branch, "main") if branch != "main" else git("init", "-q", "-b", "main")
        for name, body in files.items():
            (repo / name).write_text(body)
        git("add", "-A")
        git("commit", "-q", "-m", subject)

    base = {".outerloop.toml": CONTRACT, "bench.sh": BENCH, "src/cost": "10.5\n", "src/extra.sh": "echo calm\n"}
    commit("main", base, "base")
    commit("better", {"src/cost": "8.25\n"}, "halve the work")
    commit("crash", {"src/extra.sh": "printf 'boom \\033[31m\\n'; kill -9 $PPID\n"}, "a crash")
    commit("outside", {"bench.sh": "echo 1\n"}, "easier to measure")
    return repo


def test_a_real_climb_can_be_seen_from_every_side(world: World, outerloop: Outerloop, target: Path) -> None:
    submitted = outerloop(
        "submit", "climb", "speed", "--repo", str(target), "--candidate", "better", "--wait", "--json"
    )
    run = json.loads(submitted.stdout)["run"]
    assert json.loads(submitted.stdout)["verdict"] == "accepted", submitted.output
    status = outerloop("status").output
    assert run in status
    assert "accepted" in status
    show = outerloop("show", run).output
    assert "halve the work" in show
    assert "8.25" in show
    assert "verdict: accepted" in show
    explained = outerloop("explain", run).output
    assert "The gain of 2.25 clears it." in explained
    assert "Unsandboxed" in explained
    assert "no score command" in explained
    seed = json.loads(outerloop("explain", run, "--json").output)["plan"]["pair_seeds"][0]
    assert str(seed) in explained
    assert outerloop("logs", run, "candidate", "--stdout").output == f'seed {seed}\n{{"cost": 8.25}}\n'
    assert outerloop("logs", run, "--stderr").output == "calm\n"
    (champion,) = json.loads(outerloop("champions", "speed", "--json").output)
    assert (champion["value"], champion["gain"], champion["run_id"]) == ("8.25", "2.25", run)
    assert "agree" in outerloop("verify", run).output
    for screen in (status, show, explained, outerloop("champions").output):
        assert all(len(line) <= 80 and line == line.rstrip() for line in screen.splitlines()), screen


def test_a_crash_and_a_candidate_out_of_scope_are_told_without_escapes(
    world: World, outerloop: Outerloop, target: Path
) -> None:
    ask = ["submit", "climb", "speed", "--repo", str(target), "--wait", "--json", "--candidate"]
    crashed = json.loads(outerloop(*ask, "crash").stdout)
    assert crashed["verdict"] == "failed"
    printed = outerloop("logs", crashed["run"])
    assert "boom \\x1b[31m" in printed.output
    assert "candidate, attempt 1" in printed.output
    for command in ("show", "explain"):
        told = outerloop(command, crashed["run"]).output
        assert "SIGNAL_9" in told and "SIGKILL" in told
        assert "\x1b" not in told
    outside = json.loads(outerloop(*ask, "outside", code=3).stdout)
    told = outerloop("explain", outside["run"]).output
    assert "bench.sh" in told
    assert "Where it ran" not in told
    assert "scope" in outerloop("status").output
    assert "has no measures" in outerloop("logs", outside["run"], code=7).output

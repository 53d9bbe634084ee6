"""Attacks: screens that keep quiet. Lost result files, runs that only lie on disk, huge values, folders of others."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from decimal import Decimal
from pathlib import Path

import pytest
from click.testing import CliRunner
from sqlalchemy import select

from outerloop.cli import app
from outerloop.cli.errors import ExitCode
from outerloop.record.models import Champion
from tests.e2e.cli.conftest import Outerloop
from tests.rows import World

CONTRACT = """\
[[benchmarks]]
name = "speed"
command = "printf '{\\"cost\\": %s}' $(cat src/cost)"
metric = "cost"
direction = "min"
deterministic = true
minutes = 1

[scope]
allowed = ["src/"]
"""


@pytest.fixture
def target(tmp_path: Path) -> Path:
    repo = tmp_path / "target"
    (repo / "src").mkdir(parents=True)
    who = {f"GIT_{role}_{what}": "t@localhost" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}

    def git(*arguments: str) -> None:
        subprocess.run(["git", *arguments], cwd=repo, env={**os.environ, **who}, check=True, capture_output=True)

    git("init", "-q", "-b", "main")
    (repo / ".outerloop.toml").write_text(CONTRACT)
    (repo / "src/cost").write_text("10\n")
    git("add", "-A")
    git("commit", "-q", "-m", "base")
    git("checkout", "-q", "-B", "abyss", "main")
    (repo / "src/cost").write_text("-1e308\n")
    git("commit", "-q", "-a", "-m", "abyss")
    git("checkout", "-q", "main")
    return repo


def test_one_run_with_a_huge_value_then_damaged_then_lost(world: World, outerloop: Outerloop, target: Path) -> None:
    """One climb serves three attacks, since a climb is what costs time here."""
    submitted = outerloop("submit", "climb", "speed", "--repo", str(target), "--candidate", "abyss", "--wait", "--json")
    run = str(json.loads(submitted.stdout)["run"])
    champions_of_any_size_fit_the_screen(world, outerloop, run)
    explain_says_when_the_files_are_gone(world, outerloop, run)
    a_verdict_is_recomputed_without_the_record(world, outerloop, run)
    folders_that_are_no_runs_are_left_out_and_said(world, outerloop, run)
    a_torn_request_of_a_recorded_run_is_said(world, outerloop, run)
    a_run_that_only_lies_on_disk_is_said(world, outerloop, run)


def champions_of_any_size_fit_the_screen(world: World, outerloop: Outerloop, run: str) -> None:
    with world.record.reading() as session:
        (value,) = session.scalars(select(Champion.value)).all()
    assert Decimal(value) == Decimal("-1e308") and len(value) > 80, "the record keeps it exactly"
    told = outerloop("champions").output
    assert run in told and "-1e+308" in told
    for screen in (told, outerloop("show", run).output, outerloop("explain", run).output, outerloop("status").output):
        assert all(len(line) <= 80 for line in screen.splitlines()), screen


def explain_says_when_the_files_are_gone(world: World, outerloop: Outerloop, run: str) -> None:
    whole = outerloop("explain", run).output
    assert "no longer support" not in whole
    measures = json.loads(outerloop("explain", run, "--json").output)["measures"]
    [slot] = {measure["slot"] for measure in measures if measure["role"] == "candidate"}
    result = world.root.slot(slot) / "attempts/1/result.json"
    kept = result.read_bytes()
    result.write_bytes(b"")
    told = outerloop("explain", run).output
    assert told.index("no longer support") < told.index("accepted"), "what is damaged comes before the verdict"
    assert "is empty" in told
    assert json.loads(outerloop("explain", run, "--json").output)["damaged"]
    result.unlink()
    assert "is gone" in outerloop("explain", run).output
    result.write_bytes(kept)
    assert outerloop("explain", run).output == whole


def a_verdict_is_recomputed_without_the_record(world: World, outerloop: Outerloop, run: str) -> None:
    """From files that are only read: nothing in the state folder is made, changed or touched."""
    with_it = json.loads(outerloop("verify", run, "--json").output)
    assert with_it["compared_with"] == "record" and with_it["agrees"]
    before = sorted((str(path), path.lstat().st_mtime_ns) for path in world.root.path.rglob("*"))
    away = "postgresql://nobody@127.0.0.1:1/nothing"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OUTERLOOP_DATABASE_URL", away)
        alone = json.loads(CliRunner().invoke(app, ["verify", run[:6], "--json"]).stdout)
        told = outerloop("verify", run)
        assert outerloop("verify", "c-nothing", code=int(ExitCode.RECORD_UNAVAILABLE)).output
    assert alone == with_it | {"compared_with": "ledger"}
    assert "The slots and the ledger agree." in told.stdout and "not compared with the record" in told.stderr
    assert sorted((str(path), path.lstat().st_mtime_ns) for path in world.root.path.rglob("*")) == before


def folders_that_are_no_runs_are_left_out_and_said(world: World, outerloop: Outerloop, run: str) -> None:
    """What an operator's `cp -r` and a stranger leave in runs/: it costs nothing but a line."""
    names = ["a copy of it", f"{run}.bak", "x\ny", "\udcff", "é" * 60]
    for name in [*names, "empty folder"]:
        (world.root.runs / name).mkdir()
    long_ago = time.time() - 3600
    for name in names:
        copy = world.root.runs / name / "request.json"
        copy.write_bytes(world.root.request(run).read_bytes())
        os.utime(copy, (long_ago, long_ago))
    told = outerloop("db", "rebuild", code=int(ExitCode.NOT_FOUND)).output
    assert told.startswith("1 runs with 1 verdicts, 1 champions")
    assert told.count("left out: folder") == len(names) and f"the request of run {run}, so it is a copy" in " ".join(
        told.split()
    )
    problem = json.loads(outerloop("status", "--json").output)["problem"]
    assert problem["kind"] == "unrecorded" and "no run has such a name" in problem["sentence"]
    findings = json.loads(outerloop("doctor", "--no-job", "--json", code=None).output)["findings"]
    assert sum(f["name"] == "runs" and f["level"] == "FAIL" for f in findings) == len(names)
    for name in names:
        shutil.rmtree(world.root.runs / name)
    assert outerloop("db", "rebuild").output.startswith("1 runs with 1 verdicts, 1 champions")


def a_torn_request_of_a_recorded_run_is_said(world: World, outerloop: Outerloop, run: str) -> None:
    request = world.root.request(run)
    whole = request.read_bytes()
    assert json.loads(outerloop("status", "--json").output)["problem"]["kind"] != "damaged"
    for torn in (b"", whole[:100], b"[]", b"\xff", b"{}"):
        request.write_bytes(torn)
        problem = json.loads(outerloop("status", "--json").output)["problem"]
        assert problem["kind"] == "damaged" and run in problem["sentence"], torn
    told = outerloop("doctor", "--no-job", code=int(ExitCode.BAD_INPUT)).output
    assert f"run {run} is in the record, but" in " ".join(told.split())
    request.unlink()
    findings = json.loads(outerloop("doctor", "--no-job", "--json", code=int(ExitCode.BAD_INPUT)).output)["findings"]
    assert any(f["name"] == "runs" and "is gone" in f["sentence"] for f in findings)
    request.write_bytes(whole)


def a_run_that_only_lies_on_disk_is_said(world: World, outerloop: Outerloop, run: str) -> None:
    request = world.root.request(run)
    request.write_text('{"id": "torn')
    long_ago = time.time() - 3600
    os.utime(request, (long_ago, long_ago))
    assert run in outerloop("db", "rebuild", code=None).output
    told = json.loads(outerloop("status", "--json").output)
    assert told["problem"]["kind"] == "unrecorded"
    assert run in told["problem"]["sentence"] and "torn" in told["problem"]["sentence"]
    assert run in outerloop("status").output
    findings = json.loads(outerloop("doctor", "--no-job", "--json", code=None).output)["findings"]
    assert any(f["name"] == "runs" and f["level"] == "FAIL" and run in f["sentence"] for f in findings)


def test_a_contract_without_a_floor_is_warned_about(outerloop: Outerloop, target: Path) -> None:
    path = target / ".outerloop.toml"
    told = outerloop("contract", "check", str(path)).output
    assert "warning: min_delta and min_delta_rel are 0: any gain above zero" in told
    path.write_text(CONTRACT.replace("deterministic = true\n", 'seed_env = "SEED"\n'))
    told = outerloop("contract", "check", str(path)).output
    assert "half of the" in told
    assert all(len(line) <= 80 for line in told.splitlines()[1:]), told
    (warning,) = json.loads(outerloop("contract", "check", str(path), "--json").output)["warnings"]
    assert warning["benchmark"] == "speed"
    path.write_text(CONTRACT.replace("deterministic = true\n", "deterministic = true\nmin_delta = 0.5\n"))
    assert "warning" not in outerloop("contract", "check", str(path)).output


@pytest.mark.skipif(os.geteuid() != 0, reason="makes folders of two accounts")
def test_a_state_folder_of_another_account_is_said_with_its_own_exit_code() -> None:
    state = Path(tempfile.mkdtemp(prefix="ol-access-", dir="/tmp"))
    state.chmod(0o755)
    program = (
        "import os, runpy, sys\n"
        "import click.testing, outerloop.cli.submit, outerloop.cli.runs, outerloop.cli.operate\n"
        "from outerloop.cli.errors import CliError, require_writable\n"
        "os.setgroups([]); os.setresgid(64001, 64001, 64001); os.setresuid(64001, 64001, 64001)\n"
        "from pathlib import Path\n"
        "try:\n    require_writable(Path(sys.argv[1]))\n"
        "except CliError as error:\n    print(error.message); sys.exit(error.exit_code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(state)], capture_output=True, text=True, check=False, cwd="/"
    )
    state.rmdir()
    assert done.returncode == ExitCode.NO_ACCESS, done.stderr
    assert "belongs to root" in done.stdout and "this is uid 64001" in done.stdout

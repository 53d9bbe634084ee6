"""Attacks on setting up: a config that is there, odd paths, cron's bare environment, a site that does not fit."""

from __future__ import annotations

import json
import os
import shlex
import stat
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from outerloop.record.models import REVISION
from outerloop.settings import Settings
from tests.e2e.cli.conftest import Outerloop
from tests.fake_slurm import FakeSlurm, squeue_row
from tests.rows import World

SITE = """\
AccountingStorageType   = accounting_storage/slurmdbd
ClusterName             = fake
MaxArraySize            = 1001
MessageTimeout          = 10 sec
MinJobAge               = 300 sec
PreemptMode             = REQUEUE
SLURM_VERSION           = 23.02.7
"""
PARTITIONS = """\
PartitionName=debug Default=NO MaxTime=00:30:00 State=UP TRES=cpu=8,mem=8G
PartitionName=cpu Default=YES MaxTime=2-00:00:00 State=UP TRES=cpu=800,mem=800G
PartitionName=a100 Default=NO MaxTime=1-00:00:00 State=UP TRES=cpu=80,mem=80G,gres/gpu=8
PartitionName=old Default=NO MaxTime=UNLIMITED State=DOWN TRES=cpu=8,gres/gpu=2
"""


@pytest.fixture
def fresh(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A database with tables, and no config yet."""
    for name in ("OUTERLOOP_STATE", "OUTERLOOP_BACKEND"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("OUTERLOOP_CONFIG", str(tmp_path / "a b" / "config.toml"))
    # sbatch of this machine is not this test's
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/nonexistent")
    (tmp_path / "bin").mkdir()
    git = subprocess.run(["/bin/sh", "-c", "PATH=/usr/local/bin:/usr/bin:/bin command -v git"], capture_output=True)
    (tmp_path / "bin" / "git").symlink_to(git.stdout.decode().strip())
    yield world


@pytest.fixture
def fake(fresh: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    found = FakeSlurm(tmp_path)
    found.rule("scontrol", argv="show config", stdout=SITE).rule("scontrol", argv="show partition", stdout=PARTITIONS)
    monkeypatch.setenv("PATH", f"{found.bin}:{os.environ['PATH']}")
    return found


def _config(tmp_path: Path) -> Path:
    return tmp_path / "a b" / "config.toml"


def test_init_writes_a_config_that_loads_and_says_what_comes_next(
    fresh: World, outerloop: Outerloop, tmp_path: Path
) -> None:
    state = tmp_path / "st ate"
    printed = outerloop("init", "--state", str(state), "--backend", "local", "--deployment", "mine").output
    config = _config(tmp_path)
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    settings = Settings.load(config)
    assert (settings.state, settings.backend, settings.deployment) == (state, "local", "mine")
    assert state.is_dir()
    assert f"revision {REVISION}" in printed
    assert outerloop("cron").output.strip() in printed
    assert "outerloop doctor" in printed


def test_init_replaces_nothing_unless_told_to(fresh: World, outerloop: Outerloop, tmp_path: Path) -> None:
    config = _config(tmp_path)
    config.parent.mkdir()
    config.write_text("# mine\n")
    printed = outerloop("init", "--state", str(tmp_path / "s"), "--backend", "local", code=2).output
    assert "--force" in printed
    assert config.read_text() == "# mine\n"
    outerloop("init", "--state", str(tmp_path / "s"), "--backend", "local", "--force")
    assert "# mine" not in config.read_text()
    assert [path.name for path in config.parent.iterdir()] == ["config.toml"]


def test_init_refuses_what_the_settings_would(fresh: World, outerloop: Outerloop, tmp_path: Path) -> None:
    printed = outerloop("init", "--backend", "local", "--deployment", "Too Long A Name", code=2).output
    assert "1 to 8 of [a-z0-9]" in printed
    assert not _config(tmp_path).exists()


def test_init_puts_no_state_into_a_clone(fresh: World, outerloop: Outerloop, tmp_path: Path) -> None:
    clone = tmp_path / "outerloop"
    (clone / ".git").mkdir(parents=True)
    printed = outerloop("init", "--backend", "local", "--state", str(clone), code=2).output
    assert f"{clone} is a git clone" in printed and f"--state {clone}-state" in printed
    assert not _config(tmp_path).exists()


def test_init_insists_on_slurm_only_where_there_is_one(fresh: World, outerloop: Outerloop, tmp_path: Path) -> None:
    assert "not in PATH" in outerloop("init", "--backend", "slurm", code=2).output
    assert "there is no Slurm" in outerloop("init", "--state", str(tmp_path / "s")).output
    assert tomllib.loads(_config(tmp_path).read_text())["backend"] == "local"


def test_init_makes_lanes_of_the_partitions(fake: FakeSlurm, outerloop: Outerloop, tmp_path: Path) -> None:
    outerloop("init", "--state", str(tmp_path / "s"))
    written = tomllib.loads(_config(tmp_path).read_text())
    assert written["backend"] == "slurm"
    assert written["slurm"]["bin_dir"] == str(fake.bin)
    assert written["lanes"] == {
        "default": {"partition": "cpu", "max_minutes": 2880.0},
        "gpu": {"partition": "a100", "max_minutes": 1440.0},
    }


@pytest.mark.parametrize(
    ("gres", "has"),
    [
        ("gpu:4", True),
        ("gpu:a100:8(S:0-1)", True),
        ("shard:8,gpu:2", True),
        ("gpu", True),
        ("(null)", False),
        ("fpgpu:4", False),
        ("gpumem:80G", False),
    ],
)
def test_gpus_are_found_where_the_site_does_not_account_for_them(tmp_path: Path, gres: str, has: bool) -> None:
    from outerloop.controller.site import gpu_partitions

    fake = FakeSlurm(tmp_path, tools=("sinfo",))
    fake.rule("sinfo", argv="-h -a -o %R", stdout=f"cpu|(null)\nbig|{gres}\n")
    assert gpu_partitions(str(fake.bin), "") == ({"big"} if has else set())
    fake.clear()
    fake.rule("sinfo", rc=1)
    assert gpu_partitions(str(fake.bin), "") == set()


def test_init_goes_on_when_slurm_does_not_answer(fake: FakeSlurm, outerloop: Outerloop, tmp_path: Path) -> None:
    fake.clear()
    fake.rule("scontrol", rc=1, stderr="slurm_load_ctl_conf error: Unable to contact slurm controller")
    printed = outerloop("init", "--state", str(tmp_path / "s")).output
    assert "the lanes are still to be written" in printed
    assert tomllib.loads(_config(tmp_path).read_text())["lanes"] == {"default": {}}


def test_init_keeps_the_config_when_the_record_can_not_start(
    fresh: World, outerloop: Outerloop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTERLOOP_DATABASE_URL", "postgresql://u:secret@127.0.0.1:1/none")
    printed = outerloop("init", "--state", str(tmp_path / "s"), "--backend", "local", code=4).output
    assert "The config is written" in printed
    assert "secret" not in printed
    assert _config(tmp_path).exists()


def test_the_crontab_line_is_absolute_quoted_and_runs(fresh: World, outerloop: Outerloop, tmp_path: Path) -> None:
    """Through cron's rules: percent signs escaped, nothing in the environment, /bin/sh."""
    config = tmp_path / "100% $HOME" / "config.toml"
    config.parent.mkdir()
    config.write_text(f'state = "{tmp_path / "s"}"\nbackend = "local"\n[wake]\ncadence_seconds = 600\n')
    os.environ["OUTERLOOP_CONFIG"] = str(config)
    line = outerloop("cron").output.strip()
    assert line.startswith("*/10 * * * * ")
    command = line.split(" ", 5)[5]
    assert "%" not in command.replace("\\%", "")
    as_cron = command.replace("\\%", "%").replace("tick --quiet", "db url --json")
    assert all(word.startswith(("/", "-", "OUTERLOOP_CONFIG=/")) for word in shlex.split(as_cron)[:2])
    done = subprocess.run(["/bin/sh", "-c", as_cron], env={}, cwd="/", capture_output=True, text=True)
    assert done.returncode == 4, done.stderr  # this state folder has no record: the config was read
    assert str(tmp_path / "s") in done.stderr


@pytest.mark.parametrize(("seconds", "when"), [(1, "*/1 "), (300, "*/5 "), (3600, "0 */1 "), (10**6, "0 */23 ")])
def test_the_cadence_becomes_cron_times(seconds: float, when: str) -> None:
    from outerloop.controller.doctor import crontab_line

    line = crontab_line(Settings(wake={"cadence_seconds": seconds}), None)  # type: ignore[arg-type]
    assert line.startswith(when)
    assert "OUTERLOOP_CONFIG" not in line


# doctor


def _doctor(outerloop: Outerloop, *arguments: str, code: int = 0) -> dict[str, list[tuple[str, str]]]:
    """Findings by name: (level, sentence)."""
    told = json.loads(outerloop("doctor", "--json", *arguments, code=code).output)
    assert told["ok"] is (code == 0)
    found: dict[str, list[tuple[str, str]]] = {}
    for finding in told["findings"]:
        found.setdefault(finding["name"], []).append((finding["level"], finding["sentence"]))
    return found


def test_doctor_runs_a_real_job_on_this_machine_and_leaves_nothing(world: World, outerloop: Outerloop) -> None:
    before = {path for path in world.state.rglob("*") if "local" not in path.parts}
    found = _doctor(outerloop)
    assert found["job"][0][0] == "OK", found
    assert "read and wrote the state folder" in found["job"][0][1]
    assert found["record"] == [("OK", found["record"][0][1])]
    assert found["state"][0][0] == "OK"
    left = {path for path in world.state.rglob("*") if "local" not in path.relative_to(world.state).parts}
    assert left - before <= {world.state / "doctor"}
    assert not any((world.state / "doctor").iterdir())


def test_doctor_tells_people_in_80_columns(world: World, outerloop: Outerloop) -> None:
    printed = outerloop("doctor", "--no-job").output
    assert all(len(line) <= 80 or " " not in line.strip() or "/" in line for line in printed.splitlines()), printed
    assert "to repair" in printed.splitlines()[-1]


def test_doctor_says_what_is_wrong_with_the_config_by_line(world: World, outerloop: Outerloop, tmp_path: Path) -> None:
    (world.state / "config.toml").write_text('backend = "local"\nisolaton = "bwrap"\n')
    found = _doctor(outerloop, code=2)
    assert found["config"][0][0] == "FAIL"
    assert "isolation" in found["config"][0][1]
    assert ":2" in found["config"][0][1] or "line 2" in found["config"][0][1]


def test_doctor_sees_an_interpreter_that_is_not_ours(
    world: World, outerloop: Outerloop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OUTERLOOP_PYTHON", str(tmp_path / "no-python"))
    found = _doctor(outerloop, "--no-job", code=2)
    assert found["python"][0][0] == "FAIL"
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\necho 0.0.1 3.11\n")
    other.chmod(0o755)
    monkeypatch.setenv("OUTERLOOP_PYTHON", str(other))
    found = _doctor(outerloop, "--no-job", code=2)
    assert "0.0.1" in found["python"][0][1]


def test_doctor_sees_that_nodes_can_not_run_the_interpreter(
    world: World, outerloop: Outerloop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It works here and fails in the job, as an interpreter on a node's own disk does."""
    picky = tmp_path / "python"
    picky.write_text(
        '#!/bin/sh\ncase "$*" in *probe.py*) echo no such thing here; exit 1;; esac\n'
        f'exec {shlex.quote(sys.executable)} "$@"\n'
    )
    picky.chmod(0o755)
    monkeypatch.setenv("OUTERLOOP_PYTHON", str(picky))
    monkeypatch.setattr("outerloop.controller.doctor.probe.LAG_SECONDS", 0.5)
    found = _doctor(outerloop, code=2)
    assert found["python"][0][0] == "OK"
    assert found["job"][0][0] == "FAIL"
    assert "no such thing here" in found["job"][0][1]


def test_doctor_sees_a_record_that_does_not_answer_and_one_that_is_newer(
    world: World, outerloop: Outerloop, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world.session() as session:
        session.execute(text("update alembic_version set version_num = '9999'"))
    assert "newer" in _doctor(outerloop, "--no-job", code=2)["record"][0][1]
    monkeypatch.setenv("OUTERLOOP_DATABASE_URL", "postgresql://u:secret@127.0.0.1:1/none")
    told = _doctor(outerloop, "--no-job", code=2)["record"][0]
    assert told[0] == "FAIL"
    assert "secret" not in told[1]


def test_doctor_starts_no_record_and_knows_one_of_another_host(
    world: World, outerloop: Outerloop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OUTERLOOP_DATABASE_URL")
    assert _doctor(outerloop, "--no-job")["record"] == [("WARN", "there is no record yet")]
    folder = world.root.database
    assert not folder.exists()
    (folder / "data").mkdir(parents=True)
    (folder / "server.json").write_text(json.dumps({"schema": 1, "host": "login7", "home": str(folder)}))
    found = _doctor(outerloop, "--no-job")
    assert found["record"][0][0] == "WARN"
    assert "host login7" in found["record"][0][1]
    assert sorted(path.name for path in folder.iterdir()) == ["data", "server.json"]


def test_doctor_warns_of_a_state_folder_that_others_may_write(world: World, outerloop: Outerloop) -> None:
    world.state.chmod(0o777)
    levels = [level for level, _ in _doctor(outerloop, "--no-job")["state"]]
    assert levels == ["OK", "WARN"]


def _slurm_config(tmp_path: Path, fake: FakeSlurm, more: str) -> None:
    state = tmp_path / "s"
    state.mkdir()
    config = _config(tmp_path)
    config.parent.mkdir()
    config.write_text(
        f'state = "{state}"\nbackend = "slurm"\n[slurm]\nbin_dir = "{fake.bin}"\nquery_timeout_seconds = 20\n{more}'
    )


def test_doctor_holds_the_lanes_against_the_partitions(fake: FakeSlurm, outerloop: Outerloop, tmp_path: Path) -> None:
    _slurm_config(
        tmp_path,
        fake,
        '[lanes.default]\nmax_minutes = 4000\n[lanes.gpu]\npartition = "debug"\nmax_minutes = 30\n'
        '[lanes.typo]\npartition = "a1000"\n[lanes.old]\npartition = "old"\n[lanes.open]\npartition = "a100"\n',
    )
    fake.rule("sbatch", argv="--test-only", stderr="sbatch: Job 5 to start at 2026-01-02T03:04:05\n")
    found = _doctor(outerloop, "--no-job", code=2)
    assert found["lane default"] == [("FAIL", "max_minutes = 4000, but cpu grants 2880")]
    assert found["lane gpu"][0][0] == "WARN"
    assert found["lane typo"][0] == ("FAIL", "there is no partition a1000; there are debug, cpu, a100, old")
    assert found["lane old"][0][0] == "WARN"
    assert "grants at most 1440" in found["lane open"][0][1]
    assert found["backend"][0][1].startswith("Slurm 23.02.7 (fake)")
    assert found["shared"][0][0] == "FAIL", "a state folder in /tmp is every node's own"


def test_doctor_blames_the_cluster_when_it_is_silent(
    fake: FakeSlurm, outerloop: Outerloop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _slurm_config(tmp_path, fake, "[lanes.default]\n")
    fake.clear()
    fake.rule("scontrol", rc=1, stderr="Unable to contact slurm controller (connect failure)")
    monkeypatch.setattr("outerloop.controller.doctor.host.NODE_LOCAL", ())
    found = _doctor(outerloop, code=5)
    assert found["backend"][0][0] == "FAIL"
    assert found["job"] == [("WARN", "no test job: the cluster gave no answer")]


def test_doctor_cancels_a_test_job_that_pends_and_says_why(
    fake: FakeSlurm, outerloop: Outerloop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _slurm_config(tmp_path, fake, '[lanes.default]\npartition = "debug"\nmax_minutes = 30\n')
    fake.rule("sbatch", stdout="77\n")
    fake.rule("squeue", stdout=squeue_row("77", "PENDING", "x", reason="Priority") + "\n")
    fake.rule("scancel")
    monkeypatch.setattr("outerloop.controller.doctor.host.NODE_LOCAL", ())
    found = _doctor(outerloop, "--job-seconds", "1")
    assert found["job"][0][0] == "WARN"
    assert "(Priority: Other jobs go first.)" in found["job"][0][1]
    assert [call.argv for call in fake.calls("scancel")] == [["77"]]


def test_doctor_tries_cron_with_nothing_in_the_environment(
    world: World, outerloop: Outerloop, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = world.state / "config.toml"
    config.write_text(f'state = "{world.state}"\nbackend = "local"\ndatabase_url = "{world.url}"\n')
    assert _doctor(outerloop, "--no-job", "--cron")["cron"][0][0] == "OK"
    # what only this shell knows is what cron lacks
    config.write_text('backend = "local"\n')
    found = [
        sentence for level, sentence in _doctor(outerloop, "--no-job", "--cron", code=2)["cron"] if level == "FAIL"
    ]
    assert any(sentence.startswith(f"state is {world.state} here") for sentence in found)
    assert any(sentence.startswith("database is postgresql+psycopg://outerloop:***@") for sentence in found)
    monkeypatch.setenv("OUTERLOOP_PYTHON", "/bin/false")
    assert "does not run with cron" in _doctor(outerloop, "--no-job", "--cron", code=2)["cron"][0][1]


def test_the_sandbox_that_is_tried_is_the_one_that_is_used() -> None:
    from outerloop.controller.doctor.probe import BWRAP_PROBE
    from outerloop.job.sandbox import Room, bwrap_argv

    room = Room(**_room())
    used = {word for word in bwrap_argv("bwrap", room, ["true"], 3) if word.startswith("--unshare")}
    assert used == {word for word in BWRAP_PROBE if word.startswith("--unshare")}


def _room() -> dict[str, object]:
    import dataclasses

    from outerloop.job.sandbox import Room

    empty: dict[str, object] = {}
    for field in dataclasses.fields(Room):
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            kind = str(field.type)
            empty[field.name] = False if "bool" in kind else "/" if kind == "str" else ()
    return empty

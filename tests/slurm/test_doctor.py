"""Attacks on init and doctor with a real Slurm: lanes from real partitions, a real job, a dead controller."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from outerloop.cli import app
from outerloop.controller.site import slurm_values
from outerloop.settings import Settings, default_config
from outerloop.site_profile import SHIPPED
from tests.slurm.cluster import DevCluster

pytestmark = pytest.mark.slurm


@pytest.fixture
def state() -> Iterator[Path]:
    """A folder that is not in /tmp: that is every node's own, and doctor refuses it."""
    folder = Path(tempfile.mkdtemp(prefix=".outerloop-test-", dir=Path.home()))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def config(cluster: DevCluster, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What init writes for this cluster."""
    for name in list(os.environ):
        if name.startswith(("OUTERLOOP_", "SLURM_", "SBATCH_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", cluster.env["PATH"])
    values, remarks = slurm_values(conf=str(cluster.slurm_conf))
    assert remarks == []
    path = tmp_path / "config.toml"
    path.write_text(default_config({**values, "state": str(state), "backend": "slurm"}))
    monkeypatch.setenv("OUTERLOOP_CONFIG", str(path))
    return path


def _doctor(*arguments: str) -> tuple[int, dict[str, list[tuple[str, str]]]]:
    result = CliRunner().invoke(app, ["doctor", "--json", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    found: dict[str, list[tuple[str, str]]] = {}
    for finding in json.loads(result.stdout)["findings"]:
        found.setdefault(finding["name"], []).append((finding["level"], finding["sentence"]))
    return result.exit_code, found


def test_what_init_reads_of_a_cluster_passes_doctor_with_a_job(config: Path, cluster: DevCluster, state: Path) -> None:
    written = tomllib.loads(config.read_text())
    assert written["slurm"]["bin_dir"] == str(cluster.bin)
    assert written["slurm"]["conf"] == str(cluster.slurm_conf)
    partitions = cluster.run("sinfo", "-h", "-o", "%R").split()
    assert written["lanes"]["default"]["partition"] in partitions
    assert written["lanes"]["gpu"]["partition"] in partitions, "two of the nodes have GPUs"
    code, found = _doctor("--job-seconds", "60")
    assert code == 0, found
    assert "shows no GPUs" not in found["lane gpu"][0][1]
    assert found["job"][0][0] == "OK"
    assert "read and wrote the state folder" in found["job"][0][1]
    assert found["accounting"][0][0] == "OK"
    assert found["wake"][0] == ("OK", found["wake"][0][1]) and "may submit from inside a job" in found["wake"][0][1]
    assert found["spelling"] == [
        ("OK", "sbatch takes a job, memory and GPUs as lanes default, gpu spell them"),
    ]
    assert "link taken" in found["job"][0][1]
    assert found["lane default"][0][0] in {"OK", "WARN"}
    assert not any((state / "doctor").iterdir())
    assert cluster.run("squeue", "-h", "-t", "pending,running") == ""


def test_a_job_that_the_site_refuses_is_told_with_slurms_reason(config: Path, cluster: DevCluster) -> None:
    config.write_text(
        config.read_text().replace("[lanes.default]", '[lanes.default]\nextra = ["--constraint=none"]', 1)
    )
    code, found = _doctor("--job-seconds", "20")
    assert code == 2
    assert found["job"][0][0] == "FAIL"
    assert "refused" in found["job"][0][1]


def test_a_held_partition_is_no_failure_and_leaves_no_job(config: Path, cluster: DevCluster) -> None:
    partition = tomllib.loads(config.read_text())["lanes"]["default"]["partition"]
    cluster.run("scontrol", "update", f"PartitionName={partition}", "State=DOWN")
    try:
        code, found = _doctor("--job-seconds", "4")
    finally:
        cluster.run("scontrol", "update", f"PartitionName={partition}", "State=UP")
    assert code == 0, found
    assert found["job"][0][0] == "WARN"
    assert "PartitionDown" in found["job"][0][1]
    cluster.wait(lambda: cluster.run("squeue", "-h", "-t", "pending,running") == "", 60)


def test_a_stopped_controller_is_the_clusters_trouble(config: Path, cluster: DevCluster) -> None:
    cluster.stop_controller()
    try:
        code, found = _doctor("--job-seconds", "5")
    finally:
        cluster.start_controller()
    assert code == 5
    assert found["backend"][0][0] == "FAIL"
    assert found["job"][0][0] == "WARN"


# --------------------------------------------------------------------------------------------- site profiles


def _wrapper(bin_dir: Path, cluster: DevCluster, rule: str) -> None:
    """The cluster's tools in a folder of their own, with a site's sbatch that looks at its options first."""
    bin_dir.mkdir()
    for tool in cluster.bin.iterdir():
        (bin_dir / tool.name).symlink_to(tool)
    (bin_dir / "sbatch").unlink()
    (bin_dir / "sbatch").write_text(f'#!/bin/sh\ncase " $* " in\n{rule}\nesac\nexec {cluster.bin}/sbatch "$@"\n')
    (bin_dir / "sbatch").chmod(0o755)


NO_GPUS_PER_NODE = """\
*" --gpus-per-node="* | *" --gpus="*)
  echo "sbatch: error: this would be a CPU job; ask for GPUs with --gres" >&2
  echo "sbatch: error: Batch job submission failed: Unspecified policy" >&2; exit 1 ;;
*" --mem="*)
  echo "sbatch: error: Memory is given per CPU here" >&2
  echo "sbatch: error: Batch job submission failed: Invalid memory" >&2; exit 1 ;;"""


def test_row_19_doctor_finds_the_spelling_that_a_site_takes_and_writes_it_only_when_asked(
    config: Path, cluster: DevCluster, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _wrapper(tmp_path / "bin", cluster, NO_GPUS_PER_NODE)
    config.write_text(config.read_text().replace(f'bin_dir = "{cluster.bin}"', f'bin_dir = "{tmp_path}/bin"'))
    before = config.read_text()
    profile = config.parent / "site.toml"

    result = CliRunner().invoke(app, ["doctor", "--json", "--no-job"])
    told = json.loads(result.stdout)
    assert result.exit_code == 2 and not profile.exists()
    changes = told["profile"]["changes"]
    assert changes == {
        "lanes.default.memory_flag": {"set": "mem", "taken": "mem-per-cpu"},
        "lanes.default.gpu_flag": {"set": "gpus-per-node", "taken": "gres"},
        "lanes.gpu.memory_flag": {"set": "mem", "taken": "mem-per-cpu"},
        "lanes.gpu.gpu_flag": {"set": "gpus-per-node", "taken": "gres"},
    }
    refused = "--gpus-per-node=1: Batch job submission failed: Unspecified policy\n--gres=gpu:1: taken"
    assert told["profile"]["tried"]["lanes.gpu.gpu_flag"] == refused

    result = CliRunner().invoke(app, ["doctor", "--no-job", "--write"])
    assert f"wrote {profile}" in result.stdout and config.read_text() == before
    written = tomllib.loads(profile.read_text())
    assert written["lanes"]["gpu"] == {"memory_flag": "mem-per-cpu", "gpu_flag": "gres"}
    assert written["site"]["preempt_mode"] == "REQUEUE" and written["site"]["max_array_size"] == 10001
    assert "# --gres=gpu:1: taken" in profile.read_text()

    settings = Settings.load(config)
    assert (settings.lanes["gpu"].gpu_flag, settings.lanes["gpu"].memory_flag) == ("gres", "mem-per-cpu")
    code, found = _doctor("--job-seconds", "60")
    assert code == 0, found
    assert found["job"][0][0] == "OK" and not any("refused" in said for _, said in found["lane gpu"])

    monkeypatch.setenv("OUTERLOOP_LANES__GPU__GPU_FLAG", "gpus")
    assert Settings.load(config).lanes["gpu"].gpu_flag == "gpus", "the environment and config.toml win"
    result = CliRunner().invoke(app, ["doctor", "--no-job", "--write"])
    assert 'lanes.gpu.gpu_flag was "gpus"; the config or the environment says so, and wins' in result.stdout


def test_row_40_doctor_sees_that_nodes_may_not_submit(config: Path, cluster: DevCluster, tmp_path: Path) -> None:
    _wrapper(
        tmp_path / "bin",
        cluster,
        '*) if grep -qz "^SLURM_JOB_ID=" /proc/$PPID/environ; then\n'
        '  echo "sbatch: error: submit from login nodes" >&2; exit 1; fi ;;',
    )
    config.write_text(config.read_text().replace(f'bin_dir = "{cluster.bin}"', f'bin_dir = "{tmp_path}/bin"'))
    code, found = _doctor("--job-seconds", "60", "--write")
    assert code == 0, found
    assert found["wake"][0][0] == "WARN" and "submit from login nodes" in found["wake"][0][1]
    assert Settings.load(config).slurm.submit_from_jobs == "no"


def test_the_accounts_limits_are_read(config: Path, cluster: DevCluster) -> None:
    user = cluster.run("sacctmgr", "-n", "-P", "show", "user", "format=User").split()[0]
    cluster.run("sacctmgr", "-i", "modify", "user", user, "set", "MaxSubmitJobs=77")
    try:
        result = CliRunner().invoke(app, ["doctor", "--json", "--no-job"])
    finally:
        cluster.run("sacctmgr", "-i", "modify", "user", user, "set", "MaxSubmitJobs=-1")
    told = json.loads(result.stdout)
    assert told["profile"]["proposed"]["site"]["max_submit_jobs"] == 77
    assert any(finding["name"] == "accounts" and "at most 77" in finding["sentence"] for finding in told["findings"])


def test_the_shipped_profile_of_the_development_cluster_is_what_doctor_finds(config: Path, cluster: DevCluster) -> None:
    shipped = tomllib.loads((SHIPPED / "devcluster.toml").read_text())
    found = json.loads(CliRunner().invoke(app, ["doctor", "--json", "--job-seconds", "60"]).stdout)["profile"]
    for lane, table in shipped["lanes"].items():
        assert {key: found["proposed"]["lanes"][lane].get(key) for key in table} == table
    kept = ("cluster", "max_array_size", "preempt_mode", "tools_on_nodes")
    assert {key: found["proposed"]["site"][key] for key in kept} == {key: shipped["site"][key] for key in kept}


def test_an_account_that_the_site_asks_for_is_found_among_ones_own(
    config: Path, cluster: DevCluster, tmp_path: Path
) -> None:
    user = cluster.run("sacctmgr", "-n", "-P", "show", "user", "format=User").split()[0]
    cluster.run("sacctmgr", "-i", "add", "account", "lab-b")
    cluster.run("sacctmgr", "-i", "add", "user", user, "account=lab-b")
    refusal = "Batch job submission failed: Invalid account or account/partition combination specified"
    rule = f'*" --account=lab-b "*) ;;\n*" --test-only "*) echo "sbatch: error: {refusal}" >&2; exit 1 ;;'
    _wrapper(tmp_path / "bin", cluster, rule)
    config.write_text(config.read_text().replace(f'bin_dir = "{cluster.bin}"', f'bin_dir = "{tmp_path}/bin"'))
    try:
        told = json.loads(CliRunner().invoke(app, ["doctor", "--json", "--no-job", "--write"]).stdout)
        assert told["profile"]["changes"]["lanes.default.account"] == {"set": "", "taken": "lab-b"}
        assert "--account=lab-b: taken" in told["profile"]["tried"]["lanes.default.account"]
        code, found = _doctor("--no-job")
        assert code == 0 and found["spelling"][0][0] == "OK", found
    finally:
        cluster.run("sacctmgr", "-i", "delete", "user", user, "account=lab-b")
        cluster.run("sacctmgr", "-i", "delete", "account", "lab-b")


def test_a_qos_that_the_site_asks_for_is_found_among_ones_own(
    config: Path, cluster: DevCluster, tmp_path: Path
) -> None:
    user = cluster.run("sacctmgr", "-n", "-P", "show", "user", "format=User").split()[0]
    cluster.run("sacctmgr", "-i", "add", "qos", "slow,fast")
    cluster.run("sacctmgr", "-i", "modify", "user", user, "set", "qos+=slow,fast")
    refusal = "Batch job submission failed: Invalid qos specification"
    rule = f'*" --qos=fast "*) ;;\n*" --test-only "*) echo "sbatch: error: {refusal}" >&2; exit 1 ;;'
    _wrapper(tmp_path / "bin", cluster, rule)
    config.write_text(config.read_text().replace(f'bin_dir = "{cluster.bin}"', f'bin_dir = "{tmp_path}/bin"'))
    before = config.read_text()
    try:
        told = json.loads(CliRunner().invoke(app, ["doctor", "--json", "--no-job"]).stdout)
        assert told["profile"]["changes"]["lanes.default.qos"] == {"set": "", "taken": "fast"}
        tried = told["profile"]["tried"]["lanes.default.qos"].splitlines()
        assert tried[0] == f"without one: {refusal}" and tried[-1] == "--qos=fast: taken"
        assert any("QOS fast" in f["sentence"] for f in told["findings"] if f["name"] == "accounts")
        assert config.read_text() == before and not (config.parent / "site.toml").exists()
        CliRunner().invoke(app, ["doctor", "--no-job", "--write"])
        assert Settings.load(config).lanes["gpu"].qos == "fast" and config.read_text() == before
        code, found = _doctor("--no-job")
        assert code == 0 and found["spelling"][0][0] == "OK", found
    finally:
        cluster.run("sacctmgr", "-i", "delete", "qos", "slow,fast")


def test_a_partition_that_asks_for_a_reservation_is_given_ones_own(config: Path, cluster: DevCluster) -> None:
    """All real: the partition says only that access is denied."""
    user = cluster.run("sacctmgr", "-n", "-P", "show", "user", "format=User").split()[0]
    partition = tomllib.loads(config.read_text())["lanes"]["default"]["partition"]
    common = ("starttime=now", "duration=60", "nodecnt=1", "flags=ignore_jobs", f"partition={partition}")
    cluster.run("scontrol", "create", "reservation", "reservationname=friday", f"users={user}", *common)
    cluster.run("scontrol", "create", "reservation", "reservationname=others", "users=nobody", *common)
    try:
        cluster.run("scontrol", "update", f"partitionname={partition}", "ReqResv=YES")
        told = json.loads(CliRunner().invoke(app, ["doctor", "--json", "--no-job"]).stdout)
        assert told["profile"]["changes"]["lanes.default.reservation"] == {"set": "", "taken": "friday"}
        tried = told["profile"]["tried"]["lanes.default.reservation"]
        assert "--reservation=friday: taken" in tried and "others" not in tried
        [mine] = [f["sentence"] for f in told["findings"] if f["name"] == "reservations"]
        assert mine.startswith("friday is yours until") and mine.endswith("no lane names it")
        CliRunner().invoke(app, ["doctor", "--no-job", "--write"])
        assert Settings.load(config).lanes["default"].reservation == "friday"
        _code, found = _doctor("--no-job")
        assert not any("refused" in said for _level, said in found["lane default"]), found
    finally:
        cluster.run("scontrol", "update", f"partitionname={partition}", "ReqResv=NO")
        for name in ("friday", "others"):
            cluster.run("scontrol", "delete", f"reservation={name}")

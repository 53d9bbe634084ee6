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
from outerloop.settings import default_config
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
    cluster.wait(lambda: cluster.run("squeue", "-h", "-t", "pending,running") == "", 20)


def test_a_stopped_controller_is_the_clusters_trouble(config: Path, cluster: DevCluster) -> None:
    cluster.stop_controller()
    try:
        code, found = _doctor("--job-seconds", "5")
    finally:
        cluster.start_controller()
    assert code == 5
    assert found["backend"][0][0] == "FAIL"
    assert found["job"][0][0] == "WARN"

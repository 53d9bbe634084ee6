"""Attacks the development cluster itself: it comes up, survives being started twice, and leaves nothing behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.slurm.cluster import ClusterError, DevCluster

pytestmark = pytest.mark.slurm


def processes_that_name(folder: Path) -> list[str]:
    """Commands of live processes whose arguments or environment name `folder`."""
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or int(process.name) == os.getpid():
            continue
        try:
            traces = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue
        if str(folder).encode() + b"/" in traces:
            found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


def test_two_clusters_at_once_do_not_meet_and_purging_one_leaves_nothing_of_it(
    cluster: DevCluster, cluster_root: Path, tmp_path: Path
) -> None:
    second = DevCluster(cluster_root / "d", nodes=1, gpu_nodes=0)
    with second:
        job = second.run(
            "sbatch", "--parsable", "-o", "/dev/null", "--wrap", f"setsid sleep 600 & echo $! > {tmp_path}/pid; wait"
        )
        second.wait(
            lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip(), 20, "the job's child"
        )
        child = int((tmp_path / "pid").read_text())
        second.start()
        assert second.run("squeue", "-h", "-o", "%i").split() == job.split()
        assert job.strip() not in cluster.run("squeue", "-h", "-a", "-n", "wrap", "-o", "%i").split()
        assert processes_that_name(second.folder)
    cluster.wait(lambda: not processes_that_name(second.folder), 60, "the second cluster's processes to be gone")
    assert not second.folder.exists()
    assert not Path(f"/proc/{child}/cmdline").exists() or not Path(f"/proc/{child}/cmdline").read_bytes()
    assert cluster.run("sinfo", "-h", "-o", "%P").split()


def test_a_wrong_knob_is_refused_with_its_name(cluster_root: Path) -> None:
    with pytest.raises(ClusterError, match="OUTERLOOP_DEV_CPUS=many"):
        DevCluster(cluster_root / "e", cpus="many").start()


def test_jobs_outlive_a_restart_of_the_controller(cluster: DevCluster) -> None:
    job = cluster.run("sbatch", "--parsable", "-o", "/dev/null", "--wrap", "sleep 600").strip()
    cluster.wait(lambda: cluster.run("squeue", "-h", "-j", job, "-o", "%T").strip() == "RUNNING", 60)
    cluster.stop_controller()
    cluster.start_controller()
    cluster.wait(lambda: cluster.run("squeue", "-h", "-j", job, "-o", "%T").strip() == "RUNNING", 60)
    cluster.run("scancel", job)

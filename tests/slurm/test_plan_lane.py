"""`outerloop plan --lane` against a real Slurm: the partition's own figures become the plan's resources."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from outerloop.cli.plan import plan
from outerloop.planner import PlanReport
from tests.slurm.cluster import DevCluster

pytestmark = pytest.mark.slurm


def planned(cluster: DevCluster, folder: Path, monkeypatch: pytest.MonkeyPatch, lane: str, *words: str) -> PlanReport:
    config = folder / "config.toml"
    config.write_text(
        f'backend = "slurm"\nstate = "{folder}/state"\n'
        f'[slurm]\nbin_dir = "{cluster.bin}"\nconf = "{cluster.slurm_conf}"\n'
        '[lanes.gpu]\npartition = "gpu"\ngpu_type = "a100"\nmax_minutes = 600\n'
        '[lanes.short]\npartition = "short"\nmax_minutes = 600\n'
    )
    monkeypatch.setenv("OUTERLOOP_CONFIG", str(config))
    result = CliRunner().invoke(plan, ["request", *words, "--lane", lane, "--json"])
    assert result.exit_code in (0, 3), result.output
    return PlanReport.model_validate_json(result.output)


def test_a_gpu_lane_is_planned_with_what_its_partition_has(
    cluster: DevCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = planned(cluster, tmp_path, monkeypatch, "gpu", "--model", "gpt2", "--tokens", "1e6")
    resources = report.request.resources
    assert (resources.hosts, resources.gpus_per_host) == (2, 4)
    assert resources.gpu is not None and resources.gpu.name == "A100-80GB"
    assert resources.cores_per_host and resources.host_memory_gb
    assert resources.time_limit_hours == 10
    assert report.selected is not None


def test_the_shorter_of_the_lanes_and_the_partitions_limit_holds(
    cluster: DevCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partition `short` ends jobs after 30 minutes, whatever the lane says: an hour is refused at plan time."""
    ask = tmp_path / "ask.toml"
    ask.write_text('[workload]\nkind = "independent_tasks"\ntasks = 1\ntask_minutes = 60\n')
    report = planned(cluster, tmp_path, monkeypatch, "short", str(ask))
    assert report.request.resources.time_limit_hours == 0.5
    assert report.selected is None
    assert all("beyond the lane's time limit of 30 min" in " ".join(c.reasons) for c in report.candidates)

"""A noise study on a real Slurm: values from as many nodes as were asked for, which only exclusions can bring about."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.postgres.conftest import database, pg_url, template_database
from tests.slurm.cluster import DevCluster
from tests.slurm.world import SlurmWorld

__all__ = ["database", "pg_url", "template_database"]

pytestmark = pytest.mark.slurm


def test_a_study_takes_its_values_from_several_nodes(tmp_path: Path, database: str, cluster: DevCluster) -> None:
    world = SlurmWorld(tmp_path / "w", database, cluster, wakes="never")
    there = int(cluster.run("sinfo", "-h", "-p", "cpu", "-o", "%D").split()[0])
    assert there >= 2, "the development cluster has too few nodes for this test"
    done = world.cli("noise", "speed", "--repeats", "4", "--nodes", str(there), "--json")
    study = json.loads(done.stdout)
    held = Counter(item["node"] for item in study["values"])
    assert len(held) == there and sum(held.values()) == 8, held
    assert max(held.values()) - min(held.values()) <= 1
    assert study["study"]["sd"] == "0" and study["study"]["within_seed_sd"] == "0"
    assert len(world.measuring_jobs()) == len(set(world.measuring_jobs())) == 8 == world.executions()

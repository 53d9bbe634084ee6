"""Attacks the Slurm backend on a real cluster: the contract that every backend keeps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outerloop.compute.protocol import JobSpec, Lane
from outerloop.compute.slurm import SlurmCli
from tests.slurm.cluster import DevCluster
from tests.unit.compute.contract import Bench, ComputeContract

pytestmark = pytest.mark.slurm


class SlurmBench(Bench):
    """Lanes that this cluster has."""

    def job(self, name: str, body: str, **changes: Any) -> JobSpec:
        made = super().job(name, body, **changes)
        return replace(made, lane=replace(made.lane, partition="gpu")) if made.gpus else made


@pytest.fixture
def bench(cluster: DevCluster, tmp_path: Path) -> Iterator[Bench]:
    made = SlurmBench(SlurmCli(bin_dir=cluster.bin, slurm_conf=cluster.slurm_conf), tmp_path, lane=Lane("default"))
    yield made
    cluster.cancel_all()


class TestContract(ComputeContract):
    """The promises of every backend."""

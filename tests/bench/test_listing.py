"""Holds that strangers' jobs in the queue cost our listing little. A few thousand here; `bench_listing` has more."""

from __future__ import annotations

import os

import pytest

from tests.bench.bench_listing import measure
from tests.slurm.conftest import slurm_installed

__all__ = ["slurm_installed"]

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(not os.environ.get("OUTERLOOP_NIGHTLY"), reason="takes long: OUTERLOOP_NIGHTLY runs it"),
    pytest.mark.skipif(os.getuid() != 0, reason="only root submits for another account"),
]

RATIO = 2.0


def test_strangers_jobs_cost_a_listing_little(slurm_installed: None) -> None:
    found = measure(ours=500, foreign=5_000, rounds=9)
    assert found.ratio <= RATIO, found

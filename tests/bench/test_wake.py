"""Holds how long a verdict takes after the last measure, beside what Slurm itself takes to start a job that waits."""

from __future__ import annotations

import os

import pytest

from tests.bench.bench_wake import measure
from tests.slurm.conftest import slurm_installed

__all__ = ["slurm_installed"]

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(not os.environ.get("OUTERLOOP_NIGHTLY"), reason="takes long: OUTERLOOP_NIGHTLY runs it"),
]

OURS_S = 1.5
"""Where nobody waits for a core."""


def test_a_verdict_follows_its_last_measure_in_little_more_than_slurm_takes(slurm_installed: None) -> None:
    found = measure(rounds=7)
    waiting = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    assert found.ours_s <= OURS_S * waiting, (found, waiting)

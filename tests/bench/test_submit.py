"""Holds the price of submitting 200 measures: two sbatch calls, less time than bare calls, far less on a busy site.

Not held: submitit's array, whose time is that of writing 200 files, and varies by four with what else the disk does
(bench_submit prints it, and what the parts of ours cost; docs/measured.md has what was found).
"""

from __future__ import annotations

import pytest

from tests.bench.bench_submit import measure
from tests.slurm.conftest import slurm_installed

__all__ = ["slurm_installed"]

pytestmark = pytest.mark.slurm

WHEN_SLOW = 15.0


def test_two_hundred_measures_are_two_sbatch_calls_and_cost_less_than_bare_ones(slurm_installed: None) -> None:
    found = measure(rounds=3)
    assert found.calls.count("sbatch") == 2, found.calls
    assert found.against_bare >= 1.0, found
    assert found.against_bare_when_slow >= WHEN_SLOW, found

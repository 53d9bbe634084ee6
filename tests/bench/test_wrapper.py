"""Holds what our program on the node costs around `true`."""

from __future__ import annotations

import pytest

from tests.bench.bench_wrapper import measure
from tests.slurm.conftest import slurm_installed

__all__ = ["slurm_installed"]

pytestmark = pytest.mark.slurm

OVERHEAD_S = 0.25


def test_the_wrapper_adds_a_quarter_of_a_second_of_cpu_at_most(slurm_installed: None) -> None:
    found = measure(rounds=3)
    assert 0 < found.bare_s < found.ours_s, found
    assert found.overhead_s <= OVERHEAD_S, found

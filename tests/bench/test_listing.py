"""Holds that the listing asks for one account: it has its jobs alone, for less than asking about everybody costs.

Not held: what strangers' jobs cost the controller itself (bench_listing prints it), which is more than we should like.
"""

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


def test_a_listing_costs_less_than_asking_about_everybody(slurm_installed: None) -> None:
    found = measure(ours=200, foreign=2_000, rounds=9)
    assert found.beside_s < found.everybody_beside_s, found

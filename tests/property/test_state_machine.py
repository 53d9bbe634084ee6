"""Random schedules of submits, wakes, ticks, cancels, retries, crashes, pauses and every fault of a cluster.

Attacked: that each attempt is executed once, no verdict rests on missing evidence, a slot has one value, every run
ends or is blocked with a reason once faults stop, infrastructure is charged to nobody, the verdict is that of a run
without faults, and record and slots never contradict each other. The record is a real Postgres on a clock that moves
when the schedule says so; cluster and nodes are simulated. `python -m tests.nightly` plays more of them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres.conftest import database, pg_url, template_database
from tests.simulation.schedule import Verdicts, calm_verdicts, play
from tests.simulation.world import World

__all__ = ["database", "pg_url", "template_database"]

SCHEDULES = 500
CHUNK = 50


@pytest.fixture
def world(database: str) -> Iterator[World]:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="ol-sim-") as folder:
        made = World(Path(folder), database, patch)
        yield made
        made.close()


def test_without_faults_each_candidate_has_its_verdict(world: World) -> None:
    assert calm_verdicts(world) == {
        "better": ("accepted", ""),
        "worse": ("rejected", "no-improvement"),
        "failing": ("failed", "candidate-error"),
        "bigger": ("rejected", "suite-regression"),
    }


def test_schedules(world: World) -> None:
    calm: Verdicts = calm_verdicts(world)
    for seed in range(SCHEDULES):
        play(world, seed, calm)

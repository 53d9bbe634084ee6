"""Campaigns through the command line, the real controller, record, slots and job wrapper, on a cluster of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.controller_rig.campaigns import CampaignWorld


@pytest.fixture
def world(tmp_path: Path, database: str) -> CampaignWorld:
    return CampaignWorld(tmp_path / "w", database)


def test_two_candidates_one_round(world: CampaignWorld) -> None:
    world.campaign()
    world.candidates(good=[[20, 20], [10, 12]], bad=[[30, 30]])
    run_id = world.submit_campaign()
    world.ticks_until_rest()
    run = world.run(run_id)
    assert (run.state, run.verdict) == ("ended", "finished"), world.describe()
    status = world.status(run_id)
    assert status["champion"]["subject"] == "champ-g001-r0001-good/model-0002"
    assert world.did("train") == 2 and world.did("evaluate") == 3
    assert "The ledger holds" in world.cli("campaign", "events", run_id, "--replay")
    world.check_invariants()

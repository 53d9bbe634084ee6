"""A run's turn ends, and at most one doorbell waits for a run: whatever people say to it, and however often.

Attacked here: a campaign with more to do than one turn allows, words said while another process is at work, doorbells
of runs that are looked at again and again, and of runs that have ended. On a cluster of files, without its own wakes.
"""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import pytest

from outerloop.compute.protocol import Accepted, JobSpec
from outerloop.controller import engine
from outerloop.controller.advance import advance
from outerloop.controller.campaign_operate import cancel_campaign
from outerloop.controller.operate import pause, resume
from outerloop.record.models import Run, Wake
from tests.controller_rig.campaigns import CampaignWorld
from tests.controller_rig.world import World


@pytest.fixture
def world(tmp_path: Path, database: str) -> CampaignWorld:
    return CampaignWorld(tmp_path / "w", database)


def ringing(world: World) -> list[str]:
    """Doorbells that the cluster has and that have not rung."""
    return [
        job for job, body in world.cluster.jobs().items() if "-wake-" in body["name"] and body["state"] == "pending"
    ]


def test_a_campaign_hands_its_turn_on_and_comes_to_the_same_end(
    world: CampaignWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "TURN_SECONDS", 0.0)
    world.campaign()
    world.candidates(a=[[30, 30], [20, 20]])
    run_id = world.submit_campaign()
    steps = []
    for _ in range(60):
        run = world.run(run_id)
        if run.state == "ended":
            break
        steps.append(len(world.ledger(run_id)))
        assert run.state_reason == "TURN" and len(ringing(world)) <= 1
        world.run_measures()
        world.tick()
    assert world.run(run_id).verdict == "finished" and max(b - a for a, b in itertools.pairwise(steps)) == 1
    assert world.status(run_id)["champion"]["subject"] == "champ-g001-r0001-a/model-0002" and ringing(world) == []


def test_a_word_that_is_said_while_a_process_parks_is_not_left_until_tomorrow(
    world: CampaignWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.campaign()
    world.candidates(a=[[30, 30]])
    run_id = world.submit_campaign()
    parked = engine.Engine._park

    def cancelled_meanwhile(self: engine.Engine, *rest: object, **named: object) -> engine.Advanced:
        monkeypatch.setattr(engine.Engine, "_park", parked)
        told = threading.Thread(target=lambda: cancel_campaign(self.deployment, world.run(run_id), "enough"))
        told.start()
        told.join()
        return parked(self, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(engine.Engine, "_park", cancelled_meanwhile)
    world.tick()
    world.cli("campaign", "resume", "loop")
    world.ticks_until_rest(4)
    assert world.run(run_id).verdict == "cancelled" and ringing(world) == []


def test_one_doorbell_a_run_and_none_for_one_that_has_ended(world: CampaignWorld) -> None:
    world.campaign()
    world.candidates(a=[[30, 30]])
    run_id = world.submit_campaign()
    world.run_measures()
    world.list.write_text("[[candidates]\n")
    for _ in range(4):
        world.cli("campaign", "resume", "loop")
        world.cli("campaign", "stop", "loop")
        world.cli("campaign", "resume", "loop")
        assert len(ringing(world)) == 1
    assert [wake.state for wake in world.rows(Wake)].count("submitted") == 1
    world.cli("campaign", "cancel", "loop")
    world.ticks_until_rest(4)
    assert world.run(run_id).state == "ended" and ringing(world) == []


def test_the_same_of_climbs_and_of_what_an_earlier_version_piled_up(tmp_path: Path, database: str) -> None:
    world = World(tmp_path / "w", database)
    climb, ended = world.submit("better"), world.submit("same")
    world.cancel(ended)
    assert len(ringing(world)) == 1
    for _ in range(3):
        deployment = world.open()
        try:
            pause(deployment, climb, "later")
            advance(deployment, climb)
            resume(deployment, climb)
            advance(deployment, climb)
        finally:
            deployment.close()
        assert len(ringing(world)) == 1
    deployment = world.open()
    try:
        for owner in (climb, ended):
            script = world.state.wake_script(owner, 7)
            job = JobSpec(
                name="rig-wake-old",
                script=script,
                log=script.with_suffix(".log"),
                workdir=script.parent,
                lane=deployment.wakes.lane,
                minutes=1.0,
                begin_seconds=86400,
            )
            submitted = world.cluster.submit(job)
            assert isinstance(submitted, Accepted)
            with deployment.record.transaction("tx.wake") as session:
                session.add(
                    Wake(
                        realm_id=deployment.record.realm_id,
                        run_id=owner,
                        number=7,
                        state="submitted",
                        job_name="rig-wake-old",
                        job_id=submitted.job_id,
                    )
                )
    finally:
        deployment.close()
    assert len(ringing(world)) == 3
    world.tick()
    [left] = [wake for wake in world.rows(Wake) if wake.state == "submitted"]
    assert (left.run_id, left.number) == (climb, 7) and ringing(world) == [left.job_id]
    world.cancel(climb)
    assert ringing(world) == [] and {run.state for run in world.rows(Run)} == {"ended"}

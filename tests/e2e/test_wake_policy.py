"""Attacked: how many doorbells there are at one time. The cap holds over all runs of an owner and gives a place back
when a wake has ended; the modes do as they say."""

from __future__ import annotations

from pathlib import Path

from outerloop.settings_sections import WakeSettings
from tests.controller_rig.world import World


def policy(world: World, **wake: object) -> None:
    world.settings = world.settings.model_copy(update={"wake": WakeSettings(**wake)})  # type: ignore[arg-type]


def live(world: World) -> int:
    return sum(body["state"] == "pending" for body in world.wake_jobs().values())


def test_the_cap_counts_live_wakes_of_all_runs_and_gives_places_back(tmp_path: Path, database: str) -> None:
    world = World(tmp_path, database)
    policy(world, mode="always", cap=2)
    for candidate in ("better", "bigger", "same"):
        world.submit(candidate)
    assert live(world) == 2
    world.tick()
    assert live(world) == 2
    [first, *_] = world.wake_jobs()
    world.cluster.change(first, state="cancelled")
    world.tick()
    assert live(world) == 2, "a place that is free is taken again, and never more"


def test_modes_and_how_far_a_tick_is_relied_upon(tmp_path: Path, database: str) -> None:
    world = World(tmp_path, database)
    policy(world, mode="never")
    world.submit("better")
    policy(world, mode="always", cap=0)
    world.submit("bigger")
    assert live(world) == 0
    # auto relies on a fresh tick for what is beyond half the cap
    policy(world, mode="auto", cap=2, cadence_seconds=300)
    world.submit("same")
    assert live(world) == 1
    world.tick()
    world.branch("fourth", cost="7")
    world.submit("fourth")
    assert live(world) == 1, "the tick is fresh"
    world.pass_time(1000)
    world.branch("fifth", cost="6")
    world.submit("fifth")
    assert live(world) == 2, "the tick has been away"

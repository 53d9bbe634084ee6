"""One climb after another through the real controller, record, slots and job wrapper, on a cluster of files."""

from __future__ import annotations

from tests.controller_rig.world import World


def test_wakes_alone_reach_the_verdict(world: World) -> None:
    run_id = world.submit("better")
    world.wakes_until_rest()
    assert world.run(run_id).verdict == "accepted"
    assert world.executions() == 2
    world.check_invariants()


def test_ticks_alone_reach_the_verdict(world: World) -> None:
    run_id = world.submit("better")
    world.ticks_until_rest()
    assert world.run(run_id).verdict == "accepted"
    assert world.executions() == 2
    world.check_invariants()


def test_a_sibling_that_breaks_refuses_the_candidate(world: World) -> None:
    run_id = world.submit("bigger")
    world.wakes_until_rest()
    assert (world.run(run_id).verdict, world.run(run_id).verdict_reason) == ("rejected", "suite-regression")
    assert world.executions() == 4
    world.check_invariants()


def test_asking_twice_submits_nothing(world: World) -> None:
    first = world.submit("better")
    world.ticks_until_rest()
    assert world.submit("better") == first
    assert world.executions() == 2 and len(world.runs()) == 1

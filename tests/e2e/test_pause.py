"""A paused run submits nothing new, loses nothing, and reaches the verdict that it would have reached."""

from __future__ import annotations

import signal
from functools import partial

import pytest

from outerloop.controller.operate import OperatorError, pause, resume, retry
from outerloop.controller.rebuild import rebuild
from outerloop.record.models import Attempt
from tests.controller_rig.commands import command
from tests.controller_rig.world import World


def said(world: World, word: str, run: str) -> None:
    deployment = world.open()
    try:
        pause(deployment, run, "maintenance") if word == "pause" else resume(deployment, run)
    finally:
        deployment.close()


def jobs(world: World) -> int:
    return len(world.rows(Attempt))


def test_jobs_that_are_out_count_and_nothing_new_goes_out(world: World) -> None:
    run = world.submit("better")
    out = jobs(world)
    said(world, "pause", run)
    world.run_measures()
    for _ in range(3):
        world.tick()
        for _job, woken, number in world.take_wakes():
            world.wake(woken, number)
    assert world.run(run).state == "blocked" and world.run(run).state_reason == "PAUSED"
    assert jobs(world) == out and world.executions() == out
    assert all(row.state == "settled" for row in world.rows(Attempt)), "their ends are seen all the same"
    told = command(world, "status")
    assert "Paused until somebody resumes them" in told.text and "one is paused" in told.text, told.text
    assert command(world, "retry", run).code == 3
    told = command(world, "resume", run)
    assert told.code == 0, told.text
    world.ticks_until_rest()
    assert world.run(run).verdict == "accepted" and world.executions() == out
    assert "paused by" in command(world, "show", run).text
    assert command(world, "verify", run).code == 0
    for word in ("pause", "resume"):
        assert command(world, word, run).code == 3, "it has ended"


def test_several_at_once_and_one_that_refuses_does_not_keep_the_others_from_it(world: World) -> None:
    done = world.submit("better")
    world.ticks_until_rest()
    one, two = world.submit("bigger", benchmark="size"), world.submit("bigger")
    told = command(world, "pause", done, one, two)
    assert told.code == 3 and "has ended already" in told.text
    assert {world.run(run).state_reason for run in (one, two)} == {"PAUSED"}
    assert command(world, "pause", one).code == 0, "twice is once"
    assert command(world, "resume", one, two).code == 0
    world.ticks_until_rest()
    assert all(world.run(run).state == "ended" for run in (one, two))
    world.check_invariants()


@pytest.mark.parametrize("point", ["before:run.event", "after:run.event", "before:tx.operator", "after:tx.operator"])
def test_killed_while_saying_it_the_word_is_whole_or_was_never_said(world: World, point: str) -> None:
    run = world.submit("better")
    assert world.forked(partial(said, world, "pause", run), fault=f"{point}:kill") == -signal.SIGKILL
    said(world, "pause", run)
    world.pass_time(2 * 86400)
    world.tick()
    assert world.run(run).state_reason == "PAUSED"
    assert world.forked(partial(said, world, "resume", run), fault=f"{point}:kill") == -signal.SIGKILL
    if point != "after:tx.operator":
        said(world, "resume", run)
    world.ticks_until_rest()
    assert world.run(run).verdict == "accepted"


def test_a_rebuilt_record_knows_of_the_pause(world: World) -> None:
    run = world.submit("better")
    said(world, "pause", run)
    world.tick()
    deployment = world.open()
    try:
        rebuild(deployment.context)
    finally:
        deployment.close()
    world.run_measures()
    world.tick()
    world.tick()
    assert world.run(run).state_reason == "PAUSED"
    deployment = world.open()
    try:
        with pytest.raises(OperatorError, match="outerloop resume"):
            retry(deployment, run)
        with pytest.raises(OperatorError, match="is not paused"):
            resume(deployment, world.submit("bigger", benchmark="size"))
    finally:
        deployment.close()
    said(world, "resume", run)
    world.ticks_until_rest()
    assert world.run(run).verdict == "accepted"

"""Several runs at once: one slot for the same work, one champion for one number, a cancel that races with a crown.

Attacked: that what nobody wants is cancelled and what somebody wants is not, that two candidates never win the same
number, and that asking again adds evidence instead of drawing luck. Processes at once are in test_many_at_once.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal

import pytest

from outerloop.controller.evidence import read_run
from outerloop.controller.operate import OperatorError
from outerloop.record.models import Await, Champion, Event
from tests.controller_rig.world import World, resume, stopped, wait_for

STOP_SECONDS = 60
TOO_LATE = r"too late to cancel|ended already"


@contextmanager
def stopped_wake(world: World, run_id: str, point: str) -> Iterator[int]:
    """A wake of `run_id` that is stopped at a point; it goes on at the end of the block, and must end well."""
    pid = world.start(lambda: world.wake(run_id, None), fault=f"{point}:stop")
    wait_for(lambda: stopped(pid), STOP_SECONDS, f"a stop at {point}")
    yield pid
    assert resume(pid) == 0, world.describe()


def run_to_verdict(world: World, run_id: str) -> str | None:
    """Jobs and wakes of one run alone, until it has ended."""
    for _ in range(10):
        world.run_measures()
        world.wake(run_id, None)
        if world.run(run_id).state == "ended":
            return world.run(run_id).verdict
    raise AssertionError(world.describe())


def champions(world: World) -> list[tuple[int, str]]:
    return sorted((c.seq, c.run_id) for c in world.rows(Champion))


def test_the_same_work_is_one_slot_one_job_and_both_runs_are_woken(world: World) -> None:
    world.branch("smaller", size="90")
    world.branch("tiny", size="80")
    first = world.submit("smaller", benchmark="size")
    second = world.submit("tiny", benchmark="size")
    assert len(world.measuring_jobs()) == 3, "two candidates and one base"
    awaited = [a.attempt_id for a in world.rows(Await)]
    assert len(awaited) == 4 and len(set(awaited)) == 3
    assert {len(body["after"]) for body in world.wake_jobs().values()} == {2}
    world.wakes_until_rest()
    assert (world.run(first).verdict, world.run(second).verdict) == ("accepted", "accepted")
    assert champions(world) == [(1, first), (2, second)], "the second was judged against the first as well"
    assert world.executions() == 3
    world.check_invariants()


def test_cancelling_one_leaves_the_others_job_alone_and_cancelling_both_ends_it(world: World) -> None:
    world.branch("smaller", size="90")
    world.branch("tiny", size="80")
    first = world.submit("smaller", benchmark="size")
    mine = set(world.measuring_jobs())
    second = world.submit("tiny", benchmark="size")
    theirs = set(world.measuring_jobs()) - mine
    world.cancel(first)
    alive = {i for i, body in world.measuring_jobs().items() if body["state"] == "pending"}
    assert theirs < alive and len(alive) == 2, "the second run still wants the base"
    world.cancel(second)
    assert {body["state"] for body in world.measuring_jobs().values()} == {"cancelled"}
    assert {run.verdict for run in world.runs()} == {"cancelled"}
    for _ in range(2):
        world.tick()
    assert len(world.measuring_jobs()) == 3, "nothing is tried again for nobody"
    # Both are asked again while the first cancels are fresh: nobody inherits a cancel.
    again = [world.submit(name, benchmark="size") for name in ("smaller", "tiny")]
    world.ticks_until_rest()
    assert [world.run(run).verdict for run in again] == ["accepted", "accepted"]
    assert not set(again) & {first, second}
    world.check_invariants()


def test_a_run_that_joins_a_job_just_cancelled_for_another_gets_its_value(world: World) -> None:
    """The scancel is on its way when somebody else begins to want the job."""
    world.branch("smaller", size="90")
    world.branch("tiny", size="80")
    first = world.submit("smaller", benchmark="size")
    pid = world.start(lambda: world.cancel(first), fault="before:compute.cancel:stop")
    wait_for(lambda: stopped(pid), STOP_SECONDS, "the stop")
    second = world.submit("tiny", benchmark="size")
    assert resume(pid) == 0
    world.ticks_until_rest()
    assert (world.run(first).verdict, world.run(second).verdict) == ("cancelled", "accepted")
    world.check_invariants()


@pytest.mark.parametrize(("slow", "quick", "verdict"), [("better", "best", "rejected"), ("best", "better", "accepted")])
def test_two_accepted_against_one_champion_are_one_champion_and_the_other_is_measured_against_it(
    world: World, slow: str, quick: str, verdict: str
) -> None:
    world.branch("best", cost="6")
    runs = {name: world.submit(name) for name in (slow, quick)}
    world.run_measures()
    with stopped_wake(world, runs[slow], "before:champion.link"):
        world.wake(runs[quick], None)
        assert world.run(runs[quick]).verdict == "accepted"
    late = world.run(runs[slow])
    assert (late.state, late.round) == ("waiting", 1)
    assert late.base_commit == world.run(runs[quick]).candidate_commit
    world.ticks_until_rest()
    assert world.run(runs[slow]).verdict == verdict
    expected = [(1, runs[quick])] + ([(2, runs[slow])] if verdict == "accepted" else [])
    assert champions(world) == expected
    assert world.executions() == 6
    world.check_invariants()


def test_a_candidate_that_the_champion_outruns_three_times_is_rejected_as_superseded(world: World) -> None:
    world.branch("swift", cost="1")
    swift = world.submit("swift")
    for number, cost in enumerate(("8", "6", "4"), 1):
        world.run_measures()
        with stopped_wake(world, swift, "before:champion.link"):
            world.branch(f"rival-{number}", cost=cost)
            rival = world.submit(f"rival-{number}", base=None)
            assert run_to_verdict(world, rival) == "accepted"
            assert champions(world)[-1] == (number, rival)
    run = world.run(swift)
    assert (run.verdict, run.verdict_reason) == ("rejected", "superseded")
    assert len(champions(world)) == 3
    world.tick()
    world.check_invariants()


def test_a_cancel_before_the_crown_wins(world: World) -> None:
    first = world.submit("better")
    world.run_measures()
    with stopped_wake(world, first, "before:run.event"):
        world.cancel(first)
        assert world.run(first).verdict == "cancelled"
    assert world.run(first).verdict == "cancelled" and champions(world) == []
    again = world.submit("better")
    assert again != first and world.executions() == 2, "asked again with the same draw: its values are there"
    assert world.run(again).verdict == "accepted" and champions(world) == [(1, again)]
    with pytest.raises(OperatorError, match="ended already"):
        world.cancel(again)
    world.check_invariants()


@pytest.mark.parametrize("point", ["after:run.event", "before:champion.link", "after:champion.link", "before:tx.end"])
def test_a_cancel_while_the_crown_is_being_put_on_is_refused(world: World, point: str) -> None:
    run_id = world.submit("better")
    world.run_measures()
    with stopped_wake(world, run_id, point), pytest.raises(OperatorError, match=TOO_LATE):
        world.cancel(run_id)
    assert world.run(run_id).verdict == "accepted" and champions(world) == [(1, run_id)]
    world.check_invariants()


def test_asking_again_puts_the_decided_pairs_first_and_tests_at_half_of_alpha(world: World) -> None:
    first = world.submit("same")
    world.ticks_until_rest()
    assert world.run(first).verdict == "rejected"
    ran = world.executions()
    assert world.submit("same") == first and world.executions() == ran, "asking twice is one question"
    second = world.submit("same", again=True)
    world.ticks_until_rest()
    assert second != first and world.run(second).verdict == "rejected"
    seeds = {event.run_id: event.body["pair_seeds"] for event in world.rows(Event) if event.kind == "round"}
    assert seeds[second][: len(seeds[first])] == seeds[first] and len(seeds[second]) > len(seeds[first])
    assert world.executions() == ran + 2 * (len(seeds[second]) - len(seeds[first])), "old pairs are not measured again"
    deployment = world.open()
    try:
        plan = read_run(deployment.context, second).plan
    finally:
        deployment.close()
    assert plan is not None and plan.alpha_share == Decimal("0.5") and plan.prior_pairs == len(seeds[first])
    world.check_invariants()

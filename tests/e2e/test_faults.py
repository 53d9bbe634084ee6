"""Everything that a cluster, its accounts and its file system can do to a climb, one report after another.

Attacked: that nothing is concluded from silence, that no fault of the infrastructure is charged to a candidate, that
one attempt is executed once, and that every run ends or says what it waits for. Crashes of our own processes are in
test_crash_points.py, the record's in test_outages.py.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from typing import Any

import pytest

from outerloop.compute.protocol import JobRow, JobState, Listing, NoAnswer, SiteLimits
from outerloop.controller.advance import advance
from outerloop.controller.tick import dry_tick
from outerloop.dispatch.live import note_moves
from outerloop.dispatch.observe import observe
from outerloop.dispatch.settle import fold_attempts, live_attempts
from outerloop.record.models import Attempt, Heartbeat, Slot, Wake
from outerloop.slots import Result, SlotDirectory
from tests.controller_rig.cluster import FileCluster
from tests.controller_rig.world import World

MakeWorld = Callable[..., World]
PATIENT = {"grace_seconds": 60, "intent_patience_seconds": 180, "gone_grace_seconds": 120}


def attempts(world: World) -> list[tuple[int, str, str | None, str]]:
    """(n, state, outcome, reason) of every attempt, in the order of their rows."""
    return [(a.n, a.state, a.outcome, a.reason) for a in sorted(world.rows(Attempt), key=lambda a: a.id)]


def outcomes(world: World) -> list[str]:
    return [f"{outcome} {reason}".strip() for _n, _state, outcome, reason in attempts(world) if outcome]


def finish(world: World, verdict: str = "accepted") -> None:
    world.ticks_until_rest()
    assert {run.verdict for run in world.runs()} == {verdict}, world.describe()
    world.check_invariants()


def state(world: World, run_id: str) -> tuple[str, str]:
    run = world.run(run_id)
    return run.state, run.state_reason


# -- submissions


def test_row_01_a_lost_reply_is_one_job_that_is_adopted(world: World) -> None:
    world.cluster.set_mode("submit", "lost-after")
    run_id = world.submit("better")
    assert state(world, run_id) == ("waiting", "SUBMISSION")
    world.cluster.set_mode("submit", "")
    assert world.tick().adopted == 2
    finish(world)
    assert len(world.measuring_jobs()) == 2 and world.executions() == 2


def test_row_01_a_lost_reply_whose_job_ended_and_left_every_list_is_adopted_by_its_claim(world: World) -> None:
    world.cluster.set_mode("submit", "lost-after")
    world.submit("better")
    world.run_measures()
    world.cluster.set_mode("submit", "")
    world.cluster.set_mode("history", "off")
    for job in world.measuring_jobs():
        world.cluster.vanish(job)
    finish(world)
    assert len(world.measuring_jobs()) == 2 and world.executions() == 2


def test_row_01_a_submission_that_never_arrived_goes_out_once_more_after_two_absences_a_grace_apart(
    make_world: MakeWorld,
) -> None:
    world = make_world(**PATIENT)
    world.cluster.set_mode("submit", "lost-before")
    world.submit("better")
    world.cluster.set_mode("submit", "")
    world.cluster.set_mode("listing", "silent")
    for _ in range(3):
        world.tick()
        world.pass_time(1000)
    world.cluster.set_mode("listing", "")
    world.cluster.set_mode("history", "silent")
    for _ in range(3):
        world.tick()
        world.pass_time(1000)
    assert not world.measuring_jobs(), "silence was taken for absence"
    world.cluster.set_mode("history", "")
    world.tick()
    world.tick()
    world.pass_time(20)  # of 60, so that a slow machine does not use up the grace meanwhile
    world.tick()
    assert not world.measuring_jobs(), "one absence was enough, or the grace was not waited for"
    world.pass_time(41)
    world.tick()
    assert len(world.measuring_jobs()) == 2
    world.pass_time(1000)
    world.tick()
    finish(world)
    assert len(world.measuring_jobs()) == 2 and {n for n, *_ in attempts(world)} == {1}


def test_row_02_a_job_that_appears_after_the_first_look_is_adopted_and_not_doubled(make_world: MakeWorld) -> None:
    world = make_world(**PATIENT)
    world.cluster.set_mode("submit", "lost-after")
    world.submit("better")
    world.cluster.set_mode("submit", "")
    jobs = list(world.measuring_jobs())
    for job in jobs:
        world.cluster.vanish(job)
    world.tick()
    for job in jobs:
        world.cluster.change(job, purged=False, forgotten=False)
    world.pass_time(61)
    assert world.tick().adopted == 2
    finish(world)
    assert list(world.measuring_jobs()) == jobs


def test_row_35_a_dry_tick_says_that_it_is_dry_and_what_it_would_do_and_changes_nothing(world: World) -> None:
    run_id = world.submit("better")
    world.run_measures()
    before = world.snapshot()
    deployment = world.open()
    try:
        report = dry_tick(deployment)
    finally:
        deployment.close()
    assert (report.ran, report.would_advance, report.advanced) == (False, [run_id], [])
    assert "dry run: nothing was changed" in report.notes
    assert world.snapshot() == before and world.run(run_id).state == "waiting"
    world.tick()
    assert world.run(run_id).state == "ended"


def test_row_36_a_refusal_for_now_spends_no_attempt_and_is_soon_looked_at_again(world: World) -> None:
    world.cluster.set_mode("submit", "refuse")
    run_id = world.submit("better")
    assert state(world, run_id) == ("waiting", "BACKOFF")
    assert "AssocMaxSubmitJobLimit" in world.run(run_id).state_detail
    assert attempts(world) == []
    world.tick()
    for _ in range(4):  # more refusals than attempts
        world.pass_time(61)
        world.tick()
    assert attempts(world) == [] and not world.cluster.jobs()
    world.cluster.set_mode("submit", "")
    world.pass_time(61)
    world.tick()
    assert len(world.measuring_jobs()) == 2
    finish(world)
    assert {n for n, *_ in attempts(world)} == {1}


def test_a_refusal_for_good_blocks_with_its_reason_until_a_retry(world: World) -> None:
    world.cluster.set_mode("submit", "never")
    run_id = world.submit("better")
    run = world.run(run_id)
    assert (run.state, run.state_reason) == ("blocked", "INFRASTRUCTURE")
    assert "QOSMaxWallDurationPerJobLimit" in run.state_detail
    world.tick()
    world.retry(run_id)
    world.tick()
    assert world.run(run_id).state == "blocked", "the site still refuses"
    assert not world.cluster.jobs()
    world.cluster.set_mode("submit", "")
    world.retry(run_id)
    finish(world)


def test_row_33_a_refused_dependency_drops_the_purged_ids_and_keeps_the_others(world: World) -> None:
    """A purged parent, a live one: the wake waits for the live one. With an immediate wake there would be a storm."""
    run_id = world.submit("better")
    first, second = world.measuring_jobs()
    world.cluster.execute(first)
    result = world.slot_folder(first) / "attempts" / "1" / "result.json"
    result.rename(result.with_name("away"))  # not visible yet
    world.cluster.change(first, purged=True)
    for job in world.wake_jobs():
        world.cluster.change(job, state="completed", exit=0)
    world.cluster.set_mode("submit", "strict")
    world.settings = world.settings.model_copy(
        update={"dispatch": world.settings.dispatch.model_copy(update={"grace_seconds": 60.0})}
    )
    before = len(world.wake_jobs())
    for _ in range(3):
        world.wake(run_id, 1)
    wakes = list(world.wake_jobs().values())[before:]
    assert [wake["after"] for wake in wakes] == [[second]], "one wake, on what the queue still knows"
    result.with_name("away").rename(result)
    world.cluster.execute(second)
    world.wakes_until_rest()
    assert world.run(run_id).verdict == "accepted"
    world.check_invariants()


def test_row_33_a_wake_that_rings_too_early_decides_nothing(world: World) -> None:
    run_id = world.submit("better")
    first, _second = world.measuring_jobs()
    world.cluster.execute(first)
    for job in world.wake_jobs():
        world.cluster.change(job, state="completed", exit=0)
    for _ in range(3):
        world.wake(run_id, 1)
    assert state(world, run_id) == ("waiting", "JOBS")
    assert len([w for w in world.wake_jobs().values() if w["state"] == "pending"]) == 1
    world.wakes_until_rest()
    assert world.run(run_id).verdict == "accepted"
    world.check_invariants()


# -- the queue


def test_row_34_a_tick_wakes_when_every_awaited_job_is_final_and_not_before(world: World) -> None:
    world.settings = world.settings.model_copy(
        update={"wake": world.settings.wake.model_copy(update={"mode": "never"})}
    )
    run_id = world.submit("better")
    first, second = world.measuring_jobs()
    assert not world.wake_jobs()
    world.cluster.execute(first)
    world.tick()
    assert world.run(run_id).state == "waiting"
    world.cluster.execute(second)
    world.tick()
    assert world.run(run_id).verdict == "accepted", "all were final: the next tick goes on"
    world.check_invariants()


def test_a_silent_queue_changes_nothing(world: World) -> None:
    run_id = world.submit("better")
    world.tick()
    for job in world.measuring_jobs():
        world.cluster.vanish(job)
    before, jobs = world.snapshot(), world.cluster.jobs()
    world.cluster.set_mode("listing", "silent")
    for _ in range(10):
        world.pass_time(3600 * 30)  # beyond every deadline, the longest one included
        report = world.tick()
        assert not report.queue_answered and not report.broken
        world.wake(run_id, 1)
    assert world.snapshot() == before
    assert world.measuring_jobs() == {i: body for i, body in jobs.items() if "-wake-" not in body["name"]}
    [heartbeat] = world.rows(Heartbeat)
    assert heartbeat.body["queue_answered"] is False
    world.cluster.set_mode("listing", "")
    finish(world)
    assert sorted(outcomes(world)) == ["done"] * 2 + ["infrastructure LOST"] * 2


def test_an_answer_says_nothing_of_what_was_submitted_after_it_began(world: World) -> None:
    """A tick asks the queue, and then somebody submits: absence from that answer is no absence, however short the
    grace; what it does show counts."""
    deployment = world.open()
    try:
        context = deployment.context
        before = observe(context.record, context.compute)
        world.submit("better")
        for _ in range(3):
            with context.record.reading() as session:
                live = live_attempts(session, context.record.realm_id)
            assert len(live) == 2 and fold_attempts(context, before, live).settled == 0
        assert [a.absent_at for a in world.rows(Attempt)] == [None, None] and outcomes(world) == []
        first, second = world.measuring_jobs()
        world.cluster.vanish(first)
        world.cluster.change(second, state="node_fail")
        after = observe(context.record, context.compute)
        assert sum(fold_attempts(context, after, live).settled for _ in range(2)) == 2
    finally:
        deployment.close()
    assert sorted(outcomes(world)) == ["infrastructure LOST", "infrastructure NODE_FAIL"]


def test_an_answer_that_a_later_one_has_overtaken_decides_nothing(world: World) -> None:
    """A process asked the queue, slept, and wakes up with what it heard: a node that failed, jobs that were not there.
    Meanwhile Slurm runs them again, and somebody else has seen it."""
    world.submit("better")
    first, second = world.measuring_jobs()
    world.tick()
    deployment = world.open()
    try:
        context = deployment.context
        world.cluster.change(first, state="node_fail")
        world.cluster.change(second, purged=True)
        with context.record.reading() as session:
            live = live_attempts(session, context.record.realm_id)
        stale = observe(context.record, context.compute)
        world.cluster.change(first, state="running")
        world.cluster.change(second, purged=False, state="running")
        assert world.tick().settled == 0
        assert fold_attempts(context, stale, live).settled == 0
        note_moves(context, stale, [(attempt.id, JobRow("1", "", JobState.PENDING)) for attempt in live])
        rows = world.rows(Attempt)
        assert [(a.state, a.slurm_state, a.absent_at) for a in rows] == [("submitted", "running", None)] * 2
        # What ended since has its result all the same.
        world.cluster.execute(first)
        assert fold_attempts(context, stale, live).settled == 1
    finally:
        deployment.close()
    assert outcomes(world) == ["done"]


@pytest.mark.parametrize("accounts", ["off", "silent"])
def test_row_50_row_51_accounts_that_are_off_or_silent(world: World, accounts: str) -> None:
    """Results speak for themselves; without a result, silence is no loss, while accounts that are off are no excuse."""
    world.cluster.set_mode("history", accounts)
    run_id = world.submit("better")
    first, second = world.measuring_jobs()
    world.cluster.execute(first)
    world.cluster.change(first, purged=True)
    world.cluster.vanish(second)
    for _ in range(3):
        report = world.tick()
        assert report.queue_answered and not report.broken
    lost = outcomes(world).count("infrastructure LOST")
    assert outcomes(world).count("done") == 1
    assert lost == (1 if accounts == "off" else 0), world.describe()
    assert world.run(run_id).state == "waiting"
    world.cluster.set_mode("history", "off")
    finish(world)


def test_row_45_a_vanished_job_is_lost_after_the_grace_and_measured_again(make_world: MakeWorld) -> None:
    world = make_world(**PATIENT)
    world.submit("better")
    first, second = world.measuring_jobs()
    world.cluster.change(first, state="running")
    world.tick()
    world.cluster.execute(second)
    world.cluster.vanish(second)
    world.cluster.vanish(first)
    world.tick()
    assert outcomes(world) == ["done"], "a valid result needs no grace"
    world.pass_time(60)  # of 120, as above
    world.tick()
    assert outcomes(world) == ["done"]
    world.pass_time(61)
    world.tick()
    assert sorted(outcomes(world)) == ["done", "infrastructure LOST"]
    finish(world)


def test_row_45_lost_three_times_blocks_and_a_retry_awakens_everybody_who_wants_the_slot(world: World) -> None:
    world.branch("smaller", size="90")
    world.branch("tiny", size="80")
    runs = [world.submit(name, benchmark="size") for name in ("smaller", "tiny")]
    base = shared_job(world)
    name = world.cluster.jobs()[base]["name"].rpartition("-")[0]
    for _ in range(3):
        for job, body in world.measuring_jobs().items():
            if body["name"].startswith(name) and body["state"] == "pending":
                world.cluster.vanish(job)
        world.tick()
        for job in world.cluster.startable():
            if job in world.measuring_jobs() and not world.cluster.jobs()[job]["name"].startswith(name):
                world.cluster.execute(job)
    world.tick()
    assert [state(world, run) for run in runs] == [("blocked", "INFRASTRUCTURE")] * 2, world.describe()
    assert "LOST" in world.run(runs[0]).state_detail
    jobs = len(world.measuring_jobs())
    world.tick()
    world.submit("smaller", benchmark="size")
    assert len(world.measuring_jobs()) == jobs, "row 39: an exhausted slot needs an explicit retry"
    assert sorted(world.retry(runs[0]).runs) == sorted(runs)
    finish(world)


def shared_job(world: World) -> str:
    """The job that two runs wait for."""
    from outerloop.record.models import Await

    awaited = [a.attempt_id for a in world.rows(Await)]
    [attempt] = {i for i in awaited if awaited.count(i) == 2}
    return next(str(a.job_id) for a in world.rows(Attempt) if a.id == attempt)


def test_row_39_a_failed_tree_is_not_measured_again_by_whoever_asks(world: World) -> None:
    world.branch("broken", size="90", extra="exit 3\n")
    first = world.submit("broken", benchmark="size")
    world.ticks_until_rest()
    assert world.run(first).verdict_reason == "candidate-failed" or world.run(first).verdict != "accepted"
    ran = len(world.measuring_jobs())
    world.branch("other-base", size="95")
    second = world.submit("broken", base="other-base", benchmark="size")
    world.ticks_until_rest()
    assert len(world.measuring_jobs()) == ran + 1, "only the new base was measured"
    third = world.submit("broken", benchmark="size", again=True)
    world.ticks_until_rest()
    assert third != first and len(world.measuring_jobs()) == ran + 1
    assert {world.run(r).verdict for r in (first, second, third)} == {world.run(first).verdict}
    world.check_invariants()


def test_row_46_a_result_written_while_the_queue_answers_counts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.submit("better")
    for job in world.measuring_jobs():
        world.cluster.change(job, state="running")
    world.tick()
    plain = FileCluster.listing

    def while_answering(cluster: FileCluster) -> Listing | NoAnswer:
        for job, body in cluster.jobs().items():
            if body["state"] == "running":
                cluster.execute(job)
                cluster.vanish(job)
        return plain(cluster)

    monkeypatch.setattr(FileCluster, "listing", while_answering)
    finish(world)
    assert set(outcomes(world)) == {"done"} and world.executions() == 2


def test_row_46_row_74_a_result_that_becomes_visible_between_two_looks_counts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read, asked, decided that the job is lost: the files are read once more before that is believed."""
    world.submit("better")
    world.run_measures()
    for job in world.measuring_jobs():
        world.cluster.vanish(job)
    looked: set[str] = set()
    plain = SlotDirectory.result

    def late(directory: SlotDirectory, n: int) -> Result | None:
        first = directory.digest not in looked
        looked.add(directory.digest)
        return None if first else plain(directory, n)

    monkeypatch.setattr(SlotDirectory, "result", late)
    deployment = world.open()
    try:
        context = deployment.context
        for _ in range(2):  # the first look at an absence only notes it
            looked.clear()
            seen = observe(context.record, context.compute)
            with context.record.reading() as session:
                live = live_attempts(session, context.record.realm_id)
            fold_attempts(context, seen, live)
    finally:
        deployment.close()
    assert outcomes(world) == ["done", "done"]


def test_row_64_a_preempted_job_is_alive_while_listed_and_has_one_timer_when_not(make_world: MakeWorld) -> None:
    world = make_world(preempt_grace_seconds=300, grace_seconds=0)
    world.submit("better")
    first, second = world.measuring_jobs()
    world.cluster.execute(second)
    world.cluster.change(first, state="preempted")
    for _ in range(3):
        world.tick()
        world.pass_time(600)
    assert outcomes(world) == ["done"]
    world.cluster.change(first, purged=True)
    world.tick()
    world.pass_time(240)
    world.tick()
    world.cluster.change(first, purged=False, state="running")
    world.tick()
    world.cluster.change(first, purged=True, state="preempted")
    world.tick()
    world.pass_time(240)
    world.tick()
    assert outcomes(world) == ["done"], "the timer began anew when the job reappeared"
    world.pass_time(61)
    world.tick()
    assert sorted(outcomes(world)) == ["done", "infrastructure PREEMPTED"]
    finish(world)


def test_row_65_where_preemption_cancels_one_new_attempt_is_made(make_world: MakeWorld) -> None:
    world = make_world(preempt_grace_seconds=300)
    world.submit("better")
    first, _second = world.measuring_jobs()
    world.cluster.change(first, state="preempted", purged=True)
    world.tick()
    for _ in range(3):
        world.pass_time(301)
        world.tick()
    assert len(world.measuring_jobs()) == 3
    finish(world)
    assert len(world.measuring_jobs()) == 3


@pytest.mark.parametrize(("mode", "at_once"), [("CANCEL", True), ("REQUEUE", False)])
def test_row_65_the_sites_preempt_mode_says_whether_to_wait(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, mode: str, at_once: bool
) -> None:
    """Where the site cancels, nothing brings the job back: not even a queue that lists it is waited for."""
    monkeypatch.setattr(FileCluster, "limits", lambda cluster: SiteLimits(version="files", preempt_mode=mode))
    world = make_world(preempt_grace_seconds=300)
    world.submit("better")
    first, second = world.measuring_jobs()
    world.cluster.change(first, state="preempted")
    world.cluster.change(second, state="preempted", purged=True)
    world.tick()
    assert len(world.measuring_jobs()) == (4 if at_once else 2)
    assert outcomes(world) == (["infrastructure PREEMPTED"] * 2 if at_once else [])


def test_row_66_one_owner_of_the_retry_when_slurm_restarts_a_lost_job(world: World) -> None:
    world.submit("better")
    first, second = world.measuring_jobs()
    world.cluster.execute(second)
    world.cluster.execute(first)  # it claimed its attempt; its node dies before the result is out
    (world.slot_folder(first) / "attempts" / "1" / "result.json").unlink()
    world.cluster.change(first, state="node_fail")
    world.tick()
    assert len(world.measuring_jobs()) == 3
    world.cluster.change(first, state="running")
    for _ in range(3):
        world.tick()
    assert len(world.measuring_jobs()) == 3
    assert world.cluster.execute(first, restart=1) == 99
    ran = world.executions()
    finish(world)
    assert world.executions() == ran + 1 and len(world.measuring_jobs()) == 3


def test_node_fail_excludes_the_node_and_its_late_result_is_never_read(world: World) -> None:
    world.submit("better")
    first, second = world.measuring_jobs()
    world.cluster.execute(second)
    world.cluster.change(first, state="node_fail")
    world.tick()
    [third] = set(world.measuring_jobs()) - {first, second}
    assert world.cluster.jobs()[third]["exclude"] == ["n1"]
    slot = world.slot_folder(first)
    settled = slot / "attempts" / "1" / "settled.json"
    assert world.cluster.execute(first) == 95, "nobody begins an attempt that is settled"
    settled.rename(settled.with_name("later"))
    assert world.cluster.execute(first) == 0  # a zombie that had begun before lives on and finishes
    settled.with_name("later").rename(settled)
    assert (slot / "attempts" / "1" / "result.json").exists()
    world.cluster.change(first, state="node_fail")
    for _ in range(2):
        world.tick()
    assert not (slot / "accepted").exists() and world.open_runs()
    finish(world)
    assert json.loads((slot / "accepted").read_text())["attempt"] == 2


def test_row_73_a_node_that_fails_every_job_at_once_is_left_alone_and_cannot_eat_every_try(
    make_world: MakeWorld,
) -> None:
    world = make_world(**PATIENT, backoff_seconds=600)
    run_id = world.submit("better")
    _first, second = world.measuring_jobs()
    world.cluster.execute(second)

    def fails_at_once(job: str, node: str) -> None:
        """As a broken node does it: it is always free, and nothing of ours ever runs."""
        submitted = float(world.cluster.jobs()[job]["submitted"])
        times = {"started": submitted + 1, "ended": submitted + 6}
        world.cluster.change(job, state="failed", exit=1, node=node, **times)
        world.tick()
        world.pass_time(61)  # the grace in which a result could still turn up
        world.tick()

    def tried() -> list[str]:
        return [job for job in world.measuring_jobs() if job != second]

    # Without a name for the node there is only the back-off, which doubles; with one, the node is left alone as well.
    for number, (node, waits, avoided) in enumerate([("n7", 600, ["n7"]), ("", 1200, ["n7"])], 1):
        fails_at_once(tried()[-1], node)
        assert outcomes(world).count("infrastructure NEVER_STARTED") == number, world.describe()
        world.pass_time(waits - 300)
        world.tick()
        assert len(tried()) == number, "the next try came before its time"
        world.pass_time(301)
        world.tick()
        assert len(tried()) == number + 1, world.describe()
        assert world.cluster.jobs()[tried()[-1]]["exclude"] == avoided
    fails_at_once(tried()[-1], "n8")
    world.pass_time(100_000)
    world.tick()
    assert len(tried()) == 3 and state(world, run_id) == ("blocked", "INFRASTRUCTURE"), world.describe()
    world.retry(run_id)
    world.tick()
    assert len(tried()) == 4 and world.cluster.jobs()[tried()[-1]]["exclude"] == ["n7", "n8"]
    finish(world)


def test_a_result_counts_whatever_the_queue_says_of_its_job(world: World) -> None:
    run_id = world.submit("better")
    jobs = world.measuring_jobs()
    world.run_measures()
    for job in jobs:
        world.cluster.change(job, state="running", exit=None)
    world.wake(run_id, 1)
    assert world.run(run_id).verdict == "accepted"
    assert {world.cluster.jobs()[job]["state"] for job in jobs} == {"running"}, "its end is its own"
    world.check_invariants()


def test_a_value_that_was_pinned_meanwhile_is_the_slots(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another attempt's value is linked between the look at this one and its own link: the first one counts."""
    world.submit("better")
    first, second = world.measuring_jobs()
    world.cluster.execute(second)
    world.cluster.execute(first)
    slot = world.slot_folder(first)
    shutil.copytree(slot / "attempts" / "1", slot / "attempts" / "2")
    for name in ("claim.json", "result.json"):
        path = slot / "attempts" / "2" / name
        path.write_text(json.dumps({**json.loads(path.read_text()), "attempt": 2}))
    monkeypatch.setattr("outerloop.dispatch.settle._pinned_elsewhere", lambda directory, n: False)
    (slot / "accepted").write_text('{"attempt": 2, "restart": 0}')
    world.ticks_until_rest()
    [row] = [s for s in world.rows(Slot) if s.digest == slot.name]
    assert row.pinned_attempt == 2 and sorted(outcomes(world)) == ["done", "superseded SUPERSEDED"]
    world.check_invariants()


def test_out_of_memory_with_a_complete_result_is_measured_once_more(world: World) -> None:
    world.submit("better")
    first, second = world.measuring_jobs()
    world.cluster.execute(second)
    for expected in (3, 3):
        [job] = [i for i, body in world.measuring_jobs().items() if body["state"] == "pending"]
        world.cluster.execute(job)
        world.cluster.change(job, state="out_of_memory", exit=0)
        world.tick()
        assert len(world.measuring_jobs()) == expected
    assert first in world.measuring_jobs()
    finish(world)
    assert "suspect OUT_OF_MEMORY" in outcomes(world) and "done NOTED" in outcomes(world)


def test_a_person_who_cancels_a_job_blocks_its_run(world: World) -> None:
    run_id = world.submit("better")
    first, second = world.measuring_jobs()
    world.cluster.execute(second)
    world.cluster.change(first, state="cancelled", cancelled_by="4711")
    world.tick()
    assert state(world, run_id) == ("blocked", "CANCELLED")
    assert "4711" in world.run(run_id).state_detail
    for _ in range(2):
        world.tick()
    assert len(world.measuring_jobs()) == 2, "nobody works against a person"
    world.retry(run_id)
    finish(world)


def test_row_62_a_held_job_is_cancelled_and_tried_elsewhere(world: World) -> None:
    world.submit("better")
    first, _second = world.measuring_jobs()
    world.cluster.change(first, reason="launch failed requeued held")
    world.tick()
    assert world.cluster.jobs()[first]["state"] == "cancelled"
    assert outcomes(world) == ["infrastructure HELD"]
    newest = list(world.measuring_jobs().values())[-1]
    assert newest["exclude"] == ["n1"]
    finish(world)


def test_row_28_a_job_that_can_never_start_is_cancelled_and_blocks(world: World) -> None:
    run_id = world.submit("better")
    first, _second = world.measuring_jobs()
    world.cluster.change(first, reason="PartitionTimeLimit")
    world.tick()
    assert world.cluster.jobs()[first]["state"] == "cancelled"
    assert state(world, run_id) == ("blocked", "INFRASTRUCTURE")
    assert "PartitionTimeLimit" in world.run(run_id).state_detail
    world.retry(run_id)
    finish(world)


@pytest.mark.parametrize("reason", ["launch failed requeued held", "PartitionTimeLimit"])
def test_a_job_that_can_never_start_is_not_forgotten_while_its_cancel_is_not_delivered(
    world: World, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    run_id = world.submit("better")
    first, second = world.measuring_jobs()
    world.cluster.execute(second)
    world.cluster.change(first, reason=reason)
    plain = FileCluster.cancel
    monkeypatch.setattr(FileCluster, "cancel", lambda cluster, ids: NoAnswer("connect failure"))
    for _ in range(2):
        notes = world.tick().notes
        assert any(f"job {first} can never run and could not be cancelled: connect failure" in note for note in notes)
        assert world.cluster.jobs()[first]["state"] == "pending" and outcomes(world) == ["done"]
    monkeypatch.setattr(FileCluster, "cancel", plain)
    pid = world.forked(lambda: world.tick(), fault="after:compute.cancel:kill")
    assert pid == -9 and world.cluster.jobs()[first]["state"] == "cancelled", "killed between request and record"
    world.tick()
    assert "user" not in " ".join(outcomes(world)), "nobody but us cancelled it"
    if world.run(run_id).state == "blocked":
        world.retry(run_id)
    finish(world)


# -- doorbells


@pytest.mark.parametrize("reason", ["DependencyNeverSatisfied", "QOSMaxCpuPerJobLimit", "JobHeldAdmin"])
def test_row_32_a_wake_that_can_never_start_is_cancelled_and_its_run_advances(world: World, reason: str) -> None:
    run_id = world.submit("better")
    [wake] = world.wake_jobs()
    world.cluster.change(wake, reason=reason)
    report = world.tick()
    assert world.cluster.jobs()[wake]["state"] == "cancelled"
    assert [advanced.run_id for advanced in report.advanced] == [run_id]
    assert "dead" in {row.state for row in world.rows(Wake)}
    finish(world)


def test_with_every_wake_cancelled_ticks_alone_finish(world: World) -> None:
    world.submit("bigger")
    for _ in range(12):
        world.cluster.cancel(list(world.wake_jobs()))
        world.run_measures()
        world.tick()
        if not world.open_runs():
            break
    assert {run.verdict for run in world.runs()} == {"rejected"}
    world.check_invariants()


# -- files


def test_row_74_a_result_that_is_not_visible_yet_is_waited_for(make_world: MakeWorld) -> None:
    world = make_world(**PATIENT)
    world.submit("better")
    world.run_measures()
    results = [world.slot_folder(job) / "attempts" / "1" / "result.json" for job in world.measuring_jobs()]
    for result in results:
        result.rename(result.with_name("away"))
    world.tick()
    world.pass_time(20)
    world.tick()
    assert outcomes(world) == []
    results[0].with_name("away").rename(results[0])
    world.tick()
    assert outcomes(world) == ["done"], "it became visible within the grace"
    world.pass_time(41)
    world.tick()
    assert sorted(outcomes(world)) == ["done", "infrastructure NO_RESULT"]
    finish(world)
    assert len(world.measuring_jobs()) == 3


def test_two_jobs_for_one_attempt_are_one_execution_and_the_claim_says_which(world: World) -> None:
    world.submit("better")
    first, second = world.measuring_jobs()
    twin = world.cluster.copy(first)
    assert world.cluster.execute(twin) == 0
    assert world.cluster.execute(first) == 95
    world.cluster.execute(second)
    finish(world)
    assert world.executions() == 2
    assert {a.job_id for a in world.rows(Attempt)} == {twin, second}


def test_torn_and_foreign_results_and_claims_are_not_there_yet(make_world: MakeWorld) -> None:
    world = make_world(max_attempts=20)
    world.submit("better")
    first, second = world.measuring_jobs()
    world.cluster.execute(second)
    slot = world.slot_folder(first)
    good: dict[str, Any] = {}
    damages: list[Callable[[dict[str, Any]], str]] = [
        lambda body: "",
        lambda body: json.dumps(body)[: len(json.dumps(body)) // 2],
        lambda body: json.dumps([body]),
        lambda body: "\x00" * 4096,
        lambda body: json.dumps({**body, "digest": "0" * 64}),
        lambda body: json.dumps({**body, "attempt": 77}),
        lambda body: json.dumps({**body, "job_id": second}),
        lambda body: json.dumps({**body, "restart": 1}),
        lambda body: json.dumps({**body, "schema": 2}),
        lambda body: json.dumps({**body, "outcome": "splendid"}),
    ]
    for number, damage in enumerate(damages, 1):
        [job] = [i for i, body in world.measuring_jobs().items() if body["state"] == "pending"]
        assert world.cluster.execute(job) == 0
        result = slot / "attempts" / str(number) / "result.json"
        good = json.loads(result.read_text())
        result.write_text(damage(good))
        world.tick()
        assert (number, "settled", "infrastructure", "NO_RESULT") in attempts(world), world.describe()
    for number, text in enumerate(["", "{", json.dumps({"job_id": "1", "restart": 0})], len(damages) + 1):
        [job] = [i for i, body in world.measuring_jobs().items() if body["state"] == "pending"]
        (slot / "attempts" / str(number) / "claim.json").write_text(text)
        assert world.cluster.execute(job) == 95, "a claim that cannot be read is somebody's claim"
        world.tick()
        assert (number, "settled", "infrastructure", "NOT_CLAIMANT") in attempts(world), world.describe()
    finish(world)
    assert json.loads((slot / "accepted").read_text())["attempt"] == len(damages) + 4


@pytest.mark.parametrize(
    "accepted",
    ["", "[]", '{"attempt": 1, "restart": 0', '{"attempt": 7, "restart": 0}', '{"attempt": 0, "restart": 0}'],
)
def test_an_accepted_file_that_names_no_readable_result_binds_nobody(world: World, accepted: str) -> None:
    world.submit("better")
    for job in world.measuring_jobs():
        (world.slot_folder(job) / "accepted").write_text(accepted)
    finish(world)
    assert len(world.measuring_jobs()) == 2
    assert set(outcomes(world)) == {"done"}


def test_an_accepted_attempt_that_the_record_does_not_know_is_the_slots_value(world: World) -> None:
    """A record older than the disk (a restored backup): attempt 2 was pinned, the record still waits for attempt 1."""
    world.submit("better")
    first, second = world.measuring_jobs()
    world.cluster.execute(second)
    world.cluster.execute(first)
    slot = world.slot_folder(first)
    (slot / "attempts" / "1").rename(slot / "attempts" / "2")
    for name in ("claim.json", "result.json"):
        path = slot / "attempts" / "2" / name
        path.write_text(json.dumps({**json.loads(path.read_text()), "attempt": 2}))
    (slot / "accepted").write_text('{"attempt": 2, "restart": 0}')
    world.ticks_until_rest()
    assert {run.verdict for run in world.runs()} == {"accepted"}, world.describe()
    [row] = [s for s in world.rows(Slot) if s.digest == slot.name]
    assert row.pinned_attempt == 2 and len(world.measuring_jobs()) == 2
    world.check_invariants()


# -- whose fault it is


@pytest.mark.parametrize(
    ("extra", "cost", "reason"),
    [("exit 3\n", "8", "EXIT_3"), ("kill -KILL $$\n", "8", "SIGNAL_9"), ("", "nothing", "NO_METRIC")],
)
def test_a_candidate_that_fails_is_charged_with_its_own_failure(
    world: World, extra: str, cost: str, reason: str
) -> None:
    world.branch("faulty", cost=cost, extra=extra)
    run_id = world.submit("faulty")
    world.ticks_until_rest()
    run = world.run(run_id)
    assert run.verdict == "failed" and reason in (run.sentence or ""), (run.verdict, run.sentence)
    assert len(world.measuring_jobs()) == 2, "the candidate's own failure is not tried again"
    world.check_invariants()


def test_a_candidate_that_takes_longer_than_the_contract_grants_is_charged(world: World) -> None:
    world.branch("slow", cost="8", extra="exec sleep 60\n")
    run_id = world.submit("slow")
    for job in world.measuring_jobs():
        order = world.slot_folder(job) / "attempts" / "1" / "attempt.json"
        order.write_text(json.dumps({**json.loads(order.read_text()), "minutes": 0.03}))
    world.ticks_until_rest()
    run = world.run(run_id)
    assert run.verdict == "failed" and "TIMEOUT" in (run.sentence or ""), (run.verdict, run.sentence)
    world.check_invariants()


def test_a_base_that_fails_charges_nobody(world: World) -> None:
    world.branch("broken-base", extra="exit 3\n")
    run_id = world.submit("better", base="broken-base")
    world.ticks_until_rest()
    run = world.run(run_id)
    assert run.verdict != "accepted" and "base" in (run.verdict_reason or ""), (run.verdict, run.verdict_reason)
    assert len(world.measuring_jobs()) == 2
    world.check_invariants()


# -- cancelled while a submission hangs in the air


@pytest.mark.parametrize("mode", ["lost-after", "lost-before"])
def test_a_submission_that_nobody_waits_for_any_more_is_not_repeated_and_its_job_is_cancelled(
    world: World, mode: str
) -> None:
    world.cluster.set_mode("submit", mode)
    run_id = world.submit("better")
    world.cluster.set_mode("submit", "")
    world.cancel(run_id)
    for _ in range(4):
        world.tick()
    jobs = world.measuring_jobs()
    assert all(body["state"] == "cancelled" for body in jobs.values()), world.describe()
    assert len(jobs) == (2 if mode == "lost-after" else 0)
    assert {a.state for a in world.rows(Attempt)} == {"settled"}
    again = world.submit("better")
    assert again != run_id
    world.ticks_until_rest()
    assert world.run(again).verdict == "accepted"
    world.check_invariants()


def test_an_advance_that_broke_does_not_keep_its_lease(world: World) -> None:
    run_id = world.submit("better")
    world.run_measures()
    mirror = next(world.state.mirrors.iterdir())
    mirror.rename(mirror.with_name("away"))
    report = world.tick()
    assert run_id in report.broken
    mirror.with_name("away").rename(mirror)
    deployment = world.open()
    try:
        assert advance(deployment, run_id).state == "ended"
    finally:
        deployment.close()
    world.check_invariants()

"""Attacked: that the simulated cluster behaves as Slurm was measured to, and the same way every time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outerloop.compute.protocol import (
    Accepted,
    History,
    JobSpec,
    JobState,
    Lane,
    Listing,
    NoAnswer,
    Refused,
    Unavailable,
    Unknown,
    When,
)
from outerloop.compute.simulated import Clock, Execution, Outcome, Partition, Simulated, Site
from outerloop.compute.simulation.site import uniform_site

LANE = Lane(name="default")


class Rig:
    """A cluster whose scripts take ten seconds and are written down."""

    def __init__(self, nodes: int = 1, cpus: int = 2, **site: Any) -> None:
        self.ran: list[Execution] = []
        self.finished: list[str] = []
        self.seconds = 10.0
        self.code = 0
        self.cluster = Simulated(Site(nodes=uniform_site(nodes, cpus), **site), Clock(1000.0), self.work)

    def work(self, run: Execution) -> Outcome:
        self.ran.append(run)

        def finish(ended: float) -> int:
            self.finished.append(run.job_id)
            return self.code

        return Outcome(self.seconds, finish)

    def submit(self, name: str = "a", **changed: Any) -> Any:
        here = Path("/x")
        facts: dict[str, Any] = {"minutes": 5.0, "lane": LANE, **changed}
        return self.cluster.submit(JobSpec(name=name, script=here, log=here, workdir=here, **facts))

    def job(self, name: str = "a", **changed: Any) -> str:
        accepted = self.submit(name, **changed)
        assert isinstance(accepted, Accepted)
        return accepted.job_id

    def state(self, job_id: str) -> JobState | None:
        listing = self.cluster.listing()
        assert isinstance(listing, Listing)
        row = listing.by_id().get(job_id)
        return row.state if row else None

    def accounted(self, *ids: str, names: tuple[str, ...] = ()) -> dict[str, Any]:
        history = self.cluster.history(0.0, ids, names)
        assert isinstance(history, History)
        return {row.job_id: row for row in history.jobs}


def test_a_job_waits_runs_ends_and_is_forgotten_after_min_job_age() -> None:
    rig = Rig(min_job_age=60.0)
    job = rig.job()
    assert rig.state(job) is JobState.PENDING
    rig.cluster.advance(1)
    assert rig.state(job) is JobState.RUNNING
    rig.cluster.advance(10)
    assert rig.state(job) is JobState.COMPLETED
    rig.cluster.advance(61)
    assert rig.state(job) is None
    assert rig.accounted(job)[job].state is JobState.COMPLETED


def test_jobs_beyond_the_nodes_wait_for_their_turn_in_order_and_smaller_ones_pass() -> None:
    rig = Rig(cpus=2)
    first, second, third, small = rig.job(cpus=1), rig.job(cpus=2), rig.job(cpus=2), rig.job(cpus=1)
    rig.cluster.advance(1)
    assert [run.job_id for run in rig.ran] == [first, small]
    rig.cluster.advance(12)
    assert [run.job_id for run in rig.ran] == [first, small, second]
    rig.cluster.advance(12)
    assert rig.ran[-1].job_id == third


@pytest.mark.parametrize("after", [("999999",), ("PURGED",)])
def test_afterany_on_purged_and_unknown_ids_runs_at_once_or_is_refused_by_a_strict_site(after: tuple[str, ...]) -> None:
    for policy in ("satisfied", "refused"):
        rig = Rig(min_job_age=5.0, unknown_dependency=policy)
        done = rig.job()
        rig.cluster.advance(60)
        answer = rig.submit(after=tuple(done if i == "PURGED" else i for i in after))
        rig.cluster.advance(1)
        if policy == "refused":
            assert answer == Refused("Dependency", When.LATER, "Job dependency problem")
        else:
            assert len(rig.ran) == 2


def test_afterany_starts_when_the_last_one_ends_however_it_ended() -> None:
    rig = Rig(cpus=4)
    one, two = rig.job(), rig.job()
    waiting = rig.job("w", after=(one, two))
    rig.cluster.advance(2)
    rig.cluster.cancel_by(one, "0")
    rig.cluster.advance(8)
    assert rig.state(waiting) is JobState.PENDING
    rig.cluster.advance(10)
    assert (rig.state(one), rig.state(two)) == (JobState.COMPLETING, JobState.COMPLETED)
    assert rig.state(waiting) is JobState.PENDING, "the last one counts, and it is still being killed"
    rig.cluster.advance(30)
    assert [run.job_id for run in rig.ran] == [one, two, waiting]
    assert rig.state(one) is JobState.CANCELLED


def test_sacct_by_name_does_not_show_jobs_that_wait_for_a_dependency() -> None:
    rig = Rig()
    job = rig.job()
    waiting = rig.job("w", after=(job,))
    rig.cluster.advance(1)
    assert waiting not in rig.accounted(names=("w",))
    assert rig.accounted(waiting)[waiting].state is JobState.PENDING


def test_accounting_lags_may_be_down_and_may_be_absent() -> None:
    rig = Rig(accounting_lag=30.0)
    job = rig.job()
    rig.cluster.advance(20)
    assert rig.state(job) is JobState.COMPLETED
    assert rig.accounted(job) == {}
    rig.cluster.advance(30)
    assert rig.accounted(job)[job].state is JobState.COMPLETED
    rig.cluster.faults.accounting_down = True
    assert isinstance(rig.cluster.history(0.0, [job], []), NoAnswer)
    assert isinstance(Rig(accounting=False).cluster.history(0.0, [], []), Unavailable)


def test_lost_replies_leave_a_job_and_lost_requests_do_not() -> None:
    rig = Rig()
    rig.cluster.faults.replies.extend(["lost-before", "lost-after"])
    assert isinstance(rig.submit("before"), Unknown)
    assert isinstance(rig.submit("after"), Unknown)
    assert [job.spec.name for job in rig.cluster.jobs.values()] == ["after"]


def test_a_stopped_controller_takes_what_arrived_when_it_goes_on() -> None:
    rig = Rig()
    rig.cluster.faults.controller_down = rig.cluster.faults.stopped = True
    assert isinstance(rig.submit(), Unknown)
    assert isinstance(rig.cluster.listing(), NoAnswer)
    assert isinstance(rig.cluster.cancel(["1"]), NoAnswer)
    assert not rig.cluster.jobs
    rig.cluster.resume_controller()
    rig.cluster.advance(1)
    assert len(rig.ran) == 1


def test_a_failed_node_ends_its_jobs_while_their_processes_live_on() -> None:
    rig = Rig()
    job = rig.job()
    waiting = rig.job("w", after=(job,))
    rig.cluster.advance(2)
    rig.cluster.fail_node("node0001", zombies=True)
    assert rig.state(job) is JobState.NODE_FAIL
    assert not rig.finished
    rig.cluster.advance(20)
    assert rig.finished == [job]
    assert rig.state(waiting) is JobState.PENDING, "there is no other node"
    rig.cluster.restore_node("node0001")
    rig.cluster.advance(1)
    assert rig.ran[-1].job_id == waiting


def test_preempted_jobs_come_back_only_where_they_may() -> None:
    for mode, may, state in (
        ("REQUEUE", True, JobState.PENDING),
        ("REQUEUE", False, JobState.PREEMPTED),
        ("CANCEL", True, JobState.PREEMPTED),
    ):
        rig = Rig(preempt_mode=mode)
        job = rig.job(requeue=may)
        rig.cluster.advance(1)
        rig.cluster.preempt(job)
        assert rig.state(job) is state
        rig.cluster.advance(115)
        assert len(rig.ran) == 1, "a requeued job waits for longer than a credential lives"
        rig.cluster.advance(10)
        assert [run.restart for run in rig.ran] == ([0, 1] if state is JobState.PENDING else [0])


def test_over_its_limit_a_job_ends_a_little_late_and_without_its_own_end() -> None:
    rig = Rig()
    rig.seconds = 10_000
    job = rig.job(minutes=0.5)
    rig.cluster.advance(73)
    assert rig.state(job) is JobState.RUNNING
    rig.cluster.advance(18)
    assert rig.state(job) is JobState.TIMEOUT
    assert not rig.finished


def test_limits_refuse_hold_or_leave_a_shadow() -> None:
    rig = Rig(max_submit_jobs=1)
    rig.job()
    assert rig.submit() == Refused("AssocMaxSubmitJobLimit", When.LATER, "AssocMaxSubmitJobLimit")
    impossible = Rig()
    refused = impossible.submit(cpus=3)
    assert isinstance(refused, Refused) and refused.when is When.NEVER
    [shadow] = impossible.cluster.listing().jobs  # type: ignore[union-attr]
    assert (shadow.state, shadow.reason) == (JobState.FAILED, "BadConstraints")
    for enforced in (True, False):
        long = Rig(partitions=(Partition(max_minutes=1.0),), enforce_limits=enforced)
        answer = long.submit()
        assert isinstance(answer, Refused) is enforced
        long.cluster.advance(1000)
        assert not long.ran


def test_exit_codes_from_128_up_are_wrong_in_the_accounts_only() -> None:
    rig = Rig()
    rig.code = 255
    job = rig.job()
    rig.cluster.advance(20)
    assert rig.cluster.jobs[job].exit_code == 255
    assert rig.accounted(job)[job].exit_code == 127


def test_a_cap_on_running_jobs_and_begin_times_are_kept() -> None:
    rig = Rig(cpus=8, max_running_jobs=2)
    jobs = [rig.job() for _ in range(3)]
    late = rig.job("late", begin_seconds=100)
    rig.cluster.advance(5)
    assert [run.job_id for run in rig.ran] == jobs[:2]
    rig.cluster.advance(90)
    assert late not in [run.job_id for run in rig.ran]
    rig.cluster.advance(10)
    assert rig.ran[-1].job_id == late


def test_excluded_nodes_are_avoided() -> None:
    rig = Rig(nodes=2)
    rig.job(exclude=("node0001",))
    rig.cluster.advance(1)
    assert rig.ran[0].node == "node0002"


def test_a_job_held_in_a_full_queue_keeps_the_reason_and_lets_others_pass() -> None:
    """Found by a random schedule: the next look at the queue said Resources of a held job, for ever."""
    rig = Rig(cpus=1)
    first, held, third = rig.job(), rig.job(), rig.job()
    rig.cluster.advance(1)
    rig.cluster.hold(held)
    rig.job()  # and the queue is looked at again
    rig.cluster.advance(1)
    listing = rig.cluster.listing()
    assert isinstance(listing, Listing) and listing.by_id()[held].reason == "JobHeldAdmin"
    rig.cluster.advance(25)
    assert [rig.state(job) for job in (first, held, third)] == [
        JobState.COMPLETED,
        JobState.PENDING,
        JobState.COMPLETED,
    ]
    listing = rig.cluster.listing()
    assert isinstance(listing, Listing) and listing.by_id()[held].reason == "JobHeldAdmin"


def test_a_failed_node_requeues_what_may_be_requeued() -> None:
    rig = Rig(nodes=2)
    job = rig.job(requeue=True)
    rig.cluster.advance(1)
    rig.cluster.fail_node(rig.ran[0].node, zombies=False)
    assert (rig.state(job), rig.finished) == (JobState.PENDING, [])
    rig.cluster.advance(200)
    assert [run.restart for run in rig.ran] == [0, 1] and rig.ran[1].node != rig.ran[0].node
    assert rig.finished == [job]


def test_a_running_job_is_killed_after_kill_wait_and_the_request_may_be_lost() -> None:
    rig = Rig()
    job = rig.job()
    rig.cluster.advance(1)
    rig.cluster.faults.cancels_lost = True
    assert rig.cluster.cancel([job]) is None and rig.state(job) is JobState.RUNNING
    rig.cluster.faults.cancels_lost = False
    assert rig.cluster.cancel([job]) is None and rig.state(job) is JobState.COMPLETING
    rig.cluster.advance(29)
    assert rig.state(job) is JobState.COMPLETING
    rig.cluster.advance(2)
    assert rig.state(job) is JobState.CANCELLED and rig.finished == []


def test_the_queue_does_not_say_by_whom_a_job_was_cancelled_nor_with_what_code_it_failed() -> None:
    rig = Rig(uid="4711")
    ours, theirs = rig.job(), rig.job()
    rig.cluster.cancel([ours])
    rig.cluster.cancel_by(theirs, "0")
    rig.code = 3
    failed = rig.job()
    rig.cluster.advance(20)
    listing = rig.cluster.listing()
    assert isinstance(listing, Listing)
    rows = listing.by_id()
    assert {(row.cancelled_by, row.exit_code, row.restarts) for row in rows.values()} == {("", None, None)}
    told = rig.accounted(ours, theirs, failed)
    assert [told[job].cancelled_by for job in (ours, theirs)] == ["4711", "0"]
    assert (told[failed].state, told[failed].exit_code) == (JobState.FAILED, 3)


def test_a_held_job_stays_held_when_what_it_waits_for_ends() -> None:
    rig = Rig()
    first = rig.job()
    held = rig.job("w", after=(first,))
    rig.cluster.hold(held)
    rig.cluster.advance(100)
    assert rig.state(first) is JobState.COMPLETED and rig.state(held) is JobState.PENDING and len(rig.ran) == 1
    assert rig.cluster.jobs[held].reason == "JobHeldAdmin"


def test_a_lost_job_leaves_no_trace_and_its_script_no_end() -> None:
    rig = Rig()
    job = rig.job()
    rig.cluster.advance(1)
    rig.cluster.lose(job)
    rig.cluster.advance(100)
    assert rig.state(job) is None and rig.accounted(job) == {} and rig.finished == []


def test_memory_and_accidents_end_a_job_in_their_own_states() -> None:
    rig = Rig()
    killed, full = rig.job(), rig.job()
    rig.cluster.advance(1)
    rig.cluster.kill(killed)
    rig.cluster.kill(full, out_of_memory=True)
    assert (rig.state(killed), rig.state(full)) == (JobState.FAILED, JobState.OUT_OF_MEMORY)
    rig.cluster.work = lambda run: Outcome(1.0, out_of_memory=True)
    complete = rig.job()
    rig.cluster.advance(5)
    assert rig.state(complete) is JobState.OUT_OF_MEMORY
    rig.cluster.advance(100)
    assert rig.finished == []


def test_a_history_begins_where_it_was_asked_to() -> None:
    rig = Rig()
    job = rig.job()
    rig.cluster.advance(20)
    asked = [rig.cluster.history(since, [job], []) for since in (1000.0, 1015.0)]
    assert [len(told.jobs) for told in asked if isinstance(told, History)] == [1, 0]


def test_the_same_seed_ends_a_job_at_the_same_moment_and_another_one_elsewhere() -> None:
    def late(seed: int) -> float:
        rig = Rig()
        rig.cluster = Simulated(rig.cluster.site, Clock(1000.0), lambda run: Outcome(1e6), seed=seed)
        job = rig.job(minutes=1.0)
        rig.cluster.advance(200)
        ended = rig.cluster.jobs[job].ended
        assert ended is not None
        return ended

    assert late(3) == late(3) and len({late(seed) for seed in range(5)}) == 5


# -- arrays


def array(rig: Rig, count: int, name: str = "a", throttle: int | None = None, **changed: Any) -> Any:
    here = Path("/x")
    facts: dict[str, Any] = {"minutes": 5.0, "lane": LANE, **changed}
    return rig.cluster.submit_array(JobSpec(name=name, script=here, log=here, workdir=here, **facts), count, throttle)


def test_an_arrays_tasks_start_end_and_are_forgotten_one_by_one() -> None:
    rig = Rig(max_array_size=10, min_job_age=15.0, accounting_lag=0.0)
    accepted = array(rig, 3)
    assert isinstance(accepted, Accepted)
    tasks = [f"{accepted.job_id}_{task}" for task in range(3)]
    rig.cluster.advance(1)
    assert [rig.state(task) for task in tasks] == [JobState.RUNNING, JobState.RUNNING, JobState.PENDING]
    assert {run.spec.name for run in rig.ran} == {"a"}
    rig.cluster.advance(11)
    assert [rig.state(task) for task in tasks] == [JobState.COMPLETED, JobState.COMPLETED, JobState.RUNNING]
    rig.cluster.advance(15)
    assert [rig.state(task) for task in tasks] == [None, None, JobState.COMPLETED]
    assert set(rig.accounted(accepted.job_id)) == set(tasks), "an array's id covers its tasks"
    assert set(rig.accounted(tasks[1])) == {tasks[1]}
    assert set(rig.accounted(names=("a",))) == set(tasks)


def test_a_dependency_on_an_array_waits_for_all_of_it_and_one_on_a_task_for_that_task() -> None:
    rig = Rig(cpus=1, max_array_size=10)
    first = array(rig, 2)
    whole, second = rig.job("whole", after=(first.job_id,)), rig.job("second", after=(f"{first.job_id}_0",))
    rig.cluster.advance(11.5)
    assert (rig.state(whole), rig.cluster.jobs[second].waits_for) == (JobState.PENDING, 0)
    assert rig.cluster.jobs[whole].waits_for == 1
    rig.cluster.advance(30)
    assert rig.state(whole) is JobState.COMPLETED


def test_an_array_is_taken_whole_or_not_at_all() -> None:
    rig = Rig(max_array_size=4, max_submit_jobs=5)
    assert array(rig, 5) == Refused("ArraySize", When.LATER, "Invalid job array specification")
    assert isinstance(array(rig, 3), Accepted)
    assert array(rig, 3) == Refused("AssocMaxSubmitJobLimit", When.LATER, "AssocMaxSubmitJobLimit")
    assert rig.cluster.live == 3 and len(rig.cluster.jobs) == 3
    assert isinstance(array(rig, 2), Accepted)


def test_a_task_can_be_cancelled_alone_and_an_array_at_once() -> None:
    rig = Rig(max_array_size=10)
    accepted = array(rig, 4)
    rig.cluster.cancel([f"{accepted.job_id}_1"])
    assert [j.state for j in rig.cluster.jobs.values()].count(JobState.CANCELLED) == 1
    rig.cluster.cancel([accepted.job_id])
    assert {j.state for j in rig.cluster.jobs.values()} == {JobState.CANCELLED}


def test_a_throttled_array_runs_so_many_tasks_at_once_and_keeps_nobody_else_waiting() -> None:
    rig = Rig(cpus=8, max_array_size=10)
    held = array(rig, 5, throttle=2)
    other = array(rig, 3, "other", throttle=3)
    alone = rig.job("alone")
    rig.cluster.advance(1)

    def running(job_id: str) -> int:
        return sum(rig.state(i) is JobState.RUNNING for i in rig.cluster.tasks[job_id])

    assert (running(held.job_id), running(other.job_id), rig.state(alone)) == (2, 3, JobState.RUNNING)
    assert rig.cluster.jobs[f"{held.job_id}_2"].reason == "JobArrayTaskLimit"
    most = 0
    while rig.cluster.advance_to_next():
        most = max(most, running(held.job_id))
    assert most == 2 and rig.finished[-1].startswith(held.job_id) and len(rig.finished) == 9


def test_a_throttled_task_that_is_requeued_or_cancelled_leaves_its_place_to_the_next() -> None:
    rig = Rig(cpus=8, max_array_size=10)
    held = array(rig, 4, throttle=1, requeue=True)
    tasks = [f"{held.job_id}_{task}" for task in range(4)]
    rig.cluster.advance(1)
    rig.cluster.requeue(tasks[0])
    rig.cluster.cancel([tasks[2]])
    while rig.cluster.advance_to_next():
        assert [rig.state(task) for task in tasks].count(JobState.RUNNING) <= 1
    assert sorted(rig.finished) == [tasks[0], tasks[1], tasks[3]]


def test_an_array_whose_reply_was_lost_is_there() -> None:
    rig = Rig(max_array_size=10)
    rig.cluster.faults.replies += ["lost-before", "lost-after"]
    assert isinstance(array(rig, 2, "gone"), Unknown) and isinstance(array(rig, 2, "there"), Unknown)
    listing = rig.cluster.listing()
    assert isinstance(listing, Listing) and [row.name for row in listing.jobs] == ["there", "there"]


def test_a_site_without_arrays_says_so() -> None:
    rig = Rig()
    assert not rig.cluster.arrays
    refused = array(rig, 2)
    assert isinstance(refused, Refused) and refused.when is When.CONFIG


# -- steps


@pytest.mark.parametrize("zombies", [False, True])
def test_what_a_script_does_on_the_way_ends_with_it_unless_its_processes_live_on(zombies: bool) -> None:
    rig = Rig()
    done: list[str] = []

    def work(run: Execution) -> Outcome:
        rig.ran.append(run)
        return Outcome(10.0, steps=((2.0, lambda: done.append("early")), (6.0, lambda: done.append("late"))))

    rig.cluster.work = work
    rig.job()
    rig.cluster.advance(4)
    assert done == ["early"]
    rig.cluster.fail_node("node0001", zombies=zombies)
    rig.cluster.advance(20)
    assert done == (["early", "late"] if zombies else ["early"])

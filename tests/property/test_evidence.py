"""The evidence table over its whole input space: total, never fooled by silence, never charging the wrong side."""

from __future__ import annotations

import itertools
from dataclasses import fields
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from outerloop.compute.protocol import JobState
from outerloop.compute.reasons import HELD_BY_USER, NEVER, Clears, pending_reason
from outerloop.dispatch.evidence import (
    Action,
    Evidence,
    IntentAction,
    IntentEvidence,
    ResultFacts,
    read_evidence,
    read_intent,
)

REASONS = ["", "EXIT_1", "SIGNAL_9", "TIMEOUT", "NO_METRIC", "CHECKOUT", "SANDBOX", "SCRATCH_FULL", "CANCELLED"]
PHASES = ["", "setup", "command", "score", "parse", "artifacts"]
SLURM_REASONS = [
    "",
    "None",
    "Priority",
    "Resources",
    "ReqNodeNotAvail, UnavailableNodes:n2",
    "launch failed requeued held",
    "PartitionTimeLimit",
    "BadConstraints",
    "SomethingNew",
]

results = st.builds(
    ResultFacts,
    ok=st.booleans(),
    value_usable=st.booleans(),
    reason=st.sampled_from(REASONS),
    phase=st.sampled_from(PHASES),
)
seconds = st.sampled_from([0.0, 1.0, 59.9, 60.0, 61.0, 299.0, 300.0, 1e6])
AXES: dict[str, st.SearchStrategy[Any]] = {
    "answered": st.booleans(),
    "listed": st.booleans(),
    "state": st.none() | st.sampled_from(list(JobState)),
    "slurm_reason": st.sampled_from(SLURM_REASONS),
    "exit_code": st.none() | st.sampled_from([0, 1, 95, 96, 97, 98, 99, 137]),
    "elapsed_seconds": st.none() | seconds,
    "node": st.sampled_from(["", "n2"]),
    "cancelled_by": st.sampled_from(["", "0", "root", "1000", "slurm"]),
    "canceller_open": st.booleans(),
    "owner_uid": st.sampled_from(["0", "1000"]),
    "result": st.none() | results,
    "claimed": st.booleans(),
    "pinned_elsewhere": st.booleans(),
    "ended_for_seconds": seconds,
    "environment": st.booleans(),
    "several_nodes": st.booleans(),
    "resumable": st.booleans(),
    "progressed": st.booleans(),
    "requeue_marker": st.booleans(),
    "stalled_before": st.booleans(),
    "suspect_before": st.booleans(),
    "cancel_reason": st.sampled_from(["", "run c-1: cancelled"]),
    "packed": st.booleans(),
    "member_exit": st.none() | st.sampled_from([0, 1, 95, 99, 137]),
    "member_oom": st.none() | st.booleans(),
    "behind": st.booleans(),
    "preempt_cancels": st.booleans(),
    "grace_seconds": st.sampled_from([0.0, 60.0]),
    "preempt_grace_seconds": st.sampled_from([0.0, 300.0]),
}
evidences = st.builds(Evidence, **AXES)
FINAL_LOOKING = [state for state in JobState if state.final]


def told_by_its_member(e: Evidence) -> bool:
    """Whether a pack has noted this member's own ending, which then counts instead of the job's."""
    return e.packed and e.member_exit is not None


def test_every_axis_of_the_table_is_drawn() -> None:
    assert set(AXES) == {field.name for field in fields(Evidence)}


@given(evidences)
@settings(max_examples=600)
def test_every_evidence_has_one_decision_and_settled_ones_say_why(e: Evidence) -> None:
    decision = read_evidence(e)
    assert decision == read_evidence(e)
    if decision.settles and decision.action is not Action.DONE:
        assert decision.reason


@given(evidences)
@settings(max_examples=600)
def test_no_answer_and_no_result_changes_nothing(e: Evidence) -> None:
    if not e.answered and e.result is None and not e.pinned_elsewhere:
        assert read_evidence(e).action is Action.NOTHING


@given(evidences)
@settings(max_examples=600)
def test_a_value_needs_a_complete_result(e: Evidence) -> None:
    decision = read_evidence(e)
    if decision.action in {Action.DONE, Action.SUSPECT}:
        assert e.result is not None and e.result.ok and e.result.value_usable


@given(evidences)
@settings(max_examples=600)
def test_the_candidate_is_charged_only_for_what_it_did(e: Evidence) -> None:
    decision = read_evidence(e)
    if decision.action is not Action.FAILED:
        return
    infrastructure = {"CHECKOUT", "SANDBOX", "SCRATCH_FULL"}
    told_by_result = e.result is not None and (e.result.ok or e.result.reason not in infrastructure)
    out_of_memory = e.state is JobState.OUT_OF_MEMORY or (told_by_its_member(e) and e.member_oom)
    assert told_by_result or out_of_memory or decision.reason == "STALLED"
    if e.result is not None and e.result.phase == "setup":
        assert out_of_memory or decision.reason == "STALLED" or e.result.ok or e.result.reason == "CANCELLED"


@given(evidences)
@settings(max_examples=600)
def test_a_job_that_the_queue_calls_alive_is_not_ended_by_absence_or_grace(e: Evidence) -> None:
    alive = e.answered and e.listed and e.state in {JobState.RUNNING, JobState.COMPLETING, JobState.SUSPENDED}
    if alive and e.result is None and not e.pinned_elsewhere and not told_by_its_member(e):
        assert read_evidence(e).action is Action.ALIVE


@given(evidences)
@settings(max_examples=600)
def test_an_ending_without_result_waits_for_its_files(e: Evidence) -> None:
    node_loss = {JobState.NODE_FAIL, JobState.BOOT_FAIL, JobState.LAUNCH_FAILED, JobState.PREEMPTED}
    ended = e.answered and e.result is None and not e.pinned_elsewhere and (e.state is None or e.state.final)
    if ended and e.state not in node_loss and e.ended_for_seconds < e.grace_seconds:
        decision = read_evidence(e)
        assert decision.action is Action.WAIT or decision.reason == "BadConstraints"


@given(evidences)
@settings(max_examples=600)
def test_environments_are_never_charged_to_a_candidate_by_their_result(e: Evidence) -> None:
    if e.environment and e.result is not None and not e.result.ok and e.result.reason != "CANCELLED":
        action = read_evidence(e).action
        assert action is not Action.FAILED
        if not e.several_nodes:  # on several nodes the queue is asked first whether one of them was lost
            assert action in {Action.ENVIRONMENT, Action.INFRASTRUCTURE, Action.SUPERSEDED}


@given(st.sampled_from([*sorted(NEVER), *SLURM_REASONS, "QOSMinGRES", "QOSMaxGRESPerJob", HELD_BY_USER]) | st.text())
@settings(max_examples=300)
def test_what_people_are_told_of_a_pending_reason_is_what_is_done_about_it(reason: str) -> None:
    action = read_evidence(Evidence(answered=True, listed=True, state=JobState.PENDING, slurm_reason=reason)).action
    meaning = pending_reason(reason)
    if meaning.held:
        assert action is (Action.ALIVE if meaning.reason == HELD_BY_USER else Action.INFRASTRUCTURE)
    else:
        assert action is (Action.HOPELESS if meaning.clears is Clears.NEVER else Action.ALIVE)


CHECKS = (
    test_every_evidence_has_one_decision_and_settled_ones_say_why,
    test_no_answer_and_no_result_changes_nothing,
    test_a_value_needs_a_complete_result,
    test_the_candidate_is_charged_only_for_what_it_did,
    test_a_job_that_the_queue_calls_alive_is_not_ended_by_absence_or_grace,
    test_an_ending_without_result_waits_for_its_files,
    test_environments_are_never_charged_to_a_candidate_by_their_result,
)
RESULTS = (
    None,
    ResultFacts(ok=True, value_usable=True),
    ResultFacts(ok=True, value_usable=False),
    ResultFacts(ok=False, value_usable=False, reason="EXIT_1", phase="command"),
    ResultFacts(ok=False, value_usable=False, reason="TIMEOUT", phase="command"),
    ResultFacts(ok=False, value_usable=False, reason="SCRATCH_FULL", phase="setup"),
    ResultFacts(ok=False, value_usable=False, reason="CANCELLED", phase="command"),
)
MEMBERS: tuple[dict[str, Any], ...] = (
    {},
    {"packed": True, "behind": True},
    {"packed": True, "member_exit": 0, "member_oom": False},
    {"packed": True, "member_exit": 137, "member_oom": True},
)
WORK: tuple[dict[str, Any], ...] = (
    {},
    {"environment": True},
    {"several_nodes": True},
    {"resumable": True},
    {"resumable": True, "progressed": True},
    {"resumable": True, "stalled_before": True},
)


def test_every_state_with_every_result_keeps_every_promise() -> None:
    """No sample: each combination of what the queue, the files and the slot's history can say in kind."""
    checks = [check.hypothesis.inner_test for check in CHECKS]  # type: ignore[attr-defined]
    seen = set()
    yes_or_no = (False, True)
    for answered, listed, state, result, claimed in itertools.product(
        yes_or_no, yes_or_no, (None, *JobState), RESULTS, yes_or_no
    ):
        for ended, cancelled, member, work in itertools.product((0.0, 1e6), ("", "run c-1: cancelled"), MEMBERS, WORK):
            e = Evidence(
                answered=answered,
                listed=listed,
                state=state,
                result=result,
                claimed=claimed,
                ended_for_seconds=ended,
                cancel_reason=cancelled,
                **member,
                **work,
            )
            for check in checks:
                check(e)
            seen.add(read_evidence(e).action)
    assert seen == set(Action) - {Action.HOPELESS, Action.SUPERSEDED}, "those two hang on one field each"


times = st.sampled_from([0.0, 10.0, 100.0, 170.0, 200.0, 300.0, 400.0, 1000.0])
intents = st.builds(
    IntentEvidence,
    now=times,
    intent_at=times,
    unknown_at=st.none() | times,
    absent_at=st.none() | times,
    answered=st.booleans(),
    answer_started=times,
    found_job_id=st.sampled_from(["", "77"]),
    claimed_job_id=st.sampled_from(["", "78"]),
    shadow=st.booleans(),
)


@given(intents)
@settings(max_examples=600)
def test_an_intent_goes_out_again_only_after_two_complete_absences_one_grace_apart(e: IntentEvidence) -> None:
    if read_intent(e) is IntentAction.RESUBMIT:
        assert e.answered and not e.found_job_id and not e.claimed_job_id
        assert e.unknown_at is not None and e.absent_at is not None
        assert e.unknown_at < e.absent_at
        assert e.answer_started - e.absent_at >= e.grace_seconds


@given(intents)
@settings(max_examples=600)
def test_a_claim_or_a_name_in_the_queue_is_adopted_whatever_else_is_known(e: IntentEvidence) -> None:
    action = read_intent(e)
    if e.claimed_job_id:
        assert action is IntentAction.ADOPT
    elif e.answered and e.shadow:
        assert action is IntentAction.REFUSED
    elif e.answered and e.found_job_id:
        assert action is IntentAction.ADOPT
    elif not e.answered:
        assert action in {IntentAction.LEAVE, IntentAction.NOTE_UNKNOWN}

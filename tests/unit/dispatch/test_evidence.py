"""The rows of the evidence table, one by one, in the words of the explanation page."""

from __future__ import annotations

from typing import Any

import pytest

from outerloop.compute.protocol import JobState as S
from outerloop.dispatch.evidence import Action as A
from outerloop.dispatch.evidence import (
    Evidence,
    IntentAction,
    IntentEvidence,
    ResultFacts,
    read_evidence,
    read_intent,
)
from outerloop.job import layout

OK = ResultFacts(ok=True, value_usable=True)
LATE = 1e6


def read(**facts: object) -> tuple[A, str]:
    defaults: dict[str, object] = {"answered": True, "listed": False, "claimed": True, "ended_for_seconds": LATE}
    decision = read_evidence(Evidence(**{**defaults, **facts}))  # type: ignore[arg-type]
    return decision.action, decision.reason


@pytest.mark.parametrize("state", [s for s in S if s is not S.OUT_OF_MEMORY])
def test_a_valid_result_is_done_whatever_slurm_says(state: S) -> None:
    assert read(result=OK, state=state)[0] is A.DONE


def test_a_valid_result_is_done_without_any_answer() -> None:
    assert read(result=OK, answered=False)[0] is A.DONE


def test_out_of_memory_with_a_complete_result_is_measured_once_more() -> None:
    assert read(result=OK, state=S.OUT_OF_MEMORY) == (A.SUSPECT, "OUT_OF_MEMORY")
    assert read(result=OK, state=S.OUT_OF_MEMORY, suspect_before=True) == (A.DONE, "NOTED")


def test_a_missing_metric_is_the_candidates() -> None:
    assert read(result=ResultFacts(True, False)) == (A.FAILED, "NO_METRIC")


@pytest.mark.parametrize("reason", ["EXIT_3", "SIGNAL_11", "TIMEOUT", "NO_METRIC"])
def test_what_the_command_did_is_charged_to_it(reason: str) -> None:
    facts = ResultFacts(False, False, reason=reason, phase="command")
    assert read(result=facts, state=S.COMPLETED) == (A.FAILED, reason)


@pytest.mark.parametrize("reason", ["CHECKOUT", "SANDBOX", "SCRATCH_FULL"])
def test_setup_failures_are_infrastructure(reason: str) -> None:
    assert read(result=ResultFacts(False, False, reason=reason, phase="setup")) == (A.INFRASTRUCTURE, reason)


def test_a_command_killed_for_memory_says_memory() -> None:
    facts = ResultFacts(False, False, reason="SIGNAL_9", phase="command")
    assert read(result=facts, state=S.OUT_OF_MEMORY) == (A.FAILED, "MEMORY")


def test_slurms_time_limit_without_result_is_infrastructure() -> None:
    assert read(state=S.TIMEOUT) == (A.INFRASTRUCTURE, "SLURM_TIMEOUT")


def test_out_of_memory_without_result_is_memory() -> None:
    assert read(state=S.OUT_OF_MEMORY) == (A.FAILED, "MEMORY")


@pytest.mark.parametrize("code", range(layout.EXIT_NOT_CLAIMANT, layout.EXIT_RESTARTED + 1))
def test_nobody_ran_out_of_memory_who_did_not_begin(code: int) -> None:
    """Seed 30224: a restarted pack refused a member, and what was killed for memory beside it was charged to it."""
    action, reason = read(state=S.OUT_OF_MEMORY, exit_code=code, claimed=True)
    assert (action, reason) == read(state=S.FAILED, exit_code=code, claimed=True)
    assert action is A.INFRASTRUCTURE


@pytest.mark.parametrize("state", [S.NODE_FAIL, S.BOOT_FAIL, S.LAUNCH_FAILED])
def test_node_loss_is_infrastructure_and_excludes_the_node(state: S) -> None:
    decision = read_evidence(Evidence(answered=True, state=state, node="n7"))
    assert decision.action is A.INFRASTRUCTURE and decision.exclude_node


def test_held_after_a_failed_launch_is_not_waiting() -> None:
    assert read(state=S.PENDING, listed=True, slurm_reason="launch failed requeued held") == (A.INFRASTRUCTURE, "HELD")


def test_failed_at_once_without_claim_never_started() -> None:
    assert read(state=S.FAILED, claimed=False, elapsed_seconds=1.0) == (A.INFRASTRUCTURE, "NEVER_STARTED")


def test_the_shadow_of_a_refusal_is_hopeless() -> None:
    assert read(state=S.FAILED, claimed=False, slurm_reason="BadConstraints") == (A.HOPELESS, "BadConstraints")


@pytest.mark.parametrize("reason", ["PartitionTimeLimit", "QOSMaxWallDurationPerJobLimit", "BadConstraints"])
def test_pending_for_ever_is_reported(reason: str) -> None:
    assert read(state=S.PENDING, listed=True, slurm_reason=reason)[0] is A.HOPELESS


@pytest.mark.parametrize("reason", ["Priority", "Resources", "QOSMaxJobsPerUserLimit", "ReqNodeNotAvail", "NewReason"])
def test_pending_that_may_clear_is_alive(reason: str) -> None:
    assert read(state=S.PENDING, listed=True, slurm_reason=reason)[0] is A.ALIVE


def test_preempted_and_listed_is_alive_and_not_listed_gets_a_grace() -> None:
    assert read(state=S.PREEMPTED, listed=True)[0] is A.ALIVE
    assert read(state=S.PREEMPTED, ended_for_seconds=240.0)[0] is A.WAIT
    assert read(state=S.PREEMPTED) == (A.INFRASTRUCTURE, "PREEMPTED")
    assert read(state=S.PREEMPTED, preempt_cancels=True, ended_for_seconds=0.0) == (A.INFRASTRUCTURE, "PREEMPTED")


def test_resumable_work_goes_on_from_a_newer_checkpoint_and_stalls_without() -> None:
    assert read(state=S.TIMEOUT, resumable=True, progressed=True)[0] is A.CONTINUE
    assert read(state=S.PREEMPTED, resumable=True, progressed=True)[0] is A.CONTINUE
    assert read(state=S.TIMEOUT, resumable=True)[0] is A.CONTINUE
    assert read(state=S.TIMEOUT, resumable=True, stalled_before=True) == (A.FAILED, "STALLED")


def test_who_cancelled_decides() -> None:
    assert read(state=S.CANCELLED, cancel_reason="run c-1: not needed")[0] is A.CANCELLED
    assert read(state=S.CANCELLED, cancelled_by="1000", owner_uid="1000") == (A.USER, "CANCELLED_BY_USER")
    assert read(state=S.CANCELLED, cancelled_by="0", owner_uid="1000") == (A.INFRASTRUCTURE, "CANCELLED_BY_SYSTEM")
    assert read(state=S.CANCELLED, cancelled_by="0", owner_uid="0")[0] is A.USER
    assert read(state=S.CANCELLED)[0] is A.USER
    assert read(state=S.CANCELLED, canceller_open=True)[0] is A.WAIT, "nothing is concluded from silence"
    assert read(state=S.CANCELLED, canceller_open=True, cancel_reason="ours")[0] is A.CANCELLED
    assert read(state=S.CANCELLED, cancelled_by="slurm", owner_uid="1000") == (A.INFRASTRUCTURE, "CANCELLED_BY_SYSTEM")


def test_gone_without_a_trace_is_lost_after_its_grace() -> None:
    assert read(state=None, ended_for_seconds=1.0)[0] is A.WAIT
    assert read(state=None) == (A.INFRASTRUCTURE, "LOST")


def test_a_failed_environment_blocks_and_charges_nobody() -> None:
    facts = ResultFacts(False, False, reason="EXIT_1", phase="command")
    assert read(result=facts, environment=True)[0] is A.ENVIRONMENT


def test_no_answer_is_not_absence() -> None:
    assert read(answered=False)[0] is A.NOTHING


def test_another_attempts_value_settles_this_one() -> None:
    assert read(pinned_elsewhere=True, result=OK)[0] is A.SUPERSEDED


# -- what goes before what


def failed(reason: str, phase: str = "command") -> ResultFacts:
    return ResultFacts(ok=False, value_usable=False, reason=reason, phase=phase)


ORDER: list[tuple[dict[str, Any], tuple[A, str]]] = [
    # A result that only says that somebody ended the work: the queue knows who.
    ({"result": failed("CANCELLED"), "answered": False}, (A.NOTHING, "")),
    ({"result": failed("CANCELLED"), "state": S.RUNNING, "listed": True}, (A.ALIVE, "")),
    ({"result": failed("CANCELLED"), "state": S.CANCELLED, "cancelled_by": "7"}, (A.USER, "CANCELLED_BY_USER")),
    ({"result": failed("CANCELLED"), "state": S.TIMEOUT}, (A.INFRASTRUCTURE, "SLURM_TIMEOUT")),
    ({"result": failed("CANCELLED"), "state": S.PREEMPTED, "resumable": True, "progressed": True},
     (A.CONTINUE, "PREEMPTED")),
    # The command on the first of several nodes fails when another node is lost, seconds before the queue says so.
    ({"result": failed("EXIT_1"), "several_nodes": True, "answered": False}, (A.NOTHING, "")),
    ({"result": failed("EXIT_1"), "several_nodes": True, "state": S.RUNNING, "listed": True}, (A.ALIVE, "")),
    ({"result": failed("EXIT_1"), "several_nodes": True, "state": S.NODE_FAIL}, (A.INFRASTRUCTURE, "NODE_FAIL")),
    ({"result": failed("EXIT_1"), "several_nodes": True, "state": S.PREEMPTED}, (A.INFRASTRUCTURE, "PREEMPTED")),
    ({"result": failed("EXIT_1"), "several_nodes": True, "state": S.FAILED}, (A.FAILED, "EXIT_1")),
    ({"result": failed("EXIT_1"), "several_nodes": True, "state": None}, (A.FAILED, "EXIT_1")),
    ({"result": failed("EXIT_1"), "several_nodes": False, "state": S.NODE_FAIL}, (A.FAILED, "EXIT_1")),
    ({"result": failed("TIMEOUT"), "several_nodes": True, "state": S.RUNNING}, (A.FAILED, "TIMEOUT")),
    ({"result": failed("CHECKOUT", "setup"), "several_nodes": True, "state": S.RUNNING},
     (A.INFRASTRUCTURE, "CHECKOUT")),
    # Setup is never the candidate's, whatever it is called; nor are these reasons, wherever they come up.
    ({"result": failed("EXIT_1", "setup")}, (A.INFRASTRUCTURE, "EXIT_1")),
    ({"result": failed("", "setup")}, (A.INFRASTRUCTURE, "SETUP")),
    *(({"result": failed(reason, "command")}, (A.INFRASTRUCTURE, reason)) for reason in
      ("CHECKOUT", "SANDBOX", "SCRATCH_FULL", "SPEC", "INPUT", "ENVIRONMENT", "RESOURCES", "SETUP", "REFUSED")),
    ({"result": failed("INPUT", "score"), "environment": True}, (A.INFRASTRUCTURE, "INPUT")),
    # Its own limit ends resumable work between two checkpoints; anything else that it does is its own.
    ({"result": failed("TIMEOUT"), "resumable": True, "progressed": True}, (A.CONTINUE, "TIMEOUT")),
    ({"result": failed("TIMEOUT"), "resumable": True, "stalled_before": True}, (A.FAILED, "STALLED")),
    ({"result": failed("TIMEOUT"), "resumable": True, "progressed": True, "stalled_before": True},
     (A.CONTINUE, "TIMEOUT")),
    ({"result": failed("TIMEOUT", "score"), "resumable": True, "progressed": True}, (A.FAILED, "TIMEOUT")),
    ({"result": failed("EXIT_1"), "resumable": True, "progressed": True}, (A.FAILED, "EXIT_1")),
    ({"result": failed("TIMEOUT"), "state": S.OUT_OF_MEMORY}, (A.FAILED, "TIMEOUT")),
    ({"result": failed("SIGNAL_9"), "state": S.OUT_OF_MEMORY, "answered": False}, (A.FAILED, "SIGNAL_9")),
    # Ours to end: the reason was recorded before the scancel, and counts in every way in which the job can go.
    ({"state": None, "cancel_reason": "ours"}, (A.CANCELLED, "CANCELLED")),
    ({"state": S.PREEMPTED, "cancel_reason": "ours", "listed": True}, (A.CANCELLED, "CANCELLED")),
    ({"state": S.CANCELLED, "cancel_reason": "ours", "cancelled_by": "0"}, (A.CANCELLED, "CANCELLED")),
    # Work that can go on does, however its job went.
    ({"state": None, "resumable": True, "progressed": True}, (A.CONTINUE, "LOST")),
    ({"state": None, "resumable": True}, (A.INFRASTRUCTURE, "LOST")),
    ({"state": S.NODE_FAIL, "resumable": True, "progressed": True}, (A.CONTINUE, "NODE_FAIL")),
    ({"state": S.NODE_FAIL, "resumable": True}, (A.INFRASTRUCTURE, "NODE_FAIL")),
    ({"state": S.FAILED, "resumable": True, "requeue_marker": True}, (A.CONTINUE, "FAILED")),
    ({"state": S.FAILED, "resumable": False, "requeue_marker": True}, (A.INFRASTRUCTURE, "NO_RESULT")),
    ({"state": S.COMPLETED, "resumable": True, "progressed": True}, (A.CONTINUE, "COMPLETED")),
    ({"state": S.TIMEOUT, "resumable": True, "progressed": True, "stalled_before": True}, (A.CONTINUE, "TIMEOUT")),
    ({"state": S.OUT_OF_MEMORY, "resumable": True, "progressed": True}, (A.FAILED, "MEMORY")),
    ({"state": S.CANCELLED, "resumable": True, "progressed": True, "cancelled_by": "7"},
     (A.USER, "CANCELLED_BY_USER")),
    # PreemptMode=CANCEL: nothing brings the job back, listed or not; elsewhere it has a patience of its own.
    ({"state": S.PREEMPTED, "listed": True, "preempt_cancels": True}, (A.INFRASTRUCTURE, "PREEMPTED")),
    ({"state": S.PREEMPTED, "ended_for_seconds": 61.0}, (A.WAIT, "PREEMPTED")),
    # Environments.
    ({"state": S.OUT_OF_MEMORY, "environment": True}, (A.ENVIRONMENT, "MEMORY")),
    ({"state": S.FAILED, "environment": True}, (A.INFRASTRUCTURE, "NO_RESULT")),
    # How our own program, or nothing of ours, ended.
    *(({"state": S.FAILED, "exit_code": code}, (A.INFRASTRUCTURE, reason)) for code, reason in (
        (layout.EXIT_SPEC, "SPEC"), (layout.EXIT_CHECKOUT, "CHECKOUT"), (layout.EXIT_SANDBOX, "SANDBOX"),
        (layout.EXIT_RESTARTED, "RESTARTED"), (layout.EXIT_NOT_CLAIMANT, "NOT_CLAIMANT"), (1, "NO_RESULT"))),
    ({"state": S.FAILED, "claimed": False, "elapsed_seconds": None}, (A.INFRASTRUCTURE, "NEVER_STARTED")),
    ({"state": S.FAILED, "claimed": False, "elapsed_seconds": 61.0}, (A.INFRASTRUCTURE, "NO_RESULT")),
    ({"state": S.FAILED, "claimed": True, "elapsed_seconds": 1.0}, (A.INFRASTRUCTURE, "NO_RESULT")),
    ({"state": S.FAILED, "claimed": True, "slurm_reason": "BadConstraints"}, (A.INFRASTRUCTURE, "NO_RESULT")),
    ({"state": S.DEADLINE}, (A.INFRASTRUCTURE, "DEADLINE")),
    ({"state": S.COMPLETED}, (A.INFRASTRUCTURE, "NO_RESULT")),
    # By whom.
    ({"state": S.CANCELLED, "cancelled_by": "root", "owner_uid": "1000"}, (A.INFRASTRUCTURE, "CANCELLED_BY_SYSTEM")),
    ({"state": S.CANCELLED, "cancelled_by": "7", "canceller_open": True}, (A.USER, "CANCELLED_BY_USER")),
]  # fmt: skip


@pytest.mark.parametrize(("facts", "expected"), ORDER, ids=lambda value: " ".join(map(str, value.values()))[:60]
                         if isinstance(value, dict) else None)  # fmt: skip
def test_one_row_goes_before_another(facts: dict[str, Any], expected: tuple[A, str]) -> None:
    assert read(**facts) == expected


@pytest.mark.parametrize(
    ("facts", "leaves"),
    [
        ({"state": S.PENDING, "slurm_reason": "launch failed requeued held"}, True),
        ({"state": S.FAILED, "claimed": False, "elapsed_seconds": 1.0}, True),
        ({"state": S.FAILED, "claimed": False, "elapsed_seconds": 900.0}, True),
        ({"state": S.FAILED, "claimed": True}, False),
        ({"state": S.FAILED, "exit_code": layout.EXIT_SANDBOX}, False),
        ({"state": S.TIMEOUT}, False),
        ({"state": None}, False),
        ({"result": failed("SCRATCH_FULL", "setup")}, True),
        ({"result": failed("RESOURCES", "setup")}, True),
        ({"result": failed("CHECKOUT", "setup")}, False),
    ],
)
def test_a_node_is_left_alone_when_it_is_the_nodes_fault(facts: dict[str, Any], leaves: bool) -> None:
    defaults: dict[str, Any] = {"answered": True, "claimed": True, "ended_for_seconds": LATE, "node": "n7"}
    assert read_evidence(Evidence(**{**defaults, **facts})).exclude_node is leaves


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        *((reason, (A.INFRASTRUCTURE, "HELD")) for reason in (
            "launch failed requeued held", "(launch_failed_requeued_held)", "JobHeldAdmin",
            "job requeued in held state")),
        *((reason, (A.HOPELESS, reason)) for reason in (
            "AccountNotAllowed", "AssocMaxCpuPerJobLimit", "AssocMaxMemPerJob", "AssocMaxNodePerJobLimit",
            "AssocMaxWallDurationPerJobLimit", "BadConstraints", "DependencyNeverSatisfied", "InvalidAccount",
            "InvalidQOS", "PartitionTimeLimit", "QOSMaxCpuPerJobLimit", "QOSMaxMemoryPerJob", "QOSMaxNodePerJobLimit",
            "QOSMaxWallDurationPerJobLimit", "QOSNotAllowed")),
        ("PartitionTimeLimit, and more", (A.HOPELESS, "PartitionTimeLimit, and more")),
        ("JobHeldUser", (A.ALIVE, "JobHeldUser")),
    ],
)  # fmt: skip
def test_a_pending_job_that_will_never_start_is_not_waited_for(reason: str, expected: tuple[A, str]) -> None:
    assert read(state=S.PENDING, listed=True, slurm_reason=reason) == expected
    assert read(state=S.RUNNING, listed=True, slurm_reason=reason)[0] is A.ALIVE, "it has started"


# -- submissions whose outcome nobody knows


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"claimed_job_id": "7", "answered": False}, IntentAction.ADOPT),
        ({"claimed_job_id": "7", "shadow": True}, IntentAction.ADOPT),
        ({"found_job_id": "8", "shadow": True}, IntentAction.REFUSED),
        ({"found_job_id": "8", "shadow": True, "answered": False, "unknown_at": None}, IntentAction.NOTE_UNKNOWN),
        ({"found_job_id": "8"}, IntentAction.ADOPT),
        ({"unknown_at": None}, IntentAction.NOTE_UNKNOWN),
        ({"unknown_at": None, "intent_at": 821.0}, IntentAction.LEAVE),
        ({"unknown_at": None, "absent_at": 500.0}, IntentAction.NOTE_UNKNOWN),
        ({"answered": False}, IntentAction.LEAVE),
        ({}, IntentAction.NOTE_ABSENT),
        ({"answer_started": 200.0}, IntentAction.LEAVE),
        ({"absent_at": 150.0}, IntentAction.NOTE_ABSENT),
        ({"absent_at": 200.0}, IntentAction.NOTE_ABSENT),
        ({"absent_at": 940.5}, IntentAction.LEAVE),
        ({"absent_at": 940.0}, IntentAction.RESUBMIT),
        ({"absent_at": 940.0, "answered": False}, IntentAction.LEAVE),
        ({"absent_at": 940.0, "answer_started": 190.0}, IntentAction.LEAVE),
    ],
)
def test_what_is_done_about_an_old_intent(facts: dict[str, Any], expected: IntentAction) -> None:
    defaults: dict[str, Any] = {
        "now": 1000.0, "intent_at": 100.0, "unknown_at": 200.0, "absent_at": None, "answered": True,
        "answer_started": 1000.0,
    }  # fmt: skip
    assert read_intent(IntentEvidence(**{**defaults, **facts})) is expected

"""The rows of the evidence table, one by one, in the words of the explanation page."""

from __future__ import annotations

import pytest

from outerloop.compute.protocol import JobState as S
from outerloop.dispatch.evidence import Action as A
from outerloop.dispatch.evidence import Evidence, ResultFacts, read_evidence

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

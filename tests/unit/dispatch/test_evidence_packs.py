"""Members of a pack: the one state of their job, read for each of them by what the pack noted."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from outerloop.compute.protocol import JobState as S
from outerloop.dispatch.evidence import Action as A
from outerloop.dispatch.evidence import Evidence, ResultFacts, read_evidence
from outerloop.job import layout

GONE = 1000.0
NOT_BEGUN = range(layout.EXIT_NOT_CLAIMANT, layout.EXIT_RESTARTED + 1)
"""What our program exits with before it begins a command."""
DONE = ResultFacts(ok=True, value_usable=True)
FAILED = ResultFacts(ok=False, value_usable=False, reason="EXIT_3", phase="command")


def read(state: S, **facts: Any) -> tuple[A, str]:
    decision = read_evidence(
        Evidence(**{"answered": True, "state": state, "packed": True, "ended_for_seconds": GONE, **facts})
    )
    return decision.action, decision.reason


@pytest.mark.parametrize("state", [S.COMPLETED, S.FAILED, S.TIMEOUT, S.OUT_OF_MEMORY, S.DEADLINE])
def test_a_member_that_was_not_reached_is_charged_to_nobody(state: S) -> None:
    assert read(state, behind=True) == (A.INFRASTRUCTURE, "NOT_REACHED")
    assert read(state, behind=True, cancel_reason="its run has ended")[0] is A.CANCELLED
    assert read(state, behind=True, ended_for_seconds=0.0)[0] is A.WAIT, "its claim may not be visible yet"


def test_the_first_member_tells_of_a_job_that_never_began() -> None:
    assert read(S.FAILED, behind=False, elapsed_seconds=1.0) == (A.INFRASTRUCTURE, "NEVER_STARTED")


def test_memory_is_charged_to_the_member_that_had_it() -> None:
    """Slurm says out of memory of the whole job; the kernel's count says whose it was."""
    said = {"claimed": True}
    assert read(S.OUT_OF_MEMORY, **said, member_exit=137, member_oom=True) == (A.FAILED, "MEMORY")
    assert read(S.OUT_OF_MEMORY, **said, member_exit=137, member_oom=False) == (A.INFRASTRUCTURE, "NO_RESULT")
    assert read(S.OUT_OF_MEMORY, **said, member_exit=0, member_oom=False, result=DONE)[0] is A.DONE
    assert read(S.OUT_OF_MEMORY, **said, member_exit=0, member_oom=True, result=DONE)[0] is A.SUSPECT
    assert read(S.OUT_OF_MEMORY, **said, member_exit=0, member_oom=None, result=DONE)[0] is A.SUSPECT, "nobody knows"
    assert read(S.OUT_OF_MEMORY, **said, member_exit=1, member_oom=False, result=FAILED) == (A.FAILED, "EXIT_3")
    assert read(S.OUT_OF_MEMORY, **said, member_exit=1, member_oom=True, result=FAILED) == (A.FAILED, "MEMORY")
    # The kill came while the job goes on with the next member: the end of this one is certain all the same.
    assert read(S.RUNNING, **said, member_exit=137, member_oom=True) == (A.FAILED, "MEMORY")


def test_a_members_own_exit_code_counts_and_not_its_jobs() -> None:
    said = {"claimed": True, "exit_code": 0}
    assert read(S.COMPLETED, **said, member_exit=98) == (A.INFRASTRUCTURE, "SANDBOX")
    assert read(S.COMPLETED, **said, member_exit=137) == (A.INFRASTRUCTURE, "NO_RESULT")
    assert read(S.RUNNING, **said)[0] is A.ALIVE, "it runs, or waits for its turn"


@pytest.mark.parametrize("state", [S.NODE_FAIL, S.TIMEOUT, S.CANCELLED, S.PREEMPTED, S.DEADLINE])
def test_memory_is_the_members_own_end_whatever_ended_the_job_later(state: S) -> None:
    assert read(state, claimed=True, member_exit=137, member_oom=True) == (A.FAILED, "MEMORY")


def test_a_member_that_was_begun_is_no_member_that_was_not_reached() -> None:
    assert read(S.COMPLETED, claimed=True, behind=True) == (A.INFRASTRUCTURE, "NO_RESULT")
    assert read(S.TIMEOUT, claimed=True, behind=True) == (A.INFRASTRUCTURE, "SLURM_TIMEOUT")


@pytest.mark.parametrize("state", [S.NODE_FAIL, S.BOOT_FAIL, S.TIMEOUT, S.CANCELLED])
def test_what_ends_the_job_is_not_read_as_the_members_own_end(state: S) -> None:
    """SIGTERM reaches the member first, so that the pack may note 143 of it."""
    ordinary = read_evidence(Evidence(answered=True, state=state, claimed=True, ended_for_seconds=GONE))
    assert read(state, claimed=True, member_exit=143) == (ordinary.action, ordinary.reason)


def test_no_member_is_charged_for_what_it_did_not_do() -> None:
    """Over every state, claim and note: FAILED without a result of its own only for memory that was its own."""
    for state, claimed, code, oom, behind in itertools.product(
        S, [True, False], [None, 0, 1, 137, *NOT_BEGUN], [None, True, False], [True, False]
    ):
        action, reason = read(state, claimed=claimed, member_exit=code, member_oom=oom, behind=behind)
        if action is A.FAILED:
            assert reason == "MEMORY" and code not in {0, 1, *NOT_BEGUN}, "its program came to its end, or never began"
            if code is not None:
                assert oom or (oom is None and state is S.OUT_OF_MEMORY)
            else:
                assert state is S.OUT_OF_MEMORY and (claimed or not behind)

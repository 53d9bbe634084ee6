"""The evidence table: what the queue and the files show of one attempt -> what is true of it. Pure and total.

Covered: `read_evidence` over every combination of queue answer, job state, result, claim and history of the slot, and
`read_intent` for submissions whose outcome nobody knows. Not covered: collecting the evidence (observe.py), acting
on the decision (settle.py).

Nothing is ever concluded from silence: a queue that gave no answer and no valid result is `NOTHING`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from outerloop.compute.protocol import JobState
from outerloop.compute.reasons import HELD_BY_USER, Clears, pending_reason
from outerloop.job import layout

__all__ = [
    "Action",
    "Decision",
    "Evidence",
    "IntentAction",
    "IntentEvidence",
    "ResultFacts",
    "read_evidence",
    "read_intent",
]

FAST_FAILURE_SECONDS = 60.0
"""A job that failed faster than this without claiming its attempt never started our program (reports rows 13, 73)."""

INFRASTRUCTURE_REASONS = frozenset(
    {"CHECKOUT", "SANDBOX", "SCRATCH_FULL", "SPEC", "INPUT", "ENVIRONMENT", "RESOURCES", "SETUP", "REFUSED"}
)
"""Reasons in a result file that are never the candidate's."""

NODE_LOSSES = frozenset({JobState.NODE_FAIL, JobState.BOOT_FAIL, JobState.LAUNCH_FAILED})


class Action(StrEnum):
    """What is true of an attempt."""

    NOTHING = "nothing"
    """Nothing is known; nothing changes."""
    ALIVE = "alive"
    WAIT = "wait"
    """An ending is likely, but a grace period has to pass before it is believed."""
    DONE = "done"
    SUSPECT = "suspect"
    """A complete result from a job that Slurm says ran out of memory: measured once more."""
    FAILED = "failed"
    """The candidate's (or base's) own failure."""
    INFRASTRUCTURE = "infrastructure"
    """A new attempt, counted against the slot's allowance; nobody is charged."""
    CONTINUE = "continue"
    """A new attempt that goes on from a newer checkpoint; not counted."""
    ENVIRONMENT = "environment"
    """The environment could not be built: its runs are blocked."""
    CANCELLED = "cancelled"
    """As recorded before our own scancel."""
    USER = "user"
    """A person cancelled the job: the runs that wait for it are blocked."""
    HOPELESS = "hopeless"
    """The job as it is can never run: cancelled and reported."""
    SUPERSEDED = "superseded"
    """The slot has its value from another attempt."""


SETTLING = frozenset(set(Action) - {Action.NOTHING, Action.ALIVE, Action.WAIT})
"""The actions that end an attempt."""


@dataclass(frozen=True)
class ResultFacts:
    """What the table needs of a result file that fits its claim."""

    ok: bool
    value_usable: bool
    """A finite metric; True for work that has no metric."""
    reason: str = ""
    phase: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Evidence:
    """Everything that is known of one submitted attempt at one instant."""

    answered: bool
    """The queue (or the history) gave a complete answer that began after the attempt was submitted."""
    listed: bool = False
    """The queue's listing shows the job."""
    state: JobState | None = None
    """From the listing, else from the history; None when neither knows the job."""
    slurm_reason: str = ""
    exit_code: int | None = None
    elapsed_seconds: float | None = None
    node: str = ""
    cancelled_by: str = ""
    canceller_open: bool = False
    """Accounting, which knows who cancelled, did not answer yet. A site without accounting never will."""
    owner_uid: str = ""
    result: ResultFacts | None = None
    claimed: bool = False
    pinned_elsewhere: bool = False
    ended_for_seconds: float = 0.0
    """Since when a final state, or the absence of the job, has been seen."""
    environment: bool = False
    several_nodes: bool = False
    """Ranks on other nodes: when one of those is lost, the command on the first node fails like one of its own."""
    resumable: bool = False
    progressed: bool = False
    """A newer valid checkpoint than at the attempt's start."""
    requeue_marker: bool = False
    stalled_before: bool = False
    """The attempt before this one made no progress either."""
    suspect_before: bool = False
    cancel_reason: str = ""
    packed: bool = False
    """Its job executes several attempts one after another, so that the job's state says nothing of one alone."""
    member_exit: int | None = None
    """How the process of this member of a pack ended, as the pack noted it; None while it has noted nothing."""
    member_oom: bool | None = None
    """Whether the kernel killed for memory while the member ran; None where that is not known."""
    behind: bool = False
    """Not the first of its pack: without a claim it was not reached, whatever ended the job."""
    preempt_cancels: bool = False
    """PreemptMode=CANCEL: nothing will bring a preempted job back."""
    grace_seconds: float = 60.0
    preempt_grace_seconds: float = 300.0


@dataclass(frozen=True)
class Decision:
    """The verdict on an attempt."""

    action: Action
    reason: str = ""
    detail: str = ""
    exclude_node: bool = False

    @property
    def settles(self) -> bool:
        return self.action in SETTLING


def read_evidence(e: Evidence) -> Decision:
    """The table of the explanation page, top to bottom. Total: every `Evidence` has exactly one decision."""
    e = _own_share(e)
    if e.pinned_elsewhere:
        return Decision(Action.SUPERSEDED, "SUPERSEDED", "the slot has its value from another attempt")
    if e.result is not None and (told := _told_by_result(e, e.result)) is not None:
        return told
    if not e.answered:
        return Decision(Action.NOTHING)
    if e.state is None:
        return _absent(e)
    if e.state is JobState.PREEMPTED:
        return _preempted(e)
    if not e.state.final:
        return _alive(e)
    return _ended_without_result(e, e.state)


def _own_share(e: Evidence) -> Evidence:
    """What the job's state means for this member of a pack: once its own process has ended, that is its ending."""
    if not e.packed or e.member_exit is None or not e.answered or e.state is None:
        return e
    if e.state in _ENDS_EVERYTHING and not e.member_oom:
        return e  # what ended the node or the job may have ended this process first
    oom = e.state is JobState.OUT_OF_MEMORY if e.member_oom is None else e.member_oom
    if e.result is None and (e.member_exit in (0, 1) or e.member_exit in _BEFORE_THE_COMMAND):
        oom = False  # our program came to its end and wrote a result, which is lost, or it did not begin the command
    own = JobState.OUT_OF_MEMORY if oom else JobState.COMPLETED if e.member_exit == 0 else JobState.FAILED
    return replace(e, state=own, exit_code=e.member_exit)


_ENDS_EVERYTHING = frozenset(
    {*NODE_LOSSES, JobState.PREEMPTED, JobState.CANCELLED, JobState.TIMEOUT, JobState.DEADLINE}
)

_NOT_ITS_END = frozenset(
    {JobState.COMPLETED, JobState.FAILED, JobState.TIMEOUT, JobState.OUT_OF_MEMORY, JobState.DEADLINE}
)
"""Endings of a pack that say nothing of a member that was never begun."""


def _told_by_result(e: Evidence, result: ResultFacts) -> Decision | None:
    """What a valid result settles by itself; None when the queue has to be asked."""
    out_of_memory = e.answered and e.state is JobState.OUT_OF_MEMORY
    if result.ok:
        if not result.value_usable:
            return Decision(Action.FAILED, "NO_METRIC", result.detail or "the metric is missing or unusable")
        if out_of_memory and not e.suspect_before:
            return Decision(Action.SUSPECT, "OUT_OF_MEMORY", "complete result, but Slurm says out of memory")
        note = "complete again although Slurm says out of memory" if out_of_memory else ""
        return Decision(Action.DONE, "NOTED" if note else "", note)
    if result.reason == "CANCELLED" or _node_may_be_lost(e, result):
        return None
    if result.phase == "setup" or result.reason in INFRASTRUCTURE_REASONS:
        return Decision(
            Action.INFRASTRUCTURE,
            result.reason or "SETUP",
            result.detail,
            result.reason in {"SCRATCH_FULL", "RESOURCES"},
        )
    if e.environment:
        return Decision(Action.ENVIRONMENT, result.reason or "FAILED", result.detail)
    if e.resumable and result.reason == "TIMEOUT" and result.phase == "command":
        return _continuation(e, "TIMEOUT")
    if out_of_memory and result.reason != "TIMEOUT":
        return Decision(Action.FAILED, "MEMORY", result.detail or "the job used more memory than it had")
    return Decision(Action.FAILED, result.reason or "FAILED", result.detail)


def _node_may_be_lost(e: Evidence, result: ResultFacts) -> bool:
    """Whether a failure of a command on several nodes may be that of a node that went away under it."""
    if not e.several_nodes or result.phase != "command" or result.reason == "TIMEOUT":
        return False
    if not e.answered:
        return True
    return e.state is not None and (not e.state.final or e.state in {*NODE_LOSSES, JobState.PREEMPTED})


def _absent(e: Evidence) -> Decision:
    if e.ended_for_seconds < e.grace_seconds:
        return Decision(Action.WAIT, "ABSENT", "neither listed nor in the history; a grace period runs")
    if e.cancel_reason:
        return Decision(Action.CANCELLED, "CANCELLED", e.cancel_reason)
    if _goes_on(e):
        return _continuation(e, "LOST")
    return Decision(Action.INFRASTRUCTURE, "LOST", "the job left the queue without a trace or a result")


def _preempted(e: Evidence) -> Decision:
    if e.cancel_reason:
        return Decision(Action.CANCELLED, "CANCELLED", e.cancel_reason)
    if e.listed and not e.preempt_cancels:
        return Decision(Action.ALIVE, "PREEMPTED", "preempted; the queue still lists it")
    if not e.preempt_cancels and e.ended_for_seconds < e.preempt_grace_seconds:
        return Decision(Action.WAIT, "PREEMPTED", "preempted and not listed; Slurm may requeue it")
    if _goes_on(e):
        return _continuation(e, "PREEMPTED")
    return Decision(Action.INFRASTRUCTURE, "PREEMPTED", "preempted and not requeued")


def _alive(e: Evidence) -> Decision:
    if e.state is JobState.PENDING:
        meaning = pending_reason(e.slurm_reason)
        if meaning.held and meaning.reason != HELD_BY_USER:
            return Decision(Action.INFRASTRUCTURE, "HELD", f"held by Slurm: {e.slurm_reason}", exclude_node=True)
        if meaning.clears is Clears.NEVER:
            return Decision(Action.HOPELESS, e.slurm_reason, f"pending for ever: {e.slurm_reason}")
    return Decision(Action.ALIVE, e.slurm_reason)


def _ended_without_result(e: Evidence, state: JobState) -> Decision:
    # Node loss needs no grace: waiting brings no file back, and a late one is evidence only.
    if state in NODE_LOSSES:
        if _goes_on(e):
            return _continuation(e, state.name)
        return Decision(Action.INFRASTRUCTURE, state.name, "the node failed", exclude_node=True)
    if state is JobState.FAILED and not e.claimed and "badconstraints" in e.slurm_reason.lower().replace(" ", ""):
        return Decision(Action.HOPELESS, "BadConstraints", "the refusal's shadow: no node can satisfy the request")
    # Every other ending may still have its result on the way (reports row 74).
    if e.ended_for_seconds < e.grace_seconds:
        return Decision(Action.WAIT, state.name, "ended; its result may not be visible yet")
    if e.packed and e.behind and not e.claimed and e.member_exit is None and state in _NOT_ITS_END:
        if e.cancel_reason:
            return Decision(Action.CANCELLED, "CANCELLED", e.cancel_reason)
        return Decision(Action.INFRASTRUCTURE, "NOT_REACHED", "its job ended before it came to this measure")
    if state is JobState.CANCELLED:
        return _cancelled(e)
    if state is JobState.OUT_OF_MEMORY and e.exit_code not in _BEFORE_THE_COMMAND:
        if e.environment:
            return Decision(Action.ENVIRONMENT, "MEMORY", "out of memory while building the environment")
        return Decision(Action.FAILED, "MEMORY", "the job used more memory than it had")
    if _goes_on(e):
        return _continuation(e, state.name)
    if state in {JobState.FAILED, JobState.OUT_OF_MEMORY}:
        return _failed(e)
    if state is JobState.TIMEOUT:
        return Decision(
            Action.INFRASTRUCTURE, "SLURM_TIMEOUT", "Slurm's limit came before ours: setup or the node was too slow"
        )
    if state is JobState.DEADLINE:
        return Decision(Action.INFRASTRUCTURE, "DEADLINE", "Slurm's deadline passed")
    return Decision(Action.INFRASTRUCTURE, "NO_RESULT", f"the job ended {state.value} and left no result")


_BEFORE_THE_COMMAND = {
    layout.EXIT_SPEC: ("SPEC", "the job could not read its spec"),
    layout.EXIT_CHECKOUT: ("CHECKOUT", "the job could not check the tree out"),
    layout.EXIT_SANDBOX: ("SANDBOX", "the kernel refused the sandbox"),
    layout.EXIT_RESTARTED: ("RESTARTED", "Slurm restarted work that cannot resume"),
    layout.EXIT_NOT_CLAIMANT: ("NOT_CLAIMANT", "another job holds this attempt's claim"),
}
"""Exit codes of our program that say the command was not begun: whatever was killed for memory, the command was not."""


def _failed(e: Evidence) -> Decision:
    if e.exit_code in _BEFORE_THE_COMMAND:
        reason, detail = _BEFORE_THE_COMMAND[e.exit_code]
        return Decision(Action.INFRASTRUCTURE, reason, detail)
    if not e.claimed and (e.elapsed_seconds is None or e.elapsed_seconds < FAST_FAILURE_SECONDS):
        return Decision(
            Action.INFRASTRUCTURE, "NEVER_STARTED", "failed at once, before our program began", exclude_node=True
        )
    return Decision(Action.INFRASTRUCTURE, "NO_RESULT", "the job failed without a result", exclude_node=not e.claimed)


def _cancelled(e: Evidence) -> Decision:
    if e.cancel_reason:
        return Decision(Action.CANCELLED, "CANCELLED", e.cancel_reason)
    if e.canceller_open and not e.cancelled_by:
        return Decision(Action.WAIT, "CANCELLED", "cancelled; accounting has not said yet by whom")
    if e.cancelled_by in {"0", "root", "slurm"} and e.cancelled_by != e.owner_uid:
        return Decision(Action.INFRASTRUCTURE, "CANCELLED_BY_SYSTEM", "cancelled by the system")
    who = f"by user {e.cancelled_by}" if e.cancelled_by else "outside outerloop (the site does not say by whom)"
    return Decision(Action.USER, "CANCELLED_BY_USER", f"cancelled {who}")


def _goes_on(e: Evidence) -> bool:
    return e.resumable and (e.progressed or e.requeue_marker or e.state in {JobState.PREEMPTED, JobState.TIMEOUT})


def _continuation(e: Evidence, reason: str) -> Decision:
    if e.progressed:
        return Decision(Action.CONTINUE, reason, "goes on from a newer checkpoint")
    if e.stalled_before:
        return Decision(Action.FAILED, "STALLED", "two attempts in a row without a newer checkpoint")
    return Decision(Action.CONTINUE, reason, "no newer checkpoint; one more attempt before it counts as stalled")


class IntentAction(StrEnum):
    """What to do about a submission whose outcome nobody knows."""

    LEAVE = "leave"
    ADOPT = "adopt"
    NOTE_UNKNOWN = "note-unknown"
    NOTE_ABSENT = "note-absent"
    RESUBMIT = "resubmit"
    REFUSED = "refused"


@dataclass(frozen=True)
class IntentEvidence:
    """What is known of an attempt in state `intent`. All times are seconds on the database's clock."""

    now: float
    intent_at: float
    unknown_at: float | None
    absent_at: float | None
    answered: bool
    """A complete answer of the queue, and of the history unless the site has none."""
    answer_started: float
    found_job_id: str = ""
    claimed_job_id: str = ""
    shadow: bool = False
    """The job's record says BadConstraints and nothing claimed the attempt."""
    patience_seconds: float = 180.0
    grace_seconds: float = 60.0


def read_intent(e: IntentEvidence) -> IntentAction:
    """Adopt what exists; submit the same attempt again only after two complete answers lacked it, one grace apart,
    both begun after the outcome became unknown, and nothing claimed it."""
    if e.claimed_job_id:
        return IntentAction.ADOPT
    if e.answered and e.shadow:
        return IntentAction.REFUSED
    if e.answered and e.found_job_id:
        return IntentAction.ADOPT
    if e.unknown_at is None:
        # Its own process may still be between intent and outcome.
        return IntentAction.NOTE_UNKNOWN if e.now - e.intent_at >= e.patience_seconds else IntentAction.LEAVE
    if not e.answered or e.answer_started <= e.unknown_at:
        return IntentAction.LEAVE
    if e.absent_at is None or e.absent_at <= e.unknown_at:
        return IntentAction.NOTE_ABSENT
    return IntentAction.RESUBMIT if e.answer_started - e.absent_at >= e.grace_seconds else IntentAction.LEAVE

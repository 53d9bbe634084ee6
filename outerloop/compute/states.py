"""How Slurm spells job states, and the small enum behind the spellings.

Covered: long and short spellings of squeue, sacct and scontrol from 22.05 on, `CANCELLED by 1234`, names that sacct
cut (`CANCELLED+`, `OUT_OF_ME+`). Not covered: why a job pends (reasons.py), what a state means for an attempt.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass

from outerloop.compute.protocol import JobState

__all__ = ["SPELLINGS", "StateSeen", "parse_state"]

log = logging.getLogger(__name__)

# Source: "JOB STATE CODES" of squeue(1) and sacct(1), and slurm_protocol_defs.c for the flags they leave out.
_LONG_SHORT_STATE: tuple[tuple[str, str, JobState], ...] = (
    ("PENDING", "PD", JobState.PENDING),
    ("RUNNING", "R", JobState.RUNNING),
    ("SUSPENDED", "S", JobState.SUSPENDED),
    ("COMPLETED", "CD", JobState.COMPLETED),
    ("CANCELLED", "CA", JobState.CANCELLED),
    ("FAILED", "F", JobState.FAILED),
    ("TIMEOUT", "TO", JobState.TIMEOUT),
    ("NODE_FAIL", "NF", JobState.NODE_FAIL),
    ("PREEMPTED", "PR", JobState.PREEMPTED),
    ("BOOT_FAIL", "BF", JobState.BOOT_FAIL),
    ("DEADLINE", "DL", JobState.DEADLINE),
    ("OUT_OF_MEMORY", "OOM", JobState.OUT_OF_MEMORY),
    ("COMPLETING", "CG", JobState.COMPLETING),
    # Resources are granted and the clock runs, but the nodes still boot.
    ("CONFIGURING", "CF", JobState.RUNNING),
    ("RESIZING", "RS", JobState.RUNNING),
    ("SIGNALING", "SI", JobState.RUNNING),
    ("EXPEDITING", "EG", JobState.PENDING),
    ("STAGE_OUT", "SO", JobState.COMPLETING),
    ("UPDATE_DB", "UD", JobState.COMPLETING),
    ("STOPPED", "ST", JobState.SUSPENDED),
    ("REQUEUED", "RQ", JobState.PENDING),
    ("REQUEUE", "RQ", JobState.PENDING),
    ("REQUEUE_FED", "RF", JobState.PENDING),
    ("REQUEUE_HOLD", "RH", JobState.PENDING),
    ("RESV_DEL_HOLD", "RD", JobState.PENDING),
    # A requeue with a mark, held until somebody releases it.
    ("SPECIAL_EXIT", "SE", JobState.PENDING),
    ("POWER_UP_NODE", "PU", JobState.RUNNING),
    ("LAUNCH_FAILED", "LF", JobState.LAUNCH_FAILED),
    ("RECONFIG_FAIL", "RC", JobState.LAUNCH_FAILED),
    # A federation runs the job on another cluster: over here, alive there. Silence is never an ending.
    ("REVOKED", "RV", JobState.UNKNOWN),
)

SPELLINGS: dict[str, JobState] = {
    spelling: state for long, short, state in _LONG_SHORT_STATE for spelling in (long, short)
}
"""Every spelling, upper case -> state."""

_LONG = tuple(long for long, _, _ in _LONG_SHORT_STATE)
_CANCELLED_BY = re.compile(r"(CANCELLED|CA) by (\S+)", re.IGNORECASE)

# sacct's default column is ten wide and marks a cut with "+"; shorter stumps fit too many words.
_SHORTEST_STUMP = 4

_warned: set[str] = set()


@dataclass(frozen=True)
class StateSeen:
    """A state and who cancelled, if that was said."""

    state: JobState
    cancelled_by: str = ""


def parse_state(text: str) -> StateSeen:
    """The state behind one of Slurm's spellings; UNKNOWN (which is active) for any other, logged once per spelling."""
    word = text.strip()
    by = _CANCELLED_BY.fullmatch(word)
    if by:
        return StateSeen(JobState.CANCELLED, by.group(2).removesuffix("+"))
    word = word.upper()
    if word in SPELLINGS:
        return StateSeen(SPELLINGS[word])
    if word.endswith("+"):
        stump = word[:-1]
        if stump in SPELLINGS:
            return StateSeen(SPELLINGS[stump])
        fits = {SPELLINGS[long] for long in _LONG if long.startswith(stump)}
        if len(fits) == 1 and len(stump) >= _SHORTEST_STUMP:
            return StateSeen(fits.pop())
        if stump.startswith("CANCELLED "):
            return StateSeen(JobState.CANCELLED)
    if word not in _warned:
        _warned.add(word)
        log.warning("Slurm shows a job state that we do not know, taken as still active: %r", text)
    return StateSeen(JobState.UNKNOWN)

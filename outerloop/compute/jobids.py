"""Job ids as Slurm prints them: plain, array task, array range, heterogeneous part.

Covered: recognising and expanding. Not covered: step ids (123.batch), which no query of ours asks for.
"""

from __future__ import annotations

import re

__all__ = ["array_id", "expand_ids", "is_job_id"]

_ID = re.compile(r"\d+(?:_\d+)?", re.ASCII)
_HETEROGENEOUS = re.compile(r"(\d+)\+\d+", re.ASCII)
_RANGE = re.compile(r"(\d+)_\[([0-9,:-]+)(?:%\d+)?\]", re.ASCII)
_PART = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?", re.ASCII)

# Slurm's own ceiling of MaxArraySize; a longer range in a listing is not one that Slurm wrote.
_MOST_TASKS = 4_000_001


def is_job_id(text: str) -> bool:
    """Whether `text` is an id that a job or an array task can be asked for by: 123 or 123_4."""
    return _ID.fullmatch(text) is not None


def array_id(job_id: str) -> str:
    """The id of the whole job that an array task belongs to: 123 for 123_4, and for 123 itself."""
    return job_id.partition("_")[0]


def expand_ids(text: str) -> tuple[str, ...]:
    """The ids behind one printed id: 123_[0-2,7%4] -> 123_0, 123_1, 123_2, 123_7. Raises ValueError if it is none."""
    if is_job_id(text):
        return (text,)
    heterogeneous = _HETEROGENEOUS.fullmatch(text)
    if heterogeneous:
        return (text,)
    match = _RANGE.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is not a job id")
    job = match.group(1)
    tasks: list[str] = []
    for part in match.group(2).split(","):
        bounds = _PART.fullmatch(part)
        if not bounds:
            raise ValueError(f"{text!r} is not a job id")
        first = int(bounds.group(1))
        last = int(bounds.group(2) or first)
        step = int(bounds.group(3) or 1)
        if step < 1 or last < first or last - first > _MOST_TASKS:
            raise ValueError(f"{text!r} is not a job id")
        tasks.extend(f"{job}_{task}" for task in range(first, last + 1, step))
    return tuple(tasks)

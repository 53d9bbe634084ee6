"""Job ids as Slurm prints them: plain, array task, array range, heterogeneous part.

Covered: recognising, expanding and folding. Not covered: step ids (123.batch), which no query of ours asks for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["array_id", "expand_ids", "fold_tasks", "is_job_id", "task_id"]

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


def task_id(array: str, task: int) -> str:
    """The id of one task: 123_4."""
    return f"{array}_{task}"


def fold_tasks(ids: Iterable[str]) -> list[str]:
    """Ids with the tasks of one array together: 123_0, 123_1, 123_2, 123_7 and 9 -> 123_[0-2,7] and 9.

    scancel sends one request for each word that it is given.
    """
    single: set[str] = set()
    tasks: dict[str, set[int]] = {}
    for job_id in ids:
        array, underscore, task = job_id.partition("_")
        if underscore and task.isdigit():
            tasks.setdefault(array, set()).add(int(task))
        else:
            single.add(job_id)
    for array, numbers in tasks.items():
        ranges = _ranges(sorted(numbers))
        single.add(f"{array}_[{ranges}]" if len(numbers) > 1 else f"{array}_{ranges}")
    return sorted(single)


def _ranges(numbers: list[int]) -> str:
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


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

"""Which attempt a task of a job array executes: read from the array's task map.

Covered: the map's shape, finding this task's entry, putting attempt.json in place when this node does not see it.
Not covered: submitting arrays (outerloop.dispatch.arrays). Standard library only.

map.json, written and made durable before the array is submitted and never changed:
    {"schema": 1, "array": its name, "tasks": [{"slot": absolute path, "attempt": n, "order": attempt.json}, ...]}
The task with SLURM_ARRAY_TASK_ID k executes tasks[k].
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from outerloop.job import files, layout

TASK_VARIABLE = "SLURM_ARRAY_TASK_ID"


def assignment(path: str, env: Mapping[str, str]) -> tuple[str, int]:
    """(slot folder, attempt) of this task. Raises ValueError or OSError with a sentence for a person."""
    task = env.get(TASK_VARIABLE, "")
    if not task.isdecimal():
        raise ValueError(f"{TASK_VARIABLE} is {task!r}: this is no task of an array")
    tasks = files.read_object_patiently(path).get("tasks")
    if not isinstance(tasks, list) or int(task) >= len(tasks):
        raise ValueError(f"{path} has no task {task}")
    entry = tasks[int(task)]
    slot = entry.get("slot") if isinstance(entry, dict) else None
    attempt = entry.get("attempt") if isinstance(entry, dict) else None
    if not isinstance(slot, str) or not isinstance(attempt, int):
        raise ValueError(f"{path}: task {task} names no slot and attempt")
    _ensure_order(slot, attempt, entry.get("order"))
    return slot, attempt


def _ensure_order(slot: str, attempt: int, order: Any) -> None:
    """The dispatcher writes attempt.json without waiting for the disk: what counts of it stands in the map."""
    folder = os.path.join(slot, layout.ATTEMPTS, str(attempt))
    path = os.path.join(folder, layout.ORDER)
    try:
        if files.listed(path) and files.read_object(path):
            return
    except (OSError, ValueError):
        pass
    if isinstance(order, dict) and os.path.isdir(slot):
        os.makedirs(os.path.join(folder, layout.restart_folder(0)), exist_ok=True)
        files.replace(path, files.encode(order))

"""Which attempt a task of a job array executes: read from the array's task map.

Covered: the map's shape, finding this task's entry, making its attempt's folder with attempt.json and its log.
Not covered: submitting arrays (outerloop.dispatch.arrays). Standard library only.

map.json, written and made durable before the array is submitted and never changed:
    {"schema": 1, "array": its name, "log": path of its logs without ".K",
     "tasks": [{"slot": absolute path, "attempt": n, "order": attempt.json}, ...]}
The task with SLURM_ARRAY_TASK_ID k executes tasks[k].
"""

from __future__ import annotations

import contextlib
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
    body = files.read_object_patiently(path)
    tasks = body.get("tasks")
    if not isinstance(tasks, list) or int(task) >= len(tasks):
        raise ValueError(f"{path} has no task {task}")
    entry = tasks[int(task)]
    slot = entry.get("slot") if isinstance(entry, dict) else None
    attempt = entry.get("attempt") if isinstance(entry, dict) else None
    if not isinstance(slot, str) or not isinstance(attempt, int):
        raise ValueError(f"{path}: task {task} names no slot and attempt")
    _make_attempt(slot, attempt, entry.get("order"), f"{body['log']}.{task}" if body.get("log") else "")
    return slot, attempt


def _make_attempt(slot: str, attempt: int, order: Any, log: str) -> None:
    """The attempt's folder, attempt.json, and the log where logs are looked for. Written by whoever comes first: a
    second job for the same task writes the same, and the claim decides which of them executes it."""
    if not os.path.isdir(slot):
        return
    folder = os.path.join(slot, layout.ATTEMPTS, str(attempt))
    path = os.path.join(folder, layout.ORDER)
    logs = os.path.join(folder, layout.restart_folder(0))
    os.makedirs(logs, exist_ok=True)
    if log:
        link = os.path.join(logs, layout.SLURM_LOG)
        if os.path.islink(link) and os.readlink(link) != log:
            # This number was part of an array that the site refused.
            os.unlink(link)
        with contextlib.suppress(FileExistsError):
            os.symlink(log, link)
    try:
        if files.listed(path) and files.read_object(path):
            return
    except (OSError, ValueError):
        pass
    if isinstance(order, dict):
        files.replace(path, files.encode(order))

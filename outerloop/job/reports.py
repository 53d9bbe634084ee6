"""Reports that survive a lost attempt: which are finished, what is moved aside, and the jobs file for the rest.

Covered: the `reports` fact of spec.json, before the command starts. Not covered: what is in a report; whoever reads it
later checks that. The rule: a report that is a whole JSON object is finished, and its scores were written before it;
scores without a report, and a report that is cut short, are a killed evaluator's.

    {"file": "jobs.json", "jobs": [{"entry": {...}, "report": name, "scores": name}, ...]}

`file` is written into the output folder as a list of the entries that are not finished, each with `output` and
`scores_output`; "" writes none (the command line itself names both). Names are below the checkpoint folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

JOBS_FILE = "jobs.json"
MOST_BYTES = 16 * 1024 * 1024
"""No report is larger; the same limit holds for whoever reads it later."""


def prepare(reports: Mapping[str, Any], state: str, output: str, shown: str) -> bool:
    """Look after the reports below `state` and write the jobs file below `output`. False when all are finished.

    `shown` is what the command sees `state` as. Raises OSError.
    """
    entries = []
    for job in reports["jobs"]:
        report, scores = os.path.join(state, job["report"]), os.path.join(state, job["scores"])
        if finished(report):
            continue
        for path in (report, scores):
            move_aside(path)
        entries.append(
            {
                **job["entry"],
                "output": os.path.join(shown, job["report"]),
                "scores_output": os.path.join(shown, job["scores"]),
            }
        )
    if reports["file"]:
        with open(os.path.join(output, reports["file"]), "w", encoding="utf-8") as file:
            json.dump(entries, file, indent=1)
    return bool(entries)


def finished(path: str) -> bool:
    """Whether a report is whole."""
    try:
        # A pipe in its place would keep us waiting for ever.
        if not os.path.isfile(path) or os.path.getsize(path) > MOST_BYTES:
            return False
        with open(path, encoding="utf-8") as file:
            return isinstance(json.load(file), dict)
    except (OSError, ValueError, RecursionError):
        return False


def move_aside(path: str) -> None:
    """Rename what a killed evaluator left; nothing is deleted. Raises OSError."""
    if not os.path.lexists(path):
        return
    number = 1
    while os.path.lexists(f"{path}.aside-{number}"):
        number += 1
    os.rename(path, f"{path}.aside-{number}")

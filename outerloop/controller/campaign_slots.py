"""Which slot a campaign's job is, and where in it things lie.

Covered: determinants of a launch, names below its folders. Not covered: what is written there (campaign_work.py) and
read (campaign_harvest.py).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from outerloop.champion import Job
from outerloop.controller.campaign_ledger import Launch
from outerloop.controller.campaign_request import Setting
from outerloop.job.layout import OUT, STATE
from outerloop.slots import Determinants, SlotDirectory, StateRoot

__all__ = ["OUTPUT", "RESUMABLE", "determinants", "output_folder", "report_name", "scores_name", "slot_of"]

OUTPUT = "output"
"""What a command's {output} is called below its attempt's output folder."""
RESUMABLE = frozenset({"train", "evaluate"})
"""Trainings have a folder to resume from; evaluators find the reports that they have finished."""


REPORT_NAME = r"\d{4,}\.json"
"""What `report_name` gives."""


def determinants(setting: Setting, job: Job, again: int) -> Determinants:
    """What the job's result depends on. `again` makes a job that is repeated on purpose another one.

    The job's own part is one text, because a canonical determinant holds no floats; Python prints equal floats alike
    on every machine.
    """
    execution = setting.execution(job.resources.gpus)
    told = json.dumps(job.determinants(), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return Determinants(
        tree=setting.tree,
        command=job.command,
        launch={"campaign": told},
        image=execution.image_digest,
        prologue=hashlib.sha256(execution.prologue.encode()).hexdigest() if execution.prologue else "",
        network=True,
        cpus=job.resources.cpus,
        gpus=job.resources.gpus,
        gpu_type=execution.gpu_type,
        replicate=again,
    )


def slot_of(root: StateRoot, settings: Sequence[Setting], launch: Launch) -> SlotDirectory:
    """The slot of a launch."""
    digest = determinants(settings[launch.setting], launch.job, launch.again).digest
    return SlotDirectory(root.slot(digest), digest)


def output_folder(slot: SlotDirectory, attempt: int, restart: int) -> Path:
    """Where a start of an attempt left its command's output."""
    return slot.logs(attempt, restart) / OUT / OUTPUT


def report_name(position: int) -> str:
    """File of the report of a job's member, in the slot's state folder."""
    return f"{position:04d}.json"


def scores_name(position: int) -> str:
    """File of the scores of a job's member, in the slot's state folder."""
    return f"{position:04d}.scores.jsonl"


def report_path(slot: SlotDirectory, position: int) -> Path:
    """Where an evaluator left the report of a job's member, whichever attempt wrote it."""
    return slot.path / STATE / report_name(position)


def scores_path(slot: SlotDirectory, position: int) -> Path:
    """Where an evaluator left the scores of a job's member."""
    return slot.path / STATE / scores_name(position)

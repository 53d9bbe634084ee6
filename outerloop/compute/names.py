"""Job names: what Slurm and its listings can carry without surprises.

Covered: the alphabet, reserved words, names that carry the deployment, cleaning of people's labels.
Not covered: which label and key a job gets (dispatch).
"""

from __future__ import annotations

import re

__all__ = ["ARRAY", "PACK", "check_name", "clean_label", "is_pack", "job_name", "job_prefix"]

ARRAY, PACK = "array", "pack"
"""Labels of jobs that hold several attempts: as tasks of an array, or one after another in one job."""
_PACK_NAME = re.compile(rf"ol-[A-Za-z0-9]+-{PACK}-[0-9a-f]+-\d+", re.ASCII)

# Slurm takes 1,024 characters and anything in them; blanks ended directive parsing, "|" and "," break listings and
# `sacct --name`, and sacct cuts at 255. This alphabet and length survive every tool.
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
_DEPLOYMENT = re.compile(r"[A-Za-z0-9]{1,16}", re.ASCII)
_LONGEST = 64
_KEY_LENGTH = 16

# What Slurm calls steps and parts of heterogeneous jobs itself.
_RESERVED = frozenset({"hetjob", "batch", "extern", "interactive", "allocation"})


def check_name(name: str) -> str:
    """`name` itself, if it is fit to be a job's. Raises ValueError otherwise, saying why."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"job name {name!r}: use 1 to 64 of letters, digits, dot, underscore and dash")
    if name.lower() in _RESERVED:
        raise ValueError(f"job name {name!r} is what Slurm calls its own steps")
    if name.startswith("-"):
        raise ValueError(f"job name {name!r} begins with a dash and would be read as an option")
    return name


def clean_label(label: str, longest: int = _LONGEST) -> str:
    """A person's label with all else than the alphabet turned into single dashes: "speed (run 1)" -> speed-run-1."""
    cleaned = re.sub(r"[^A-Za-z0-9._]+", "-", label).strip("-.")
    return cleaned[:longest].strip("-.") or "x"


def job_prefix(deployment: str) -> str:
    """What every job name of a deployment begins with, `ol-<deployment>-`. The id is 1 to 16 letters or digits."""
    if not _DEPLOYMENT.fullmatch(deployment):
        raise ValueError(f"deployment id {deployment!r}: use 1 to 16 letters or digits")
    return f"ol-{deployment}-"


def job_name(deployment: str, label: str, key: str, number: int) -> str:
    """`ol-<deployment>-<label>-<first 16 of key>-<number>`, the label cleaned and cut so that the rest fits."""
    if number < 0:
        raise ValueError(f"number {number} is negative")
    prefix = job_prefix(deployment)
    suffix = f"-{key[:_KEY_LENGTH]}-{number}"
    room = _LONGEST - len(prefix) - len(suffix)
    if room < 1:
        raise ValueError(f"number {number} is too long for a job name")
    return check_name(prefix + clean_label(label, room) + suffix)


def is_pack(name: str) -> bool:
    """Whether the name of an array row is that of a pack: one job that executes its attempts one after another."""
    return _PACK_NAME.fullmatch(name) is not None

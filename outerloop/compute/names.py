"""Job names: what Slurm and its listings can carry without surprises.

Covered: the alphabet, reserved words, names that carry the deployment, cleaning of people's labels.
Not covered: which label and key a job gets (dispatch).
"""

from __future__ import annotations

import re
from functools import lru_cache

__all__ = ["ARRAY", "NAME", "PACK", "check_name", "check_template", "clean_label", "is_pack", "job_name", "job_prefix"]

ARRAY, PACK = "array", "pack"
"""Labels of jobs that hold several attempts: as tasks of an array, or one after another in one job."""
# A site's template may frame the name.
_FRAME = r"[A-Za-z0-9._-]*"
_PACK_NAME = re.compile(rf"{_FRAME}ol-[A-Za-z0-9]+-{PACK}-[0-9a-f]+-\d+{_FRAME}", re.ASCII)

# Slurm takes 1,024 characters and anything in them; blanks ended directive parsing, "|" and "," break listings and
# `sacct --name`, and sacct cuts at 255. This alphabet and length survive every tool.
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
_DEPLOYMENT = re.compile(r"[A-Za-z0-9]{1,16}", re.ASCII)
_LONGEST = 64
_KEY_LENGTH = 16
# ol-, a deployment of eight, a label, a key and a number of six digits stay within the longest name.
_LONGEST_FRAME = 20

NAME = "{name}"
"""Where our own part goes in a site's template."""

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


def check_template(template: str) -> str:
    """`template` itself, if it makes names of ours: "{name}" once, and little else. Raises ValueError otherwise.

    For sites that take only names of a pattern of theirs, such as "proj123-{name}".
    """
    before, marker, after = template.partition(NAME)
    if not marker or NAME in after:
        raise ValueError(f"must hold {NAME} exactly once, where our own part of the name goes")
    if (before or after) and not _NAME.fullmatch(before + after):
        raise ValueError(f"besides {NAME}, use letters, digits, dot, underscore and dash")
    if before.startswith("-"):
        raise ValueError("a name that begins with a dash would be read as an option")
    if len(before + after) > _LONGEST_FRAME:
        raise ValueError(f"leave room for our own part: at most {_LONGEST_FRAME} characters besides {NAME}")
    return template


def job_name(deployment: str, label: str, key: str, number: int, *, template: str = NAME) -> str:
    """`ol-<deployment>-<label>-<first 16 of key>-<number>` in the site's `template`, the label cleaned and cut so that
    the rest fits."""
    if number < 0:
        raise ValueError(f"number {number} is negative")
    suffix = f"-{key[:_KEY_LENGTH]}-{number}"
    before, after = _around(deployment, label, len(suffix), template)
    return check_name(before + suffix + after)


@lru_cache(maxsize=256)
def _around(deployment: str, label: str, suffix: int, template: str) -> tuple[str, str]:
    """What is the same in the names of a benchmark's hundreds of measures: all but the key and the number."""
    before, _, after = template.partition(NAME)
    prefix = before + job_prefix(deployment)
    room = _LONGEST - len(prefix) - suffix - len(after)
    if room < 1:
        raise ValueError("the number is too long for a job name")
    return prefix + clean_label(label, room), after


def is_pack(name: str) -> bool:
    """Whether the name of an array row is that of a pack: one job that executes its attempts one after another."""
    return _PACK_NAME.fullmatch(name) is not None

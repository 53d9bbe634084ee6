"""Slurm's time limits: one parser for its six spellings, one printer.

Covered: minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]], UNLIMITED and INFINITE.
Not covered: instants (ISO times of listings) and sbatch's --begin. Source of the spellings: sbatch(1), --time.
"""

from __future__ import annotations

import math
import re

__all__ = ["format_minutes", "format_walltime", "parse_walltime"]

_MINUTE = 60
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR

_NO_LIMIT = frozenset({"UNLIMITED", "INFINITE"})
_WITH_DAYS = re.compile(r"(\d+)-(\d+)(?::(\d+))?(?::(\d+))?", re.ASCII)
_WITHOUT_DAYS = re.compile(r"(\d+)(?::(\d+))?(?::(\d+))?", re.ASCII)


def parse_walltime(text: str) -> int | None:
    """Seconds behind one of Slurm's spellings, None for no limit.

    `90` is minutes, `30:00` minutes and seconds, `1:30:00` hours first, `1-12` days and hours. Raises ValueError for
    anything else (`NOT_SET`, `INVALID`, `NONE`, `Partition_Limit`, negative or fractional numbers).
    """
    word = text.strip()
    if word.upper() in _NO_LIMIT:
        return None
    match = _WITH_DAYS.fullmatch(word)
    if match:
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return days * _DAY + hours * _HOUR + minutes * _MINUTE + seconds
    match = _WITHOUT_DAYS.fullmatch(word)
    if not match:
        raise ValueError(f"{text!r} is not a Slurm time; write 90 (minutes), 1:30:00 or 2-12:30:00 (days-hours)")
    parts = [int(part) for part in match.groups() if part is not None]
    if len(parts) == 1:
        return parts[0] * _MINUTE
    if len(parts) == 2:
        return parts[0] * _MINUTE + parts[1]
    return parts[0] * _HOUR + parts[1] * _MINUTE + parts[2]


def format_walltime(seconds: int | None) -> str:
    """`D-HH:MM:SS`, the one spelling that cannot be misread; UNLIMITED for None. Raises ValueError below 0."""
    if seconds is None:
        return "UNLIMITED"
    if seconds < 0:
        raise ValueError(f"a time limit of {seconds} seconds is negative")
    days, rest = divmod(seconds, _DAY)
    hours, rest = divmod(rest, _HOUR)
    return f"{days}-{hours:02d}:{rest // _MINUTE:02d}:{rest % _MINUTE:02d}"


def format_minutes(minutes: float) -> str:
    """`D-HH:MM:SS` of a limit in minutes, rounded up to a second.

    Raises ValueError unless it is positive and finite: to Slurm, a limit of 0 means none at all.
    """
    if not math.isfinite(minutes) or minutes <= 0:
        raise ValueError(f"a time limit must be a positive number of minutes, not {minutes}")
    return format_walltime(math.ceil(minutes * _MINUTE))

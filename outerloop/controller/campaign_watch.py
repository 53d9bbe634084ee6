"""Idle campaigns and the files that end their idleness: a `stat` each in every tick, and no question to the record.

Covered: noting what candidates file, base configs and soft targets were when a campaign found nothing to do, and which
of those files changed.
Not covered: reading them (campaign_candidates.py). A note that is lost costs a day: a parked run is looked at daily.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from outerloop.slots import StateRoot
from outerloop.slots.files import read_json, replace

__all__ = ["changed", "file_stamps", "note_idle"]


def file_stamp(path: Path) -> list[int]:
    """What changes when a file is written, replaced, or moved into place; empty when there is none."""
    try:
        facts = path.stat()
    except OSError:
        return []
    return [facts.st_mtime_ns, facts.st_ctime_ns, facts.st_size, facts.st_ino]


def file_stamps(paths: Iterable[Path]) -> dict[str, list[int]]:
    """The stamp of each path."""
    return {str(path): file_stamp(path) for path in paths}


def note_idle(root: StateRoot, run_id: str, seen: Mapping[str, list[int]]) -> None:
    """Let ticks look at these paths for a campaign that is idle; `seen` are their stamps from before they were read."""
    note = {"schema": 1, "seen": dict(seen)}
    if read_json(root.idle(run_id)) != note:
        replace(root.idle(run_id), note, name="campaign.watch")


def changed(root: StateRoot) -> list[Path]:
    """The notes of campaigns of which a file is not what it was, each named like its run; torn ones too."""
    found = []
    try:
        names = sorted(entry.name for entry in os.scandir(root.path / "idle") if root.takes(entry.name))
    except OSError:
        return []
    for name in names:
        seen = (read_json(root.idle(name)) or {}).get("seen")
        if not isinstance(seen, dict) or file_stamps(map(Path, seen)) != seen:
            found.append(root.idle(name))
    return found

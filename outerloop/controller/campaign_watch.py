"""Idle campaigns and the file that ends their idleness: one `stat` each in every tick, and no question to the record.

Covered: noting what the candidates file was when a campaign found nothing to do, and which of those files changed.
Not covered: reading them (campaign_candidates.py). A note that is lost costs a day: a parked run is looked at daily.
"""

from __future__ import annotations

import os
from pathlib import Path

from outerloop.slots import StateRoot
from outerloop.slots.files import read_json, replace

__all__ = ["changed", "file_stamp", "note_idle"]


def file_stamp(path: Path) -> list[int]:
    """What changes when a file is written, replaced, or moved into place; empty when there is none."""
    try:
        facts = path.stat()
    except OSError:
        return []
    return [facts.st_mtime_ns, facts.st_ctime_ns, facts.st_size, facts.st_ino]


def note_idle(root: StateRoot, run_id: str, path: Path, seen: list[int]) -> None:
    """Let ticks look at `path` for a campaign that is idle; `seen` is its stamp from before it was read."""
    note = {"schema": 1, "path": str(path), "seen": seen}
    if read_json(root.idle(run_id)) != note:
        replace(root.idle(run_id), note, name="campaign.watch")


def changed(root: StateRoot) -> list[Path]:
    """The notes of campaigns whose candidates file is not what it was, each named like its run; torn ones too."""
    found = []
    try:
        names = sorted(entry.name for entry in os.scandir(root.path / "idle") if root.takes(entry.name))
    except OSError:
        return []
    for name in names:
        note = read_json(root.idle(name)) or {}
        if file_stamp(Path(str(note.get("path")))) != note.get("seen"):
            found.append(root.idle(name))
    return found

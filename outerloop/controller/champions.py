"""The champion's history on disk: champions/<key>/<seq>.json, where link(2) is the compare-and-set.

Covered: who is champion, and becoming the next one exactly once. Not covered: whether a candidate deserves it
(climb), the record's copy (ledger.py folds it).
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from outerloop.slots import StateRoot
from outerloop.slots.files import publish, read_json

__all__ = ["Crown", "champion_now", "champion_number", "crown"]


@dataclass(frozen=True)
class Crown:
    """One champion."""

    seq: int
    run: str
    commit: str
    tree: str
    value: str
    gain: str
    label: str
    at: str


def champion_number(root: StateRoot, key: str, seq: int) -> Crown | None:
    """Champion number `seq` (from 1), None when there is none. Raises OSError (EIO) for a file that is damaged."""
    path = root.champion(key, seq)
    body = read_json(path)
    if body is None and path.exists():
        # Taken for absent it would be a second champion of the same number.
        raise OSError(errno.EIO, "cannot be read as a champion; restore it from a backup", str(path))
    return None if body is None else _read(seq, body)


def _read(seq: int, body: dict[str, Any]) -> Crown:
    texts = {name: str(body.get(name) or "") for name in ("run", "commit", "tree", "value", "gain", "label", "at")}
    return Crown(seq=seq, **texts)


def champion_now(root: StateRoot, key: str) -> Crown | None:
    """The newest champion, None before the first."""
    try:
        numbers = [int(entry.stem) for entry in root.champion_folder(key).iterdir() if entry.stem.isdecimal()]
    except OSError:
        return None
    return champion_number(root, key, max(numbers)) if numbers else None


def crown(root: StateRoot, key: str, candidate: Crown, facts: dict[str, Any]) -> Crown:
    """Make `candidate` champion number `candidate.seq` unless that number is taken; returns whoever holds it."""
    body = {
        "schema": 1,
        "run": candidate.run,
        "commit": candidate.commit,
        "tree": candidate.tree,
        "value": candidate.value,
        "gain": candidate.gain,
        "label": candidate.label,
        "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        **facts,
    }
    publish(root.champion(key, candidate.seq), body, name="champion.link")
    holder = champion_number(root, key, candidate.seq)
    if holder is None:
        raise OSError(errno.EIO, "was published and is not there", str(root.champion(key, candidate.seq)))
    return holder

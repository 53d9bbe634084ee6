"""The checkpoint folder: parts first, manifest last, newest two kept. Standard library only.

Covered: names, hashing, atomic publication, verification, pruning, `requeue.json`.
Not covered: what is inside a part.

    <OUTERLOOP_CKPT_DIR>/step-0000000100/manifest.json
        {"schema": 1, "step": 100, "format": "full" | "sharded", "world_size": 2, "torch": "2.13.0",
         "saved_at": "<UTC ISO 8601>", "parts": {"model.pt": {"bytes": 123, "sha256": "<64 hex>"}, …}}
        Part names are relative to the manifest's folder, so a moved folder restores.
    <OUTERLOOP_CKPT_DIR>/requeue.json
        {"schema": 1, "step": 100, "checkpoint": "step-0000000100", "signal": "SIGTERM", "world_size": 2, "at": …}
        Written after a stop that was asked for; removed when training goes on.

A folder is written under a name beginning with a dot and renamed into place, so whatever bears a plain name
was complete once.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

SCHEMA = 1
MANIFEST = "manifest.json"
REQUEUE = "requeue.json"
KEPT = 2
"""Checkpoints kept: the newest, and one more in case the newest turns out torn."""
_NAME = re.compile(r"step-(\d{10,})")
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*|\.metadata")
_SAVING, _TORN, _OLD, _GONE = ".saving-", ".torn-", ".old-", ".gone-"
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Part:
    """Size in bytes and SHA-256 of one file of a checkpoint."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What a complete checkpoint says about itself."""

    step: int
    format: str
    world_size: int
    parts: dict[str, Part]

    @property
    def bytes(self) -> int:
        """Size of all parts."""
        return sum(part.bytes for part in self.parts.values())


def checkpoint_name(step: int) -> str:
    """Folder name of a step's checkpoint."""
    return f"step-{step:010d}"


def saving_folder(root: Path, step: int, nonce: str) -> Path:
    """Where a checkpoint is written before it is published."""
    return root / f"{_SAVING}{checkpoint_name(step)}-{nonce}"


def hashed(path: Path, *, sync: bool = False) -> Part:
    """Size and hash of a file as it can be read back; with `sync` after the disk has it. Raises OSError."""
    digest = hashlib.sha256()
    size = 0
    with path.open("rb") as stream:
        if sync:
            os.fsync(stream.fileno())
        while block := stream.read(_BLOCK):
            digest.update(block)
            size += len(block)
    return Part(size, digest.hexdigest())


def written_atomically(path: Path, value: Any, *, sync: bool = True) -> None:
    """Replace `path` with the JSON of `value`: a reader sees the old or the new text, never a part. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as stream:
        json.dump(value, stream, allow_nan=False, indent=1, sort_keys=True)
        stream.write("\n")
        stream.flush()
        if sync:
            os.fsync(stream.fileno())
    temporary.replace(path)
    if sync:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def publish(root: Path, folder: Path, manifest: Manifest, torch_version: str) -> Path:
    """Write the manifest into a saving folder and give the folder its name. Raises OSError.

    A checkpoint of the same step that is already there is replaced: it is moved aside first, and removed after.
    """
    written_atomically(
        folder / MANIFEST,
        {
            "schema": SCHEMA,
            "step": manifest.step,
            "format": manifest.format,
            "world_size": manifest.world_size,
            "torch": torch_version,
            "saved_at": utc_now(),
            "parts": {n: {"bytes": p.bytes, "sha256": p.sha256} for n, p in sorted(manifest.parts.items())},
        },
    )
    final = root / checkpoint_name(manifest.step)
    aside = root / f"{_OLD}{folder.name.removeprefix(_SAVING)}"
    if final.exists():
        final.rename(aside)
    folder.rename(final)
    sync_folder(root)
    shutil.rmtree(aside, ignore_errors=True)
    return final


def published(root: Path) -> list[Path]:
    """Folders that bear a checkpoint's name, newest step first; empty when there is no root."""
    try:
        names = [path.name for path in root.iterdir()]
    except OSError:
        return []
    return [root / name for name in sorted((n for n in names if _NAME.fullmatch(n)), key=_step_of, reverse=True)]


def _step_of(name: str) -> int:
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else -1


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest, or None when it is missing, unreadable or not this folder's."""
    try:
        data = json.loads((folder / MANIFEST).read_bytes())
        parts = {
            str(name): Part(int(entry["bytes"]), str(entry["sha256"]))
            for name, entry in data["parts"].items()
            if _PART.fullmatch(name)
        }
        manifest = Manifest(int(data["step"]), str(data["format"]), int(data["world_size"]), parts)
        whole = len(parts) == len(data["parts"]) > 0 and data["schema"] == SCHEMA
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return manifest if whole and checkpoint_name(manifest.step) == folder.name else None


def broken_parts(folder: Path, manifest: Manifest, *, share: int = 0, shares: int = 1) -> list[str]:
    """Parts that are missing or do not re-hash, out of every `shares`-th part beginning with `share`."""
    broken = []
    for name in sorted(manifest.parts)[share::shares]:
        try:
            if hashed(folder / name) != manifest.parts[name]:
                broken.append(name)
        except OSError:
            broken.append(name)
    return broken


def set_aside(folder: Path) -> None:
    """Rename a torn checkpoint so that it never counts among the newest; removed at the next save."""
    with contextlib.suppress(OSError):
        folder.rename(folder.with_name(f"{_TORN}{folder.name}-{os.getpid()}"))


def prune(root: Path) -> None:
    """Remove all but the newest `KEPT` checkpoints, and torn ones. Never raises."""
    for folder in published(root)[KEPT:]:
        # Renamed first: a half-deleted folder must not look like a checkpoint.
        aside = folder.with_name(f"{_GONE}{folder.name}-{os.getpid()}")
        with contextlib.suppress(OSError):
            folder.rename(aside)
            shutil.rmtree(aside, ignore_errors=True)
    _remove(root, _TORN)


def sweep(root: Path) -> None:
    """Remove what a killed process left half written. Only before training: a later sweep could hit a live save.

    A checkpoint that was moved aside for one of the same step that never came is given its name back.
    """
    with contextlib.suppress(OSError):
        for path in list(root.iterdir()):
            moved = re.fullmatch(rf"{re.escape(_OLD)}({_NAME.pattern})-.*", path.name)
            if moved and not (root / moved[1]).exists():
                path.rename(root / moved[1])
    for prefix in (_SAVING, _OLD, _GONE):
        _remove(root, prefix)


def _remove(root: Path, prefix: str) -> None:
    with contextlib.suppress(OSError):
        for path in list(root.iterdir()):
            if path.name.startswith(prefix):
                shutil.rmtree(path, ignore_errors=True)


def utc_now() -> str:
    """The time as UTC ISO 8601 with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")

"""Files of a run that must be whole or not there: published records, hashed folders, checkpoints with a manifest.

Covered: atomic publication with fsync, the digest of a model folder, which checkpoint is the newest valid one. Not
covered: what trl writes into a checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

__all__ = [
    "MANIFEST",
    "digest_of_folder",
    "newest_valid_checkpoint",
    "publish",
    "publish_text",
    "read_record",
    "seal_checkpoint",
]

MANIFEST = "outerloop.json"
"""Names every file of a checkpoint with its size and SHA-256. It is written last: without it a checkpoint is none."""
_CHUNK = 1024 * 1024


def publish(path: Path, record: Mapping[str, Any]) -> None:
    """Write a JSON record so that a reader, or a machine that lost power, sees all of it or none."""
    publish_text(path, [json.dumps(record, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"])


def publish_text(path: Path, parts: Iterable[str], *, mode: int = 0o666) -> str:
    """Write text the same way; the SHA-256 of its bytes."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    digest = hashlib.sha256()
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as stream:
        for part in parts:
            raw = part.encode()
            digest.update(raw)
            stream.write(raw)
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(path)
    _sync(path.parent)
    return digest.hexdigest()


def read_record(path: Path) -> dict[str, Any] | None:
    """The record, or None when there is none (or a torn one, which `publish` never leaves)."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)


def digest_of_folder(folder: Path) -> str:
    """SHA-256 over the names and contents of all files below a folder."""
    digest = hashlib.sha256()
    for path in _files(folder):
        digest.update(f"{path.relative_to(folder).as_posix()}\0{_digest(path)}\n".encode())
    return digest.hexdigest()


def seal_checkpoint(folder: Path) -> None:
    """Flush a checkpoint's files, then publish its manifest: from now on it is valid."""
    listed = {}
    for path in _files(folder):
        _sync(path)
        listed[path.relative_to(folder).as_posix()] = {"bytes": path.stat().st_size, "sha256": _digest(path)}
    publish(folder / MANIFEST, {"schema": 1, "files": listed})


def _valid(folder: Path) -> bool:
    manifest = read_record(folder / MANIFEST)
    if manifest is None or not manifest.get("files"):
        return False
    for name, expected in manifest["files"].items():
        path = folder / name
        try:
            if path.stat().st_size != expected["bytes"] or _digest(path) != expected["sha256"]:
                return False
        except OSError:
            return False
    return True


def newest_valid_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint whose files are all as they were written. Newer, torn ones are removed."""
    steps = []
    for path in folder.glob("checkpoint-*"):
        number = path.name.removeprefix("checkpoint-")
        if number.isdecimal():
            steps.append((int(number), path))
    for _, path in sorted(steps, reverse=True):
        if _valid(path):
            return path
        shutil.rmtree(path)
    return None

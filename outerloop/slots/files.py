"""Files that must be whole or absent: published once by link, replaced by rename, read past NFS caches.

Covered: durable writes and careful reads of small JSON files. Not covered: what the files mean.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outerloop.effects import effect

__all__ = ["append_marker", "make_folder", "publish", "read_json", "replace", "sync_folder"]

MAX_JSON_BYTES = 16 * 1024 * 1024
"""Refuse to parse more: no file of ours is that large, and the file may be somebody's accident."""


def sync_folder(folder: Path) -> None:
    """Make the folder's entries durable (fsync of the directory)."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: Path) -> None:
    """Create the folder and its parents, and make them durable. Existing folders are fine."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def _temporary(path: Path, data: bytes, mode: int) -> Path:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view) :]
        os.fsync(handle)
    except BaseException:
        os.close(handle)
        temporary.unlink(missing_ok=True)
        raise
    os.close(handle)
    return temporary


def _encode(value: Mapping[str, Any] | str) -> bytes:
    if isinstance(value, str):
        return value.encode()
    return (json.dumps(value, indent=1, sort_keys=True, default=str) + "\n").encode()


def publish(path: Path, value: Mapping[str, Any] | str, *, name: str, mode: int = 0o644) -> bool:
    """Write `path` once: True when this call made it, False when it was already there (then it is left as it is).

    The link is the decision: of many processes exactly one gets True. `name` is the effect's name.
    Raises OSError (ENOSPC, EACCES, …); nothing is left behind then.
    """
    make_folder(path.parent)
    with effect(name):
        temporary = _temporary(path, _encode(value), mode)
        try:
            os.link(temporary, path)
            made = True
        except FileExistsError:
            made = False
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(path.parent)
    return made


def replace(path: Path, value: Mapping[str, Any] | str, *, name: str, mode: int = 0o644) -> None:
    """Write `path` anew, whole or not at all (temporary file, fsync, rename, fsync of the folder)."""
    make_folder(path.parent)
    with effect(name):
        temporary = _temporary(path, _encode(value), mode)
        try:
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def append_marker(path: Path, *, name: str) -> None:
    """Create an empty file if there is none: a doorbell."""
    make_folder(path.parent)
    with effect(name):
        path.touch(exist_ok=True)


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in `path`, or None when it is absent, empty, cut short, too large or no object.

    The parent folder is listed first, because NFS clients cache the absence of a name (reports row 74).
    """
    try:
        with os.scandir(path.parent) as entries:
            if not any(entry.name == path.name for entry in entries):
                return None
        if path.stat().st_size > MAX_JSON_BYTES:
            return None
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None

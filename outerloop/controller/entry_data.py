"""An entry's clean table in the state folder: where it lies, putting it there, getting it back out of the trash.

Covered: one file by the digest of its content, written anew where it is not what its name says; the folder of sealed
rows. Not covered: what a row must be (outerloop.posttrain.data), collecting what nothing needs (collect_entries.py).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from outerloop.controller.entry_work import sealed_root
from outerloop.effects import effect
from outerloop.slots import StateRoot
from outerloop.slots.files import make_folder, publish, replace, sync_folder

__all__ = ["DATA_NAME", "data_folders", "data_path", "restore_data", "store_data", "trashed_data"]

TABLE = "train.jsonl"
DATA_NAME = re.compile(r"[0-9a-f]{64}")


def data_folders(root: StateRoot) -> Path:
    """The folder that has one folder for each content."""
    return root.path / "entries"


def data_path(root: StateRoot, digest: str) -> Path:
    """Where the clean table of this content lies."""
    return data_folders(root) / digest / TABLE


def trashed_data(root: StateRoot, stamp: int, digest: str) -> Path:
    """Where a collection at this time (Unix seconds) moves the folder of this content."""
    return root.trash / f"{stamp}-data-{digest}"


def store_data(root: StateRoot, path: Path, lines: Iterable[str]) -> None:
    """Make the clean table durable in the state folder, and the folder of sealed rows. Repeating it changes nothing
    but the age that a collection goes by."""
    text = "".join(f"{line}\n" for line in lines)
    if not publish(path, text, name="entry.data"):
        try:
            os.utime(path)
            same = path.read_bytes() == text.encode()
        except FileNotFoundError:  # a collection moved it just now
            same = False
        if not same:
            replace(path, text, name="entry.data")
    sealed = sealed_root(root)
    if not sealed.is_dir():
        make_folder(sealed.parent)
        with effect("entry.data"):
            sealed.mkdir(mode=0o700, exist_ok=True)


def restore_data(root: StateRoot, digest: str) -> bool:
    """Whether the table is there, if need be out of the trash: a collection that died had moved it too early."""
    path = data_path(root, digest)
    if path.is_file():
        return True
    kept = sorted(root.trash.glob(f"*-data-{digest}"), reverse=True) if root.trash.is_dir() else []
    for folder in kept:
        if not (folder / TABLE).is_file():
            continue
        make_folder(path.parent.parent)
        try:
            with effect("entry.data"):
                folder.rename(path.parent)
                sync_folder(path.parent.parent)
        except OSError:  # somebody else was quicker, or put the data there anew
            pass
        return path.is_file()
    return False

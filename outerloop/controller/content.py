"""Content digests of files and folders, cached by path, inode, size and mtime.

Covered: inputs and container images. Not covered: trees in git, which have ids of their own.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from outerloop.controller.request import Execution
from outerloop.plain_files import open_plain

__all__ = ["changed_image", "content_digest", "content_stamp"]

_BLOCK = 1 << 20
_cache: dict[tuple[str, int, int, int], str] = {}


def content_digest(path: Path) -> str:
    """SHA-256 (64 hex digits) of a file's content, or of a folder's sorted list of (path, kind, content).

    Links are hashed as links, not followed. Raises OSError for what cannot be read: pipes, sockets and devices, too.
    """
    if path.is_dir() and not path.is_symlink():
        total = hashlib.sha256(b"folder\0")
        for folder, names, files in os.walk(path):
            names.sort()
            here = Path(folder)
            for name in sorted([*files, *(n for n in names if (here / n).is_symlink())]):
                item = here / name
                relative = os.fsencode(item.relative_to(path))
                if item.is_symlink():
                    total.update(b"link\0" + relative + b"\0" + os.fsencode(item.readlink()) + b"\0")
                else:
                    total.update(b"file\0" + relative + b"\0" + _file_digest(item).encode() + b"\0")
        return total.hexdigest()
    return _file_digest(path)


def _file_digest(path: Path) -> str:
    facts = path.stat()
    key = (str(path.resolve()), facts.st_ino, facts.st_size, facts.st_mtime_ns)
    if key not in _cache:
        digest = hashlib.sha256()
        with os.fdopen(open_plain(path), "rb") as stream:
            while block := stream.read(_BLOCK):
                digest.update(block)
        _cache[key] = digest.hexdigest()
    return _cache[key]


def content_stamp(path: Path) -> str:
    """What changes when a file (or anything in a folder) is written or replaced, without reading it: 64 hex digits.

    Size, inode and modification time of each file. An equal stamp means equal content; another one means nothing yet.
    Raises OSError.
    """
    stamp = hashlib.sha256()
    files = [path]
    if path.is_dir() and not path.is_symlink():
        files = sorted(Path(folder) / name for folder, _names, names in os.walk(path) for name in names)
    for item in files:
        facts = item.stat(follow_symlinks=item == path)
        relative = os.fsencode(item.relative_to(path))
        stamp.update(relative + f"\0{facts.st_ino} {facts.st_size} {facts.st_mtime_ns}\0".encode())
    return stamp.hexdigest()


def changed_image(execution: Execution) -> str:
    """Why the image is not the one that was submitted, "" while it is. Reads it only when its stamp has changed."""
    if not execution.image_path or not execution.image_stamp:
        return ""
    path = Path(execution.image_path)
    try:
        if content_stamp(path) == execution.image_stamp or content_digest(path) == execution.image_digest:
            return ""
    except OSError as error:
        return f"image {path} can't be read: {error.strerror or error}"
    return (
        f"image {path} was changed after the climb was submitted, so what is measured now would not compare with what"
        " was measured before; put the old one back and `outerloop retry`, or cancel and ask again"
    )

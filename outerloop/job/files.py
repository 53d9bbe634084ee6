"""Small files that are whole or absent, and the removal of folders that somebody else filled.

Covered: durable link and rename, careful reads, removal in spite of odd modes. Not covered: what the files mean.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

MAX_JSON_BYTES = 16 * 1024 * 1024
"""The readers of a slot refuse larger files too."""

READ_PATIENCE_SECONDS = 3.0
"""How long a file that was written just before the job started may stay invisible to this node (NFS)."""


def utc_now() -> str:
    """The time in UTC, ISO 8601 with milliseconds. For people: nothing is decided by it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def encode(value: Mapping[str, Any]) -> bytes:
    """The bytes of a JSON file. Text that is no Unicode is written as escapes."""
    return (json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n").encode("ascii")


def sync_folder(folder: str) -> None:
    """Make the entries of a folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_all(handle: int, data: bytes | memoryview) -> None:
    """Write every byte, or raise OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def write_temporary(path: str, data: bytes) -> str:
    """A finished, synced file beside `path` holding `data`; the caller links or renames it. Raises OSError."""
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        try:
            write_all(handle, data)
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError:
        unlink_quietly(temporary)
        raise
    return temporary


def publish(path: str, data: bytes) -> bool:
    """Create `path` by link(2): True when this call made it, False when it was there. Raises OSError otherwise."""
    temporary = write_temporary(path, data)
    try:
        try:
            os.link(temporary, path)
            made = True
        except OSError:
            # A link whose NFS reply was lost is tried again by the client and then reported as existing: the
            # number of links tells the truth (open(2), NOTES on O_EXCL over NFS).
            made = os.stat(temporary).st_nlink == 2
            if not made and not os.path.lexists(path):
                raise
    finally:
        unlink_quietly(temporary)
    sync_folder(os.path.dirname(path))
    return made


def replace(path: str, data: bytes) -> None:
    """Write `path` whole or not at all: temporary file, fsync, read again, rename, fsync of the folder.

    Raises OSError, also when the bytes read back are not those written.
    """
    temporary = write_temporary(path, data)
    try:
        handle = os.open(temporary, os.O_RDONLY | os.O_CLOEXEC)
        with open(handle, "rb") as file:
            if file.read() != data:
                raise OSError(f"{temporary}: the bytes read back are not those written")
        os.rename(temporary, path)
    except OSError:
        unlink_quietly(temporary)
        raise
    sync_folder(os.path.dirname(path))


def unlink_quietly(path: str) -> None:
    """Remove a file if it is there and can be removed."""
    try:
        os.unlink(path)
    except OSError:
        return


def listed(path: str) -> bool:
    """Whether the parent folder lists the name. Listing first defeats a cached absence (NFS)."""
    folder, name = os.path.split(path)
    try:
        with os.scandir(folder) as entries:
            return any(entry.name == name for entry in entries)
    except OSError:
        return False


def read_object(path: str) -> dict[str, Any]:
    """The JSON object in a file. Raises ValueError or OSError with a sentence for a person."""
    with open(path, "rb") as file:
        data = file.read(MAX_JSON_BYTES + 1)
    if len(data) > MAX_JSON_BYTES:
        raise ValueError(f"{path} is larger than {MAX_JSON_BYTES} bytes")
    try:
        value = json.loads(data)
    except RecursionError as error:
        raise ValueError(f"{path} is nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds no JSON object")
    return value


def read_object_patiently(path: str) -> dict[str, Any]:
    """`read_object`, waiting `READ_PATIENCE_SECONDS` for a file that this node does not see yet."""
    deadline = time.monotonic() + READ_PATIENCE_SECONDS
    pause = 0.05
    while not listed(path) and time.monotonic() < deadline:
        time.sleep(pause)
        pause *= 2
    return read_object(path)


def remove_tree(path: str) -> bool:
    """Remove a folder and all below it, links not followed, whatever modes were left. True when it is gone."""
    try:
        status = os.lstat(path)
    except OSError:
        return True
    if not stat.S_ISDIR(status.st_mode):
        unlink_quietly(path)
        return not os.path.lexists(path)
    try:
        _empty(path)
        os.rmdir(path)
    except OSError:
        return False
    return True


def _empty(top: str) -> None:
    # Without recursion: a hostile tree may be deeper than any stack. Folders that are met go to the list, and are
    # removed from the deepest up. Paths longer than PATH_MAX are handled by moving folders up to the top first.
    pending = [top]
    emptied: list[str] = []
    number = 0
    while pending:
        folder = pending.pop()
        if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            os.chmod(folder, 0o700)
        with os.scandir(folder) as entries:
            found = [(entry.path, entry.is_dir(follow_symlinks=False)) for entry in entries]
        for path, is_folder in found:
            if not is_folder:
                os.unlink(path)
            elif folder == top:
                pending.append(path)
                emptied.append(path)
            else:
                number += 1
                moved = os.path.join(top, f".gone-{os.getpid()}-{number}")
                if not os.access(path, os.W_OK | os.X_OK):
                    os.chmod(path, 0o700)
                os.rename(path, moved)
                pending.append(moved)
                emptied.append(moved)
    for folder in reversed(emptied):
        os.rmdir(folder)

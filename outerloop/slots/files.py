"""Files that must be whole or absent: published once by link, replaced by rename, read past NFS caches.

Covered: durable writes and careful reads of small JSON files. Not covered: what the files mean.
"""

from __future__ import annotations

import json
import os
import re
import stat
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Thread
from typing import Any

from outerloop.effects import effect

__all__ = ["Draft", "append_marker", "make_folder", "publish", "read_json", "replace", "storable", "sync_folder"]

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


def _temporary(path: Path, data: bytes, mode: int, *, flushed: bool = True) -> Path:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view) :]
        if flushed:
            os.fsync(handle)
    except BaseException as error:
        os.close(handle)
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # write(2) knows none, and people want to know which disk is full
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


class Draft:
    """A file on its way to the disk beside other work: `publish` puts it in place, `discard` takes it back.

    The folder and the content are flushed by threads of their own at the same time, so whoever has a transaction to
    commit meanwhile waits once. Under its name the file is there only after `publish`, whole and flushed as always.
    """

    def __init__(self, path: Path, value: Mapping[str, Any] | str, *, mode: int = 0o644) -> None:
        self.path = path
        self._temporary: Path | None = None
        self._errors: list[BaseException] = []
        made = self._made_folders(path.parent)
        self._threads = [Thread(target=self._guarded, args=(self._write, _encode(value), mode))]
        self._threads += [Thread(target=self._guarded, args=(sync_folder, folder.parent)) for folder in made]
        for thread in self._threads:
            thread.start()

    @staticmethod
    def _made_folders(folder: Path) -> list[Path]:
        missing = [parent for parent in (folder, *folder.parents) if not parent.is_dir()]
        folder.mkdir(parents=True, exist_ok=True)
        return missing

    def _write(self, data: bytes, mode: int) -> None:
        self._temporary = _temporary(self.path, data, mode)

    def _guarded(self, work: Callable[..., None], *arguments: Any) -> None:
        try:
            work(*arguments)
        except BaseException as error:
            self._errors.append(error)

    def _wait(self) -> None:
        for thread in self._threads:
            thread.join()

    def publish(self, *, name: str) -> bool:
        """As the function `publish`. Raises what writing raised."""
        with effect(name):
            self._wait()
            if self._errors:
                self._remove()
                raise self._errors[0]
            assert self._temporary is not None, "written, or an error says why not"
            try:
                os.link(self._temporary, self.path)
                made = True
            except FileExistsError:
                made = False
            finally:
                self._remove()
            sync_folder(self.path.parent)
        return made

    def discard(self) -> None:
        """Leave nothing behind but the folder."""
        self._wait()
        self._remove()

    def _remove(self) -> None:
        if self._temporary is not None:
            self._temporary.unlink(missing_ok=True)


def replace(path: Path, value: Mapping[str, Any] | str, *, name: str, mode: int = 0o644, flushed: bool = True) -> None:
    """Write `path` anew, whole or not at all (temporary file, fsync, rename, fsync of the folder).

    `flushed=False` leaves both fsyncs out: for what is read at once, and is written anew or not missed after a crash
    of the machine. A process that dies leaves it whole or absent all the same.
    """
    if flushed:
        make_folder(path.parent)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
    with effect(name):
        temporary = _temporary(path, _encode(value), mode, flushed=flushed)
        try:
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        if flushed:
            sync_folder(path.parent)


def append_marker(path: Path, *, name: str) -> None:
    """Create an empty file if there is none: a doorbell."""
    make_folder(path.parent)
    with effect(name):
        path.touch(exist_ok=True)


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in `path`, or None when it is absent, empty, cut short, too large, no plain file or no object.

    NUL characters and halves of surrogate pairs, which no record can hold, are read as escapes: what a candidate calls
    its files and what it prints is its own affair, and must not stop whoever looks.

    The parent folder is listed first, because NFS clients cache the absence of a name (reports row 74).
    """
    try:
        with os.scandir(path.parent) as entries:
            if not any(entry.name == path.name for entry in entries):
                return None
        # Without O_NONBLOCK a fifo of that name would stop whoever looks, for ever.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            facts = os.fstat(file.fileno())
            if not stat.S_ISREG(facts.st_mode) or facts.st_size > MAX_JSON_BYTES:
                return None
            raw = file.read(MAX_JSON_BYTES + 1)
        value = json.loads(raw)
        if _ESCAPED.search(raw):
            value = storable(value)
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


_ESCAPED = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])")
"""What NUL and surrogates look like in JSON, where nothing else can bring them: most files need no closer look."""
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


def storable(value: Any) -> Any:
    """A JSON value with every text as Postgres can hold it."""
    if isinstance(value, str):
        return _UNSTORABLE.sub(_as_escape, value)
    if isinstance(value, dict):
        return {storable(key): storable(item) for key, item in value.items()}
    return list(map(storable, value)) if isinstance(value, list) else value


def _as_escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    # Python stands in for a byte that is no UTF-8 with one of the latter (PEP 383).
    return f"\\x{code & 0xFF:02x}" if code == 0 or 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"

"""Logs that keep head and tail of any amount of output, and know the length and hash of all of it.

Covered: one stream of a command. Not covered: reading it from a pipe (process.py), finding a metric (metric.py).
A full disk never stops the pump: the log is then incomplete and says so in `error`.
"""

from __future__ import annotations

import hashlib
import os
import time
from typing import Any, Protocol

from outerloop.job import files

TAIL_REFRESH_SECONDS = 5.0
"""How often the tail of an overlong log is rewritten while the command runs, for those who follow it."""


_REMEMBERED = 4096


class Stream(Protocol):
    """Somewhere for output to go that remembers its end."""

    def feed(self, data: bytes) -> None: ...

    def last(self, characters: int) -> str: ...


class PassedOn:
    """Output written on to a descriptor of this program."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._tail = b""

    def feed(self, data: bytes) -> None:
        """Take the next piece of output."""
        files.write_all(self._handle, data)
        self._tail = (self._tail + data)[-_REMEMBERED:]

    def last(self, characters: int) -> str:
        """At most the last `characters` characters."""
        return self._tail.decode("utf-8", "replace")[-characters:]


class CappedLog:
    """A file that holds all output up to `keep` bytes, else its first and last halves with the cut marked."""

    def __init__(self, path: str, keep: int) -> None:
        self.bytes = 0
        self.error = ""
        self._keep = keep
        self._head = keep // 2
        self._tail_room = keep - self._head
        self._tail = bytearray()
        self._hash = hashlib.sha256()
        self._refreshed = 0.0
        self._handle = -1
        try:
            self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        except OSError as error:
            self.error = str(error)

    @property
    def cut(self) -> bool:
        """Whether the file holds less than everything."""
        return self.bytes > self._keep or bool(self.error)

    def feed(self, data: bytes) -> None:
        """Take the next piece of output."""
        self._hash.update(data)
        before = self.bytes
        self.bytes += len(data)
        if len(data) >= self._tail_room:
            self._tail = bytearray(data[len(data) - self._tail_room :])
        else:
            self._tail += data
            if len(self._tail) > 2 * self._tail_room:
                del self._tail[: len(self._tail) - self._tail_room]
        if before < self._keep:
            self._put(before, data[: self._keep - before])
        if self.bytes > self._keep and time.monotonic() - self._refreshed > TAIL_REFRESH_SECONDS:
            self._write_tail()

    def _write_tail(self) -> None:
        self._refreshed = time.monotonic()
        tail = self._tail[len(self._tail) - self._tail_room :] if len(self._tail) > self._tail_room else self._tail
        lost = self.bytes - self._head - len(tail)
        marked = f"\n[outerloop: {lost} bytes cut here]\n".encode() + tail
        self._put(self._head, bytes(marked))
        if not self.error:
            os.ftruncate(self._handle, self._head + len(marked))

    def _put(self, at: int, data: bytes) -> None:
        if self.error:
            return
        try:
            os.lseek(self._handle, at, os.SEEK_SET)
            files.write_all(self._handle, data)
        except OSError as error:
            self.error = str(error)

    def close(self) -> None:
        """Finish the file. The object still answers `summary` and `last` afterwards."""
        if self._handle < 0:
            return
        if self.bytes > self._keep:
            self._write_tail()
        try:
            os.fsync(self._handle)
        except OSError as error:
            self.error = self.error or str(error)
        os.close(self._handle)
        self._handle = -1

    def summary(self) -> dict[str, Any]:
        """The entry of result.json: bytes and SHA-256 of everything, and whether the file was cut."""
        return {"bytes": self.bytes, "sha256": self._hash.hexdigest(), "cut": self.cut}

    def last(self, characters: int) -> str:
        """At most the last `characters` characters, from whole lines where possible."""
        text = bytes(self._tail[-4 * characters :]).decode("utf-8", "replace").replace("\0", "\ufffd")
        if len(text) <= characters:
            return text
        text = text[-characters:]
        newline = text.find("\n")
        return text[newline + 1 :] if 0 <= newline < len(text) - 1 else text

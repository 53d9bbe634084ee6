"""What goes into a tree besides git and what comes out of it: declared inputs, outputs and artifacts.

Covered: placing inputs, copying outputs size-capped without following a link out, hashing.
Not covered: mounting inputs (sandbox.py). Paths are checked when no process of the candidate is alive, or before
one has started, so that nothing changes between check and use.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Sequence
from typing import Any

from outerloop.job import files
from outerloop.job.scratch import copy_file
from outerloop.job.work import InputFile

COPY_BYTES = 64 * 1024 * 1024
"""Outside a sandbox, inputs up to this size are copied, so that an accident cannot change the original."""

CHECKED_BYTES = 1024 * 1024 * 1024
"""Larger inputs are not hashed again on every node: that would cost minutes per job."""

MAX_FILES = 100_000
"""Of one attempt's outputs: more is an accident that would choke a shared file system."""

_BLOCK = 1024 * 1024
_SHA256 = re.compile(r"[0-9a-f]{64}")


class ArtifactError(Exception):
    """A declared output cannot be kept; the message says which and why."""


class InputError(Exception):
    """A declared input cannot be placed; the message says which and why."""


def _make_parents(tree: str, path: str) -> str:
    """The absolute place of `path` in `tree`, its parents made, none of them a link."""
    here = tree
    for part in path.split("/")[:-1]:
        here = os.path.join(here, part)
        try:
            mode = os.lstat(here).st_mode
        except FileNotFoundError:
            os.mkdir(here)
            continue
        if not stat.S_ISDIR(mode):
            raise InputError(f"{path!r}: {part!r} in the tree is no folder")
    return os.path.join(tree, path)


def mount_point(tree: str, path: str, folder: bool) -> str:
    """Make sure that a file or a folder is at `path`, for something to be mounted over it."""
    place = _make_parents(tree, path)
    if os.path.islink(place) or (os.path.lexists(place) and os.path.isdir(place) != folder):
        files.remove_tree(place)
    if folder:
        os.makedirs(place, exist_ok=True)
    elif not os.path.lexists(place):
        os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
    return place


def place_input(tree: str, item: InputFile) -> None:
    """Lay an input into a tree that is not sandboxed: a copy when it is small, else a link to the original.

    Raises InputError and OSError.
    """
    place = _make_parents(tree, item.path)
    files.remove_tree(place)
    source = os.path.realpath(item.source)
    size = _size_up_to(source, COPY_BYTES)
    if size is None:
        os.symlink(source, place)
    elif os.path.isdir(source):
        os.makedirs(place, exist_ok=True)
        for below, found in _walk(source, item.path):
            os.makedirs(os.path.dirname(os.path.join(place, below)), exist_ok=True)
            copy_file(found, os.path.join(place, below), 0o444)
    else:
        copy_file(source, place, 0o444)


def check_input(item: InputFile) -> None:
    """Raises InputError when an input is absent, or is a file that does not have its declared SHA-256."""
    try:
        status = os.stat(item.source)
    except OSError as error:
        raise InputError(f"input {item.path!r}: {error.strerror}: {item.source}") from error
    declared = item.digest.removeprefix("sha256:")
    checkable = stat.S_ISREG(status.st_mode) and status.st_size <= CHECKED_BYTES
    if checkable and _SHA256.fullmatch(declared) and (found := hash_file(item.source)[1]) != declared:
        raise InputError(f"input {item.path!r} has changed: its SHA-256 is {found}, declared is {declared}")


def _size_up_to(source: str, cap: int) -> int | None:
    """Total bytes of a file or folder, None when above `cap`."""
    if not os.path.isdir(source):
        size = os.path.getsize(source)
        return size if size <= cap else None
    total = 0
    try:
        for _, found in _walk(source, source):
            total += os.path.getsize(found)
            if total > cap:
                return None
    except ArtifactError:
        return None
    return total


def hash_file(path: str) -> tuple[int, str]:
    """Bytes and SHA-256 of a regular file, no link followed. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    digest, size = hashlib.sha256(), 0
    try:
        while block := os.read(handle, _BLOCK):
            digest.update(block)
            size += len(block)
    finally:
        os.close(handle)
    return size, digest.hexdigest()


def _walk(top: str, name: str) -> Iterable[tuple[str, str]]:
    """(path below `top`, real file) of every regular file; links count only when they stay inside `top`."""
    inside = os.path.realpath(top) + os.sep
    pending, count = [""], 0
    while pending:
        below = pending.pop()
        with os.scandir(os.path.join(top, below)) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        for entry in found:
            path = os.path.join(below, entry.name)
            count += 1
            if count > MAX_FILES:
                raise ArtifactError(f"{name!r} holds more than {MAX_FILES} files")
            if entry.is_symlink():
                aim = os.path.realpath(entry.path)
                if not aim.startswith(inside):
                    raise ArtifactError(f"{name!r}: {path!r} is a link that leads out of it")
                if not os.path.isfile(aim):
                    raise ArtifactError(f"{name!r}: {path!r} is a link to something that is no file")
                yield path, aim
            elif entry.is_dir(follow_symlinks=False):
                pending.append(path)
            elif entry.is_file(follow_symlinks=False):
                yield path, entry.path
            else:
                raise ArtifactError(f"{name!r}: {path!r} is neither a file nor a folder")


def _files_of(root: str, path: str) -> Iterable[tuple[str, str]]:
    """(path below `root`, real file) of a declared output."""
    path = path.rstrip("/")
    whole = os.path.join(root, path)
    if not os.path.lexists(whole):
        raise ArtifactError(f"the declared output {path!r} was not written")
    if os.path.realpath(whole) != os.path.join(os.path.realpath(root), path):
        raise ArtifactError(f"the declared output {path!r} is a link or lies behind one")
    if os.path.isdir(whole):
        for below, found in _walk(whole, path):
            yield os.path.join(path, below), found
    elif stat.S_ISREG(os.lstat(whole).st_mode):
        yield path, whole
    else:
        raise ArtifactError(f"the declared output {path!r} is neither a file nor a folder")


def collect(root: str, paths: Sequence[str], destination: str, cap: int, *, durable: bool) -> list[dict[str, Any]]:
    """Copy declared outputs from `root` to the same paths below `destination`; returns their result entries.

    With `destination` equal to `root` they are only hashed. Raises ArtifactError, or OSError (a full disk).
    """
    entries: list[dict[str, Any]] = []
    total = 0
    for declared in paths:
        for path, source in _files_of(root, declared):
            total += os.stat(source).st_size
            if total > cap:
                raise ArtifactError(f"the declared outputs exceed {cap} bytes at {path!r}")
            target = os.path.join(destination, path)
            if destination != root:
                _copy(source, target, destination, path, durable)
            size, digest = hash_file(target)
            entries.append({"path": path, "bytes": size, "sha256": digest})
    return entries


def _copy(source: str, target: str, destination: str, path: str, durable: bool) -> None:
    try:
        _make_parents(destination, path)
    except InputError as error:
        raise ArtifactError(str(error)) from error
    files.remove_tree(target)
    copy_file(source, target, 0o644)
    if durable:
        handle = os.open(target, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

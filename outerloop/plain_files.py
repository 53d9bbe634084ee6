"""Reading files that strangers' programs wrote, without waiting for them or following them out of their folder.

Covered: one small file, whole. A pipe, a socket or a device in its place is refused before it is opened for reading,
which would wait for a writer that may never come. Not covered: digests of large files (controller.content), files
that a job copies (job.scratch).
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

__all__ = ["open_plain", "read_plain"]


def open_plain(path: Path) -> int:
    """A descriptor of a regular file, links followed. Raises OSError, with EINVAL for what is no regular file."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    except BaseException:
        os.close(handle)
        raise
    return handle


def read_plain(path: Path, most: int, *, inside: Path | None = None) -> bytes:
    """The bytes of a regular file of at most `most` bytes, which lies below `inside` when all links are followed.

    Raises OSError for what is absent or can't be read, ValueError with the reason for what is refused.
    """
    if inside is not None and not os.path.realpath(path).startswith(os.path.realpath(inside) + os.sep):
        raise ValueError("it is a link that leads elsewhere")
    try:
        handle = open_plain(path)
    except OSError as error:
        # ENXIO is a socket's answer.
        if error.errno in (errno.EINVAL, errno.ENXIO):
            raise ValueError("it is not a regular file") from None
        raise
    with os.fdopen(handle, "rb") as stream:
        found = stream.read(most + 1)
    if len(found) > most:
        raise ValueError(f"it is larger than {most >> 20} MiB")
    return found

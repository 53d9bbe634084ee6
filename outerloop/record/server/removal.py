"""Delete a folder's server with everything in it, so that whoever is killed on the way leaves nothing half-believed.

Covered: what goes in which order, going on with a removal that was killed. Not covered: stopping the server, the lock;
everything here is called under the folder's lock except `leave`.

The removal is decided by one rename, server.json to removing.json: before it nothing is gone, and after it nobody takes
what is left for a record. The next start or removal goes on with it. The lock's file goes last.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
from pathlib import Path
from typing import Any

from outerloop.record.server.errors import EmbeddedError
from outerloop.record.server.place import AWAY, LOCK, STATE, Place, place_of, read_state

__all__ = ["go_on", "leave", "tear_down"]

_REMOVING = "removing.json"


def tear_down(folder: Path) -> None:
    """Delete everything of the folder, whose server is stopped, but the folder. Raises EmbeddedError, OSError."""
    written = read_state(folder)
    if written is not None:
        home = Path(written["home"])
        if home != folder and (home.parent != AWAY or home.name == ".."):
            raise EmbeddedError(f"{folder / STATE} names {home}, which is not ours to delete")
        (folder / STATE).replace(folder / _REMOVING)
    go_on(folder)
    _empty(folder, keep={LOCK})
    (folder / LOCK).unlink(missing_ok=True)


def go_on(folder: Path) -> None:
    """Finish what a killed removal began; nothing where none did."""
    written = read_state(folder, _REMOVING)
    if written is None:
        return
    home = Path(written["home"])
    place: Place | None = None
    with contextlib.suppress(EmbeddedError):  # its data is gone, and the socket went before
        place = place_of(folder, written)
    if place is not None:
        _delete(place.run)
    if home == folder:
        _empty(folder, keep={LOCK, _REMOVING})
    else:
        _delete(home)
    (folder / _REMOVING).unlink()


def leave(folder: Path) -> None:
    """Remove the empty folder, unless somebody began to make a server in it since the lock was given back."""
    try:
        folder.rmdir()
    except OSError as error:
        # ENOTEMPTY is also a lock that others have open on NFS, whose file lives on under another name
        if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
            raise


def _empty(folder: Path, *, keep: set[str]) -> None:
    for path in folder.iterdir():
        if path.name not in keep:
            _delete(path)


def _delete(path: Path) -> None:
    """Remove a tree or a file. What has gone meanwhile is what was wanted."""

    def failed(_function: Any, _path: str, error: Any) -> None:
        if not isinstance(error[1], FileNotFoundError):
            raise error[1]

    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, onerror=failed)
    else:
        path.unlink(missing_ok=True)

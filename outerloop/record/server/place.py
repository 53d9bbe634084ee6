"""Where the parts of one folder's server are, whose they are, and which host may run it.

Covered: server.json, the password file, the lock, the account for root, short socket paths. Not covered: what is
inside the data folder (launch.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import pwd
import secrets
import socket
import stat
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outerloop.record.server.errors import EmbeddedError, OtherHostError

__all__ = [
    "AWAY",
    "LOCK",
    "PORT",
    "STATE",
    "Place",
    "account_name",
    "check_host",
    "data_version",
    "locked",
    "make_folder",
    "make_password",
    "new_place",
    "password_of",
    "place_of",
    "read_state",
    "write_new",
    "write_state",
]

PORT = 5432
"""Part of the socket's name; nothing listens on the network."""
LOCK = "lock"
STATE = "server.json"
"""Names in the folder."""
AWAY = Path("/var/lib/outerloop")
"""Where root's servers live whose own account can't reach the folder."""

_SUN_PATH = 107
"""Longest path of a Unix socket: sizeof(sun_path) - 1, unix(7)."""
_LOCK_SECONDS = 150.0
"""Longer than a start may take (launch.START_SECONDS)."""
_POLL_SECONDS = 0.05
_UNPRIVILEGED = ("postgres", "nobody")


@dataclass(frozen=True)
class Place:
    """Where the parts of one folder's server are, and whose they are."""

    folder: Path
    home: Path
    run: Path
    uid: int
    gid: int

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def log(self) -> Path:
        return self.home / "server.log"

    @property
    def other_account(self) -> bool:
        return self.uid != os.geteuid()

    def identity(self) -> dict[str, Any]:
        """Arguments for subprocess that run a program as the server's account."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []} if self.other_account else {}


def read_state(folder: Path, name: str = STATE) -> dict[str, str] | None:
    try:
        text = (folder / name).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        written = json.loads(text)
        return {"host": str(written["host"]), "home": str(written["home"])}
    except (ValueError, KeyError, TypeError):
        raise EmbeddedError(f"{folder / name} is damaged; stop the server, remove that file and start again") from None


def write_state(folder: Path, place: Place) -> None:
    text = json.dumps({"schema": 1, "host": socket.gethostname(), "home": str(place.home)}, indent=1) + "\n"
    write_new(folder / "server.json", text, mode=0o600)


def write_new(path: Path, text: str, *, mode: int) -> None:
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    fresh.replace(path)


def make_folder(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    info = folder.stat()
    # for root, the server's own account must pass through to what it owns
    wanted = 0o711 if os.geteuid() == 0 else 0o700
    if info.st_uid == os.geteuid() and stat.S_IMODE(info.st_mode) & 0o777 != wanted:
        folder.chmod(wanted)


def place_of(folder: Path, written: dict[str, str]) -> Place:
    home = Path(written["home"])
    try:
        info = (home / "data").stat()
    except FileNotFoundError:
        raise EmbeddedError(
            f"the data folder {home / 'data'} is gone although {folder / 'server.json'} names it; if it is lost,"
            f" remove {folder / 'server.json'} and run `outerloop db rebuild`"
        ) from None
    if os.geteuid() not in (0, info.st_uid):
        raise EmbeddedError(
            f"the embedded Postgres in {folder} belongs to {account_name(info.st_uid)},"
            f" not to {account_name(os.geteuid())}"
        )
    return Place(folder, home, _socket_folder(home, info.st_uid), info.st_uid, info.st_gid)


def new_place(folder: Path) -> Place:
    if os.geteuid() != 0:
        return Place(folder, folder, _socket_folder(folder, os.geteuid()), os.geteuid(), os.getegid())
    account = _unprivileged()
    home = folder
    reaches = subprocess.run(
        ["test", "-x", str(folder)], user=account.pw_uid, group=account.pw_gid, extra_groups=[], check=False, cwd="/"
    )
    if reaches.returncode != 0:
        home = AWAY / hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
        home.mkdir(parents=True, exist_ok=True)
        home.chmod(0o711)
        AWAY.chmod(0o711)
    return Place(folder, home, _socket_folder(home, account.pw_uid), account.pw_uid, account.pw_gid)


def _unprivileged() -> pwd.struct_passwd:
    for name in _UNPRIVILEGED:
        with contextlib.suppress(KeyError):
            account = pwd.getpwnam(name)
            if account.pw_uid != 0:
                return account
    raise EmbeddedError(
        "Postgres refuses to run as root, and there is no account to run it as"
        f" (looked for: {', '.join(_UNPRIVILEGED)}); make one, or set database_url"
    )


def _socket_folder(home: Path, uid: int) -> Path:
    run = home / "run"
    longest = len(os.fsencode(run / f".s.PGSQL.{PORT}.lock"))
    # these letters have a meaning in unix_socket_directories or in a connection string
    if longest <= _SUN_PATH and str(run).isprintable() and not set(str(run)) & set(",'\"\\"):
        return run
    return Path("/tmp") / f"ol-{hashlib.sha256(f'{uid}:{home}'.encode('utf-8', 'surrogateescape')).hexdigest()[:12]}"


def account_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def check_host(folder: Path, written: dict[str, str], *, adopt_host: bool) -> None:
    here = socket.gethostname()
    if written["host"] == here:
        return
    if not adopt_host:
        raise OtherHostError(
            f"the embedded Postgres in {folder} belongs to host {written['host']}, and this is {here}: run the command"
            f" there, set database_url to a network Postgres, or, once it is stopped there,"
            f" take it over with `outerloop db start --here`"
        )
    pid_file = Path(written["home"]) / "data" / "postmaster.pid"
    if pid_file.exists():
        raise OtherHostError(
            f"the embedded Postgres in {folder} was not shut down on host {written['host']}: stop it there; if"
            f" that host is gone for good, remove {pid_file} and try again"
        )


@contextlib.contextmanager
def locked(folder: Path, *, make: bool = False) -> Iterator[bool]:
    """The folder's lock, True while it is held. False, and nothing held, where there is no folder; `make` makes one.

    Whoever removes the folder removes the lock's file last: a lock that was got on a file that is the folder's no
    longer protects nothing, so it is taken again. Raises EmbeddedError when somebody has held it for too long, OSError.
    """
    deadline = time.monotonic() + _LOCK_SECONDS
    handle: int | None = None
    while handle is None:
        try:
            if make:
                make_folder(folder)
            handle = _lock_of(folder, deadline)
        except (FileNotFoundError, FileExistsError):  # removed just now; mkdir says the latter then
            if not make:
                break
            if time.monotonic() > deadline or (folder.exists() and not folder.is_dir()):
                raise
    try:
        yield handle is not None
    finally:
        if handle is not None:
            os.close(handle)


def _lock_of(folder: Path, deadline: float) -> int | None:
    """The locked file, None when it was removed meanwhile. Raises FileNotFoundError without a folder."""
    path = folder / LOCK
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise EmbeddedError(
                        f"another process has been starting or stopping the embedded Postgres in {folder} for more than"
                        f" {_LOCK_SECONDS:g} seconds (it holds {path})"
                    ) from None
                time.sleep(_POLL_SECONDS)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), path.stat()):
                return handle
    except BaseException:
        os.close(handle)
        raise
    os.close(handle)
    return None


def make_password(folder: Path) -> str:
    """The password of the server to be made; under the lock. One that a killed starter left is used."""
    path = folder / "password"
    if not path.exists():
        write_new(path, secrets.token_hex(24) + "\n", mode=0o600)
    return password_of(folder)


def password_of(folder: Path) -> str:
    """The password in the folder."""
    try:
        return (folder / "password").read_text(encoding="ascii").strip()
    except FileNotFoundError:
        raise EmbeddedError(
            f"{folder / 'password'} is gone, and without it nobody gets in; restore it, or move {folder} away and run"
            " `outerloop db rebuild`"
        ) from None


def data_version(place: Place) -> str | None:
    try:
        return (place.data / "PG_VERSION").read_text(encoding="ascii").strip()
    except OSError:
        return None

"""A Postgres server of our own in a folder: started by whoever needs it first, shared, outliving its clients.

Covered: making the data folder, starting, finding, stopping, removing, and every accident on the way: root, long
paths, two starters, a start during a removal, SIGKILL of a client, of the starter or of the server, a stale or recycled
pid, another host, a full disk.
Not covered: the programs (binaries.py), tables (models.py, migrate.py), anything across hosts.

A folder looks like this:

    lock          flock of whoever starts, stops or removes
    password      of the one role, mode 0600; authentication is scram-sha-256 on a Unix socket, never trust
    server.json   host, place of the data, place of the socket
    data/ run/    PGDATA and the socket; run/ is /tmp/ol-<hash> where the path would be too long for a socket
    server.log

Postgres refuses to run as root. For root the server runs as an unprivileged account that exists already and owns
data/ and run/. Where that account can't reach the folder (a home folder that only root may enter), both are in
/var/lib/outerloop/<hash>, the modes of other folders are left alone, and server.json says so.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from outerloop.record.server.errors import (
    DiskFullError,
    EmbeddedError,
    NotRunningError,
    OtherHostError,
    classified,
    explained,
    is_full,
    no_room,
)
from outerloop.record.server.launch import (
    FAST_VARIABLE,
    ROLE,
    START_SECONDS,
    choose,
    initialise,
    launch,
    prepare,
    runnable,
)
from outerloop.record.server.place import (
    PORT,
    STATE,
    Place,
    account_name,
    check_host,
    data_version,
    locked,
    make_password,
    new_place,
    password_of,
    place_of,
    read_state,
    write_state,
)
from outerloop.record.server.processes import alive, clear_the_dead, postmaster, says_ready, until
from outerloop.record.server.removal import go_on, leave, tear_down

__all__ = [
    "FAST_VARIABLE",
    "DiskFullError",
    "EmbeddedError",
    "NotRunningError",
    "OtherHostError",
    "Status",
    "ensure_running",
    "remove",
    "status",
    "stop",
    "url_of",
]

DATABASE = "outerloop"
STOP_SECONDS = 60.0
FULL_SECONDS = 10.0
"""How long a server on a full disk may take to start: it can, where no part of its log must grow."""
_Seen = TypeVar("_Seen")


@dataclass(frozen=True)
class Status:
    """What is known of a folder's server. `url` holds no password."""

    exists: bool
    running: bool
    host: str
    pid: int | None
    data: str
    socket: str
    version: str
    account: str
    url: str


def ensure_running(folder: Path | str, *, bin_dir: Path | str | None = None, adopt_host: bool = False) -> str:
    """The URL (with password) of the server in `folder`, made and started if need be.

    Safe to call from any number of processes at once. `bin_dir` chooses the programs. `adopt_host` takes over a
    folder that was last used by another host and shut down there. Raises EmbeddedError or one of its subclasses.
    """
    folder = Path(folder).absolute()
    with explained(folder):
        in_job = bool(os.environ.get("SLURM_JOB_ID"))
        try:
            written = read_state(folder)
            if written is not None:
                check_host(folder, written, adopt_host=adopt_host)
                place = place_of(folder, written)
                if written["host"] == socket.gethostname() and _answers(place):
                    return _url(place)
        except OtherHostError:
            raise
        except EmbeddedError:
            if in_job:
                raise  # else the lock tells a removal that is under way from damage
        if in_job:
            raise NotRunningError(
                f"the embedded Postgres in {folder} is not running, and it is not started from inside a Slurm job,"
                " because Slurm would kill it when the job ends; run `outerloop db start` on the login node"
            )
        with locked(folder, make=True):
            return _start(folder, bin_dir=bin_dir, adopt_host=adopt_host)


def stop(folder: Path | str, *, timeout_seconds: float = STOP_SECONDS) -> bool:
    """Shut the server in `folder` down, ending its sessions. False when it was not running."""
    folder = Path(folder).absolute()
    with explained(folder):
        written = read_state(folder)
        if written is None:
            return False
        check_host(folder, written, adopt_host=False)
        with locked(folder) as held:
            return held and _stop(folder, timeout_seconds)


def _stop(folder: Path, timeout_seconds: float) -> bool:
    written = read_state(folder)
    if written is None:
        return False
    check_host(folder, written, adopt_host=False)
    pid = postmaster(place_of(folder, written))
    if pid is None:
        return False
    _shut_down(pid, timeout_seconds)
    return True


def status(folder: Path | str) -> Status:
    """What is known of the server in `folder`; starts nothing. Raises EmbeddedError when the folder is unreadable."""
    return _seen(Path(folder).absolute(), _status)


def _status(folder: Path) -> Status:
    written = read_state(folder)
    if written is None:
        return Status(False, False, "", None, "", "", "", "", "")
    place = place_of(folder, written)
    here = written["host"] == socket.gethostname()
    pid = postmaster(place) if here else None
    return Status(
        exists=True,
        running=pid is not None and _answers(place),
        host=written["host"],
        pid=pid,
        data=str(place.data),
        socket=str(place.run),
        version=data_version(place) or "",
        account=account_name(place.uid),
        url=_url(place, password=""),
    )


def url_of(folder: Path | str) -> str:
    """The URL (with password) of the server in `folder`, whether or not it runs. Raises EmbeddedError without one."""
    return _seen(Path(folder).absolute(), _url_of)


def _url_of(folder: Path) -> str:
    written = read_state(folder)
    if written is None:
        raise NotRunningError(f"there is no embedded Postgres in {folder} yet; run `outerloop db start`")
    return _url(place_of(folder, written))


def _seen(folder: Path, look: Callable[[Path], _Seen]) -> _Seen:
    """What a look without the lock sees. Where server.json changed meanwhile, what seemed damaged was being removed."""
    with explained(folder):
        while True:
            before = _stamp(folder)
            try:
                return look(folder)
            except (EmbeddedError, OSError):
                if _stamp(folder) == before:
                    raise


def _stamp(folder: Path) -> tuple[int, int] | None:
    try:
        facts = (folder / STATE).stat()
    except OSError:
        return None
    return facts.st_ino, facts.st_ctime_ns


def remove(folder: Path | str) -> None:
    """Stop the server in `folder` and delete it with everything in it. The record can be rebuilt from the slots.

    Under the folder's lock: who starts one meanwhile waits, and gets a new one.
    """
    folder = Path(folder).absolute()
    with explained(folder):
        with locked(folder) as held:
            if not held:
                return
            if read_state(folder) is None and (folder / "data").exists():  # whose server.json somebody took away
                pid = postmaster(place_of(folder, {"home": str(folder)}))
                if pid is not None:
                    _shut_down(pid, STOP_SECONDS)
            _stop(folder, STOP_SECONDS)
            tear_down(folder)
        leave(folder)


def _start(folder: Path, *, bin_dir: Path | str | None, adopt_host: bool) -> str:
    go_on(folder)
    written = read_state(folder)
    if written is not None:
        check_host(folder, written, adopt_host=adopt_host)
        place = place_of(folder, written)
    else:
        place = new_place(folder)
        if place.home != folder and place.data.exists() and not (folder / "password").exists():
            _set_aside(place)
        if place.data.exists():  # a starter was killed between making the data and writing server.json
            place = place_of(folder, {"home": str(place.home)})
    binaries = runnable(place, choose(place, bin_dir))
    if not place.data.exists():
        initialise(place, binaries, make_password(folder))
    if written is None or written["host"] != socket.gethostname():
        write_state(folder, place)
    pid = postmaster(place)
    if pid is not None and not _socket(place).exists() and says_ready(place):
        # something cleaned /tmp up; a server never makes its socket again
        _shut_down(pid, START_SECONDS)
        pid = None
    offset = place.log.stat().st_size if place.log.exists() else 0
    hopeless = time.monotonic() + FULL_SECONDS
    if pid is None:
        clear_the_dead(place)
        prepare(place)
        offset = place.log.stat().st_size
        pid = launch(place, binaries)
    server = pid

    def decided() -> bool:
        return _answers(place, "postgres") or not alive(server) or (time.monotonic() > hopeless and is_full(place.home))

    if not until(decided, START_SECONDS):
        raise _failed(place, offset, f"did not answer within {START_SECONDS:g} seconds")
    if not _answers(place, "postgres"):
        what = "ended right after its start" if not alive(server) else "does not answer on a full disk"
        raise _failed(place, offset, what)
    _create_database(place)
    return _url(place)


def _set_aside(place: Place) -> None:
    """Data of a state folder that was removed, while its data lay elsewhere: kept, but not taken for the new one's.

    The password is written before the data, so data without one never belongs to the folder that asks.
    """
    pid = postmaster(place)
    if pid is not None:
        _shut_down(pid, START_SECONDS)
    place.data.rename(place.home / f"orphan-{time.strftime('%Y%m%dT%H%M%S')}-{secrets.token_hex(2)}")


def _shut_down(pid: int, timeout_seconds: float) -> None:
    # SIGINT is "fast shutdown": sessions are ended, the data is left clean
    os.kill(pid, signal.SIGINT)
    if not until(lambda: not alive(pid), timeout_seconds):
        raise EmbeddedError(f"Postgres (process {pid}) did not stop within {timeout_seconds:g} seconds")


def _create_database(place: Place) -> None:
    import psycopg
    from psycopg import sql

    try:
        with psycopg.connect(**_connection(place, "postgres"), autocommit=True) as connection:
            found = connection.execute("select 1 from pg_database where datname = %s", (DATABASE,)).fetchone()
            if found is None:
                connection.execute(sql.SQL("create database {}").format(sql.Identifier(DATABASE)))
    except psycopg.Error as error:
        raise classified(f"the database can't be made in {place.home}", str(error)) from error


def _failed(place: Place, offset: int, what: str) -> EmbeddedError:
    if is_full(place.home):  # then the log has many words for it
        return DiskFullError(no_room(place.home))
    with place.log.open("rb") as log:
        log.seek(offset)
        text = log.read(1 << 16).decode("utf-8", "replace")
    return classified(f"the embedded Postgres in {place.folder} {what} (its log: {place.log})", text)


def _socket(place: Place) -> Path:
    return place.run / f".s.PGSQL.{PORT}"


def _connection(place: Place, database: str) -> dict[str, Any]:
    return {
        "host": str(place.run),
        "port": PORT,
        "user": ROLE,
        "password": password_of(place.folder),
        "dbname": database,
        "connect_timeout": 10,
    }


def _answers(place: Place, database: str = DATABASE) -> bool:
    if not _socket(place).exists():
        return False
    import psycopg

    try:
        psycopg.connect(**_connection(place, database)).close()
    except psycopg.OperationalError as error:
        text = str(error)
        if "password authentication failed" in text:
            raise EmbeddedError(
                f"the password in {place.folder / 'password'} is not that of the server in {place.home}"
            ) from None
        if "init file" in text and is_full(place.home):  # of the relation cache: the first thing a session writes
            raise DiskFullError(no_room(place.home)) from None
        return "too many clients" in text  # it answers, though not us
    return True


def _url(place: Place, password: str | None = None) -> str:
    word = password_of(place.folder) if password is None else password
    login = f"{ROLE}:{quote(word, safe='')}" if word else ROLE
    return f"postgresql+psycopg://{login}@/{DATABASE}?host={quote(str(place.run), safe='')}&port={PORT}"

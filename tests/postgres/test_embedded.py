"""Attacks: that one folder has one server, whoever starts it, however it or its clients die, and as whom it runs."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pickle
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import make_url

from outerloop.record import embedded
from outerloop.record.server import launch, place, processes
from outerloop.record.server.binaries import Binaries, find_binaries, system_binaries, wheel_binaries
from tests.postgres.conftest import open_folder

DEADLINE_SECONDS = 60.0
NIGHTLY = bool(os.environ.get("OUTERLOOP_NIGHTLY"))


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(embedded.FAST_VARIABLE, "1")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)


@pytest.fixture(scope="session")
def made() -> Iterator[Path]:
    """A folder whose data was made and whose server was stopped: copied, it saves most tests an initdb."""
    top = open_folder()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(embedded.FAST_VARIABLE, "1")
        patch.delenv("SLURM_JOB_ID", raising=False)
        embedded.ensure_running(top / "db")
        embedded.stop(top / "db")
    (top / "db" / "server.json").unlink()
    yield top / "db"
    shutil.rmtree(top)


@pytest.fixture
def folder(made: Path) -> Iterator[Path]:
    """A folder as a starter leaves it that was killed right after it made the data."""
    top = open_folder()
    subprocess.run(["cp", "-a", str(made), str(top / "db")], check=True)
    yield top / "db"
    with contextlib.suppress(embedded.EmbeddedError):
        embedded.remove(top / "db")
    shutil.rmtree(top, ignore_errors=True)


@pytest.fixture
def empty_folder() -> Iterator[Path]:
    """A folder that is not there yet."""
    top = open_folder()
    yield top / "db"
    with contextlib.suppress(embedded.EmbeddedError):
        embedded.remove(top / "db")
    shutil.rmtree(top, ignore_errors=True)


def plain(url: str) -> str:
    """The URL as libpq takes it (SQLAlchemy writes a blank in the query as a plus)."""
    written = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    base, _, query = written.partition("?")
    return f"{base}?{query.replace('+', '%20')}"


def ask(url: str, question: str) -> Any:
    with psycopg.connect(plain(url), autocommit=True) as connection:
        cursor = connection.execute(question)  # type: ignore[arg-type]
        return cursor.fetchone()[0] if cursor.description else None  # type: ignore[index]


def pid_of(folder: Path) -> int:
    pid = embedded.status(folder).pid
    assert pid is not None
    return pid


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.005)
    return answer


class Child:
    """`action` in a forked process, its result or exception sent back. A fork needs no interpreter start."""

    def __init__(self, action: Callable[[], Any], *, uid: int | None = None) -> None:
        self.reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self.reader)
                if uid is not None:
                    os.setgroups([])
                    os.setgid(65534)
                    os.setuid(uid)
                try:
                    answer: Any = action()
                except Exception as error:
                    answer = error
                os.write(writer, pickle.dumps(answer))
            finally:
                os._exit(0)
        os.close(writer)

    def result(self) -> Any:
        with os.fdopen(self.reader, "rb") as stream:
            sent = stream.read()
        os.waitpid(self.pid, 0)
        answer = pickle.loads(sent)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.reader)


def test_a_second_caller_finds_the_server_that_runs(folder: Path) -> None:
    first = embedded.ensure_running(folder)
    pid = pid_of(folder)
    assert embedded.ensure_running(folder) == first
    assert pid_of(folder) == pid
    assert ask(first, "select current_database()") == "outerloop"


def test_it_outlives_a_client_that_is_killed_with_its_whole_process_group(folder: Path) -> None:
    code = (
        "import os, signal\nfrom outerloop.record import embedded\n"
        f"embedded.ensure_running({str(folder)!r})\nos.killpg(0, signal.SIGKILL)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], start_new_session=True) as starter:
        assert starter.wait(DEADLINE_SECONDS) == -signal.SIGKILL
        pid = pid_of(folder)
        assert os.getsid(pid) != starter.pid, "a hangup of the starter's terminal would end the server"
    with psycopg.connect(plain(embedded.url_of(folder))):
        pass
    assert pid_of(folder) == pid


def test_a_starter_killed_while_it_makes_the_data_leaves_nothing_that_hinders_the_next(empty_folder: Path) -> None:
    child = Child(lambda: embedded.ensure_running(empty_folder))
    wait_for(lambda: list(empty_folder.glob(".data.*/base")), "initdb was at work")
    child.kill()
    assert not (empty_folder / "server.json").exists()
    assert ask(embedded.ensure_running(empty_folder), "select 1") == 1
    assert list(empty_folder.glob(".data.*")) == []


def test_data_made_by_a_starter_that_was_killed_before_it_could_say_so_is_used(empty_folder: Path) -> None:
    url = embedded.ensure_running(empty_folder)
    ask(url, "create table kept (x int)")
    embedded.stop(empty_folder)
    (empty_folder / "server.json").unlink()
    assert ask(embedded.ensure_running(empty_folder), "select count(*) from kept") == 0


@pytest.mark.parametrize("fast", ["0", "1"])
def test_a_killed_server_is_started_again_with_what_was_committed(
    empty_folder: Path, fast: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(embedded.FAST_VARIABLE, fast)
    url = embedded.ensure_running(empty_folder)
    ask(url, "create table kept as select 7 as x")
    old = pid_of(empty_folder)
    os.kill(old, signal.SIGKILL)
    assert ask(embedded.ensure_running(empty_folder), "select x from kept") == 7
    assert pid_of(empty_folder) != old


def test_a_backend_that_computes_on_after_its_server_was_killed_is_ended(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = embedded.ensure_running(folder)
    old = pid_of(folder)
    # with signals of the killed server's shared memory gone, only a busy backend stays
    with psycopg.connect(plain(url), autocommit=True) as connection:
        busy = connection.info.backend_pid
        connection.pgconn.send_query(b"select count(*) from generate_series(1, 1000000000000)")
        wait_for(lambda: ask(url, f"select state from pg_stat_activity where pid = {busy}") == "active", "it computes")
        os.kill(old, signal.SIGKILL)
        monkeypatch.setattr(processes, "ORPHAN_SECONDS", 2.0)
        assert ask(embedded.ensure_running(folder), "select 1") == 1
        assert not processes.alive(busy)
        connection.pgconn.finish()


def test_a_pid_that_another_program_has_by_now_does_not_stop_a_start(folder: Path) -> None:
    embedded.ensure_running(folder)
    pid_file = folder / "data" / "postmaster.pid"
    lines = pid_file.read_text().split("\n")
    owner = pid_file.stat()
    embedded.stop(folder)
    with subprocess.Popen(["sleep", "1000"], **identity_of(owner)) as stranger:
        try:
            lines[0] = str(stranger.pid)
            pid_file.write_text("\n".join(lines))
            os.chown(pid_file, owner.st_uid, owner.st_gid)
            assert not embedded.status(folder).running
            assert ask(embedded.ensure_running(folder), "select 1") == 1
            assert stranger.poll() is None, "the stranger was harmed"
        finally:
            stranger.kill()


def identity_of(owner: os.stat_result) -> dict[str, Any]:
    return {"user": owner.st_uid} if os.geteuid() == 0 else {}


def test_a_server_in_another_container_is_not_joined_by_a_second_on_its_data(folder: Path) -> None:
    embedded.ensure_running(folder)
    pid_file = folder / "data" / "postmaster.pid"
    kept, owner = pid_file.read_bytes(), pid_file.stat()
    embedded.stop(folder)
    path = folder / "run" / f".s.PGSQL.{place.PORT}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def hang_up_on_everybody() -> None:
            with contextlib.suppress(OSError):
                while True:
                    listener.accept()[0].close()

        thread = threading.Thread(target=hang_up_on_everybody)
        thread.start()
        try:
            # a number that nobody has here, as for a process of another container
            pid_file.write_bytes(kept.replace(kept.split(b"\n")[0], b"4194303", 1))
            os.chown(pid_file, owner.st_uid, owner.st_gid)
            with pytest.raises(embedded.EmbeddedError, match="another container"):
                embedded.ensure_running(folder)
            assert pid_file.exists()
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
    pid_file.unlink()


def test_two_starters_at_once_make_one_server_ten_times(empty_folder: Path) -> None:
    for attempt in range(10):
        gate, opener = os.pipe()

        def start(gate: int = gate, opener: int = opener) -> str:
            os.close(opener)
            os.read(gate, 1)  # both are let go when the parent closes its end
            return embedded.ensure_running(empty_folder)

        children = [Child(start), Child(start)]
        os.close(opener)
        os.close(gate)
        urls = {child.result() for child in children}
        assert len(urls) == 1, f"attempt {attempt}"
        data = empty_folder / "data"
        servers = [
            int(entry.name)
            for entry in Path("/proc").glob("[0-9]*")
            if processes.works_in(int(entry.name), data) and parent_of(int(entry.name)) != pid_of(empty_folder)
        ]
        assert servers == [pid_of(empty_folder)], f"attempt {attempt}"
        assert embedded.stop(empty_folder)
        assert not embedded.stop(empty_folder)


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return -1


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_for_root_it_runs_as_another_account_and_closed_folders_stay_closed() -> None:
    top = open_folder()
    try:
        closed = top / "closed"
        closed.mkdir(mode=0o700)
        folder = closed / "db"
        url = embedded.ensure_running(folder)
        assert Path(f"/proc/{pid_of(folder)}").stat().st_uid != 0
        assert closed.stat().st_mode & 0o777 == 0o700
        assert ask(url, "select 1") == 1
        home = Path(json.loads((folder / "server.json").read_text())["home"])
        assert home != folder
        embedded.remove(folder)
        assert not home.exists()
        assert not folder.exists()
    finally:
        shutil.rmtree(top)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_an_ordinary_account_runs_its_own_and_another_one_is_told_whose_it_is(empty_folder: Path) -> None:
    nobody = 65534
    empty_folder.parent.chmod(0o777)
    url = Child(lambda: embedded.ensure_running(empty_folder), uid=nobody).result()
    assert Path(f"/proc/{pid_of(empty_folder)}").stat().st_uid == nobody
    assert empty_folder.stat().st_mode & 0o777 == 0o700
    assert ask(url, "select 1") == 1
    # root may join it, and runs it as its owner
    embedded.stop(empty_folder)
    assert embedded.ensure_running(empty_folder) == url
    assert Path(f"/proc/{pid_of(empty_folder)}").stat().st_uid == nobody
    with pytest.raises(embedded.EmbeddedError, match="Permission denied"):
        Child(lambda: embedded.ensure_running(empty_folder), uid=2).result()


@pytest.mark.parametrize("kind", ["system", "wheel"])
def test_system_and_wheel_programs_both_serve(empty_folder: Path, kind: str) -> None:
    found = [binaries for binaries in find_binaries() if binaries.origin == kind]
    if not found:
        pytest.skip(f"no {kind} Postgres here")
    url = embedded.ensure_running(empty_folder, bin_dir=found[0].folder)
    assert ask(url, "show server_version").startswith(str(found[0].major))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_programs_that_the_servers_account_cannot_reach_are_copied(empty_folder: Path) -> None:
    wheel = wheel_binaries()
    if wheel is None:
        pytest.skip("the wheel with Postgres is not installed")
    closed = empty_folder.parent / "closed"
    closed.mkdir(mode=0o700)
    for source, target in wheel.parts():
        shutil.copytree(source, closed / target, symlinks=True)
    url = embedded.ensure_running(empty_folder, bin_dir=closed / wheel.own_place / "bin")
    assert ask(url, "show server_version").startswith(str(wheel.major))
    program = Path(f"/proc/{pid_of(empty_folder)}/exe").readlink()
    assert program.is_relative_to(empty_folder)


def test_system_programs_are_preferred_newest_first_and_the_wheel_is_last() -> None:
    found = find_binaries()
    assert found, "this machine has no Postgres at all"
    assert [binaries.origin for binaries in found] == sorted(
        (binaries.origin for binaries in found), key=["system", "wheel"].index
    )
    majors = [binaries.major for binaries in system_binaries()]
    assert majors == sorted(majors, reverse=True)


def test_without_any_programs_the_message_says_what_to_install(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "find_binaries", list)
    with pytest.raises(embedded.EmbeddedError, match=r"outerloop-slurm\[embedded\].*database_url"):
        embedded.ensure_running(empty_folder)


def test_data_of_another_major_version_is_refused_by_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embedded.ensure_running(folder)
    embedded.stop(folder)
    monkeypatch.setattr(launch, "find_binaries", lambda: [Binaries(Path("/nowhere"), 99, "system")])
    with pytest.raises(embedded.EmbeddedError, match=r"made by PostgreSQL \d+, and only 99 \(system\)"):
        embedded.ensure_running(folder)


def set_host(folder: Path, host: str) -> None:
    path = folder / "server.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"host": host}))


def test_another_host_refuses_until_it_takes_over_what_was_shut_down(folder: Path) -> None:
    embedded.ensure_running(folder)
    set_host(folder, "login2")
    for action in (embedded.ensure_running, embedded.stop):
        with pytest.raises(embedded.OtherHostError, match="belongs to host login2"):
            action(folder)
    with pytest.raises(embedded.OtherHostError, match="was not shut down on host login2"):
        embedded.ensure_running(folder, adopt_host=True)
    set_host(folder, os.uname().nodename)
    embedded.stop(folder)
    set_host(folder, "login2")
    assert ask(embedded.ensure_running(folder, adopt_host=True), "select 1") == 1
    assert embedded.status(folder).host == os.uname().nodename


def test_a_path_too_long_for_a_socket_uses_a_short_one() -> None:
    top = open_folder()
    folder = top / ("long-" * 20) / "db"
    try:
        url = embedded.ensure_running(folder)
        run = Path(embedded.status(folder).socket)
        assert run.parent == Path("/tmp")
        assert run.stat().st_mode & 0o777 == 0o700
        assert ask(url, "select 1") == 1
        embedded.remove(folder)
        assert not run.exists()
    finally:
        shutil.rmtree(top)


def test_a_socket_that_was_cleaned_away_is_made_again(folder: Path) -> None:
    url = embedded.ensure_running(folder)
    old = pid_of(folder)
    shutil.rmtree(embedded.status(folder).socket)
    assert ask(embedded.ensure_running(folder), "select 1") == 1
    assert embedded.url_of(folder) == url
    assert pid_of(folder) != old
    assert not processes.alive(old)


def test_a_server_with_all_its_connections_taken_is_not_started_twice(folder: Path) -> None:
    ask(embedded.ensure_running(folder), "alter system set max_connections = 8")
    embedded.stop(folder)
    url = embedded.ensure_running(folder)
    held = []
    with contextlib.ExitStack() as stack:
        with pytest.raises(psycopg.OperationalError, match="too many clients"):
            while True:
                held.append(stack.enter_context(psycopg.connect(plain(url))))
        assert embedded.ensure_running(folder) == url
    assert len(held) == 8


@pytest.mark.parametrize("name", ['it\'s a "folder", $(touch x) `y` %s', "naïve ✓", "back\\slash", "new\nline"])
def test_hostile_folder_names_are_only_names(name: str) -> None:
    top = open_folder()
    folder = top / name / "db"
    try:
        assert ask(embedded.ensure_running(folder), "select 1") == 1
        embedded.remove(folder)
    finally:
        shutil.rmtree(top)


def test_the_socket_wants_the_password(folder: Path) -> None:
    url = make_url(embedded.ensure_running(folder))
    for password in (None, "wrong"):
        other = url._replace(drivername="postgresql", password=password).render_as_string(hide_password=False)
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(other, passfile="/nonexistent").close()
    assert (folder / "password").stat().st_mode & 0o777 == 0o600
    assert str(url.password) not in embedded.status(folder).url
    assert ask(url.render_as_string(hide_password=False), "show listen_addresses") == ""


def test_inside_a_slurm_job_it_is_used_but_never_started(empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    with pytest.raises(embedded.NotRunningError, match="Slurm would kill it"):
        embedded.ensure_running(empty_folder)
    monkeypatch.delenv("SLURM_JOB_ID")
    url = embedded.ensure_running(empty_folder)
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    assert embedded.ensure_running(empty_folder) == url


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small file system")
def test_a_full_disk_is_named_and_nothing_half_made_is_left() -> None:
    top = open_folder()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=12m,mode=0711", "tmpfs", str(top)], check=False, capture_output=True
    )
    if mounted.returncode != 0:
        top.rmdir()
        pytest.skip("mounting is not allowed here")
    try:
        with pytest.raises(embedded.DiskFullError, match="No space left on device"):
            embedded.ensure_running(top / "db")
        assert not (top / "db" / "data").exists()
        subprocess.run(["mount", "-o", "remount,size=200m", str(top)], check=True)
        assert ask(embedded.ensure_running(top / "db"), "select 1") == 1
        embedded.stop(top / "db")
    finally:
        subprocess.run(["umount", str(top)], check=True)
        top.rmdir()


@pytest.mark.skipif(not NIGHTLY, reason="stops and starts a server five times: nightly")
def test_a_server_that_stopped_on_a_full_disk_is_named_soon_and_starts_again_with_all_that_was_committed() -> None:
    top = open_folder()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=120m,mode=0711", "tmpfs", str(top)], check=False, capture_output=True
    )
    if mounted.returncode != 0:
        top.rmdir()
        pytest.skip("mounting is not allowed here")
    try:
        url = embedded.ensure_running(top / "db")
        ask(url, "create table kept (id int)")
        ask(url, "insert into kept values (1)")
        with (top / "ballast").open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
            while True:
                ballast.write(b"x" * 4096)
        with pytest.raises(psycopg.OperationalError):
            for _ in range(30):  # until the log must grow
                ask(url, "select pg_logical_emit_message(true, 'x', repeat('y', 1000000)), pg_switch_wal()")
        for _ in range(3):
            began = time.monotonic()
            with pytest.raises(embedded.DiskFullError, match=r"no space left .* KiB are free .* is lost"):
                embedded.ensure_running(top / "db")
            assert time.monotonic() - began < launch.START_SECONDS / 2
        (top / "ballast").unlink()
        assert ask(embedded.ensure_running(top / "db"), "select count(*) from kept") == 1
        embedded.stop(top / "db")
    finally:
        subprocess.run(["umount", str(top)], check=True)
        top.rmdir()


def test_a_system_call_that_finds_no_space_is_the_same_error(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(empty_folder / "password"))

    monkeypatch.setattr(place, "write_new", full)
    with pytest.raises(embedded.DiskFullError, match="password: No space left"):
        embedded.ensure_running(empty_folder)


def test_a_server_that_cannot_start_says_why(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embedded.ensure_running(folder)
    embedded.stop(folder)
    (folder / "data" / "pg_hba.conf").write_text("nonsense\n")
    with pytest.raises(embedded.EmbeddedError, match=r"ended right after its start .*FATAL"):
        embedded.ensure_running(folder)


def test_damaged_or_missing_parts_are_named(folder: Path) -> None:
    embedded.ensure_running(folder)
    embedded.stop(folder)
    (folder / "data").rename(folder / "moved")
    with pytest.raises(embedded.EmbeddedError, match=r"is gone .*db rebuild"):
        embedded.ensure_running(folder)
    (folder / "moved").rename(folder / "data")
    (folder / "server.json").write_text("{")
    with pytest.raises(embedded.EmbeddedError, match=r"server\.json is damaged"):
        embedded.status(folder)
    (folder / "server.json").unlink()
    (folder / "password").rename(folder / "moved")
    with pytest.raises(embedded.EmbeddedError, match="password is gone"):
        embedded.ensure_running(folder)
    (folder / "password").write_text("other\n")
    with pytest.raises(embedded.EmbeddedError, match="is not that of the server"):
        embedded.ensure_running(folder)


def test_a_socket_folder_of_somebody_else_is_refused(folder: Path) -> None:
    embedded.ensure_running(folder)
    embedded.stop(folder)
    run = Path(embedded.status(folder).socket)
    run.chmod(0o777)
    with pytest.raises(embedded.EmbeddedError, match=r"must be a folder of .* with mode 0700"):
        embedded.ensure_running(folder)
    run.chmod(0o700)


def test_a_folder_without_a_server_has_a_status_but_no_url(empty_folder: Path) -> None:
    assert not embedded.status(empty_folder).exists
    assert not embedded.stop(empty_folder)
    with pytest.raises(embedded.NotRunningError, match="outerloop db start"):
        embedded.url_of(empty_folder)


def test_delete_refuses_a_folder_that_is_not_its_own(folder: Path, tmp_path: Path) -> None:
    embedded.ensure_running(folder)
    embedded.stop(folder)
    precious = tmp_path / "precious"
    (precious / "data").mkdir(parents=True)
    path = folder / "server.json"
    good = path.read_text()
    path.write_text(json.dumps(json.loads(good) | {"home": str(precious)}))
    with pytest.raises(embedded.EmbeddedError, match="not ours to delete"):
        embedded.remove(folder)
    assert (precious / "data").exists()
    path.write_text(good)


def test_a_machine_without_shared_memory_for_everybody_gets_a_server_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, empty_folder: Path
) -> None:
    """A chroot or container may have a /dev/shm that only root can write (found by `make demo` in a chroot)."""
    closed = tmp_path / "shm"
    closed.mkdir(mode=0o755)
    monkeypatch.setattr(launch, "_SHARED_MEMORY", closed)
    url = embedded.ensure_running(empty_folder)
    assert ask(url, "show dynamic_shared_memory_type") == "mmap"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's data lies away from its folder")
def test_a_state_folder_that_was_removed_and_made_anew_starts_with_a_record_of_its_own() -> None:
    """`rm -rf` of a state folder below /root leaves the data away from it; the old data is kept aside."""
    top = Path(tempfile.mkdtemp(prefix="ol-closed-", dir="/tmp"))  # mode 0700: the server's account cannot enter
    folder = top / "db"
    try:
        old = embedded.ensure_running(folder)
        with psycopg.connect(plain(old), autocommit=True) as connection:
            connection.execute("create table mine (id int)")
        home = Path(embedded.status(folder).data).parent
        assert not home.is_relative_to(folder)
        shutil.rmtree(folder)
        new = embedded.ensure_running(folder)
        assert ask(new, "select to_regclass('mine')") is None
        assert [entry for entry in home.iterdir() if entry.name.startswith("orphan-")]
    finally:
        embedded.remove(folder)
        shutil.rmtree(top, ignore_errors=True)


def test_what_several_remove_at_once_is_gone_and_nobody_fails(tmp_path: Path) -> None:
    """Workers of one test run sweep the same leftover; two `rm` of one state folder are the same."""
    for _ in range(20):
        folder = tmp_path / "db"
        for part in range(200):
            inner = folder / "data" / f"{part % 10}"
            inner.mkdir(parents=True, exist_ok=True)
            (inner / f"{part}").touch()
        with ThreadPoolExecutor(6) as pool:
            for done in [pool.submit(embedded.remove, folder) for _ in range(6)]:
                done.result()
        assert not folder.exists()


def test_a_start_during_a_removal_waits_for_it_and_gets_a_server_that_stays(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A waiter must not take the lock of the folder that was deleted, nor may a removal take the new server's data."""
    embedded.ensure_running(folder)
    deleting, waiting = threading.Event(), threading.Event()
    tear_down, lock_of = embedded.tear_down, place._lock_of

    def slowly(torn: Path) -> None:
        deleting.set()
        assert waiting.wait(DEADLINE_SECONDS)
        tear_down(torn)

    def says_so(locked: Path, deadline: float) -> int | None:
        if deleting.is_set():
            waiting.set()
        return lock_of(locked, deadline)

    monkeypatch.setattr(embedded, "tear_down", slowly)
    monkeypatch.setattr(place, "_lock_of", says_so)
    with ThreadPoolExecutor(2) as pool:
        removal = pool.submit(embedded.remove, folder)
        assert deleting.wait(DEADLINE_SECONDS)
        url = pool.submit(embedded.ensure_running, folder).result()
        removal.result()
    ask(url, "create table kept (id int)")
    assert embedded.status(folder).running
    embedded.stop(folder)
    assert ask(embedded.ensure_running(folder), "select to_regclass('kept')::text") == "kept"


def killed_removal(folder: Path, at: int) -> bool:
    """Remove in a child that is killed before its change number `at` of the file system; False when it came through."""

    def action() -> None:
        left = at

        def hook(event: str, _arguments: Any) -> None:
            nonlocal left
            if event in {"os.remove", "os.rmdir", "os.rename"}:
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        embedded.remove(folder)

    pid = os.fork()
    if pid == 0:
        try:
            action()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def points(folder: Path) -> list[int]:
    """Changes before which a removal is killed: the first few, some in the midst of the data, the last few."""
    files = sum(1 for _ in folder.rglob("*"))
    return [1, 2, 3, 4, files // 3, files // 2, files - 3, files - 1, files, files + 1] if NIGHTLY else [files // 2]


def test_a_removal_killed_anywhere_leaves_the_old_record_or_none_and_the_next_start_works(folder: Path) -> None:
    ask(embedded.ensure_running(folder), "create table kept (id int)")
    embedded.stop(folder)
    kept = folder.parent / "kept"
    subprocess.run(["cp", "-a", str(folder), str(kept)], check=True)
    for point in points(folder):
        subprocess.run(["cp", "-a", "-T", str(kept), str(folder)], check=True)
        killed = killed_removal(folder, point)
        assert killed or point > 4
        gone = not (folder / "server.json").exists()
        if killed and point % 3 == 0:  # else the next start goes on with it
            embedded.remove(folder)
            gone = True
            assert not folder.exists()
        assert (ask(embedded.ensure_running(folder), "select to_regclass('kept')::text") is None) == gone
        embedded.remove(folder)
        assert not folder.exists()


@pytest.mark.skipif(not NIGHTLY, reason="starts and removes servers for a minute: nightly")
def test_processes_that_start_stop_and_remove_at_random_lose_nothing_that_was_committed_after_the_last_removal(
    empty_folder: Path,
) -> None:
    """A row that was committed when no removal ran or followed is there at the end, and nobody fails but of a server
    that another one stopped or removed meanwhile, which is said in a sentence."""
    setup = "create table if not exists rows (name text primary key)"

    def work(number: int) -> list[tuple[str, float, float, str]]:
        chance = random.Random(number)
        done = []
        for step in range(40):
            what = chance.choices(["start", "stop", "remove", "status"], [6, 2, 1, 2])[0]
            began, name = time.monotonic(), f"{number}-{step}"
            if what == "start":
                url = embedded.ensure_running(empty_folder)
                try:
                    with psycopg.connect(plain(url), autocommit=True) as connection:
                        connection.execute("select pg_advisory_lock(1)")  # `create if not exists` is no lock
                        connection.execute(setup)
                        for part in range(3):
                            began, name = time.monotonic(), f"{number}-{step}-{part}"
                            connection.execute("insert into rows values (%s)", (name,))
                            done.append(("row", began, time.monotonic(), name))
                except psycopg.OperationalError:
                    done.append(("ended", began, time.monotonic(), name))
            else:
                {"stop": embedded.stop, "remove": embedded.remove, "status": embedded.status}[what](empty_folder)
                done.append((what, began, time.monotonic(), name))
        return done

    for round_ in range(2):
        children = [Child(lambda number=number: work(number)) for number in range(10 * round_, 10 * round_ + 4)]
        done = [each for child in children for each in child.result()]
        with psycopg.connect(plain(embedded.ensure_running(empty_folder)), autocommit=True) as connection:
            connection.execute(setup)
            there = {name for (name,) in connection.execute("select name from rows")}
        removals = [(began, ended) for what, began, ended, _ in done if what == "remove"]
        last = max(ended for _, ended in removals)
        expected = {name for what, began, _, name in done if what == "row" and began > last}
        assert expected <= there, f"lost: {sorted(expected - there)}"
        # and none came back that a removal had taken
        for what, _began, ended, name in done:
            assert not (what == "row" and name in there and any(ended < since for since, _ in removals)), name
        assert len(removals) > 3 and any(what == "row" for what, *_ in done)

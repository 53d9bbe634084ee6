"""The record goes away in the middle, its connection drops at any statement, the disk is full: nothing is lost.

Attacked: the documented exit codes (4: no record, 6: no space), that no run is decided by an outage, and that the next
tick goes on. A wake without a record is in test_cli_wake.py.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, event, make_url

from outerloop.record import migrate
from outerloop.record.store import RecordUnavailable
from tests.controller_rig.commands import PrivateServer, command, interrupted, private_server
from tests.controller_rig.world import World
from tests.e2e.test_crash_points import worlds

__all__ = ["worlds"]

RECORD_UNAVAILABLE, NO_SPACE = 4, 6


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateServer]:
    with private_server() as made:
        migrate.upgrade(made.url)
        yield made


@pytest.fixture
def private_world(server: PrivateServer, tmp_path: Path) -> World:
    server.start()
    tables = "realms, runs, slots, measures, attempts, awaits, wakes, champions, leases, events, heartbeats"
    with psycopg.connect(_plain(server.url), autocommit=True) as connection:
        connection.execute(f"truncate {tables} restart identity cascade")
    return World(tmp_path / "w", server.url)


def _plain(url: str) -> str:
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


def submit_arguments(world: World, candidate: str = "better") -> list[str]:
    return ["submit", "climb", "speed", "--repo", str(world.repo), "--base", "main", "--candidate", candidate]


def finish(world: World, verdict: str = "accepted", executions: int = 2) -> None:
    world.ticks_until_rest()
    assert {run.verdict for run in world.runs()} == {verdict}, world.describe()
    assert world.executions() == executions
    world.check_invariants()


# -- the server


def test_with_the_record_down_every_command_says_so_and_a_submission_waits_in_the_inbox(
    private_world: World, server: PrivateServer
) -> None:
    world = private_world
    server.stop()
    try:
        for arguments in (["tick"], ["status"], ["show", "c-1"], ["cancel", "c-1"], ["gc"]):
            said = command(world, *arguments)
            assert said.code == RECORD_UNAVAILABLE, (arguments, said)
            assert "Traceback" not in said.text and "record" in said.text, said.text
        said = command(world, *submit_arguments(world))
        assert said.code == 0 and "inbox" in said.text, said
        assert len(list(world.state.inbox.iterdir())) == 1
    finally:
        server.start()
    assert command(world, "tick").code == 0
    finish(world)


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_the_server_ends_in_the_middle_of_a_submission(private_world: World, server: PrivateServer, end: str) -> None:
    world = private_world
    points = ("before:tx.enqueue", "after:tx.intent", "after:compute.submit", "before:tx.park")
    for number, point in enumerate(points, 1):
        world.branch(f"idea-{number}", note=str(number))
        arguments = submit_arguments(world, f"idea-{number}")
        said = interrupted(world, *arguments, point=point, what=getattr(server, end))
        assert said.code == 0 and "inbox" in said.text and "Traceback" not in said.text, (point, said)
        server.start()
        world.tick()
        assert len(world.runs()) == number, "what was acknowledged is there"
    finish(world, "rejected", executions=2 * len(points))


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_the_server_ends_in_the_middle_of_a_tick(private_world: World, server: PrivateServer, end: str) -> None:
    world = private_world
    world.submit("better")
    world.run_measures()
    for point in ("before:tx.observe", "after:slot.pin", "after:run.event", "after:champion.link"):
        said = interrupted(world, "tick", point=point, what=getattr(server, end))
        assert said.code == RECORD_UNAVAILABLE and "Traceback" not in said.text, (point, said)
        server.start()
        assert all(run.verdict is None for run in world.runs()), "nothing is decided without its record"
    assert command(world, "tick").code == 0
    finish(world)


def test_row_82_the_connection_drops_at_each_statement_in_turn(worlds: Callable[[], World]) -> None:
    """Row 82. Every command is broken off at its first statement, its second, ... until it comes through."""
    world = worlds()
    run_ids: list[str] = []
    broken = {"submit": 0, "tick": 0, "wake": 0}

    def until_through(name: str, body: Callable[[], Any], check: Callable[[], None]) -> None:
        for number in range(1, 400):
            with dropped_connection(world, number) as dropped:
                try:
                    body()
                except RecordUnavailable:
                    broken[name] += 1
            if not dropped:
                return
            check()
        raise AssertionError(f"{name} never came through")

    def undecided() -> None:
        assert all(run.verdict is None and run.state != "blocked" for run in world.runs()), world.describe()

    def not_wrong() -> None:
        assert {run.verdict for run in world.runs()} <= {None, "accepted"}, world.describe()

    until_through("submit", lambda: run_ids.append(world.submit("better")), undecided)
    assert world.run(run_ids[0]).state == "waiting"
    until_through("tick", world.tick, undecided)
    world.run_measures()
    until_through(
        "wake",
        lambda: world.wake(run_ids[0], 1),
        not_wrong,
    )
    assert min(broken.values()) > 5, broken
    finish(world)


class dropped_connection:
    """Inside, the `number`-th statement finds its connection terminated by the server. True when that came to be."""

    def __init__(self, world: World, number: int) -> None:
        self.url, self.number, self.count, self.done = (
            _plain(world.settings.database_url.get_secret_value()),
            number,
            0,
            False,
        )

    def __bool__(self) -> bool:
        return self.done

    def __enter__(self) -> dropped_connection:
        event.listen(Engine, "before_cursor_execute", self._hook)
        return self

    def __exit__(self, *_: object) -> None:
        event.remove(Engine, "before_cursor_execute", self._hook)

    def _hook(self, connection: Any, *_: object) -> None:
        self.count += 1
        if self.count == self.number:
            self.done = True
            pid = connection.connection.dbapi_connection.info.backend_pid
            with psycopg.connect(self.url, autocommit=True) as other:
                other.execute("select pg_terminate_backend(%s, 10000)", (pid,))


# -- the disk


@pytest.fixture
def small_disk(world: World) -> Iterator[World]:
    """The state folder on a file system of 4 MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(world.state.path)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"no mount here: {mounted.stderr.decode(errors='replace').strip()}")
    yield world
    subprocess.run(["umount", "-l", str(world.state.path)], check=True)


def fill(world: World, *, leave: int) -> Path:
    """Use the disk up but for `leave` bytes."""
    ballast = world.state.path / "ballast"
    with ballast.open("wb", buffering=0) as stream:
        try:
            while True:
                stream.write(b"x" * 4096)
        except OSError:
            pass
        stream.truncate(max(0, stream.tell() - leave))
    return ballast


def test_a_full_disk_is_exit_code_6_and_nothing_is_lost(small_disk: World) -> None:
    world = small_disk
    codes: dict[str, list[int]] = {"submit": [], "tick": []}
    for pages in (0, 8, 16, 24, 32, 40, 48, 64, 80):
        ballast = fill(world, leave=pages * 4096)
        said = command(world, *submit_arguments(world))
        codes["submit"].append(said.code)
        assert said.code in {0, NO_SPACE}, (pages, said)
        assert "Traceback" not in said.text and (said.code == 0 or "space" in said.text.lower()), said
        ballast.unlink()
    assert NO_SPACE in codes["submit"]
    for _ in range(3):
        assert command(world, "tick").code == 0
    assert len(world.runs()) == 1 and world.runs()[0].state == "waiting", world.describe()
    world.run_measures()
    for pages in (0, 1, 2, 3, 4, 5, 6):
        ballast = fill(world, leave=pages * 4096)
        said = command(world, "tick")
        codes["tick"].append(said.code)
        assert said.code in {0, NO_SPACE}, (pages, said)
        assert "Traceback" not in said.text and (said.code == 0 or "space" in said.text.lower()), said
        assert all(run.verdict in {None, "accepted"} and run.state != "blocked" for run in world.runs())
        ballast.unlink()
    assert codes["tick"][0] == NO_SPACE
    finish(world)

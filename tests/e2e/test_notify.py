"""Notifications: what happened is told, once when all is well, and never lost by a fault of the sender."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from pydantic import SecretStr

from outerloop.controller.notify import tell
from outerloop.settings_sections import NotifySettings
from tests.controller_rig.world import World


class Inbox:
    """A web server that keeps what is posted to it, or answers with an error."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.status = 200


@contextmanager
def inbox() -> Iterator[tuple[Inbox, str]]:
    kept = Inbox()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if kept.status == 200:
                kept.messages.append(body)
            self.send_response(kept.status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield kept, f"json://127.0.0.1:{server.server_port}/hook?cto=60&rto=60"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def telling(world: World, url: str, *on: str) -> None:
    notify = NotifySettings.model_validate({"urls": (SecretStr(url),), "on": on})
    world.settings = world.settings.model_copy(update={"notify": notify})


def go(world: World) -> list[str]:
    deployment = world.open()
    try:
        return tell(deployment)
    finally:
        deployment.close()


def test_each_thing_is_told_once_and_what_came_before_is_not(world: World) -> None:
    old = world.submit("better")
    world.ticks_until_rest()
    with inbox() as (kept, url):
        telling(world, url, "verdict", "champion", "blocked")
        world.tick()
        assert kept.messages == [], "what happened before notifications were set up is not news"
        new = world.submit("bigger", benchmark="size")
        world.ticks_until_rest()
        for _ in range(3):
            world.tick()
        assert len(kept.messages) == 1, kept.messages
        assert new in kept.messages[0]["message"] and old not in kept.messages[0]["message"]
        assert kept.messages[0]["title"] == "outerloop: 1 verdict"
        world.branch("best", cost="5")
        world.submit("best", base=None)
        world.ticks_until_rest()
        world.tick()
        assert kept.messages[1]["title"] == "outerloop: 1 new champion" and len(kept.messages) == 2


def test_a_message_that_is_refused_is_sent_again_and_the_url_is_not_shown(world: World) -> None:
    with inbox() as (kept, url):
        telling(world, url.replace("json://", "json://user:hunter2@"), "verdict")
        world.tick()
        world.submit("better")
        kept.status = 503
        world.ticks_until_rest()
        notes = world.tick().notes
        assert any("did not take the message" in note for note in notes) and "hunter2" not in str(notes)
        assert kept.messages == []
        kept.status = 200
        world.tick()
        world.tick()
        assert len(kept.messages) == 1
    notes = [note for note in go(world) if "notify" in note]
    assert notes == [], "nothing new, so nobody needs to be reached"


_PROGRAM = """
import sys
from types import SimpleNamespace
from pydantic import SecretStr
from outerloop.controller.deployment import account
from outerloop.controller.notify import tell
from outerloop.record.store import Record
from outerloop.settings_sections import NotifySettings
record = Record(sys.argv[1], owner=account(), slot_root=sys.argv[2])
notify = NotifySettings(urls=(SecretStr(sys.argv[3]),), on=("champion",))
print(tell(SimpleNamespace(record=record, settings=SimpleNamespace(notify=notify))))
"""


def killed(world: World, url: str, fault: str) -> int:
    """What a tick does last, in an interpreter of its own (a fork of one that has sent before cannot send)."""
    database = world.settings.database_url.get_secret_value()
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, database, str(world.state.path), url],
        env={**os.environ, "OUTERLOOP_FAULT": fault},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr, done.stderr
    return done.returncode


@pytest.mark.parametrize("point", ["before:tx.notify", "after:tx.notify"])
def test_killed_around_remembering_it_is_told_at_least_once(world: World, point: str) -> None:
    with inbox() as (kept, url):
        telling(world, url, "champion")
        world.tick()
        notify = world.settings.notify
        world.settings = world.settings.model_copy(update={"notify": NotifySettings()})
        world.submit("better")
        world.ticks_until_rest()
        world.settings = world.settings.model_copy(update={"notify": notify})
        assert killed(world, url, f"{point}:kill") == -signal.SIGKILL
        world.tick()
        assert len(kept.messages) == (2 if point.startswith("before") else 1)


def test_what_is_not_wanted_is_not_told(world: World) -> None:
    with inbox() as (kept, url):
        telling(world, url, "blocked")
        world.tick()
        world.submit("better")
        world.ticks_until_rest()
        world.tick()
        assert kept.messages == []

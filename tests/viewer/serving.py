"""A real server on a real socket in this process, asked by plain HTTP.

Covered: starting, asking, stopping. Not covered: browsers (test_browser.py).
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.applications import Starlette

from outerloop.slots import StateRoot
from outerloop.viewer.app import record_app
from outerloop.viewer.serve import Address, bind, make_server
from outerloop.viewer.source import Source
from tests.rows import World

PATIENCE = 60.0


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        def never(name: str) -> Any:
            raise AssertionError(f"{name} is no JSON")

        return json.loads(self.body, parse_constant=never)


@dataclass(frozen=True)
class Asking:
    """A served view."""

    address: Address

    def get(self, path: str, method: str = "GET", **headers: str) -> Answer:
        """Ask for a path exactly as it is written, without any tidying by a client."""
        connection = http.client.HTTPConnection("127.0.0.1", self.address.port, timeout=PATIENCE)
        try:
            connection.putrequest(method, path, skip_host="host" in headers, skip_accept_encoding=True)
            for name, value in headers.items():
                connection.putheader(name.replace("_", "-"), value)
            connection.endheaders()
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read())
        finally:
            connection.close()


@contextmanager
def served(app: Starlette, **options: Any) -> Iterator[Asking]:
    """The application on a free port of this machine."""
    address = bind("127.0.0.1", 0, **options)
    up = threading.Event()
    server = make_server(app, address, ready=lambda _url: up.set())
    thread = threading.Thread(target=server.run, kwargs={"sockets": [address.socket]})
    thread.start()
    try:
        assert up.wait(PATIENCE)
        yield Asking(address)
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        address.socket.close()
        assert not thread.is_alive()


def source_of(world: World, *, url: str = "", root: Path | None = None) -> Source:
    """The source that `outerloop view` would make for this world."""
    return Source(
        url=lambda: url or world.url,
        owner=world.record.owner,
        root=StateRoot(root or world.state),
        cadence_seconds=300.0,
    )


@contextmanager
def viewing(world: World, *, url: str = "", **options: Any) -> Iterator[Asking]:
    """The world's record, served."""
    with served(record_app(source_of(world, url=url)), **options) as asking:
        yield asking

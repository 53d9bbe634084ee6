"""Requests to an OpenAI-compatible server: JSON over HTTP with a key and one deadline for each.

Covered: what can go wrong with a server, as one exception whose text quotes neither the request nor the answer, since
both may hold what is sealed. Not covered: streaming, TLS; the server is on this machine (serve.py).
"""

from __future__ import annotations

import http.client
import json
import time
from typing import Any

__all__ = ["Client", "Unavailable"]

_CHUNK = 65536
MOST_BYTES = 256 * 1024 * 1024
"""An answer that is longer is not one."""


class Unavailable(Exception):
    """A request that got no usable answer; the text names the kind of trouble: infrastructure, not a wrong answer."""


class Client:
    """One server. Safe to use from several threads: each request has a connection of its own."""

    def __init__(self, host: str, port: int, key: str, *, timeout_sec: float) -> None:
        self._host, self._port, self._key = host, port, key
        self._timeout = timeout_sec

    @property
    def base_url(self) -> str:
        return f"http://{self._host}:{self._port}"

    @property
    def key(self) -> str:
        return self._key

    def __repr__(self) -> str:  # the key stays out of tracebacks
        return f"Client({self.base_url!r})"

    def post(self, path: str, body: Any = None, *, timeout_sec: float | None = None) -> Any:
        """The JSON answer, None when it is empty. Raises Unavailable."""
        return self._request("POST", path, json.dumps(body or {}).encode(), timeout_sec)

    def get(self, path: str, *, timeout_sec: float | None = None) -> Any:
        """The same of a GET."""
        return self._request("GET", path, None, timeout_sec)

    def _request(self, method: str, path: str, body: bytes | None, timeout_sec: float | None) -> Any:
        seconds = self._timeout if timeout_sec is None else timeout_sec
        deadline = time.monotonic() + seconds
        connection = http.client.HTTPConnection(self._host, self._port, timeout=seconds)
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json", "Connection": "close"}
        try:
            connection.request(method, path, body=body, headers=headers)
            raw, status = _read(connection, deadline)
        except TimeoutError:
            raise Unavailable(f"no answer within {seconds:g} s") from None
        except http.client.HTTPException as error:
            raise Unavailable(f"broken answer ({type(error).__name__})") from None
        except OSError as error:
            raise Unavailable(f"no connection ({type(error).__name__})") from None
        finally:
            connection.close()
        if status != http.client.OK:
            raise Unavailable(f"HTTP {status}")
        if not raw:
            return None
        try:
            return json.loads(raw)
        except ValueError:
            raise Unavailable("an answer that is not JSON") from None


def _read(connection: http.client.HTTPConnection, deadline: float) -> tuple[bytes, int]:
    """Body and status, all of it before the deadline: a socket's own timeout starts anew with every byte."""
    connected = connection.sock
    response = connection.getresponse()
    parts, size = [], 0
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        if connected is not None and connected.fileno() >= 0:
            connected.settimeout(left)
        part = response.read1(_CHUNK)
        if not part:
            break
        size += len(part)
        if size > MOST_BYTES:
            raise http.client.HTTPException("too long")
        parts.append(part)
    if response.length:
        raise http.client.IncompleteRead(b"", response.length)
    return b"".join(parts), response.status

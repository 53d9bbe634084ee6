"""What stands before every page: who may ask, under which name, and what a browser may do with the answer.

Covered: the Host header (another site's name that was made to resolve to us is refused), the token, methods, headers
that keep scripts of strangers from running. Not covered: what is answered.

An ASGI middleware without dependencies, so that nothing is answered around it.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode

__all__ = ["CONTENT_SECURITY_POLICY", "LOOPBACK", "Guard", "host_name"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
"""Names under which only this machine can reach us."""
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:;"
    " connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
"""No script but our own files. Styles may be inline because the chart library sets them; text never is (autoescape)."""
_HEADERS = (
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
COOKIE = "outerloop_view"


def host_name(header: str) -> str:
    """The name of a Host header in lower case, without its port; "" for what is none."""
    name = header.strip().lower()
    if name.startswith("["):
        inner, bracket, port = name.partition("]")
        return f"{inner}]" if bracket and (not port or port[1:].isdigit()) else ""
    name, _, port = name.partition(":")
    return name if not port or port.isdigit() else ""


@dataclass(frozen=True)
class Guard:
    """Lets through GET and HEAD under one of the `hosts`, with the token if there is one."""

    app: Application
    hosts: Collection[str]
    token: str = ""
    port: int = 0
    """Part of the cookie's name: browsers send a host's cookies to all of its ports."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        hosts = [value for name, value in scope["headers"] if name.lower() == b"host"]
        named = host_name(hosts[0].decode("latin-1")) if len(hosts) == 1 else ""
        if named not in self.hosts:
            await _refuse(send, 421, "This server does not answer under that name. See outerloop view --help.")
            return
        if scope["method"] not in {"GET", "HEAD"}:
            await _refuse(send, 405, "This view only reads: GET and HEAD.", ((b"allow", b"GET, HEAD"),))
            return
        if self.token:
            query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
            given = next((value for name, value in query if name == "token"), None)
            if given is not None and self._is_token(given):
                rest = urlencode([pair for pair in query if pair[0] != "token"])
                place = scope["raw_path"].decode("latin-1") if scope.get("raw_path") else scope["path"]
                # Two slashes would begin another host's name.
                place = "/" + place.lstrip("/") + (f"?{rest}" if rest else "")
                cookie = f"{self._cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict"
                await _refuse(
                    send, 303, "", ((b"location", place.encode("latin-1")), (b"set-cookie", cookie.encode("latin-1")))
                )
                return
            if not self._knows(headers):
                await _refuse(send, 401, "A token is needed: open the address that outerloop view printed.")
                return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_HEADERS]
            await send(message)

        await self.app(scope, receive, sending)

    @property
    def _cookie(self) -> str:
        return f"{COOKIE}_{self.port}"

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self.token.encode())

    def _knows(self, headers: MutableMapping[bytes, bytes]) -> bool:
        bearer = headers.get(b"authorization", b"").decode("latin-1")
        if bearer.startswith("Bearer ") and self._is_token(bearer.removeprefix("Bearer ").strip()):
            return True
        for item in headers.get(b"cookie", b"").decode("latin-1").split(";"):
            name, _, value = item.strip().partition("=")
            if name == self._cookie and self._is_token(value):
                return True
        return False


async def _refuse(send: Send, status: int, text: str, more: tuple[tuple[bytes, bytes], ...] = ()) -> None:
    body = text.encode()
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        *more,
        *_HEADERS,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

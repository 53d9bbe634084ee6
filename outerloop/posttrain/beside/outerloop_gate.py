"""Nobody talks to the server without its key: an ASGI middleware for `--middleware outerloop_gate.Gate`.

vLLM's own check covers /v1 alone. Loopback is shared with everybody on the machine, and the endpoints that reload
weights would let a neighbour run code. Standard library only; it is imported by vLLM's environment.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

OPEN = "/health"
_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[Any]]
_Send = Callable[[Any], Awaitable[None]]


class Gate:
    """Answers 401 to whatever lacks the key of $VLLM_API_KEY, except GET /health. Raises KeyError without a key."""

    def __init__(self, app: Callable[[_Scope, _Receive, _Send], Awaitable[None]]) -> None:
        self._app = app
        self._expected = f"Bearer {os.environ['VLLM_API_KEY']}".encode()

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        if scope["type"] == "lifespan" or (scope["type"] == "http" and scope["path"] == OPEN):
            await self._app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(b"authorization", b"")
        if scope["type"] == "http" and hmac.compare_digest(given, self._expected):
            await self._app(scope, receive, send)
            return
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})

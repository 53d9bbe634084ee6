"""Serving the view: the socket, the names it answers to, the token.

Covered: binding before anything is printed, so that the printed address works; stopping on Ctrl-C and SIGTERM. Not
covered: pages (app.py), the checks themselves (guard.py).
"""

from __future__ import annotations

import ipaddress
import logging
import secrets
import socket
from collections.abc import Callable, Collection
from dataclasses import dataclass

import uvicorn
from starlette.applications import Starlette

from outerloop.viewer.guard import LOOPBACK, Guard, host_name
from outerloop.viewer.warm import warm

__all__ = ["Address", "bind", "make_server", "serve"]

TOKEN_BYTES = 24


@dataclass(frozen=True)
class Address:
    """A bound socket with its names and the token, "" for none."""

    socket: socket.socket
    host: str
    port: int
    hosts: frozenset[str]
    token: str

    @property
    def url(self) -> str:
        """What a person opens: with the token, if there is one."""
        name = self.host if self.host not in {"0.0.0.0", "::"} else socket.gethostname()
        name = f"[{name}]" if ":" in name else name
        return f"http://{name}:{self.port}/" + (f"?token={self.token}" if self.token else "")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def bind(host: str, port: int, *, names: Collection[str] = (), token: bool = False, given: str = "") -> Address:
    """Bind `host`:`port` (0: any free one). Another host than this machine's own loopback has a token in any case.

    Raises OSError when the address is taken or none of ours, ValueError for a name that no Host header can hold.
    """
    hosts = set(LOOPBACK) | {f"[{host}]" if ":" in host else host.lower()}
    if not _is_loopback(host):
        hosts |= {socket.gethostname().lower(), socket.getfqdn().lower()}
    for name in names:
        if not host_name(name):
            raise ValueError(f"{name!r} is no host name")
        hosts.add(host_name(name))
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except BaseException:
        bound.close()
        raise
    wanted = token or bool(given) or not _is_loopback(host)
    secret = (given or secrets.token_urlsafe(TOKEN_BYTES)) if wanted else ""
    return Address(bound, host, bound.getsockname()[1], frozenset(hosts), secret)


def make_server(app: Starlette, address: Address, *, ready: Callable[[str], None]) -> uvicorn.Server:
    """A server whose `run(sockets=[address.socket])` serves until Ctrl-C, SIGTERM or its `should_exit`. `ready` is told
    the address once connections are taken."""

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets=sockets)
            ready(address.url)

    # Names of proxies are not believed; the Server header would tell strangers what to try.
    return Server(
        uvicorn.Config(
            Guard(app, address.hosts, address.token, address.port),
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            lifespan="on",
            timeout_graceful_shutdown=2,
        )
    )


class _NotTheSecondCtrlC(logging.Filter):
    """Ctrl-C twice cancels the shutdown that is under way; uvicorn reports that as an error with a traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "CancelledError" not in record.getMessage()


def serve(app: Starlette, address: Address, *, ready: Callable[[str], None]) -> None:
    """Serve until Ctrl-C or SIGTERM. What only first answers cost is paid before connections are taken."""
    warm(app)
    server = make_server(app, address, ready=ready)
    logging.getLogger("uvicorn.error").addFilter(_NotTheSecondCtrlC())
    try:
        server.run(sockets=[address.socket])
    finally:
        address.socket.close()

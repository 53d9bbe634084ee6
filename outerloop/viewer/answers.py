"""Answers: a page from a template, JSON that every parser accepts, a problem in the page's clothes.

Covered: rendering. Not covered: what is asked (pages.py), headers of safety (guard.py).
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from outerloop import __version__
from outerloop.printable import harmless, plain
from outerloop.viewer.words import FILTERS, GLOBALS

__all__ = ["compile_templates", "json_answer", "page", "problem", "static_digest", "strict"]

LIVE_SECONDS = 3
"""How often a page that can change asks again, while somebody sees it."""


def _finalized(value: Any) -> Any:
    """Everything that a template prints: control characters written out; escaping follows."""
    return value if isinstance(value, Markup) or not isinstance(value, str) else harmless(value)


@functools.cache
def _templates() -> Environment:
    made = Environment(
        loader=PackageLoader("outerloop.viewer", "templates"),
        autoescape=True,
        finalize=_finalized,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(FILTERS)
    made.globals.update(GLOBALS, version=__version__, static=static_digest())
    return made


def compile_templates() -> None:
    """Compile every template, so that no page waits for its own."""
    for name in _templates().list_templates():
        _templates().get_template(name)


@functools.cache
def static_digest() -> str:
    """Changes with our static files, so that browsers may keep them as long as they like."""
    import hashlib

    digest = hashlib.sha256(__version__.encode())
    for item in sorted(files("outerloop.viewer").joinpath("static").iterdir(), key=lambda path: path.name):
        digest.update(item.read_bytes())
    return digest.hexdigest()[:12]


def page(request: Request, template: str, *, live: bool = False, status: int = 200, **facts: Any) -> Response:
    """A page. `live` ones are asked for again every LIVE_SECONDS while they are seen."""
    app = request.app.state
    body = (
        _templates()
        .get_template(template)
        .render(
            here=request.url.path,
            query=dict(request.query_params),
            live=LIVE_SECONDS if live else 0,
            place=app.place,
            links=app.links,
            **facts,
        )
    )
    # A lone surrogate, as a stranger's file may hold, cannot be sent.
    return Response(
        body.encode("utf-8", "backslashreplace"),
        status_code=status,
        media_type="text/html",
        headers={"cache-control": "no-store"},
    )


def problem(
    request: Request, status: int, title: str, sentence: str, command: str = "", *, retry: bool = False
) -> Response:
    """What went wrong, as JSON below /api/ and as a page elsewhere."""
    if request.url.path.startswith("/api/"):
        return json_answer({"error": title, "detail": sentence, "command": command}, status=status)
    return page(
        request, "problem.html", status=status, live=retry, title=title, sentence=sentence, command=command, code=status
    )


def strict(value: Any) -> Any:
    """The value without numbers that JSON cannot hold: they become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): strict(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [strict(inner) for inner in value]
    return value


def json_answer(value: Any, *, status: int = 200) -> Response:
    """Strict JSON: dataclasses as objects, decimals and times as text, numbers that are not finite as null."""
    try:
        body = json.dumps(value, allow_nan=False, ensure_ascii=False, default=plain)
    except (TypeError, ValueError):
        # Rare, and slower: a number that is not finite, or a key that is no text.
        body = json.dumps(strict(plain(value)), allow_nan=False, ensure_ascii=False, default=str)
    return Response(
        body.encode("utf-8", "backslashreplace"),
        status_code=status,
        media_type="application/json",
        headers={"cache-control": "no-store"},
    )

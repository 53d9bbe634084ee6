"""Paying before anybody waits what only a server's first answers cost: imports, templates, statements, connections.

Covered: every template, the chart library, one page of each kind over what the record holds now, the ledgers of the
campaigns that can be kept folded. Not covered: serving (serve.py). A record that is away, empty or broken costs the
warmth and nothing else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.types import Message

from outerloop.controller import views
from outerloop.controller.campaign_fold import MOST_FOLDS
from outerloop.controller.shown import RunFilter
from outerloop.viewer.answers import compile_templates
from outerloop.viewer.source import Source

__all__ = ["SECONDS", "warm"]

SECONDS = 10.0
"""After so long no further page is asked for: a slow record must not keep the server from listening."""
FIXED = (
    "/",
    "/runs?limit=500",
    "/runs?state=ended&author=nobody&target=none&text=nothing",
    "/benchmarks",
    "/campaigns",
    "/trainings",
    "/queue",
    "/plans",
    "/api/status",
    "/api/runs?limit=500",
    "/api/benchmarks",
    "/api/champions",
    "/api/queue",
    "/api/charts/days",
)


def warm(app: Starlette, *, seconds: float = SECONDS) -> int:
    """Ask for pages in this process, as a reader would, and throw them away. The number of pages; raises nothing that
    a page or the record may raise."""
    import plotly.graph_objects as go

    go.Figure(go.Scatter(x=[0], y=[0]))  # its classes are made on first use
    compile_templates()
    source: Source | None = getattr(app.state, "source", None)
    if source is None:
        return 0
    return asyncio.run(_asked(app, source, time.monotonic() + seconds))


async def _asked(app: Starlette, source: Source, until: float) -> int:
    count = 0
    paths = list(FIXED)
    try:
        paths += await asyncio.to_thread(lambda: list(_found(source)))
    except Exception:  # the pages say what is wrong with the record
        return count
    for path in paths:
        if time.monotonic() > until:
            break
        try:
            await _ask(app, path)
        except Exception:  # whoever opens the page is told
            continue
        count += 1
    return count


def _found(source: Source) -> Iterator[str]:
    """Addresses of the newest run of each kind, and of campaigns, the open ones first."""
    with source.looking() as looking:
        for kind in ("climb", "training", "entry", "campaign"):
            for run in views.runs(looking.record, RunFilter(kind=kind), limit=1).runs:
                name = quote(run.id, safe="")
                yield f"/runs/{name}"
                yield f"/runs/{name}/logs"
                yield f"/api/runs/{name}"
                if kind == "climb":
                    place = f"{quote(run.target, safe='')}/{quote(run.benchmark, safe='')}"
                    yield f"/api/runs/{name}/argument"
                    yield f"/api/charts/runs/{name}/pairs"
                    yield f"/benchmarks/{place}"
                    yield f"/api/charts/benchmarks/{place}"
        # A ledger is folded once and then only further: the first to look would wait for all of it.
        wanted = RunFilter(kind="campaign", states=views.OPEN_STATES)
        open_ = views.runs(looking.record, wanted, limit=MOST_FOLDS).runs
        newest = views.runs(looking.record, RunFilter(kind="campaign"), limit=MOST_FOLDS).runs
        campaigns = list(dict.fromkeys(run.id for run in (*open_, *newest)))[:MOST_FOLDS]
        for number, run_id in enumerate(campaigns):
            name = quote(run_id, safe="")
            yield f"/campaigns/{name}"
            yield f"/api/charts/campaigns/{name}/front"
            yield f"/api/charts/campaigns/{name}/history"
            if not number:
                yield f"/campaigns/{name}/events"
                yield f"/api/charts/campaigns/{name}/curves"


async def _ask(app: Starlette, path: str) -> None:
    where, _, query = path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": where,
        "raw_path": where.encode(),
        "root_path": "",
        "query_string": query.encode(),
        "headers": [(b"host", b"localhost"), (b"accept-encoding", b"gzip")],
        "client": None,
        "server": None,
        "state": {},
    }

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(_message: Message) -> None:
        return None

    await app(scope, receive, send)

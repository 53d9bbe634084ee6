"""The application: which address is which page, and what is said when something fails.

Covered: routes, problems, static files. Not covered: pages, who may ask (guard.py), serving (serve.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from importlib.resources import files
from pathlib import Path
from typing import Any

from sqlalchemy.exc import DataError, DBAPIError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from outerloop.record.store import RecordUnavailable
from outerloop.viewer import campaigns, pages, run_page
from outerloop.viewer.answers import problem
from outerloop.viewer.folder import Folder, folder_chart_json, folder_json, folder_page
from outerloop.viewer.source import Source

__all__ = ["LINKS", "folder_app", "record_app"]

LINKS = (
    ("/", "Overview"),
    ("/runs", "Runs"),
    ("/benchmarks", "Benchmarks"),
    ("/campaigns", "Campaigns"),
    ("/trainings", "Trainings"),
    ("/queue", "Queue"),
    ("/plans", "Plans"),
)
_INSUFFICIENT_PRIVILEGE = "42501"
"""SQLSTATE of a missing grant (PostgreSQL manual, appendix A)."""
_KEEP = "public, max-age=31536000, immutable"
"""For files whose address changes with their content."""
_STATIC = {"style.css": "text/css", "app.js": "text/javascript", "icon.svg": "image/svg+xml"}


def _own(name: str) -> Response:
    body = files("outerloop.viewer").joinpath("static", name).read_bytes()
    return Response(body, media_type=_STATIC[name], headers={"cache-control": _KEEP})


def _icon(_request: Request) -> Response:
    return _own("icon.svg")


def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name == "plotly.min.js":
        import plotly

        where = Path(plotly.__file__).parent / "package_data" / name
        return FileResponse(where, media_type="text/javascript", headers={"cache-control": _KEEP})
    if name not in _STATIC:
        raise HTTPException(404, f"There is no file {name}.")
    return _own(name)


def _unavailable(request: Request, error: Exception) -> Response:
    return problem(request, 503, "The record does not answer", str(error), "outerloop doctor --no-job", retry=True)


def _http_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    title = {400: "That cannot be asked", 404: "Not found"}.get(error.status_code, "This does not work")
    sentence = error.detail if error.detail != "Not Found" else f"There is no page {request.url.path}."
    return problem(request, error.status_code, title, sentence)


def _database_problem(request: Request, error: Exception) -> Response:
    state = getattr(getattr(error, "orig", None), "sqlstate", None)
    if state == _INSUFFICIENT_PRIVILEGE:
        first = str(getattr(error, "orig", error)).splitlines()[0]
        return problem(
            request, 503, "The record may not be read", f"Its role lacks a right ({first}); looking needs SELECT."
        )
    if isinstance(error, DataError):  # a value that no column can hold, such as a NUL byte
        return problem(request, 400, "That cannot be asked", "The address holds a text that nothing can be called.")
    return _defect(request, error)


def _defect(request: Request, error: Exception) -> Response:
    return problem(
        request, 500, "A defect of outerloop", f"{type(error).__name__}; the terminal of outerloop view has more."
    )


_HANDLERS: dict[Any, Any] = {
    RecordUnavailable: _unavailable,
    HTTPException: _http_problem,
    DBAPIError: _database_problem,
    500: _defect,
}


def _application(routes: list[Route], lifespan: Any, **state: Any) -> Starlette:
    app = Starlette(
        routes=[*routes, Route("/static/{name}", _static), Route("/favicon.ico", _icon)],
        exception_handlers=_HANDLERS,
        middleware=[Middleware(GZipMiddleware, minimum_size=1000, compresslevel=5)],
        lifespan=lifespan,
    )
    for name, value in state.items():
        setattr(app.state, name, value)
    return app


def record_app(source: Source) -> Starlette:
    """The pages of a record."""

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        yield
        source.close()

    routes = [
        Route("/", pages.overview_page),
        Route("/runs", pages.runs_page),
        Route("/runs/{run}", run_page.run_page),
        Route("/runs/{run}/logs", run_page.logs_page),
        Route("/benchmarks", pages.benchmarks_page),
        Route("/benchmarks/{target}/{benchmark:path}", pages.benchmark_page),
        Route("/campaigns", campaigns.campaigns_page),
        Route("/campaigns/{run}", campaigns.campaign_page),
        Route("/campaigns/{run}/events", campaigns.campaign_events_page),
        Route("/trainings", pages.trainings_page),
        Route("/queue", pages.queue_page),
        Route("/plans", pages.plans_page),
        Route("/api/status", pages.status_json),
        Route("/api/runs", pages.runs_json),
        Route("/api/runs/{run}", run_page.run_json),
        Route("/api/runs/{run}/argument", run_page.run_argument_json),
        Route("/api/runs/{run}/logs", run_page.run_logs_json),
        Route("/api/benchmarks", pages.benchmarks_json),
        Route("/api/benchmarks/{target}/{benchmark:path}", pages.benchmark_json),
        Route("/api/champions", pages.champions_json),
        Route("/api/campaigns", campaigns.campaigns_json),
        Route("/api/campaigns/{run}", campaigns.campaign_json),
        Route("/api/campaigns/{run}/events", campaigns.campaign_events_json),
        Route("/api/queue", pages.queue_json),
        Route("/api/plans", pages.plans_json),
        Route("/api/charts/days", pages.days_chart_json),
        Route("/api/charts/runs/{run}/{chart}", run_page.run_chart_json),
        Route("/api/charts/campaigns/{run}/{chart}", campaigns.campaign_chart_json),
        Route("/api/charts/benchmarks/{target}/{benchmark:path}", pages.benchmark_chart_json),
    ]
    return _application(routes, lifespan, source=source, links=LINKS, place=source.note or str(source.root.path))


def folder_app(folder: Folder) -> Starlette:
    """The pages of one folder or file, without a record."""
    routes = [
        Route("/", folder_page),
        Route("/api/folder", folder_json),
        Route("/api/charts/{chart}", folder_chart_json),
    ]
    return _application(routes, None, folder=folder, links=(), place=str(folder.path))

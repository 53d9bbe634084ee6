"""Attacks from outside: foreign names, missing tokens, other methods, paths that climb, headers that are missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from outerloop.viewer.guard import LOOPBACK, host_name
from outerloop.viewer.serve import bind
from tests.postgres.conftest import _database_url, _execute
from tests.rows import World, make_world
from tests.viewer.serving import Asking, viewing


@pytest.fixture(scope="module")
def told(pg_url: str, template_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One record for all of these: nothing here writes."""
    _execute(pg_url, f"create database guarded template {template_database}")
    made = make_world(_database_url(pg_url, "guarded"), tmp_path_factory.mktemp("guarded") / "state")
    made.accepted()
    yield made
    made.record.close()
    _execute(pg_url, "drop database guarded with (force)")


@pytest.fixture(scope="module")
def asking(told: World) -> Iterator[Asking]:
    with viewing(told) as served:
        yield served


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.", "", "[::1", "127.0.0.1:x"])
def test_another_host_name_is_refused(asking: Asking, host: str) -> None:
    """A page of another site could have its name resolve to 127.0.0.1 and read everything."""
    answer = asking.get("/api/runs", host=host)
    assert answer.status == 421
    assert b"c-acce" not in answer.body


def test_our_names_are_answered(asking: Asking) -> None:
    for host in ("127.0.0.1", f"localhost:{asking.address.port}", "[::1]:80", "LOCALHOST"):
        assert asking.get("/api/runs", host=host).status == 200, host


def test_two_host_headers_are_refused(asking: Asking) -> None:
    import socket

    with socket.create_connection(("127.0.0.1", asking.address.port), timeout=30) as raw:
        raw.sendall(b"GET /api/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n")
        told = b""
        while piece := raw.recv(65536):
            told += piece
    assert told.split(b" ", 2)[1] in {b"400", b"421"}
    assert b"c-acce" not in told


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_but_reading_is_possible(asking: Asking, method: str) -> None:
    assert asking.get("/runs", method=method).status == 405


@pytest.mark.parametrize(
    "path",
    [
        "/static/../guard.py",
        "/static/..%2fguard.py",
        "/static/%2e%2e/%2e%2e/app.py",
        "/static//etc/passwd",
        "/static/plotly.min.js/../../../plotly/__init__.py",
        "/runs/../../etc/passwd",
        "/runs/..%2f..%2f..%2fetc%2fpasswd",
        "/runs/c-acce000001/logs?role=../../../../etc/passwd",
        "/api/runs/c-acce000001/logs?role=candidate&attempt=../1",
        "/api/charts/runs/c-acce000001/..%2f..",
        "/runs/%00",
        "/runs?text=%00",
        "/benchmarks/%00/x",
        "/benchmarks/../..//etc/passwd",
        "//evil.example/",
    ],
)
def test_no_path_leads_anywhere_else(asking: Asking, path: str) -> None:
    answer = asking.get(path)
    assert answer.status in {200, 400, 404}, answer.text
    assert b"root:" not in answer.body and b"import " not in answer.body
    assert "location" not in answer.headers


def test_every_answer_forbids_what_a_page_does_not_need(asking: Asking) -> None:
    for path in ("/", "/api/runs", "/static/app.js", "/nope", "/runs/nope"):
        headers = asking.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self';" in policy and "'unsafe-eval'" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
        assert "server" not in headers


def test_pages_are_not_kept_and_files_are(asking: Asking) -> None:
    assert asking.get("/").headers["cache-control"] == "no-store"
    assert asking.get("/api/runs").headers["cache-control"] == "no-store"
    assert "immutable" in asking.get("/static/style.css").headers["cache-control"]


def test_without_the_token_nothing_is_told(told: World) -> None:
    with viewing(told, token=True) as asking:
        token = asking.address.token
        assert len(token) >= 32 and token in asking.address.url
        for path in ("/", "/api/runs", "/static/app.js", "/?token=wrong", "/?token=", "/nope"):
            refused = asking.get(path)
            assert refused.status == 401, path
            assert token not in str(refused)
        assert asking.get("/api/runs", authorization=f"Bearer {token}").status == 200
        assert asking.get("/api/runs", authorization=f"Bearer {token}x").status == 401
        assert asking.get("/api/runs", authorization=token).status == 401


def test_the_token_moves_from_the_address_into_a_cookie(told: World) -> None:
    with viewing(told, token=True) as asking:
        token = asking.address.token
        moved = asking.get(f"/runs?state=ended&token={token}&text=a%26b")
        assert moved.status == 303
        assert moved.headers["location"] == "/runs?state=ended&text=a%26b"
        cookie = moved.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
        assert asking.get("/runs", cookie=cookie.split(";")[0]).status == 200
        assert asking.get("/runs", cookie=cookie.split(";")[0] + "x").status == 401
        away = asking.get(f"//evil.example/?token={token}")
        assert away.headers["location"] == "/evil.example/"


def test_another_address_than_this_machine_has_a_token_in_any_case() -> None:
    address = bind("0.0.0.0", 0)
    try:
        assert address.token and address.token in address.url
        assert address.hosts > LOOPBACK
    finally:
        address.socket.close()
    local = bind("127.0.0.1", 0)
    local.socket.close()
    assert local.token == ""


def test_host_names_are_read_as_browsers_write_them() -> None:
    assert host_name("LocalHost:80") == "localhost"
    assert host_name("[::1]:8765") == "[::1]"
    assert host_name("a:b") == host_name("[::1") == host_name("[::1]x") == ""
    assert host_name(" 127.0.0.1 ") == "127.0.0.1"


def test_a_name_that_no_header_can_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no host name"):
        bind("127.0.0.1", 0, names=["a:b"])

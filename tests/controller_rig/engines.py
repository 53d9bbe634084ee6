"""One SQLAlchemy engine for a test's database, however often the rig opens the record.

An engine compiles every statement it has not seen, and a connection is a process of the server: a test of crash points
opens its record a thousand times, and half of its processor time went there. What Record does with its engine stays as
it is, apart from who makes it and when its connections are closed. Not covered: the commands that tests start as new
interpreters; each of them has an engine of its own, as every process has.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, Pool, create_engine

from outerloop.controller.deployment import Deployment
from outerloop.record import store

__all__ = ["forget", "opened", "use_here"]

_kept: dict[str, Engine] = {}
_of_the_parent: list[Pool] = []


def _after_fork() -> None:
    """The parent's connections are the parent's; what was compiled is good in the child, too."""
    for engine in _kept.values():
        _of_the_parent.append(engine.pool)  # its connections are not even to be collected here
        engine.dispose(close=False)


os.register_at_fork(after_in_child=_after_fork)


def _engine(url: str, **options: Any) -> Engine:
    if url not in _kept:
        forget()  # a test has one database, and the server has not connections for all of them
        # Several records may be open at once in one test, each of which would have had a pool.
        _kept[url] = create_engine(url, **{**options, "max_overflow": 20})
    return _kept[url]


def opened(make: Callable[[], Deployment]) -> Deployment:
    """What `make` opens, with its record on the kept engine, whose connections outlive its closing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "create_engine", _engine)
        deployment = make()
    deployment.record.close = lambda: None  # type: ignore[method-assign]
    return deployment


def use_here() -> None:
    """In a forked process: every record that it opens is on the kept engine."""
    store.create_engine = _engine


def forget() -> None:
    """Close every kept connection."""
    while _kept:
        _kept.popitem()[1].dispose()

"""Telling people what happened: verdicts, champions, blocked runs, through Apprise, at least once.

Covered: what is new since people were last told, the message, remembering. Not covered: how a message travels
(Apprise), runs that somebody paused. The tick calls it last and holds its lock, so two never tell the same.
"""

from __future__ import annotations

import logging
import socket
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import and_, exists, func, or_, select
from sqlalchemy.dialects.postgresql import insert

from outerloop.controller.deployment import Deployment
from outerloop.controller.ledger import PAUSED
from outerloop.record.models import Champion, Heartbeat, Run
from outerloop.record.store import Record

__all__ = ["GIVE_UP", "News", "message", "tell"]

_NAME = "notify"
OVERLAP = timedelta(minutes=15)
"""Transactions that began earlier may commit after we looked; what was told already is remembered by name."""
GIVE_UP = timedelta(days=1)
"""News that could not be sent for so long is old."""
MOST_LINES = 20


@dataclass(frozen=True)
class News:
    """One thing to tell."""

    key: str
    kind: str
    """champion, verdict or blocked"""
    line: str
    at: datetime


def tell(deployment: Deployment) -> list[str]:
    """Send what is new, if anything is. Returns notes for whoever reads the tick; a sender's fault is one of them."""
    record = deployment.record
    cursor = _cursor(record)
    now = _now(record)
    if cursor is None:
        _remember(record, now, [item.key for item in _news(record, now - OVERLAP)])
        return []
    since, told = cursor
    wanted = set(deployment.settings.notify.on)
    found = [item for item in _news(record, max(since - OVERLAP, now - GIVE_UP)) if item.key not in told]
    fresh = [item for item in found if item.kind in wanted or (item.kind == "champion" and "verdict" in wanted)]
    if fresh:
        title, body = message(fresh)
        problem = _send(deployment, title, body)
        if problem:
            return [problem]
    recent = now - 2 * OVERLAP
    kept = [item.key for item in _news(record, recent)]
    if found or kept != list(told):
        _remember(record, now, kept)
    return []


def _now(record: Record) -> datetime:
    with record.reading() as session:
        now = session.scalar(select(func.clock_timestamp()))
    assert isinstance(now, datetime)
    return now


def _cursor(record: Record) -> tuple[datetime, tuple[str, ...]] | None:
    with record.reading() as session:
        body = session.scalar(
            select(Heartbeat.body).where(Heartbeat.realm_id == record.realm_id, Heartbeat.name == _NAME)
        )
    if body is None:
        return None
    return datetime.fromisoformat(str(body["since"])).astimezone(UTC), tuple(body["told"])


def _remember(record: Record, since: datetime, told: Sequence[str]) -> None:
    values = {
        "realm_id": record.realm_id,
        "name": _NAME,
        "host": socket.gethostname(),
        "body": {"since": since.isoformat(), "told": list(told)},
    }
    with record.transaction("tx.notify") as session:
        session.execute(
            insert(Heartbeat)
            .values(**values)
            .on_conflict_do_update(index_elements=["realm_id", "name"], set_={"at": func.now(), "body": values["body"]})
        )


def _news(record: Record, since: datetime) -> list[News]:
    """Everything that happened after `since`, oldest first."""
    crowned = exists().where(Champion.run_id == Run.id, Champion.realm_id == Run.realm_id)
    with record.reading() as session:
        rows = session.execute(
            select(
                Run.id,
                Run.state,
                Run.benchmark,
                Run.label,
                Run.verdict,
                Run.sentence,
                Run.state_reason,
                Run.state_detail,
                Run.updated_at,
                Run.ended_at,
                crowned,
            )
            .where(
                Run.realm_id == record.realm_id,
                Run.updated_at > since,
                or_(
                    and_(Run.state == "ended", Run.ended_at > since),
                    and_(Run.state == "blocked", Run.state_reason != PAUSED),
                ),
            )
            .order_by(Run.updated_at, Run.id)
        ).all()
    return [_item(row) for row in rows]


def _item(row: Any) -> News:
    about = f"{row.id} {row.benchmark}" + (f" ({row.label})" if row.label else "")
    if row.state == "blocked":
        line = f"blocked: {about}: {row.state_reason}: {row.state_detail}. outerloop show {row.id}"
        return News(f"{row.id}:blocked:{row.updated_at.isoformat()}", "blocked", line, row.updated_at)
    kind = "champion" if row[-1] else "verdict"
    return News(f"{row.id}:{row.verdict}", kind, f"{about}: {row.sentence or row.verdict}", row.ended_at)


def message(news: Sequence[News]) -> tuple[str, str]:
    """(title, text) for these news; champions first, then what is blocked."""
    order = {"champion": 0, "blocked": 1, "verdict": 2}
    ordered = sorted(news, key=lambda item: (order[item.kind], item.at, item.key))
    counts = {kind: sum(item.kind == kind for item in news) for kind in order}
    words = {
        "champion": ("new champion", "new champions"),
        "blocked": ("blocked run", "blocked runs"),
        "verdict": ("verdict", "verdicts"),
    }
    title = "outerloop: " + ", ".join(f"{n} {words[kind][n != 1]}" for kind, n in counts.items() if n)
    lines = [("new champion: " if item.kind == "champion" else "") + item.line for item in ordered[:MOST_LINES]]
    if len(ordered) > MOST_LINES:
        lines.append(f"and {len(ordered) - MOST_LINES} more: outerloop status --all")
    return title, "\n".join(lines)


def _send(deployment: Deployment, title: str, body: str) -> str:
    """Send to every URL; returns what went wrong, in words without the URLs, which hold passwords."""
    with warnings.catch_warnings():
        # What its dependencies will have to change is not for whoever reads a tick.
        warnings.simplefilter("ignore", DeprecationWarning)
        return _sent(deployment, title, body)


def _sent(deployment: Deployment, title: str, body: str) -> str:
    try:
        from apprise import Apprise
    except ImportError:
        return "[notify] needs apprise: pip install 'outerloop-slurm[notify]'; nobody was told"
    logging.getLogger("apprise").setLevel(logging.CRITICAL)
    failed = []
    for place, url in enumerate(deployment.settings.notify.urls, start=1):
        service = Apprise()
        if not service.add(url.get_secret_value()):
            failed.append(f"notify.urls[{place}] is no URL that apprise knows")
        elif not service.notify(title=title, body=body):
            failed.append(f"notify.urls[{place}] ({url.get_secret_value().partition(':')[0]}) did not take the message")
    return "; ".join(failed) + "; it is sent again by the next tick" if failed else ""

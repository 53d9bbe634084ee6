"""Filters and helpers of the templates: times, ages, sizes, links. Escaping is the template engine's (autoescape).

Covered: one way to write each. Not covered: markup of pages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

from markupsafe import Markup, escape

from outerloop.controller.health import age
from outerloop.printable import harmless, one_line

__all__ = ["FILTERS", "GLOBALS", "sparkline"]

SHORT_COMMIT = 12
_SPARK_WIDTH, _SPARK_HEIGHT, _SPARK_EDGE = 120, 28, 3


def _ago(at: datetime | None, now: datetime | None = None) -> Markup:
    """`3 h ago`, with the exact time for machines and for whoever points at it."""
    if at is None:
        return Markup("–")
    seconds = ((now or datetime.now(UTC)) - at).total_seconds()
    text = f"{age(seconds)} ago" if seconds >= 0 else f"in {age(-seconds)}"
    return _time(at, text)


def _clock(at: datetime | None) -> Markup:
    return Markup("–") if at is None else _time(at, f"{at.astimezone():%Y-%m-%d %H:%M:%S}")


def _time(at: datetime, text: str) -> Markup:
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        at.isoformat(), f"{at.astimezone():%Y-%m-%d %H:%M:%S %Z}", text
    )


def _iso(text: str | None) -> Markup:
    """A time as a ledger writes it; – for none, the text itself for one that is no time."""
    if not text:
        return Markup("–")
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return escape(text)
    return _clock(at if at.tzinfo is not None else at.replace(tzinfo=UTC))


def _breakable(text: str) -> Markup:
    """A long name that may be folded after its slashes."""
    return Markup("/<wbr>").join(escape(harmless(part)) for part in text.split("/"))


def _took(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds:.1f} s" if seconds < 60 else age(seconds)


def _brief(seconds: float) -> str:
    """The time of a step: `0.77 ms`, `1.23 s`."""
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _bytes(count: float | None) -> str:
    """Decimal units, as the rest of outerloop counts."""
    if count is None:
        return ""
    for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"


def _figure(value: Any) -> str:
    """A number for reading: six digits, no binary noise; – for none."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _commit(commit: str) -> str:
    return commit[:SHORT_COMMIT]


def _segment(text: str) -> str:
    """One part of an address, slashes included."""
    return quote(text, safe="")


def _with(query: Mapping[str, Any], **changes: Any) -> str:
    """The query string with some fields changed; empty fields are left out."""
    kept = {**query, **changes}
    return urlencode({key: value for key, value in kept.items() if value not in ("", None, 0)})


def sparkline(values: Sequence[str], title: str) -> Markup:
    """A small curve without axes, drawn by the server: it needs no script. "" for fewer than two numbers."""
    numbers = []
    for text in values:
        try:
            number = float(text)
        except ValueError:
            continue
        if math.isfinite(number):
            numbers.append(number)
    if len(numbers) < 2:
        return Markup("")
    low, high = min(numbers), max(numbers)
    span = (high - low) or 1.0
    wide, tall = _SPARK_WIDTH - 2 * _SPARK_EDGE, _SPARK_HEIGHT - 2 * _SPARK_EDGE
    points = [
        (
            round(_SPARK_EDGE + place * wide / (len(numbers) - 1), 1),
            round(_SPARK_EDGE + tall - (number - low) / span * tall, 1),
        )
        for place, number in enumerate(numbers)
    ]
    path = " ".join(f"{x},{y}" for x, y in points)
    x, y = points[-1]
    return Markup(
        '<svg class="spark" viewBox="0 0 {} {}" width="{}" height="{}" role="img" aria-label="{}">'
        '<polyline points="{}"/><circle cx="{}" cy="{}" r="2.5"/></svg>'
    ).format(_SPARK_WIDTH, _SPARK_HEIGHT, _SPARK_WIDTH, _SPARK_HEIGHT, title, path, x, y)


def _ticked(text: str) -> Markup:
    """Text in which `backticks` mark code."""
    parts = one_line(text).split("`")
    if len(parts) % 2 == 0:
        return escape(one_line(text))
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if place % 2 else escape(part) for place, part in enumerate(parts)
    )


def _blocks(lines: Sequence[str]) -> list[tuple[bool, str]]:
    """(whether it is a table, text) of an argument's lines: a table's lines are aligned by two blanks or more."""
    blocks: list[tuple[bool, list[str]]] = []
    for line in lines:
        table = "  " in line or line.endswith((" |", "*"))
        if table and blocks and blocks[-1][0]:
            blocks[-1][1].append(line)
        else:
            blocks.append((table, [line]))
    return [(table, "\n".join(members)) for table, members in blocks]


FILTERS: dict[str, Any] = {
    "ago": _ago,
    "clock": _clock,
    "iso": _iso,
    "breakable": _breakable,
    "took": _took,
    "blocks": _blocks,
    "brief": _brief,
    "bytes": _bytes,
    "figure": _figure,
    "commit": _commit,
    "segment": _segment,
    "one_line": lambda text: one_line(str(text or "")),
    "harmless": lambda text: harmless(str(text or "")),
    "ticked": lambda text: _ticked(str(text or "")),
}
GLOBALS: dict[str, Any] = {"with_query": _with, "sparkline": sparkline}

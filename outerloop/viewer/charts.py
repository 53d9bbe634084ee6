"""Charts as the chart library's own JSON: pure functions from what was read to {"data", "layout"}.

Covered: traces, axes and their titles. Not covered: colours (the page's style sheet gives them to app.js, so that light
and dark both fit), drawing. Every chart's page has the same numbers as a table.

plotly's Python side makes and checks the figures; its script, which the wheel ships, draws them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from outerloop.controller.history import Asked, Day
from outerloop.controller.shown import ChampionView, MeasureView
from outerloop.viewer.reports import Rank, Series

__all__ = [
    "Chart",
    "champion_chart",
    "day_chart",
    "figure",
    "look_chart",
    "loss_chart",
    "memory_chart",
    "pair_chart",
    "short",
]

VERDICTS = ("accepted", "finished", "rejected", "failed", "cancelled")
"""In the order in which they are stacked."""
MOST_TICKS = 12
_DAY_MS = 24 * 60 * 60 * 1000
Chart = dict[str, Any]
"""{"data": traces, "layout": axes and their titles}; `meta` of a trace names its colour and its mark (app.js)."""


def figure(traces: Sequence[Any], **layout: Any) -> Chart:
    """These traces and this layout, checked by the chart library."""
    import plotly.graph_objects as go

    # A trace has checked its own data; as a figure's part every number would be checked and copied a second time.
    checked = go.Figure()
    checked.update_layout(template="none", **layout)
    shown = checked.to_plotly_json()["layout"]
    # `template` is the library's default look; the page has its own.
    shown.pop("template", None)
    return {"data": [_plain(trace.to_plotly_json()) for trace in traces], "layout": _plain(shown)}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value


def _float(text: str) -> float | None:
    """A printed number for drawing; None for what is none or not finite, which leaves a gap."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def champion_chart(champions: Sequence[ChampionView], asked: Sequence[Asked]) -> Chart:
    """The champions of one definition as steps over time, and what every other climb measured, by verdict."""
    import plotly.graph_objects as go

    ordered = sorted(champions, key=lambda champion: champion.seq)
    traces: list[Any] = []
    for verdict in ("rejected", "failed", "accepted"):
        mine = [one for one in asked if one.verdict == verdict]
        if mine:
            traces.append(
                go.Scatter(
                    x=[one.ended_at.isoformat() for one in mine],
                    y=[_float(one.candidate) for one in mine],
                    customdata=[[one.run_id, short(one.label)] for one in mine],
                    mode="markers",
                    name=verdict,
                    meta=verdict,
                    hovertemplate="%{customdata[0]} %{customdata[1]}<br>%{y}<extra>" + verdict + "</extra>",
                )
            )
    if ordered:
        traces.append(
            go.Scatter(
                x=[champion.accepted_at.isoformat() for champion in ordered],
                y=[_float(champion.value) for champion in ordered],
                customdata=[[champion.run_id, short(champion.label), champion.seq] for champion in ordered],
                mode="lines+markers",
                line={"shape": "hv"},
                name="champion",
                meta="champion",
                hovertemplate="champion %{customdata[2]}: %{y}<br>%{customdata[0]} %{customdata[1]}<extra></extra>",
            )
        )
    metric = next((one.metric for one in asked if one.metric), "value")
    better = {"min": " (lower is better)", "max": " (higher is better)"}.get(
        next((one.direction for one in asked if one.direction), ""), ""
    )
    return figure(traces, xaxis={"type": "date"}, yaxis={"title": {"text": short(metric) + better}})


def day_chart(days: Sequence[Day], now: datetime, back: int) -> Chart:
    """Verdicts per UTC day, stacked, of the last `back` days."""
    import plotly.graph_objects as go

    traces = []
    for verdict in VERDICTS:
        mine = [day for day in days if day.verdict == verdict]
        if mine:
            traces.append(
                go.Bar(
                    x=[f"{day.day:%Y-%m-%d}" for day in mine],
                    y=[day.runs for day in mine],
                    name=verdict,
                    meta=verdict,
                    width=_DAY_MS * 0.75,
                    xperiod=_DAY_MS,
                    hovertemplate="%{x|%b %-d}: %{y} " + verdict + "<extra></extra>",
                )
            )
    return figure(
        traces,
        barmode="stack",
        bargap=0.25,
        xaxis={
            "type": "date",
            "tickformat": "%b %-d",
            "range": [f"{now - timedelta(days=back):%Y-%m-%d}", f"{now + timedelta(days=1):%Y-%m-%d}"],
            "showgrid": False,
        },
        yaxis={"title": {"text": "verdicts a day"}, "rangemode": "tozero"},
    )


def pair_chart(measures: Sequence[MeasureView], benchmark: str, metric: str) -> Chart:
    """Base and candidate of each pair of the climbed benchmark."""
    import plotly.graph_objects as go

    mine = [m for m in measures if m.benchmark == benchmark and m.value is not None and m.kind != "environment"]
    traces: list[Any] = []
    sides: dict[str, dict[int, float]] = {
        side: {m.pair: float(m.value) for m in mine if m.side == side and m.value is not None}
        for side in ("base", "candidate")
    }
    for pair in sorted(sides["base"].keys() & sides["candidate"].keys()):
        traces.append(
            go.Scatter(
                x=[pair + 1, pair + 1],
                y=[sides["base"][pair], sides["candidate"][pair]],
                mode="lines",
                meta="link",
                showlegend=False,
                hoverinfo="skip",
            )
        )
    for side, values in sides.items():
        if values:
            traces.append(
                go.Scatter(
                    x=[pair + 1 for pair in values],
                    y=list(values.values()),
                    mode="markers",
                    name=side,
                    meta=side,
                    hovertemplate="pair %{x}: %{y}<extra>" + side + "</extra>",
                )
            )
    return figure(
        traces,
        xaxis={"title": {"text": "pair"}, "dtick": 1 if len(sides["base"]) <= MOST_TICKS else None},
        yaxis={"title": {"text": short(metric or "value")}},
    )


def look_chart(looks: Sequence[dict[str, Any]]) -> Chart:
    """The log-likelihood ratio of a sequential test after each look, between its bounds."""
    import plotly.graph_objects as go

    pairs = [look.get("pairs") for look in looks]
    traces: list[Any] = [
        go.Scatter(
            x=pairs,
            y=[look.get(key) for look in looks],
            mode="lines" if key != "llr" else "lines+markers",
            name=name,
            meta=meta,
            hovertemplate="after %{x} pairs: %{y:.3f}<extra>" + name + "</extra>",
        )
        for key, name, meta in (
            ("upper", "accept H1", "accepted"),
            ("lower", "accept H0", "rejected"),
            ("llr", "log-likelihood ratio", "champion"),
        )
    ]
    return figure(traces, xaxis={"title": {"text": "pairs"}}, yaxis={"title": {"text": "log-likelihood ratio"}})


def loss_chart(series: Sequence[Series], names: Sequence[str]) -> Chart:
    """Curves over the steps. Gaps are values that were not finite."""
    import plotly.graph_objects as go

    traces = [
        go.Scatter(
            x=list(one.steps),
            y=list(one.values),
            mode="lines",
            connectgaps=False,
            name=short(one.name),
            meta=f"series-{place}",
            hovertemplate="step %{x}: %{y}<extra>" + short(one.name) + "</extra>",
        )
        for place, one in enumerate(one for one in series if one.name in names)
    ]
    return figure(
        traces, xaxis={"title": {"text": "step"}}, yaxis={"title": {"text": short(names[0]) if names else ""}}
    )


def memory_chart(ranks: Sequence[Rank]) -> Chart:
    """Peak memory of each rank in GB (10^9 bytes), of the GPU where there is one, else of the host."""
    import plotly.graph_objects as go

    labels = [f"rank {rank.rank}" for rank in ranks]
    traces = []
    kinds = (("reserved", "GPU, reserved"), ("device", "GPU, allocated"), ("rss", "host"))
    for place, (key, name) in enumerate(kinds):
        values = [rank.memory_mb.get(key) for rank in ranks]
        if any(value is not None for value in values):
            traces.append(
                go.Bar(
                    x=labels,
                    y=[None if value is None else value / 1000 for value in values],
                    name=name,
                    meta=f"series-{place}",
                    hovertemplate="%{x}: %{y:.2f} GB<extra>" + name + "</extra>",
                )
            )
    return figure(traces, barmode="group", yaxis={"title": {"text": "peak memory, GB"}, "rangemode": "tozero"})


def short(text: str) -> str:
    """Somebody's text for a chart: at most 60 characters, and what the library takes for tags written out."""
    return _escaped(text if len(text) <= 60 else text[:59] + "…")


def _escaped(text: str) -> str:
    # The library renders a few tags (b, i, a with href) inside texts and knows entities.
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")

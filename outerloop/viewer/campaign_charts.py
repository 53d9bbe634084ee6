"""A campaign's charts as the chart library's own JSON: the front, the history of its counts, the gate curves.

Covered: what the points are and which axes they stand on. Not covered: colours (style sheet), other charts (charts.py).
Counts of different generations stand on one axis, but each has a test set of its own: they don't compare to the item.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any

from outerloop.viewer.campaign_facts import Check, Detail, Point, Step
from outerloop.viewer.charts import Chart, figure, short

__all__ = ["curve_chart", "front_chart", "history_chart", "spelled"]

MOST_POINTS = 1200
"""Of one chart, the newest: it has about as many pixels."""
MOST_OBJECTIVES = 4
MOST_CURVES = 6
_GAP = 0.06
"""Between the stacked axes of the history, as a share of the height."""


def spelled(name: str) -> str:
    """An objective's name for people."""
    return name.replace("_to_", " → ").replace("_", " ")


def _titled(name: str) -> str:
    return short(spelled(name)) + ("" if name == "rejected_total" else " errors")


def _said(point: Point, names: Sequence[str]) -> str:
    told = ", ".join(f"{spelled(name)} {count}" for name, count in zip(names, point.counts, strict=False))
    return f"{short(point.subject)}<br>{short(told)}<br>event {point.seq}, round {point.round}"


def front_chart(detail: Detail) -> Chart:
    """Error counts of a generation, its front and its champion. One objective: the counts in order of arrival."""
    import plotly.graph_objects as go

    names = detail.objectives
    single = len(names) < 2
    numbers = {point.seq: place for place, point in enumerate(detail.points, start=1)}

    def at(points: Sequence[Point]) -> dict[str, Any]:
        return {
            "x": [numbers[p.seq] if single else p.counts[0] for p in points],
            "y": [p.counts[0] if single else p.counts[1] for p in points],
            "text": [_said(p, names) for p in points],
            "hovertemplate": "%{text}<extra></extra>",
        }

    shown = detail.points[-MOST_POINTS:]
    plain = [p for p in shown if not p.on_front and not p.ensemble]
    joined = [p for p in shown if not p.on_front and p.ensemble]
    front = sorted(detail.front, key=lambda p: (p.counts, p.seq))
    traces: list[Any] = []
    if plain:
        traces.append(go.Scatter(**at(plain), mode="markers", name="checkpoint", meta="dominated"))
    if joined:
        traces.append(go.Scatter(**at(joined), mode="markers", name="ensemble", meta="ensemble"))
    if front:
        # With a third objective a point may be on the front and above the stairs.
        mode = "lines+markers" if len(names) == 2 else "markers"
        traces.append(go.Scatter(**at(front), mode=mode, line={"shape": "hv"}, name="front", meta="front"))
    if detail.champion is not None:
        traces.append(go.Scatter(**at([detail.champion]), mode="markers", name="champion", meta="star"))
    x_title = "evaluation" if single else _titled(names[0])
    y_title = _titled(names[0] if single else names[1]) if names else "errors"
    return figure(
        traces,
        xaxis={"title": {"text": x_title}, "rangemode": "tozero"},
        yaxis={"title": {"text": y_title}, "rangemode": "tozero"},
    )


def history_chart(
    evaluations: Sequence[Point],
    names: Sequence[str],
    champions: Sequence[Step],
    generations: Sequence[int],
    starts: Sequence[int],
    checks: Sequence[Check],
) -> Chart:
    """Error counts in order of arrival, over all generations, an axis for each objective; champions as steps.

    `generations`: their numbers, oldest first; `starts`: the numbers of the events that opened them.
    """
    import plotly.graph_objects as go

    first = max(0, len(evaluations) - MOST_POINTS)
    seqs = [point.seq for point in evaluations]
    shown = [(place, point) for place, point in enumerate(evaluations, start=1) if place > first]
    rows = list(enumerate(names[:MOST_OBJECTIVES]))
    height = (1 - _GAP * (len(rows) - 1)) / max(1, len(rows))
    traces: list[Any] = []
    axes: dict[str, Any] = {}
    for row, name in rows:
        yaxis = "y" if row == 0 else f"y{row + 1}"
        top = 1 - row * (height + _GAP)
        axes["yaxis" if row == 0 else f"yaxis{row + 1}"] = {
            "title": {"text": _titled(name)},
            "domain": [max(0.0, top - height), top],
            "rangemode": "tozero",
        }
        for joined, label, meta in ((False, "checkpoint", "dominated"), (True, "ensemble", "ensemble")):
            mine = [(x, p) for x, p in shown if p.ensemble is joined and row < len(p.counts)]
            if mine:
                traces.append(
                    go.Scatter(
                        x=[x for x, _ in mine],
                        y=[p.counts[row] for _, p in mine],
                        text=[_said(p, names) for _, p in mine],
                        hovertemplate="%{text}<extra></extra>",
                        mode="markers",
                        name=label,
                        meta=meta,
                        yaxis=yaxis,
                        showlegend=row == 0,
                    )
                )
        traces += _reigns(row, yaxis, champions, starts, seqs, first)
        traces += _asked(row, name, yaxis, checks, seqs, first)
    lines, labels = [], []
    for start, generation in zip(starts, generations, strict=True):
        x = bisect.bisect_left(seqs, start) + 0.5
        if x < first:
            continue
        if generation != generations[0]:
            lines.append({"type": "line", "xref": "x", "yref": "paper", "x0": x, "x1": x, "y0": 0, "y1": 1})
        labels.append({"x": x, "text": f"g{generation}"})
    lowest = f"y{len(rows)}" if len(rows) > 1 else "y"
    return figure(
        traces,
        xaxis={"title": {"text": "test evaluation, in order of arrival"}, "anchor": lowest},
        shapes=[{**line, "line": {"dash": "dash", "width": 1}} for line in lines],
        annotations=[
            {**label, "y": 1, "xref": "x", "yref": "paper", "showarrow": False, "xanchor": "left", "yanchor": "top"}
            for label in labels
        ],
        **axes,
    )


def _reigns(
    row: int, yaxis: str, champions: Sequence[Step], starts: Sequence[int], seqs: Sequence[int], first: int
) -> list[Any]:
    """A step line for each generation, from each champion's evaluation to the end of its reign."""
    import plotly.graph_objects as go

    traces = []
    numbers = sorted({step.generation for step in champions})
    for number in numbers:
        mine = [step for step in champions if step.generation == number and row < len(step.counts)]
        later = [start for start in starts if mine and start > mine[-1].seq]
        end = bisect.bisect_left(seqs, later[0]) + 0.5 if later else len(seqs) + 0.5
        if not mine or end <= first:
            continue
        x = [float(max(first + 1, bisect.bisect_right(seqs, step.seq))) for step in mine]
        y = [step.counts[row] for step in mine]
        common = {"name": "champion", "meta": "champion", "yaxis": yaxis}
        traces.append(
            go.Scatter(
                x=[*x, end],
                y=[*y, y[-1]],
                mode="lines",
                line={"shape": "hv"},
                hoverinfo="skip",
                showlegend=False,
                **common,
            )
        )
        traces.append(
            go.Scatter(
                x=x,
                y=y,
                text=[short(step.subject) for step in mine],
                hovertemplate="champion %{text}: %{y}<extra></extra>",
                mode="markers",
                showlegend=row == 0 and number == numbers[0],
                **common,
            )
        )
    return traces


def _asked(row: int, name: str, yaxis: str, checks: Sequence[Check], seqs: Sequence[int], first: int) -> list[Any]:
    """What the reserve set said, scaled to the test set's size."""
    import plotly.graph_objects as go

    traces = []
    told: set[str] = set()
    for check in checks:
        line = next((line for line in check.lines if line.objective == name), None)
        x = bisect.bisect_left(seqs, check.seq) + 0.25
        if line is None or not line.reserve_total or x < first or check.status not in {"passed", "luck"}:
            continue
        scaled = line.reserve_count * line.test_total / line.reserve_total
        said = f"reserve check: {'holds up' if check.status == 'passed' else 'luck'}"
        traces.append(
            go.Scatter(
                x=[x, x],
                y=[line.test_count, scaled],
                text=[
                    f"test {line.test_count} of {line.test_total}",
                    f"reserve {line.reserve_count} of {line.reserve_total}",
                ],
                hovertemplate="%{text}<extra>" + said + "</extra>",
                mode="lines+markers",
                name=said,
                meta=f"check-{check.status}",
                yaxis=yaxis,
                showlegend=row == 0 and said not in told,
            )
        )
        told.add(said)
    return traces


def curve_chart(detail: Detail) -> Chart:
    """Gate curves of the front, the champion's first: what passes wrongly against what is stopped wrongly, in %."""
    import plotly.graph_objects as go

    champion = detail.champion.subject if detail.champion is not None else ""
    traces = [
        go.Scatter(
            x=[100 * place[0] for place in curve],
            y=[100 * place[1] for place in curve],
            mode="lines",
            name=("champion " if subject == champion else "") + short(subject),
            meta="champion" if subject == champion else f"series-{place % 4}",
            line={"dash": "solid" if subject == champion else ("solid", "dash", "dashdot", "dot")[place % 4]},
            hovertemplate="%{x:.1f} % pass, %{y:.1f} % stopped<extra>" + short(subject) + "</extra>",
        )
        for place, (subject, curve) in enumerate(detail.curves[:MOST_CURVES])
    ]
    return figure(
        traces,
        xaxis={"title": {"text": "failing items that pass, %"}, "range": [-2, 102]},
        yaxis={"title": {"text": "passing items stopped, %"}, "range": [-2, 102]},
    )

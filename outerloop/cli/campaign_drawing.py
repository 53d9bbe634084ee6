"""A campaign as a picture: the history of its error counts, the front, and the gate curves.

Covered: drawing what champion.plot_data says with matplotlib, which is imported here and nowhere else (extra `plot`).
Not covered: what is drawn and how it is reached (campaign_plot.py). Counts of different generations stand on one
axis, but each generation has a test set of its own: they are not to be compared to the item.
"""

from __future__ import annotations

import bisect
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["FORMATS", "draw", "rendered"]

FORMATS = ("svg", "png", "pdf")

# Okabe and Ito (2008), "Color universal design": told apart with any colour vision. Shapes differ as well.
BLACK, ORANGE, SKY, GREEN, BLUE, VERMILION, PURPLE = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip
GREY = "#8C8C8C"
CHECKS = {
    "passed": ("D", GREEN, "reserve check passed"),
    "luck": ("X", BLACK, "reserve check: luck"),
    "stale": ("s", GREY, "reserve check stale"),
    "not_run": ("P", GREY, "reserve check did not run"),
}
# More rows, curves or names than this can't be read.
MOST_OBJECTIVES = 4
MOST_CURVES = 6
LABEL_LENGTH = 28
# Above it, points in a vector picture become a bitmap: 50,000 circles are a file that no viewer opens.
RASTER_ABOVE = 5_000
DOTS_PER_INCH = 130
# Sizes in inches.
WIDTH, LEFT, RIGHT, TOP, HISTORY, GAP = 10.5, 0.95, 0.25, 0.75, 1.75, 0.18
BETWEEN, MIDDLE, BOTTOM_ROW, FOOT = 1.0, 0.95, 2.9, 1.3
# Width of the widest common letter at 9 points, in inches, and the fewest letters of a reason that say anything.
LETTER = 0.088
SHORTEST_REASON = 10


def rendered(figure: Figure, suffix: str) -> bytes:
    """The figure as a file of a format of FORMATS. The same figure gives the same bytes."""
    import matplotlib

    sink = io.BytesIO()
    metadata = {"svg": {"Date": None}, "png": {"Software": None}, "pdf": {"CreationDate": None}}[suffix]
    with matplotlib.rc_context({"svg.hashsalt": "outerloop"}):
        figure.savefig(sink, format=suffix, dpi=DOTS_PER_INCH, metadata=metadata)
    return sink.getvalue()


def draw(data: Mapping[str, Any], name: str) -> Figure:
    """The picture of what `champion.plot_data` returned. Raises ValueError when there is no evaluation to draw."""
    from matplotlib.figure import Figure

    points: list[dict[str, Any]] = data["evaluations"]
    if not points:
        raise ValueError("there is no test evaluation yet")
    objectives = data["objectives"][:MOST_OBJECTIVES]
    # Placed by hand, in inches: matplotlib's own layout engines take longer than all the drawing.
    height = TOP + len(objectives) * (HISTORY + GAP) + BETWEEN + BOTTOM_ROW + FOOT
    figure = Figure(figsize=(WIDTH, height))

    def placed(left: float, top: float, wide: float, high: float, **options: Any) -> Axes:
        return figure.add_axes((left / WIDTH, 1 - (top + high) / height, wide / WIDTH, high / height), **options)

    wide = WIDTH - LEFT - RIGHT
    history: list[Axes] = []
    for row in range(len(objectives)):
        shared = {"sharex": history[0]} if history else {}
        history.append(placed(LEFT, TOP + row * (HISTORY + GAP), wide, HISTORY, **shared))
    below = TOP + len(objectives) * (HISTORY + GAP) + BETWEEN
    half = (wide - MIDDLE) / 2
    front, curves = placed(LEFT, below, half, BOTTOM_ROW), placed(LEFT + half + MIDDLE, below, half, BOTTOM_ROW)
    for row, axes in enumerate(history):
        _draw_history(axes, data, objectives[row], row)
    for axes in history[:-1]:
        axes.tick_params(labelbottom=False)
    history[-1].set_xlabel("test evaluation, in order of arrival")
    _name_generations(history[0], data)
    _draw_front(front, data, objectives)
    _draw_curves(curves, data)
    generations = len(data["generations"])
    failed = f", {data['failed']} failed or without counts" if data["failed"] else ""
    figure.suptitle(
        f"Campaign {_text(name)}: {len(points)} test evaluations in {generations} "
        f"generation{'s' if generations != 1 else ''}{failed}",
        fontsize=13,
        y=1 - 0.12 / height,
        va="top",
    )
    marks: dict[str, Any] = {}
    for axes in history:
        marks.update({label: mark for mark, label in zip(*axes.get_legend_handles_labels(), strict=True)})
    # The bottom row keeps its width; what the marks mean stands once, below everything.
    checked = any(check["status"] in CHECKS for check in data["reserve_checks"])
    explained = "Reserve checks stand at the reserve set's errors, scaled to the test set's size." if checked else None
    figure.legend(marks.values(), marks.keys(), loc="lower center", ncols=4, fontsize=9, frameon=False,
                  title=explained, title_fontsize=9)  # fmt: skip
    return figure


# ------------------------------------------------------------------------------------------------- history


def _draw_history(axes: Axes, data: Mapping[str, Any], objective: str, row: int) -> None:
    points = data["evaluations"]
    raster = len(points) > RASTER_ABOVE
    numbered = list(enumerate(points, start=1))
    for ensemble, marker, colour, label in (
        (False, "o", SKY, "checkpoint"),
        (True, "^", BLUE, "ensemble"),
    ):
        chosen = [(x, p["counts"].get(objective, 0)) for x, p in numbered if _is_ensemble(p) is ensemble]
        if chosen:
            _dots(axes, chosen, s=22, marker=marker, color=colour, linewidths=0, alpha=0.85,
                         label=label, rasterized=raster, zorder=2)  # fmt: skip
    front = [(x, p["counts"].get(objective, 0)) for x, p in numbered if p["on_front"]]
    if front:
        _dots(axes, front, s=44, facecolors="none", edgecolors=BLACK, linewidths=1.0,
                     label="on the front now", zorder=3)  # fmt: skip
    seqs = [point["seq"] for point in points]
    _draw_champions(axes, data, row, seqs)
    _draw_checks(axes, data, objective, seqs)
    for event in data["generations"][1:]:
        axes.axvline(bisect.bisect_left(seqs, event["seq"]) + 0.5, color=BLACK, linestyle=(0, (4, 3)), linewidth=1.0)
    axes.set_ylabel(f"{_spelled(objective)}\n{'items' if objective == 'rejected_total' else 'errors'} (items)")
    if objective == "rejected_total":
        axes.set_ylabel("rejected\n(items)")
    axes.set_xlim(0.2, len(points) + 0.8)
    axes.set_ylim(bottom=-0.8)
    _whole_numbers(axes, "both")
    axes.grid(axis="y", color="#E4E4E4", linewidth=0.8)
    axes.set_axisbelow(True)


def _draw_champions(axes: Axes, data: Mapping[str, Any], row: int, seqs: Sequence[int]) -> None:
    """A step line per generation, from each champion's evaluation to the end of its reign."""
    ends = [event["seq"] for event in data["generations"][1:]] + [float("inf")]
    label: str | None = "champion"
    for generation, end in zip(data["generations"], ends, strict=True):
        reigns = [event for event in data["champions"] if event["generation"] == generation["generation"]]
        if not reigns or row >= len(reigns[0]["counts"]):
            continue
        x: list[float] = [bisect.bisect_right(seqs, event["seq"]) for event in reigns]
        y = [event["counts"][row] for event in reigns]
        axes.scatter(x, y, s=90, marker="*", color=VERMILION, linewidths=0, zorder=5, label=label)
        last = bisect.bisect_left(seqs, end) + 0.5
        axes.plot([*x, last], [*y, y[-1]], drawstyle="steps-post", color=VERMILION, linewidth=1.6, zorder=4)
        label = None


def _draw_checks(axes: Axes, data: Mapping[str, Any], objective: str, seqs: Sequence[int]) -> None:
    """What the reserve set said, scaled to the test set's size, joined with what the test set had said."""
    seen: set[str] = set()
    for check in data["reserve_checks"]:
        if check["status"] not in CHECKS:
            continue
        line = next((line for line in check["lines"] if line["objective"] == objective), None)
        marker, colour, label = CHECKS[check["status"]]
        x = bisect.bisect_left(seqs, check["seq"]) + 0.25
        y = line["reserve_count"] * line["test_total"] / line["reserve_total"] if line is not None else 0.0
        if line is not None:
            axes.plot([x, x], [line["test_count"], y], color=colour, linewidth=1.2, zorder=5)
        axes.scatter([x], [y], s=58, marker=marker, color=colour, linewidths=0, zorder=6,
                     label=None if check["status"] in seen else label)  # fmt: skip
        seen.add(check["status"])


def _name_generations(axes: Axes, data: Mapping[str, Any]) -> None:
    """Generation numbers above the axis, with the reason where there is room for it."""
    seqs = [point["seq"] for point in data["evaluations"]]
    starts = [bisect.bisect_left(seqs, event["seq"]) + 0.5 for event in data["generations"]]
    starts[0] = 0.2
    width = len(seqs) + 0.6
    inches = (WIDTH - LEFT - RIGHT) / width
    written = float("-inf")
    for event, start, end in zip(data["generations"], starts, [*starts[1:], width + 0.2], strict=True):
        letters = int((end - start) * inches / LETTER)
        number = event["generation"]
        text = f"generation {number}"
        if event["reason"] and letters >= len(text) + SHORTEST_REASON:
            text += f": {_text(_spelled(event['reason']), letters - len(text) - 3)}"
        elif letters < len(text) + 1:
            text = f"g{number}"
        if start < written:
            continue
        written = start + (len(text) + 1) * LETTER / inches
        axes.annotate(
            text,
            (start, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(2, 3),
            textcoords="offset points",
            fontsize=9,
            ha="left",
            va="bottom",
            annotation_clip=False,
        )


# ---------------------------------------------------------------------------------------- front and curves


def _draw_front(axes: Axes, data: Mapping[str, Any], objectives: Sequence[str]) -> None:
    current = data["generations"][-1]["generation"]
    points = [point for point in data["evaluations"] if point["generation"] == current]
    axes.set_title(f"Generation {current}: error counts and front\n(a larger dot: several in one place)", fontsize=11)
    if len(objectives) == 1 or not points:
        axes.set_axis_off()
        why = "no evaluation yet" if not points else "one objective: the front is its smallest count"
        axes.text(0.5, 0.5, why, ha="center", va="center", transform=axes.transAxes, fontsize=10)
        return
    x_name, y_name = objectives[:2]

    def at(row: Mapping[str, Any]) -> tuple[int, int]:
        return row["counts"].get(x_name, 0), row["counts"].get(y_name, 0)

    places = Counter(at(point) for point in points)
    _dots(axes, list(places), s=[26.0 * min(count, 12) for count in places.values()], color=SKY,
                 linewidths=0, alpha=0.85, rasterized=len(places) > RASTER_ABOVE)  # fmt: skip
    front = sorted({at(row) for row in data["front"]})
    if front:
        if len(data["objectives"]) == 2:
            # With a third objective a point may be on the front and above the stairs.
            axes.step([x for x, _ in front], [y for _, y in front], where="post", color=BLACK, linewidth=1.2, zorder=3)
        _dots(axes, front, s=52, facecolors="none", edgecolors=BLACK, linewidths=1.2, zorder=3)
    champion = next((row for row in data["front"] if row["champion"]), None)
    if champion is not None:
        _dots(axes, [at(champion)], s=150, marker="*", color=VERMILION, linewidths=0, zorder=4)
    axes.set_xlabel(f"{_spelled(x_name)} errors (items{_of(points, x_name)})")
    axes.set_ylabel(f"{_spelled(y_name)} errors (items{_of(points, y_name)})")
    axes.set_xlim(left=-0.6)
    axes.set_ylim(bottom=-0.6)
    _whole_numbers(axes, "both")
    axes.grid(color="#E4E4E4", linewidth=0.8)
    axes.set_axisbelow(True)


def _of(points: Sequence[Mapping[str, Any]], objective: str) -> str:
    """ " of 47" when every row was counted among as many items, " of 40 to 47" otherwise."""
    totals = {point["totals"].get(objective) for point in points} - {None}
    if not totals:
        return ""
    low, high = min(totals), max(totals)
    return f" of {high}" if low == high else f" of {low} to {high}"


def _draw_curves(axes: Axes, data: Mapping[str, Any]) -> None:
    axes.set_title("Gate curves of the front\n(recorded; no decision uses them)", fontsize=11)
    champion = next((row["subject"] for row in data["front"] if row["champion"]), None)
    curves = sorted(data["gate_curves"], key=lambda curve: curve["subject"] != champion)
    curves = [curve for curve in curves if all(len(point) >= 2 for point in curve["points"])]
    if not curves:
        axes.set_axis_off()
        why = "no report has a gate_curve" if data["front"] else "no evaluation yet"
        axes.text(0.5, 0.5, why, ha="center", va="center", transform=axes.transAxes)
        return
    styles = ("-", "--", "-.", ":")
    colours = (BLUE, ORANGE, GREEN, PURPLE, SKY)
    for number, curve in enumerate(curves[:MOST_CURVES]):
        x = [100 * point[0] for point in curve["points"]]
        y = [100 * point[1] for point in curve["points"]]
        mine = curve["subject"] == champion
        axes.plot(
            x, y,
            color=VERMILION if mine else colours[number % len(colours)],
            linestyle="-" if mine else styles[number % len(styles)],
            linewidth=2.2 if mine else 1.4,
            zorder=4 if mine else 3,
            label=("champion " if mine else "") + _text(curve["subject"], LABEL_LENGTH + 10),
        )  # fmt: skip
    left_out = len(curves) - MOST_CURVES
    title = f"and {left_out} more" if left_out > 0 else None
    axes.legend(loc="upper right", fontsize=8, title=title, title_fontsize=8)
    axes.set_xlabel("failing items that pass (%)")
    axes.set_ylabel("passing items that are stopped (%)")
    axes.set_xlim(-2, 102)
    axes.set_ylim(-2, 102)
    axes.grid(color="#E4E4E4", linewidth=0.8)
    axes.set_axisbelow(True)


# ---------------------------------------------------------------------------------------------------- text


def _dots(axes: Axes, places: Sequence[tuple[float, float]], **options: Any) -> None:
    axes.scatter([x for x, _ in places], [y for _, y in places], **options)


def _is_ensemble(point: Mapping[str, Any]) -> bool:
    return str(point["run_id"]).startswith("ens-")


def _spelled(name: str) -> str:
    return name.replace("_to_", " → ").replace("_", " ")


def _text(value: str, most: int = LABEL_LENGTH) -> str:
    """Somebody's text for a label: one line, not too long, and no mathematics in it."""
    line = "".join(letter if letter.isprintable() else " " for letter in value)
    short = line if len(line) <= most else line[: most - 1] + "…"
    return short.replace("\\", "\\\\").replace("$", r"\$")


def _whole_numbers(axes: Axes, which: str) -> None:
    from matplotlib.ticker import MaxNLocator

    for axis in (axes.xaxis, axes.yaxis) if which == "both" else (axes.yaxis,):
        axis.set_major_locator(MaxNLocator(integer=True, nbins=8))

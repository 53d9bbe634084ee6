"""What `show` and `explain` say of a training besides what every run has.

Covered: its launch, what its processes reported, how often to save a checkpoint, which tasks failed. Not covered: jobs
and timeline (run_text.py), reading reports (controller.training_facts).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from outerloop.cli.text import folded, one_line

if TYPE_CHECKING:
    from outerloop.controller.training_shown import TrainingFacts
    from outerloop.controller.views import RunView

__all__ = ["training_argument", "training_lines"]

MOST_SHOWN = 4
WIDTH = 80


def training_lines(facts: TrainingFacts) -> Iterator[tuple[str, str]]:
    """(prefix, text) of each line of `show`'s section."""
    for role, report in list(facts.reports.items())[:MOST_SHOWN]:
        yield f"  {role}: ", _reported(report)
        yield from _against_plan(facts.expected, report)
    if len(facts.reports) > MOST_SHOWN:
        yield "  ", f"… and {len(facts.reports) - MOST_SHOWN} more; --json has them all"
    losses = facts.losses
    if facts.advice is None or losses is None:
        return
    advice = facts.advice
    steps = f", about {advice.every_steps} steps" if advice.every_steps else ""
    yield (
        "  save every ",
        f"{_seconds(advice.interval_seconds)}{steps} (expected cost {advice.overhead:.1%} of the time)",
    )
    seen = f"lane {losses.lane} lost {losses.lost} of {losses.attempts} jobs in {losses.node_hours:.3g} node-hours"
    yield "    because ", seen + ("" if losses.lost else "; counted as one, the shortest interval not ruled out")


def _against_plan(expected: Mapping[str, Any], report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Estimate and measurement of one GPU side by side, as far as both are known."""
    peak = (report.get("peak_memory_mb") or {}).get("reserved")
    if expected.get("peak_memory_gb") and peak:
        yield "    planned: ", f"{expected['peak_memory_gb']:.1f} GB on one GPU; measured {peak / 1000:.1f} GB"
    rate, ranks = report.get("tokens_per_second"), report.get("world_size")
    if expected.get("tokens_per_second_per_gpu") and rate and ranks:
        planned = expected["tokens_per_second_per_gpu"]
        yield "    planned: ", f"{planned:,.0f} tokens/s on one GPU; measured {rate / ranks:,.0f}"


def _reported(report: Mapping[str, Any]) -> str:
    parts = []
    if report.get("step") is not None:
        parts.append(f"step {report['step']:g}")
    starts = int(report.get("starts") or 1)
    if starts > 1:
        parts.append(f"{starts} starts")
    steps = report.get("step_seconds") or {}
    if steps.get("median"):
        parts.append(f"{_seconds(steps['median'])} a step")
    for key, unit in (("tokens_per_second", "tokens/s"), ("samples_per_second", "samples/s")):
        if report.get(key):
            parts.append(f"{report[key]:,.0f} {unit}")
    memory = report.get("peak_memory_mb") or {}
    for key, what in (("reserved", "of GPU memory"), ("rss", "of host memory")):
        if memory.get(key):
            parts.append(f"peak {memory[key]:,.0f} MB {what}")
            break
    save = report.get("checkpoint") or {}
    if save.get("seconds_median"):
        size = f" and {_bytes(save['bytes'])}" if save.get("bytes") else ""
        parts.append(f"{int(save.get('count') or 0)} checkpoints of {_seconds(save['seconds_median'])}{size}")
    if save.get("failed"):
        parts.append(f"{int(save['failed'])} checkpoints failed")
    return ", ".join(parts) or "nothing measured yet"


def _bytes(value: float) -> str:
    """Decimal units, as disks have: "412 B", "3.2 kB", "1,024.0 MB"."""
    for size, unit in ((1e6, "MB"), (1e3, "kB")):
        if value >= size:
            return f"{value / size:,.1f} {unit}"
    return f"{value:g} B"


def _seconds(value: float) -> str:
    if value < 1:
        return f"{value * 1000:.3g} ms"
    return f"{value:.3g} s" if value < 600 else f"{value / 60:.3g} min"


def training_argument(view: RunView, facts: TrainingFacts) -> Iterator[str]:
    """`explain` of a training: how each task ended, and what was reported."""
    row = view.row
    yield f"run {row.id}: training {one_line(row.benchmark)} of {one_line(row.target)}"
    yield folded(one_line(row.label), WIDTH, prefix=f"tree      {row.candidate_commit[:12]}  ")
    yield ""
    if row.state == "ended":
        yield folded(one_line(row.sentence or str(row.verdict)), WIDTH)
    else:
        why = f" ({row.state_reason}): {row.state_detail}" if row.state_reason else ""
        yield folded(one_line(f"It has not ended. It is {row.state}{why}."), WIDTH)
    failed = dict((view.evidence or {}).get("failed") or {})
    if failed:
        yield ""
        yield "Failed"
        for role, item in failed.items():
            detail = f": {item['detail']}" if item.get("detail") else ""
            yield folded(one_line(f"{role}: {item['reason']}{detail}"), WIDTH, "  ")
    lines = list(training_lines(facts))
    if lines:
        yield ""
        yield "Reported by its processes"
        for prefix, text in lines:
            yield folded(one_line(text), WIDTH, prefix=prefix)
    yield ""
    yield f"Go on with: outerloop show {row.id}, outerloop logs {row.id}"

"""Measured figures in place of static estimates.

Covers matching a figure with the layout that it was measured on, and merging several. A figure replaces the estimate of
exactly its own layout: everything that the estimate depends on must agree, and nothing is extrapolated from it. Not
covered: what a figure does not name, such as the versions of the libraries and the links between hosts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outerloop.planner.arithmetic import Basis, Estimate, Line
from outerloop.planner.catalog import Gpu
from outerloop.planner.layout import Layout
from outerloop.planner.request import MeasuredFigure

_SETTINGS = ("sequence", "micro_batch", "precision", "optimizer", "loss", "compile", "gradient_as_bucket_view")
_PLACED = ("accumulation", "hosts", "shard_group")
"""Left out of a figure, these match any."""


def agrees(figure: MeasuredFigure, layout: Mapping[str, Any]) -> bool:
    """Whether the figure is of this layout, given as the figure's own fields (`handover.figure_fields`)."""
    return all(_same(name, getattr(figure, name), value) for name, value in layout.items())


def _same(name: str, said: Any, wanted: Any) -> bool:
    if name == "lora_targets":
        return frozenset(said) == frozenset(wanted)
    return said == wanted or (name in _PLACED and said is None)


def matching(figures: Sequence[MeasuredFigure], layout: Layout, gpu: Gpu) -> list[MeasuredFigure]:
    """The figures measured on exactly this layout, ledger figures alone where there are any."""
    if layout.shape is None or not figures:
        return []
    fields: dict[str, Any] = {
        "candidate": layout.name,
        "model": layout.shape.name,
        "gpu": gpu.name,
        "lora_rank": layout.lora.rank if layout.lora else None,
        **({"lora_targets": layout.lora.targets} if layout.lora else {}),
        **{name: getattr(layout, name) for name in _SETTINGS},
        "accumulation": layout.accumulation,
        "hosts": layout.hosts,
        "shard_group": layout.shard,
    }
    same = [figure for figure in figures if agrees(figure, fields)]
    return [f for f in same if f.basis == "ledger"] or same


def measured_memory(figures: Sequence[MeasuredFigure]) -> Estimate | None:
    """The largest peak among the figures, in GB; None where none was measured."""
    peaks = [(f.peak_memory_gb, f) for f in figures if f.peak_memory_gb is not None]
    if not peaks:
        return None
    highest, figure = max(peaks, key=lambda pair: pair[0])
    lowest = min(value for value, _ in peaks)
    runs = sum(f.runs for _, f in peaks)
    line = Line(
        label="measured peak",
        formula=f"largest of {runs} run{'s' if runs > 1 else ''} {figure.source}".strip(),
        value=highest,
        unit="GB",
        basis=figure.basis,
    )
    return Estimate(central=highest, low=lowest, high=highest, unit="GB", basis=figure.basis, lines=(line,))


def measured_throughput(figures: Sequence[MeasuredFigure]) -> Estimate | None:
    """Mean tokens/s/GPU over the recorded runs, weighted by their number; None where none was measured."""
    rates = [(f.tokens_per_second_per_gpu, f.runs) for f in figures if f.tokens_per_second_per_gpu is not None]
    if not rates:
        return None
    runs = sum(n for _, n in rates)
    mean = sum(rate * n for rate, n in rates) / runs
    basis: Basis = figures[0].basis
    line = Line(
        label="measured throughput",
        formula=f"mean of {runs} run{'s' if runs > 1 else ''}",
        value=mean,
        unit="tokens/s/GPU",
        basis=basis,
    )
    low, high = min(rate for rate, _ in rates), max(rate for rate, _ in rates)
    return Estimate(
        central=mean, low=min(low, mean), high=max(high, mean), unit="tokens/s/GPU", basis=basis, lines=(line,)
    )

"""Measured figures in place of static estimates.

Covers matching a figure with the layout that it was measured on, and merging several. A figure replaces the estimate of
exactly its own layout (same candidate name, model, GPU, sequence, micro-batch, precision, LoRA rank): nothing is
extrapolated from it.
"""

from __future__ import annotations

from collections.abc import Sequence

from outerloop.planner.arithmetic import Basis, Estimate, Line
from outerloop.planner.catalog import Gpu
from outerloop.planner.layout import Layout
from outerloop.planner.request import MeasuredFigure


def matching(figures: Sequence[MeasuredFigure], layout: Layout, gpu: Gpu) -> list[MeasuredFigure]:
    """The figures measured on exactly this layout, ledger figures alone where there are any."""
    if layout.shape is None:
        return []
    rank = layout.lora.rank if layout.lora else None
    key = (layout.name, layout.shape.name, gpu.name, layout.sequence, layout.micro_batch, layout.precision, rank)
    same = [
        f for f in figures if (f.candidate, f.model, f.gpu, f.sequence, f.micro_batch, f.precision, f.lora_rank) == key
    ]
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

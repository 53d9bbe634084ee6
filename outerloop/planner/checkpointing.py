"""How often to write a checkpoint: Young's interval, with Daly's bound.

Covers the interval for a known checkpoint cost and failure rate. Not covered: writing that overlaps with computing,
whose cost is only the time it stops the step for.
"""

from __future__ import annotations

import math

from outerloop.planner.arithmetic import Frozen, Line


class CheckpointAdvice(Frozen):
    """Suggested interval, in seconds and, where the step time is known, in steps; `overhead` is the expected share."""

    interval_seconds: float
    every_steps: int | None
    overhead: float
    lines: tuple[Line, ...]


def checkpoint_interval_s(cost_s: float, mtbf_s: float) -> float:
    """√(2 × δ × MTBF) (Young 1974); the MTBF itself where δ ≥ MTBF / 2 (Daly 2006), both in seconds.

    Raises:
        ValueError: a cost or a mean time between failures that is not positive and finite.
    """
    for name, value in (("checkpoint cost", cost_s), ("mean time between failures", mtbf_s)):
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} must be a positive number of seconds, not {value}")
    if cost_s >= mtbf_s / 2:
        return mtbf_s
    return math.sqrt(2 * cost_s * mtbf_s)


def job_mtbf_s(failures_per_host_hour: float, hosts: int) -> float:
    """Mean time between failures of a job on `hosts` hosts, in seconds: any host's failure stops it.

    Raises:
        ValueError: a rate or a number of hosts that is not positive.
    """
    if failures_per_host_hour <= 0 or hosts <= 0:
        raise ValueError("the failure rate and the number of hosts must be positive")
    return 3600 / (failures_per_host_hour * hosts)


def suggest_checkpoint_interval(
    cost_s: float, failures_per_host_hour: float, hosts: int = 1, step_s: float | None = None
) -> CheckpointAdvice:
    """The interval for a measured checkpoint cost and a lane's failure rate.

    The expected overhead is δ/τ + τ/(2 × MTBF): writing, plus half an interval lost at each failure.

    Raises:
        ValueError: a figure that is not positive and finite.
    """
    mtbf = job_mtbf_s(failures_per_host_hour, hosts)
    interval = checkpoint_interval_s(cost_s, mtbf)
    if step_s is not None and not (math.isfinite(step_s) and step_s > 0):
        raise ValueError(f"step time must be a positive number of seconds, not {step_s}")
    lines = (
        Line(
            label="MTBF of the job",
            formula=f"3600 / ({failures_per_host_hour:g} failures per host and hour × {hosts} hosts)",
            value=mtbf,
            unit="s",
            basis="given",
        ),
        Line(label="interval", formula=f"√(2 × {cost_s:g} s × {mtbf:.4g} s)", value=interval, unit="s"),
    )
    return CheckpointAdvice(
        interval_seconds=interval,
        every_steps=None if step_s is None else max(1, round(interval / step_s)),
        overhead=cost_s / interval + interval / (2 * mtbf),
        lines=lines,
    )

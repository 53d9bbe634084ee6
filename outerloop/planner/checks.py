"""The checks that a candidate must pass, each with its sentence.

Every check of a candidate is made, so that a refusal lists all its reasons at once. `ok` None is unknown, and unknown
is never passed.
"""

from __future__ import annotations

from outerloop.planner.arithmetic import Estimate
from outerloop.planner.catalog import Gpu
from outerloop.planner.communication import EFFICIENCY_HARD, EFFICIENCY_WARN, Traffic, exposed_seconds
from outerloop.planner.layout import Layout
from outerloop.planner.report import Check, CheckName
from outerloop.planner.request import Family, PlanRequest

VRAM_HARD, VRAM_PROFILE = 0.95, 0.80
"""Above the first share of GPU memory a candidate is infeasible; above the second it must be profiled first."""

HOST_LIMIT = 0.80
"""Share of host memory that offloading or a local fit may take."""


def hours(value: float) -> str:
    """Hours for people: '12.4 h', '35 min', '41 s'."""
    if value >= 1:
        return f"{value:,.1f} h"
    if value * 60 >= 1:
        return f"{value * 60:.0f} min"
    return f"{value * 3600:.2g} s"


def check_family(family: Family, request: PlanRequest) -> list[Check]:
    """Whether the request allows the family at all."""
    if request.families is None or family in request.families:
        return []
    asked = ", ".join(request.families)
    return [
        Check(name="permission", ok=False, text=f"{family} is not among the families asked for ({asked})", policy=True)
    ]


def check_precision(layout: Layout, gpu: Gpu) -> Check:
    """Whether the GPU computes in the layout's precision."""
    if gpu.peak_tflops(layout.precision) is None:
        return Check(name="precision", ok=False, text=f"{gpu.name} has no bf16: use fp16 or fp32")
    return Check(name="precision", ok=True, text=f"{gpu.name} computes in {layout.precision}")


def check_memory(memory: Estimate, gpu: Gpu, checkpointed_gb: float | None = None) -> Check:
    """GPU memory against 0.95 (hard) and 0.80 (profile first) of the card.

    `checkpointed_gb`: what activation checkpointing would bring it to, where that was tried and does not fit either.
    """
    used, limit = memory.central, VRAM_HARD * gpu.memory_gb
    share = used / gpu.memory_gb
    if used > limit:
        tried = ""
        if checkpointed_gb is not None:
            missing = checkpointed_gb - limit
            tried = f"; with activation checkpointing {checkpointed_gb:.1f} GB, still {missing:.1f} GB too many"
        return Check(
            name="memory",
            ok=False,
            text=f"needs {used:.1f} GB per GPU, {used - limit:.1f} GB more than the {limit:.1f} GB usable of "
            f"{gpu.memory_gb:g} GB ({gpu.name}){tried}",
        )
    measured = memory.basis != "static"
    if share > VRAM_PROFILE and not measured:
        text = f"needs {used:.1f} of {gpu.memory_gb:g} GB ({share:.0%}): requires profiling before launch"
        return Check(name="memory", ok=True, text=text, warning=True)
    how = f" ({memory.basis})" if measured else ""
    return Check(name="memory", ok=True, text=f"needs {used:.1f} of {gpu.memory_gb:g} GB per GPU ({share:.0%}){how}")


def check_host_memory(needed_gb: float, host_gb: float | None, what: str) -> Check:
    """Host memory against 80 % of what a host has; unknown where the request does not say."""
    if host_gb is None:
        text = f"{what} needs {needed_gb:.1f} GB of host memory and host_memory_gb is not given"
        return Check(name="host_memory", ok=None, text=text)
    limit = HOST_LIMIT * host_gb
    if needed_gb > limit:
        return Check(
            name="host_memory",
            ok=False,
            text=f"{what} needs {needed_gb:.1f} GB per host, {needed_gb - limit:.1f} GB more than the {limit:.1f} GB "
            f"usable of {host_gb:g} GB",
        )
    return Check(name="host_memory", ok=True, text=f"{what} needs {needed_gb:.1f} of {host_gb:g} GB per host")


def check_communication(
    layout: Layout, exchanged: Traffic, share: float | None, compute_s: float | None = None
) -> Check | None:
    """Share of the step spent computing against 0.5 (hard) and 0.7 (remark); None on one GPU.

    `compute_s`: seconds of computing per step, which the sentence then names.
    """
    if layout.workers <= 1:
        return None
    if exchanged.seconds is None:
        return Check(name="communication", ok=None, text=f"efficiency unknown: {exchanged.missing}")
    if share is None:
        return Check(
            name="communication",
            ok=None,
            text=f"efficiency unknown: {exchanged.seconds:.3g} s of communication per step, and micro_step_seconds is "
            "not given",
        )
    if compute_s is None:
        text = f"communication efficiency {share:.2f}: {exchanged.seconds:.3g} s to exchange per step"
    else:
        exposed = exposed_seconds(compute_s, exchanged.seconds)
        text = (
            f"communication efficiency {share:.2f}: {compute_s:.3g} s of computing per step, and {exposed:.2g} of "
            f"{exchanged.seconds:.3g} s of exchanging not hidden behind it"
        )
    if share < EFFICIENCY_HARD:
        return Check(name="communication", ok=False, text=f"{text}; below {EFFICIENCY_HARD}, the links are too slow")
    return Check(name="communication", ok=True, text=text, warning=share < EFFICIENCY_WARN)


def _time_check(name: CheckName, label: str, limit: float, time: Estimate | None) -> Check:
    if time is None:
        text = f"time unknown, so {label} of {hours(limit)} cannot be shown to hold"
        return Check(name=name, ok=None, text=text, policy=True)
    if time.central > limit:
        text = f"takes {hours(time.central)}, beyond {label} of {hours(limit)}"
        return Check(name=name, ok=False, text=text, policy=True)
    text = f"takes {hours(time.central)} of {label}'s {hours(limit)}"
    late = time.high > limit
    if late:
        text += f", but up to {hours(time.high)} at low utilisation"
    return Check(name=name, ok=True, text=text, warning=late, policy=True)


def _budget_check(budget: float, cost: Estimate | None) -> Check:
    if cost is None:
        text = f"cost unknown, so the budget of {budget:,.2f} cannot be shown to hold"
        return Check(name="budget", ok=None, text=text, policy=True)
    if cost.central > budget:
        text = f"costs {cost.central:,.2f}, beyond the budget of {budget:,.2f}"
        return Check(name="budget", ok=False, text=text, policy=True)
    text = f"costs {cost.central:,.2f} of the budget's {budget:,.2f}"
    dear = cost.high > budget
    if dear:
        text += f", but up to {cost.high:,.2f} at low utilisation"
    return Check(name="budget", ok=True, text=text, warning=dear, policy=True)


def check_limits(request: PlanRequest, time: Estimate | None, cost: Estimate | None) -> list[Check]:
    """The lane's time limit, the deadline and the budget. Unknown times and costs are said, and do not pass."""
    checks = []
    if request.resources.time_limit_hours is not None:
        limit = request.resources.time_limit_hours
        checks.append(_time_check("time_limit", "the lane's time limit", limit, time))
    if request.deadline_hours is not None:
        checks.append(_time_check("deadline", "the deadline", request.deadline_hours, time))
    if request.budget is not None:
        checks.append(_budget_check(request.budget, cost))
    return checks

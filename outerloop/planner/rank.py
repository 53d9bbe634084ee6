"""Order among the candidates that pass, by mode, and which of them another one dominates.

Everything is compared on unrounded numbers. Where the amount of work or the price is unknown, the cost of a token in
GPU seconds stands in for both time and cost: they order candidates of one request in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence

from outerloop.planner.report import Candidate
from outerloop.planner.request import Mode


def time_of(candidate: Candidate) -> float | None:
    """Hours, or seconds per token of the whole job where the amount of work is unknown."""
    if candidate.time_hours is not None:
        return candidate.time_hours.central
    if candidate.gpu_seconds_per_token is not None:
        return candidate.gpu_seconds_per_token / candidate.workers
    return None


def cost_of(candidate: Candidate) -> float | None:
    """Money where it is known, else GPU seconds per token, else worker hours."""
    if candidate.cost is not None:
        return candidate.cost.central
    if candidate.gpu_seconds_per_token is not None:
        return candidate.gpu_seconds_per_token
    if candidate.time_hours is not None:
        return candidate.time_hours.central * candidate.workers
    return None


_UNKNOWN = float("inf")

_OFFLOAD = ("fsdp2_cpu_offload", "zero3_cpu_offload")


def sort_key(candidate: Candidate, mode: Mode) -> tuple[float, ...]:
    """Smaller is better. The number of workers breaks ties: the smallest world that does the work."""
    time = time_of(candidate)
    cost = cost_of(candidate)
    t = _UNKNOWN if time is None else time
    c = _UNKNOWN if cost is None else cost
    if mode == "fastest":
        return (t, c, candidate.workers)
    if mode == "balanced":
        return (t * c, t, candidate.workers)
    if mode == "reliable":
        headroom = candidate.headroom_gb or 0.0
        return (
            float(candidate.profiling_required),
            float(candidate.family in _OFFLOAD),
            candidate.hosts,
            candidate.workers,
            -headroom,
            t,
        )
    return (c, candidate.workers, t)


def dominates(one: Candidate, other: Candidate) -> bool:
    """Whether `one` is at least as good in time and cost and better in one of them."""
    mine, theirs = (time_of(one), cost_of(one)), (time_of(other), cost_of(other))
    if None in mine or None in theirs:
        return False
    a = (mine[0] or 0.0, mine[1] or 0.0)
    b = (theirs[0] or 0.0, theirs[1] or 0.0)
    return a[0] <= b[0] and a[1] <= b[1] and a != b


def _why(winner: Candidate, loser: Candidate) -> str:
    better = [
        what
        for what, figure in (("time", time_of), ("cost", cost_of))
        if (figure(winner) or 0.0) < (figure(loser) or 0.0)
    ]
    if len(better) == 2:
        return f"dominated by {winner.name}, which is better in time and in cost"
    other = "cost" if better == ["time"] else "time"
    return f"dominated by {winner.name}, which is better in {better[0]} and as good in {other}"


def ranked(candidates: Sequence[Candidate], mode: Mode) -> tuple[list[Candidate], str | None]:
    """The candidates with their final status, best first, and the selected one's name.

    Candidates that do not pass keep their status and follow in menu order.
    """
    passing = [c for c in candidates if c.status == "feasible"]
    passing.sort(key=lambda c: sort_key(c, mode))
    # One task after the other is the baseline that the slots are compared with, not a choice beside them.
    passing.sort(key=lambda c: c.family == "local_sequential")
    if not passing:
        return list(candidates), None
    best = passing[0]
    out = [best.model_copy(update={"status": "selected"})]
    for candidate in passing[1:]:
        winner = next((other for other in passing if other is not candidate and dominates(other, candidate)), None)
        sequential = candidate.family == "local_sequential" and best.family == "lease_tasks"
        if winner is not None:
            update = {"status": "rejected_dominated", "reasons": (_why(winner, candidate),)}
            out.append(candidate.model_copy(update=update))
        elif sequential and best.workers > 1:
            text = f"one task after the other, while {best.name} runs {best.workers} at once"
            out.append(candidate.model_copy(update={"status": "rejected_dominated", "reasons": (text,)}))
        else:
            out.append(candidate)
    out += [c for c in candidates if c.status not in ("feasible",)]
    return out, best.name

"""Plans and readings for tests: small, explicit, with the facts a real measure has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from outerloop.climb import (
    BenchmarkRule,
    ClimbPlan,
    Facts,
    MeasureRequest,
    NeedMore,
    Reading,
    Step,
    next_step,
    seeds_needed,
)

REPLICATES = 5_000


def benchmark(name: str = "tsp", **fields: Any) -> BenchmarkRule:
    defaults: dict[str, Any] = {"metric": "tour_length", "direction": "min", "seeded": True}
    return BenchmarkRule(name=name, **(defaults | fields))


def plan(climbed: BenchmarkRule | None = None, **fields: Any) -> ClimbPlan:
    climbed = climbed or benchmark()
    prior = fields.get("prior_pairs", 0)
    need = seeds_needed(climbed.rule, prior)
    siblings: Sequence[BenchmarkRule] = fields.get("siblings", ())
    defaults: dict[str, Any] = {
        "pair_seeds": tuple(range(101, 101 + need)) if climbed.seeded else (0,) * need,
        "suite_seeds": {
            sibling.name: tuple(range(901, 901 + need)) if sibling.seeded else (0,) * need for sibling in siblings
        },
        "replicate_start": REPLICATES,
    }
    return ClimbPlan(climbed=climbed, **(defaults | fields))


def reading(request: MeasureRequest, value: Decimal | str | int, **fields: Any) -> Reading:
    facts: dict[str, Any] = {
        "cpus_seen": 2,
        "image": "",
        "node": "node1",
        "job_id": f"77{request.pair}",
        "slot": f"{request.benchmark}/{request.side}/{request.seed}/{request.replicate}",
        "seed": request.seed,
    }
    facts |= fields.pop("facts", {})
    return Reading(role=request.role, status="value", value=Decimal(value), facts=Facts(**facts), **fields)


def pending(request: MeasureRequest) -> Reading:
    return Reading(role=request.role, status="pending", facts=Facts(seed=request.seed))


def failed(request: MeasureRequest, reason: str = "EXIT_1", detail: str = "boom") -> Reading:
    return Reading(role=request.role, status="failed", reason=reason, detail=detail, facts=Facts(seed=request.seed))


def exhausted(request: MeasureRequest, detail: str = "three nodes failed") -> Reading:
    return Reading(role=request.role, status="exhausted", reason="NODE_FAIL", detail=detail)


class Lab:
    """Answers every request of a climb from a table of values, and counts what was asked."""

    def __init__(self, values: Mapping[str, Any], default: Any = None) -> None:
        self.values = values
        self.default = default
        self.readings: dict[str, Reading] = {}

    def answer(self, request: MeasureRequest) -> Reading:
        value = self.values.get(request.role, self.default)
        if isinstance(value, Reading):
            return value
        if value is None:
            raise KeyError(f"no value for {request.role}")
        return reading(request, value)

    def run(self, climb: ClimbPlan) -> Step:
        """Measure whatever is asked until nothing more is."""
        while isinstance(step := next_step(climb, self.readings), NeedMore):
            for request in step.measures:
                self.readings[request.role] = self.answer(request)
        return step


def paired_values(bases: Sequence[Any], candidates: Sequence[Any]) -> dict[str, Any]:
    """Role -> value for the climbed benchmark."""
    values: dict[str, Any] = {}
    for pair, (base, candidate) in enumerate(zip(bases, candidates, strict=True)):
        suffix = f"-{pair}" if pair else ""
        values[f"baseline{suffix}"] = base
        values[f"candidate{suffix}"] = candidate
    return values

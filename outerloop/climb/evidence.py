"""Readings -> pairs that may be compared, or an EvidenceError naming what is wrong with them.

Covers: whether the two sides of a pair were measured alike (seed, CPUs, image), whether a measurement is
counted twice, whether a printed number can be used. Does not cover: what the pairs say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from outerloop.climb.exact import comparable, why_incomparable
from outerloop.climb.findings import Failure
from outerloop.climb.model import BenchmarkRule, EvidenceError, MeasureRequest, Reading


@dataclass(frozen=True)
class Pair:
    """Two comparable readings of one benchmark. In cached mode `base` is None."""

    index: int
    candidate: Reading
    base: Reading | None

    @property
    def seed(self) -> int:
        return self.candidate.facts.seed


def metric_value(reading: Reading) -> Decimal:
    """The usable main value; call only on readings without a `failure_of`."""
    if reading.value is None:
        raise EvidenceError(f"{reading.role} has no value ({reading.status})")
    return comparable(reading.value)


def failure_of(request: MeasureRequest, reading: Reading, benchmark: BenchmarkRule) -> Failure | None:
    """Why this reading can't serve as evidence, if it was measured and can't.

    A base must also print every guard metric, since without them no candidate could be judged; what a
    candidate's guards lack is the guard's own finding.
    """
    if reading.status == "failed":
        return Failure(request.role, reading.reason or "FAILED", reading.detail, request.side, request.pair)
    if reading.status != "value":
        return None
    checked = {benchmark.metric: reading.value}
    if request.side == "base":
        checked |= {guard.metric: reading.guards.get(guard.metric) for guard in benchmark.guards}
    for metric, value in checked.items():
        if value is None:
            detail = f"the guard metric {metric} was not printed"
        elif (why := why_incomparable(value)) is not None:
            detail = f"{metric} can't be used: {why}"
        else:
            continue
        return Failure(request.role, "NO_METRIC", detail, request.side, request.pair)
    return None


def pairs_of(
    benchmark: BenchmarkRule,
    requests: Sequence[MeasureRequest],
    readings: Mapping[str, Reading],
    *,
    cached: bool = False,
) -> tuple[tuple[Pair, ...], tuple[Reading, ...]]:
    """The pairs of these requests, and the base readings in order.

    Every request must have a reading with a value. Raises EvidenceError when a partner is missing, a seed is
    not the planned one (a plan has no seed twice), the two sides saw different CPU counts or images, or one
    measurement was counted twice.
    """
    sides: dict[str, dict[int, Reading]] = {"base": {}, "candidate": {}}
    for request in requests:
        reading = readings.get(request.role)
        if reading is None or reading.status != "value":
            state = "missing" if reading is None else reading.status
            raise EvidenceError(f"{request.role}, which pair {request.pair} needs, is {state}")
        if reading.facts.seed != request.seed:
            raise EvidenceError(
                f"{request.role} ran with seed {reading.facts.seed}, but pair {request.pair} of"
                f" {benchmark.name} has seed {request.seed}"
            )
        sides[request.side][request.pair] = reading
    for side, members in sides.items():
        _refuse_repeats(benchmark, side, members)
    bases = tuple(sides["base"].values())
    pairs = []
    for index, candidate in sides["candidate"].items():
        partners = bases if cached else (sides["base"].get(index),)
        for base in partners:
            if base is None:
                raise EvidenceError(f"pair {index} of {benchmark.name} has no partner for {candidate.role}")
            _refuse_unlike(base, candidate)
        pairs.append(Pair(index, candidate, None if cached else partners[0]))
    if not cached:
        for index, base in sides["base"].items():
            if index not in sides["candidate"]:
                raise EvidenceError(f"pair {index} of {benchmark.name} has no partner for {base.role}")
    return tuple(pairs), bases


def _refuse_repeats(benchmark: BenchmarkRule, side: str, members: Mapping[int, Reading]) -> None:
    slots: dict[str, str] = {}
    for reading in members.values():
        slot = reading.facts.slot
        if slot and slot in slots:
            raise EvidenceError(
                f"{slots[slot]} and {reading.role} are one measurement (slot {slot[:12]}): the {side} side of"
                f" {benchmark.name} would count it twice"
            )
        slots[slot] = reading.role


def _refuse_unlike(base: Reading, candidate: Reading) -> None:
    b, c = base.facts, candidate.facts
    if b.cpus_seen is not None and c.cpus_seen is not None and b.cpus_seen != c.cpus_seen:
        raise EvidenceError(
            f"{base.role} saw {b.cpus_seen} CPUs and {candidate.role} saw {c.cpus_seen}: not comparable"
        )
    if b.image is not None and c.image is not None and b.image != c.image:
        raise EvidenceError(
            f"{base.role} ran in image {b.image or '(none)'} and {candidate.role} in {c.image or '(none)'}:"
            " not comparable"
        )

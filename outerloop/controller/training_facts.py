"""What a training's processes reported of themselves, as facts of its run, and the figures that follow.

Covered: merging the run.json files of all attempts of a slot, figures for the planner, how often a lane loses jobs.
Not covered: writing run.json (outerloop.torch.facts), the formula of the checkpoint interval (planner.checkpointing).

A report is the training script's own word: shapes and numbers are checked here, their truth is not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pydantic import ValidationError
from sqlalchemy import func, select

from outerloop.controller.training_request import Expected
from outerloop.job import layout
from outerloop.planner import CheckpointAdvice, MeasuredFigure, find_gpu, suggest_checkpoint_interval
from outerloop.record.models import Attempt, Event, Realm, Run, Slot
from outerloop.record.store import Record
from outerloop.slots import SlotDirectory, StateRoot
from outerloop.slots.files import read_json

__all__ = ["LaneLosses", "interval_advice", "lane_losses", "measured_figures", "read_facts"]

REPORT = "run.json"
REPORT_SCHEMA = 1
MB_PER_GB = 1000
"""Reports count in 10^6 bytes, the planner in 10^9."""
LOSSES_DAYS = 90
MOST_ATTEMPTS = 1000
"""Attempts of a lane that are looked at, newest first: each costs the reading of one small file."""
OWN_ENDINGS = frozenset(
    {"TIMEOUT", "SLURM_TIMEOUT", "DEADLINE", "CHECKOUT", "SANDBOX", "SCRATCH_FULL", "SPEC", "INPUT", "ENVIRONMENT"}
    | {"RESOURCES", "SETUP", "RESTARTED", "NOT_CLAIMANT"}
)
"""Reasons of lost attempts that say nothing about how often the lane interrupts a job."""


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _numbers(body: Any, *keys: str) -> dict[str, float | None]:
    values = body if isinstance(body, Mapping) else {}
    return {key: _number(values.get(key)) for key in keys}


def _largest(values: Iterator[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _reports(directory: SlotDirectory) -> list[dict[str, Any]]:
    """Every readable report of a slot, in the order of attempts and restarts."""
    found = []
    for n in directory.attempt_numbers():
        restart = 0
        while (folder := directory.logs(n, restart)).is_dir():
            restart += 1
            try:
                body = read_json(folder / layout.OUT / REPORT)
            except (OSError, ValueError):
                continue
            if isinstance(body, dict) and body.get("schema") == REPORT_SCHEMA and body.get("kind") == "training":
                found.append(body)
    return found


def read_facts(directory: SlotDirectory) -> dict[str, Any] | None:
    """Peak memory (MB = 10^6 bytes), step time and checkpoint cost (s), tokens/s of one slot, None without a report.

    Peaks and counts are over all starts; step time, rates and costs are those of the last start that has them.
    """
    reports = _reports(directory)
    if not reports:
        return None
    last = reports[-1]
    steps = [found for r in reports if (found := _numbers(r.get("step_seconds"), "median", "p90", "max"))["median"]]
    saves = [
        _numbers(r.get("checkpoint"), "count", "failed", "seconds_median", "seconds_max", "bytes") for r in reports
    ]
    timed = [save for save in saves if save["seconds_median"]]
    memory = [_numbers(r.get("peak_memory_mb"), "device", "reserved", "rss") for r in reports]
    rates = [_numbers(r, "tokens_per_second", "samples_per_second") for r in reports]
    return {
        "starts": len(reports),
        "state": str(last.get("state") or "")[:40],
        "step": _number(last.get("step")),
        "world_size": _number(last.get("world_size")),
        "device": str(last.get("device") or "")[:40],
        "device_name": str(last.get("device_name") or "")[:200],
        "torch": str(last.get("torch") or "")[:40],
        "peak_memory_mb": {key: _largest(m[key] for m in memory) for key in ("device", "reserved", "rss")},
        "step_seconds": steps[-1] if steps else None,
        **{key: next((r[key] for r in reversed(rates) if r[key]), None) for key in rates[-1]},
        "checkpoint": {
            "count": sum(save["count"] or 0 for save in saves),
            "failed": sum(save["failed"] or 0 for save in saves),
            "seconds_median": timed[-1]["seconds_median"] if timed else None,
            "seconds_max": _largest(save["seconds_max"] for save in saves),
            "bytes": timed[-1]["bytes"] if timed else None,
        },
    }


def figure_of(run_id: str, expected: Expected, facts: Mapping[str, Any]) -> MeasuredFigure | None:
    """A report as a figure for exactly the planned layout. None for a run on other hardware, or without a number."""
    if not str(facts.get("device") or "").startswith("cuda") or not _same_gpu(str(expected.layout.get("gpu")), facts):
        return None
    memory: Mapping[str, Any] = facts.get("peak_memory_mb") or {}
    # The estimate includes the allocator's slack, which only the reserved peak does.
    peak = memory.get("reserved") or memory.get("device")
    ranks, tokens = facts.get("world_size"), facts.get("tokens_per_second")
    if not peak and not (ranks and tokens):
        return None
    try:
        return MeasuredFigure.model_validate(
            {
                **expected.layout,
                "peak_memory_gb": peak / MB_PER_GB if peak else None,
                "tokens_per_second_per_gpu": tokens / ranks if ranks and tokens else None,
                "basis": "ledger",
                "source": f"run {run_id}",
            }
        )
    except ValidationError:
        return None


def _same_gpu(planned: str, facts: Mapping[str, Any]) -> bool:
    """Whether the device's own name is of the planned type: `H100` and "NVIDIA H100 80GB HBM3"."""
    name = str(facts.get("device_name") or "")
    try:
        return find_gpu(name).name == planned
    except KeyError:
        words = name.lower().replace("-", " ").split()
        return all(word in words for word in planned.lower().replace("-", " ").split())


def measured_figures(record: Record) -> list[MeasuredFigure]:
    """Figures of every finished training of this realm that a plan report launched. Raises RecordUnavailable."""
    with record.reading() as session:
        realm = select(Realm.id).where(Realm.owner == record.owner, Realm.slot_root == record.slot_root)
        rows = session.execute(
            select(Run.id, Run.request, Event.body)
            .join(Event, Event.run_id == Run.id)
            .where(
                Run.realm_id == realm.scalar_subquery(),
                Run.kind == "training",
                Run.verdict == "finished",
                Event.kind == "facts",
            )
            .order_by(Run.ended_at)
        ).all()
    figures = []
    for run_id, request, body in rows:
        if not request.get("expected"):
            continue
        expected = Expected.model_validate(request["expected"])
        for facts in (body.get("reports") or {}).values():
            figure = figure_of(run_id, expected, facts)
            if figure is not None:
                figures.append(figure)
    return figures


@dataclass(frozen=True)
class LaneLosses:
    """How often a lane interrupted jobs: lost attempts and requeues, over hours × nodes of running."""

    lane: str
    lost: int
    node_hours: float
    attempts: int


def lane_losses(record: Record, root: StateRoot, lane: str) -> LaneLosses:
    """From the record's settled attempts of this lane in the last 90 days and their claims, which say when they began.

    An attempt that Slurm requeued counts from its last start, so hours are rather too few than too many.
    """
    with record.reading() as session:
        realm = select(Realm.id).where(Realm.owner == record.owner, Realm.slot_root == record.slot_root)
        rows = session.execute(
            select(
                Attempt.n,
                Attempt.outcome,
                Attempt.reason,
                Attempt.restarts,
                Attempt.settled_at,
                Slot.digest,
                Slot.order,
            )
            .join(Slot, Slot.id == Attempt.slot_id)
            .where(
                Attempt.realm_id == realm.scalar_subquery(),
                Attempt.state == "settled",
                Attempt.settled_at > func.now() - timedelta(days=LOSSES_DAYS),
                Slot.order["lane"]["name"].astext == lane,
            )
            .order_by(Attempt.settled_at.desc())
            .limit(MOST_ATTEMPTS)
        ).all()
    lost, hours, counted = 0, 0.0, 0
    for row in rows:
        claim = SlotDirectory(root.slot(row.digest), row.digest).claim(row.n)
        if claim is None:
            continue  # never began, so nothing of it was interrupted
        try:
            began = datetime.fromisoformat(claim.started)
        except ValueError:
            continue
        counted += 1
        hours += max(0.0, (row.settled_at - began).total_seconds()) / 3600 * int(row.order.get("nodes") or 1)
        lost += max(row.restarts, claim.restart)
        lost += row.outcome in {"infrastructure", "continue"} and row.reason not in OWN_ENDINGS
    return LaneLosses(lane, lost, hours, counted)


def interval_advice(facts: Mapping[str, Any], losses: LaneLosses, nodes: int) -> CheckpointAdvice | None:
    """Young's interval from the measured checkpoint cost and the lane's losses; None while either is unknown.

    A lane that lost nothing yet is taken to lose one job in the hours that were seen, which is the shortest interval
    that the record does not rule out.
    """
    cost = (facts.get("checkpoint") or {}).get("seconds_median")
    step = (facts.get("step_seconds") or {}).get("median")
    if not cost or losses.node_hours <= 0:
        return None
    return suggest_checkpoint_interval(cost, max(losses.lost, 1) / losses.node_hours, nodes, step or None)

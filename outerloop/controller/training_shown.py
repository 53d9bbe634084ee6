"""What people are shown of a training: the reports of its processes and what follows for saving checkpoints.

Covered: gathering them for one look. Not covered: wording (cli, viewer), single reports (training_facts.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Protocol

from outerloop.controller.shown import RunView
from outerloop.controller.training_facts import interval_advice, lane_losses, read_facts
from outerloop.planner import CheckpointAdvice
from outerloop.record.store import Record
from outerloop.slots import SlotDirectory, StateRoot

__all__ = ["Reads", "TrainingFacts", "stage_progress", "training_facts"]

MOST_LIVE = 8
"""Tasks of a running training whose reports are read from disk for one look."""


class Reads(Protocol):
    """A record and a state folder that are only read."""

    @property
    def record(self) -> Record: ...

    @property
    def root(self) -> StateRoot: ...


class TrainingFacts:
    """The reports of a training, from its ledger or, while it runs, from its slots; and what follows for saving."""

    def __init__(self, reader: Reads, view: RunView) -> None:
        request = view.request
        expected = request.get("expected") or {}
        self.expected: Mapping[str, Any] = {**(expected.get("layout") or {}), **expected}
        """What the planner said, the fields of its layout beside the others."""
        noted = next((event.body for event in view.events if event.kind == "facts"), None)
        self.reports: dict[str, Mapping[str, Any]] = {}
        if noted is not None:
            self.reports = dict(noted.get("reports") or {})
        else:
            for measure in [m for m in view.current if m.attempts][:MOST_LIVE]:
                found = read_facts(SlotDirectory(reader.root.slot(measure.slot), measure.slot))
                if found is not None:
                    self.reports[measure.role] = found
        self.advice: CheckpointAdvice | None = None
        self.losses = None
        if self.reports and request.get("resumable"):
            lane = str((request.get("execution") or {}).get("lane", {}).get("name") or "")
            self.losses = lane_losses(reader.record, reader.root, lane)
            last = next(reversed(self.reports.values()))
            self.advice = interval_advice(last, self.losses, int(request.get("nodes") or 1))

    def as_json(self) -> dict[str, Any]:
        """For programs; seconds and MB of 10^6 bytes."""
        losses = self.losses
        return {
            "reports": self.reports,
            "expected": dict(self.expected) or None,
            "lane_losses": None if losses is None else asdict(losses),
            "checkpoint_interval": None
            if self.advice is None
            else {
                "seconds": self.advice.interval_seconds,
                "every_steps": self.advice.every_steps,
                "overhead": self.advice.overhead,
            },
        }


def stage_progress(reader: Reads, view: RunView) -> str:
    """How far the jobs of a training or an entry say that they are, "" where none says it: `sft-1 at step 45`.

    Reads the reports of at most MOST_LIVE of its open jobs. A report that is torn or gone says nothing.
    """
    parts = []
    for measure in [m for m in view.current if m.attempts and m.state == "open"][:MOST_LIVE]:
        found = read_facts(SlotDirectory(reader.root.slot(measure.slot), measure.slot))
        if found is not None and found["step"] is not None:
            parts.append(f"{measure.role} at step {found['step']:g}")
    return ", ".join(parts)


def training_facts(reader: Reads, view: RunView) -> TrainingFacts:
    """Read what is known of a training. Raises RecordUnavailable."""
    return TrainingFacts(reader, view)

"""GPU-hour budgets: reserved with the declared limits at intent, settled from the elapsed time.

Covered: what is spent and reserved per target, and the refusal with its numbers. Not covered: runs per week, which
is checked when a run is submitted (controller).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from outerloop.record.models import Attempt, Slot

__all__ = ["Budget", "BudgetExceeded", "hours_asked", "hours_used", "reserve", "spent_by_submitter", "spent_gpu_hours"]


class Charged(Protocol):
    """What a reservation needs of a slot."""

    @property
    def realm_id(self) -> int: ...
    @property
    def target(self) -> str: ...
    @property
    def submitter(self) -> str: ...
    @property
    def order(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class Budget:
    """Limits in force for one run: the smaller of the contract's and the deployment's. None is no limit."""

    gpu_hours: float | None = None
    runs_per_week: int | None = None
    submitter_gpu_hours: float | Callable[[str], float | None] | None = None
    """Of everything that the slot's submitter asked for; by submitter, where runs of several share slots."""

    def of(self, submitter: str) -> float | None:
        """The GPU-hours that one submitter may use, None for any."""
        limit = self.submitter_gpu_hours
        return limit(submitter) if callable(limit) else limit


class BudgetExceeded(Exception):
    """An attempt would exceed a budget; the text has the numbers."""

    def __init__(self, target: str, limit: float, used: float, asked: float) -> None:
        self.limit, self.used, self.asked = limit, used, asked
        super().__init__(
            f"GPU-hours of {target}: {used:.2f} used or reserved of {limit:g}, this attempt asks {asked:.2f},"
            f" {max(0.0, limit - used):.2f} remain"
        )


def spent_gpu_hours(session: Session, realm_id: int, target: str) -> float:
    """GPU-hours used by settled attempts and reserved by live ones."""
    total = session.scalar(
        select(func.coalesce(func.sum(func.coalesce(Attempt.gpu_hours_used, Attempt.gpu_hours_reserved)), 0.0))
        .join(Slot, Slot.id == Attempt.slot_id)
        .where(Slot.realm_id == realm_id, Slot.target == target, Attempt.gpu_hours_reserved > 0)
    )
    return float(total or 0.0)


def spent_by_submitter(session: Session, realm_id: int, submitter: str) -> float:
    """GPU-hours used by settled attempts and reserved by live ones of slots that this account asked for first."""
    total = session.scalar(
        select(func.coalesce(func.sum(func.coalesce(Attempt.gpu_hours_used, Attempt.gpu_hours_reserved)), 0.0))
        .join(Slot, Slot.id == Attempt.slot_id)
        .where(Slot.realm_id == realm_id, Slot.submitter == submitter, Attempt.gpu_hours_reserved > 0)
    )
    return float(total or 0.0)


def hours_asked(order: Mapping[str, Any], minutes: float) -> float:
    """GPU-hours of an attempt that uses all of its walltime on all of its nodes."""
    return int(order.get("gpus", 0)) * int(order.get("nodes", 1)) * minutes / 60


def hours_used(reserved: float, minutes: float, *, measured: float | None, elapsed: float | None, began: bool) -> float:
    """What a settled attempt is charged of its reservation for `minutes` of walltime. Pure.

    `measured` are the seconds that its result accounts for, `elapsed` those that the cluster gave to its job, None
    where that is not known. An attempt that never began (refused, cancelled while it pended, held) is charged nothing
    unless the cluster says that its job had the hardware; one that began and left no trace, all of it.
    """
    seconds = measured if measured is not None else elapsed
    if seconds is None:
        return reserved if began else 0.0
    return min(reserved, reserved / minutes * seconds / 60) if minutes else 0.0


def reserve(session: Session, slot: Charged, minutes: float, budget: Budget, drafted: float = 0.0) -> float:
    """GPU-hours that an attempt of this slot reserves. Raises BudgetExceeded when they are not there.

    `drafted`: hours of the same target that this transaction reserves and has not written yet.

    Two reservations for one target wait for each other, so that together they cannot exceed the limit.
    """
    asked = hours_asked(slot.order, minutes)
    if asked == 0:
        return asked
    _reserve_of_submitter(session, slot, asked, budget, drafted)
    if budget.gpu_hours is None:
        return asked
    session.execute(text("select pg_advisory_xact_lock(hashtext(:t))"), {"t": f"budget:{slot.realm_id}:{slot.target}"})
    used = spent_gpu_hours(session, slot.realm_id, slot.target) + drafted
    if used + asked > budget.gpu_hours:
        raise BudgetExceeded(slot.target, budget.gpu_hours, used, asked)
    return asked


def _reserve_of_submitter(session: Session, slot: Charged, asked: float, budget: Budget, drafted: float) -> None:
    """A submitter's own limit, whatever the targets. Raises BudgetExceeded."""
    limit = budget.of(slot.submitter)
    if limit is None:
        return
    session.execute(
        text("select pg_advisory_xact_lock(hashtext(:t))"), {"t": f"submitter:{slot.realm_id}:{slot.submitter}"}
    )
    used = spent_by_submitter(session, slot.realm_id, slot.submitter) + drafted
    if used + asked > limit:
        raise BudgetExceeded(slot.submitter, limit, used, asked)

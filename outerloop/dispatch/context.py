"""What the dispatcher works with: the record, a cluster, the state folder and its patience. No behaviour."""

from __future__ import annotations

from dataclasses import dataclass

from outerloop.compute.names import NAME, job_name
from outerloop.compute.protocol import Compute
from outerloop.record.store import Record
from outerloop.slots import SlotDirectory, StateRoot

__all__ = ["Context", "Patience"]


@dataclass(frozen=True)
class Patience:
    """Seconds on the database's clock, and numbers of tries; from the settings' `[dispatch]` table."""

    grace: float = 60.0
    intent: float = 180.0
    gone: float = 120.0
    preempt: float = 300.0
    backoff: float = 60.0
    lease: float = 300.0
    max_attempts: int = 3
    margin_minutes: float = 5.0
    park_hours: float = 24.0
    """A parked run is looked at again after so long even if nothing seems to have happened to it."""


@dataclass(frozen=True)
class Context:
    """Everything with effects that dispatch needs, passed in."""

    record: Record
    compute: Compute
    root: StateRoot
    patience: Patience
    deployment: str
    python: str
    owner_uid: str
    exports: tuple[tuple[str, str], ...] = ()
    """What a wake job needs in its environment to open this same deployment. No secrets."""
    job_names: str = NAME
    """The site's template for job names; it must not change while jobs are unaccounted for."""

    def slot(self, digest: str) -> SlotDirectory:
        return SlotDirectory(self.root.slot(digest), digest)

    def job_name(self, label: str, key: str, number: int) -> str:
        """The name of a job of this deployment, the same whoever asks."""
        return job_name(self.deployment, label, key, number, template=self.job_names)

"""What a campaign wants done next: a job for a slot, or a decision to record.

Covers the values and which of their fields determine a result. Not covered: choosing them (plan.py).
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

JobKind = Literal["split", "train", "evaluate", "teacher", "package"]
Role = Literal["test", "reserve", "validation", "development"]

SECONDS_PER_HOUR = 3600.0
MINUTES_PER_HOUR = 60.0


class Resources(BaseModel):
    """What a job asks the cluster for."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    minutes: float = Field(default=60.0, gt=0, description="Walltime of the command, in minutes")
    cpus: int = Field(default=1, ge=1, description="CPUs per node")
    memory_gb: float = Field(default=4.0, gt=0, description="GiB")
    gpus: int = Field(default=0, ge=0, description="GPUs per node")

    @property
    def gpu_hours(self) -> float:
        """The GPU-hours that a job of this size may use at most."""
        return self.gpus * self.minutes / MINUTES_PER_HOUR


class Member(BaseModel):
    """A checkpoint that a job reads, with the digests under which it was recorded."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_id: str
    checkpoint: str
    checkpoint_sha256: str
    config_sha256: str = ""
    # Validation scores that fix the checkpoint's reject band; "" for none.
    band_scores_sha256: str = ""


class Job(BaseModel):
    """Work for one slot. See the package docstring for how the controller turns it into determinants.

    `key` names the job within its campaign; `awaits` are the outcomes that end it (see events.outcome_of);
    `fields` are the values that the core knows for the command's template, the controller adds the paths;
    `reads` maps what the job reads, beyond its members, to SHA-256 digests; `live` tells that its dispatch is
    in the ledger already.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    kind: JobKind
    generation: int
    round: int = 0
    run_id: str = ""
    role: Role | None = None
    command: str
    fields: dict[str, JsonValue] = Field(default_factory=dict)
    reads: dict[str, str] = Field(default_factory=dict)
    members: tuple[Member, ...] = ()
    ensemble: bool = False
    awaits: tuple[str, ...] = Field(min_length=1)
    resources: Resources = Resources()
    live: bool = Field(default=False, exclude=True)

    def determinants(self) -> dict[str, JsonValue]:
        """All that the core knows of what determines the result; the controller adds tree and environment.

        Left out: the key, the campaign's bookkeeping and the resources, none of which changes the result.
        A member enters by its digests, in order.
        """
        members: list[JsonValue] = [
            [member.checkpoint_sha256, member.config_sha256, member.band_scores_sha256] for member in self.members
        ]
        return {
            "kind": self.kind,
            "role": self.role,
            "command": self.command,
            "fields": dict(self.fields),
            "reads": dict(self.reads),
            "members": members,
            "ensemble": self.ensemble,
        }

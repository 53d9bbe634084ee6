"""What a campaign wants done next: a job for a slot, or a decision to record.

Covers the values and which of their fields determine a result. Not covered: choosing them (plan.py).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, Strict

JobKind = Literal["split", "train", "evaluate", "teacher", "package"]
Role = Literal["test", "reserve", "validation", "development"]

SECONDS_PER_HOUR = 3600.0
MINUTES_PER_HOUR = 60.0


def _no_truth_value(value: Any) -> Any:
    if isinstance(value, bool | str):
        raise ValueError(f"must be a number, it is {value!r}")
    return value


MOST = 2**31 - 1
"""The largest whole number of a campaign's files: what PostgreSQL's integers and the cluster's tools hold."""
Whole = Annotated[int, Strict(), Field(le=MOST)]
"""A whole number, written as one: neither true nor "3" nor 2.0."""
Seed = Annotated[int, Strict()]
"""A whole number of any size that a seed may have."""
Number = Annotated[float, BeforeValidator(_no_truth_value), Field(allow_inf_nan=False)]
"""A finite number, written as one."""


class Resources(BaseModel):
    """What a job asks the cluster for."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    minutes: Number = Field(default=60.0, gt=0, description="Walltime of the command, in minutes")
    cpus: Whole = Field(default=1, ge=1, description="CPUs per node")
    memory_gb: Number = Field(default=4.0, gt=0, description="GiB")
    gpus: Whole = Field(default=0, ge=0, description="GPUs per node")

    @property
    def gpu_hours(self) -> float:
        """The GPU-hours that a job of this size may use at most."""
        return self.gpus * self.minutes / MINUTES_PER_HOUR


class Member(BaseModel):
    """A checkpoint that a job reads, with the digests under which it was recorded."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_id: str = Field(description="Its training.")
    checkpoint: str = Field(description="Its name within the training.")
    checkpoint_sha256: str = Field(description="SHA-256 of the checkpoint.")
    config_sha256: str = Field(default="", description="SHA-256 of its config.")
    # Validation scores that fix the checkpoint's reject band; "" for none.
    band_scores_sha256: str = Field(
        default="", description="SHA-256 of the validation scores that fix its reject band."
    )


class Job(BaseModel):
    """Work for one slot. See the package docstring for how the controller turns it into determinants.

    `key` names the job within its campaign; `awaits` are the outcomes that end it (see events.outcome_of);
    `fields` are the values that the core knows for the command's template, the controller adds the paths;
    `reads` maps what the job reads, beyond its members, to SHA-256 digests; `live` tells that its dispatch is
    in the ledger already.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str = Field(description="Name within the campaign.")
    kind: JobKind = Field(description="Which command.")
    generation: int = Field(description="Generation.")
    round: int = Field(default=0, description="Round; 0: none.")
    run_id: str = Field(default="", description="The training it belongs to.")
    role: Role | None = Field(default=None, description="Whose items are scored.")
    command: str = Field(description="The command's template.")
    fields: dict[str, JsonValue] = Field(
        default_factory=dict, description="Values of the template's fields that the core knows."
    )
    reads: dict[str, str] = Field(default_factory=dict, description="What it reads, with SHA-256 digests.")
    members: tuple[Member, ...] = Field(default=(), description="Checkpoints that it reads.")
    ensemble: bool = Field(default=False, description="Whether they are scored together.")
    awaits: tuple[str, ...] = Field(min_length=1, description="Outcomes that end it.")
    resources: Resources = Field(default=Resources(), description="What it asks for.")
    live: bool = Field(default=False, exclude=True, description="Whether it is out already.")

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

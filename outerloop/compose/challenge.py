"""A challenge: the model, method and suites that are fixed, and by which rule an entry wins.

Covered: `configs/challenges/<id>.toml` as an object, every problem with its line. Not covered: the decision itself
(posttrain/decision.py).
"""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from outerloop.compose.errors import ComposeError, UnknownIdError
from outerloop.compose.fragments import SHIPPED, fragment_path, unknown
from outerloop.problems import render
from outerloop.toml_model import model_of

__all__ = ["Challenge", "Decision", "challenge"]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Combination(_Table):
    """What every entry shares."""

    model: str = Field(description="Id of a model.")
    method: str = Field(description="Id of a method.")
    suites: tuple[str, ...] = Field(min_length=1, description="Ids of the suites that decide.")
    reserve: tuple[str, ...] = Field(default=(), description="Ids of suites that are scored once, after a win.")

    @field_validator("suites", "reserve", mode="before")
    @classmethod
    def _list(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    @property
    def not_apart(self) -> str:
        """What is wrong where a suite decides and is the reserve as well; else nothing."""
        twice = sorted(set(self.suites) & set(self.reserve))
        return f"a suite can't both decide and be the reserve: {', '.join(twice)}" if twice else ""


class Decision(_Table):
    """The rule. The unit is the task: its score is the mean over trials and training seeds."""

    alpha: Decimal = Field(default=Decimal("0.05"), gt=0, le=Decimal("0.5"), description="One-sided level.")
    min_delta: Decimal = Field(default=Decimal(0), ge=0, le=1, description="Smallest gain of the mean task score.")
    train_seeds: int = Field(default=3, ge=1, le=100, description="Trainings per entry.")
    contamination_limit: Decimal = Field(
        default=Decimal("0.01"), ge=0, le=1, description="Fraction of held-out tasks that the data may contain."
    )
    contamination_checks: int = Field(default=5, ge=1, description="Checks per submitter and week.")


class Layout(_Table):
    """Overrides of the model's `meta.serving`; what they mean is checked where they are used (serving.py)."""

    flavor: str | None = Field(default=None, description="Kind of machine: a known flavor, or a lane with `node_gpus`.")
    vllm_gpus: str | None = Field(default=None, description='GPUs of the server, such as "6,7".')
    tensor_parallel: int | None = Field(default=None, description="GPUs over which the server splits the model.")
    trainer_gpus: str | None = Field(default=None, description="GPUs of the trainer, a process for each.")
    mode: Literal["server", "colocate"] | None = Field(
        default=None, description="Server beside the trainer, or in its process."
    )


class Compute(_Table):
    """What one stage of an entry takes. GPUs follow from the layout."""

    layout: Layout = Field(default=Layout(), description="Where the model is served while it is trained.")
    cpus: int = Field(default=1, ge=1, description="Of one stage, and its number of threads.")
    memory_gb: float | None = Field(default=None, gt=0, description="Of one stage; the site's default without it.")
    minutes: float = Field(default=60.0, gt=0, description="Of one attempt; a training goes on in another one.")


class Challenge(_Table):
    """One fragment. `open` challenges take entries."""

    meta: dict[str, Any] = Field(
        default_factory=dict, description='What people see: `name`, `status`; "active" takes entries.'
    )
    challenge: Combination = Field(description="What every entry shares.")
    decision: Decision = Field(default=Decision(), description="The rule.")
    compute: Compute = Field(default=Compute(), description="Where it runs.")

    @property
    def open(self) -> bool:
        return bool(self.meta.get("status") == "active")

    @property
    def layout(self) -> dict[str, Any]:
        """The keys that the challenge gives itself."""
        return self.compute.layout.model_dump(exclude_none=True)


def challenge(challenge_id: str, *, configs: Path = SHIPPED) -> Challenge:
    """The challenge. Raises UnknownIdError, or ComposeError with a line per problem, each with file, line and key."""
    sentence = unknown("challenges", challenge_id, configs=configs)
    if sentence is not None:
        raise UnknownIdError([sentence])
    path = fragment_path("challenges", challenge_id, configs)
    found, problems = model_of(Challenge, path.read_bytes())
    if found is not None:
        return found
    raise ComposeError(render(str(path), problems).split("\n"))

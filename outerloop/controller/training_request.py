"""What was asked of a training: its launches with every text in them, its tree, its shape, where it runs.

Covered: the request of a training, the identity of the question, reading a request of any kind. Not covered: making
one from a plan (submit_training.py), what came of it (trainings.py).
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from outerloop.controller.campaign_request import CampaignRequest
from outerloop.controller.entry_request import EntryRequest
from outerloop.controller.request import REQUEST_SCHEMA, ClimbRequest, Execution
from outerloop.slots import digest_of

__all__ = ["Expected", "Request", "Task", "TrainingRequest", "read_request", "training_question"]


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Task(_Frozen):
    """One launch, which becomes one slot."""

    role: str
    """`train`, or `task-0007`."""
    launch: dict[str, Any]
    """`LaunchSpec` as JSON: argv, env, the files' texts, world size."""
    replicate: int = 0
    """Not 0 where an earlier asking failed: what failed is executed again and not read again."""


class Expected(_Frozen):
    """What the planner said of the candidate that was launched; names the layout of measured figures."""

    layout: dict[str, Any]
    """The fields of the planner's `MeasuredFigure` that name the layout; of work that no figure describes only the
    candidate's name."""
    work: str = ""
    """The kind of work that the plan is of."""
    peak_memory_gb: float | None = None
    """Central estimate for one GPU, like the next."""
    tokens_per_second_per_gpu: float | None = None
    host_memory_gb: float | None = None
    """Central estimate for one host."""
    hours: float | None = None


class TrainingRequest(_Frozen):
    """A training as it was asked."""

    schema_: int = Field(default=REQUEST_SCHEMA, alias="schema")
    id: str
    kind: Literal["training"] = "training"
    question: str
    ask: int = 0
    target: str
    name: str
    """What people call it; names its jobs."""
    family: str
    commit: str
    tree: str
    revision: str
    subject: str = ""
    submitter: str
    nonce: str = ""
    """The submission that made it, where a service took it from its spool."""
    repository: str
    created_at: str
    tasks: tuple[Task, ...]
    nodes: int = 1
    gpus: int = 0
    """Per node, like `cpus` and `memory_mb`."""
    cpus: int = 1
    memory_mb: int | None = None
    minutes: float
    """Of one attempt; a resumable training goes on in another one."""
    resumable: bool = True
    execution: Execution
    expected: Expected | None = None
    priority: int = 0

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True)

    # What a run's row asks of every request.

    @property
    def benchmark(self) -> str:
        return self.name

    @property
    def definition(self) -> str:
        """Digest of the launches: two trainings of one definition start the same processes."""
        return digest_of([task.launch for task in self.tasks])

    @property
    def base_commit(self) -> str:
        return self.commit

    @property
    def base_tree(self) -> str:
        return self.tree

    @property
    def candidate_commit(self) -> str:
        return self.commit

    @property
    def candidate_tree(self) -> str:
        return self.tree


Request = ClimbRequest | TrainingRequest | CampaignRequest | EntryRequest


def read_request(body: Any) -> Request:
    """A request of any kind. Raises ValueError (pydantic's) for what is none."""
    if isinstance(body, dict) and body.get("kind") == "campaign":
        return CampaignRequest.model_validate(body)
    if isinstance(body, dict) and body.get("kind") == "entry":
        return EntryRequest.model_validate(body)
    if isinstance(body, dict) and body.get("kind") == "training":
        return TrainingRequest.model_validate(body)
    return ClimbRequest.model_validate(body)


def training_question(
    *, target: str, tree: str, launches: list[dict[str, Any]], shape: dict[str, int], execution: Execution
) -> str:
    """What is asked, as 64 hex digits. Lane and minutes are no part of it: they change where and how long, not what."""
    return digest_of(
        {
            "kind": "training",
            "target": target,
            "tree": tree,
            "launches": launches,
            "shape": shape,
            "image": execution.image_digest,
            "prologue": execution.prologue,
            "gpu_type": execution.gpu_type,
        }
    )

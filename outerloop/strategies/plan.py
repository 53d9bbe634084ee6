"""What a compiler is given: the chosen strategy, its shape, and the researcher's command.

Covered: the fields that decide how processes are started and what the training script is told.
Not covered: memory, time and cost, which the planner has already settled, and every check across fields,
which the compilers do, so that all reasons are reported at once.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Scalar = str | bool | int | float

_MOST_NODES = 65_536
"""Slurm's own bound on a cluster's nodes is just below."""
_MOST_PER_NODE = 65_536
_MOST_COUNT = 2**31 - 1


class StrategyPlan(BaseModel):
    """One strategy with its shape, frozen: the input that names a launch completely.

    `nodes` × `processes_per_node` is the world size; `gpus_per_process` is 0 on CPU (gloo). `tasks` holds one
    parameter set per task of `lease_tasks` and `local_sequential`; `parameters` applies to every task.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1] = 1
    family: str
    command: tuple[str, ...]
    nodes: int = Field(default=1, le=_MOST_NODES)
    processes_per_node: int = Field(default=1, le=_MOST_PER_NODE)
    gpus_per_process: int = Field(default=0, le=_MOST_PER_NODE)
    cpus_per_process: int | None = Field(default=None, le=_MOST_PER_NODE)
    framework: Literal["torch", "accelerate"] = "torch"
    """`accelerate` also sets what Hugging Face Accelerate and its Trainer read from the environment."""
    precision: Literal["fp32", "bf16", "fp16"] | None = None
    quantization: Literal["nf4"] | None = None
    peft: Literal["lora"] | None = None
    micro_batch: int | None = Field(default=None, le=_MOST_COUNT)
    accumulation: int | None = Field(default=None, le=_MOST_COUNT)
    activation_checkpointing: bool = False
    shard_group: int | None = Field(default=None, le=_MOST_COUNT)
    """Ranks that share one copy of the parameters; hsdp only."""
    shards: int | None = Field(default=None, le=_MOST_COUNT)
    """Pieces of the data that sharded_partial_fit reads one after another."""
    parameters: dict[str, Scalar] = Field(default_factory=dict)
    tasks: tuple[dict[str, Scalar], ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    files: dict[str, str] = Field(default_factory=dict)

    @property
    def world_size(self) -> int:
        """Number of processes over all nodes."""
        return self.nodes * self.processes_per_node

    def for_task(self, index: int) -> StrategyPlan:
        """The same plan with task `index` alone. Raises IndexError."""
        return self.model_copy(update={"tasks": (self.tasks[index],)})

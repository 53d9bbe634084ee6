"""From a judged candidate to what the launch compilers are told.

Covers the fields of a strategy plan that a candidate settles: family, shape, precision, batch. The researcher's command
and parameters are the caller's to add; outerloop.strategies is not imported here, so that neither room needs the other.
"""

from __future__ import annotations

from typing import Any

from outerloop.planner.report import Candidate
from outerloop.planner.request import IndependentTasks, PlanRequest

_ARRAY = ("lease_tasks", "local_sequential")
_CPU = ("local_process", "sharded_partial_fit")


def strategy_fields(candidate: Candidate, request: PlanRequest) -> dict[str, Any]:
    """Fields of `outerloop.strategies.StrategyPlan`, all but `command`, `parameters`, `tasks`, `env` and `files`.

    `bf16_pure` is handed over as bf16: whether the weights themselves are bf16 is the training script's choice.
    """
    family = f"qlora_{candidate.family}" if candidate.quantization else candidate.family
    if candidate.family in _ARRAY or candidate.family in _CPU:
        work = request.workload
        gpus = work.gpus_per_task if isinstance(work, IndependentTasks) else 0
        return {"family": family, "gpus_per_process": gpus, "shards": candidate.shards}
    return {
        "family": family,
        "nodes": candidate.hosts,
        "processes_per_node": candidate.workers // candidate.hosts,
        "gpus_per_process": 1,
        "precision": "bf16" if candidate.precision == "bf16_pure" else candidate.precision,
        "quantization": candidate.quantization,
        "peft": "lora" if candidate.peft else None,
        "micro_batch": candidate.micro_batch,
        "accumulation": candidate.accumulation,
        "activation_checkpointing": candidate.activation_checkpointing in ("full", "selective"),
        "shard_group": candidate.shard_group if candidate.family == "hsdp" else None,
    }

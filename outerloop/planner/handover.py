"""From a judged candidate to what the launch compilers are told.

Covers the fields of a strategy plan that a candidate settles: family, shape, precision, batch; and those that name its
layout, so that what a run of it measures finds back to it. The researcher's command
and parameters are the caller's to add; outerloop.strategies is not imported here, so that neither room needs the other.
"""

from __future__ import annotations

from typing import Any

from outerloop.planner.report import Candidate
from outerloop.planner.request import IndependentTasks, PlanRequest, TransformerFinetune

_ARRAY = ("lease_tasks", "local_sequential")
_CPU = ("local_process", "sharded_partial_fit")


def figure_fields(candidate: Candidate, request: PlanRequest) -> dict[str, Any] | None:
    """The fields of a `MeasuredFigure` that name this candidate's layout; None for work that no figure describes."""
    work, gpu = request.workload, request.resources.gpu
    if not isinstance(work, TransformerFinetune) or gpu is None:
        return None
    return {
        "candidate": candidate.name,
        "model": work.model.name,
        "gpu": gpu.name,
        "sequence": work.sequence,
        "micro_batch": candidate.micro_batch or 1,
        "precision": candidate.precision or work.precision,
        "lora_rank": work.lora.rank if work.lora else None,
        **({"lora_targets": work.lora.targets} if work.lora else {}),
        "optimizer": work.optimizer,
        "loss": work.loss,
        "compile": work.compile,
        "gradient_as_bucket_view": work.gradient_as_bucket_view,
        "accumulation": candidate.accumulation,
        "hosts": candidate.hosts,
        "shard_group": candidate.shard_group,
    }


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

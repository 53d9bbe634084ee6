"""A layout: one concrete way of running a training, and what the estimators need to know of it.

Covers transformers and generic PyTorch modules by the same few figures. Holds no verdicts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from outerloop.planner.catalog import Precision
from outerloop.planner.request import (
    Checkpointing,
    Lora,
    Loss,
    Optimizer,
    PytorchTraining,
    TransformerFamily,
    TransformerFinetune,
)
from outerloop.planner.shapes import ModelShape


@dataclass(frozen=True)
class Layout:
    """Family, worker counts and training settings of one candidate.

    `shard` is the number of GPUs that one copy of the state is spread over: 1 for single_gpu and ddp, the shard group
    for hsdp, all workers for the other families.
    """

    family: TransformerFamily
    workers: int
    gpus_per_host: int
    shard: int
    precision: Precision
    optimizer: Optimizer
    micro_batch: int = 1
    accumulation: int = 1
    shape: ModelShape | None = None
    sequence: int = 1
    lora: Lora | None = None
    quantized: bool = False
    checkpointing: Checkpointing = "none"
    loss: Loss = "plain"
    compile: bool = False
    gradient_as_bucket_view: bool = False
    parameters: float = 0.0
    largest_layer: float = 0.0
    activation_gb: float | None = None

    @property
    def hosts(self) -> int:
        """Hosts that the workers fill, whole hosts first."""
        return -(-self.workers // self.gpus_per_host)

    @property
    def workers_per_host(self) -> int:
        """Workers on the fullest host."""
        return min(self.workers, self.gpus_per_host)

    @property
    def tokens(self) -> int:
        """Tokens of one micro-step on one GPU."""
        return self.micro_batch * self.sequence

    @property
    def offload(self) -> bool:
        """Whether parameters and optimizer live in host memory."""
        return self.family in ("fsdp2_cpu_offload", "zero3_cpu_offload")

    @property
    def sharded(self) -> bool:
        """Whether parameters are gathered layer by layer."""
        return self.family not in ("single_gpu", "ddp")

    @property
    def total_parameters(self) -> float:
        """All parameters of the model, adapters not included."""
        return float(self.shape.parameters) if self.shape else self.parameters

    @property
    def adapter_parameters(self) -> float:
        """LoRA parameters; 0 without LoRA."""
        if self.lora is None or self.shape is None:
            return 0.0
        return float(self.shape.lora_parameters(self.lora.rank, self.lora.targets))

    @property
    def trainable_parameters(self) -> float:
        """Parameters that have a gradient."""
        return self.adapter_parameters if self.lora else self.total_parameters

    @property
    def name(self) -> str:
        """`[qlora_]family[_xN][+ackpt]`: unique within a report."""
        prefix = "qlora_" if self.quantized else ""
        count = f"_x{self.workers}" if self.workers > 1 else ""
        suffix = {"none": "", "full": "+ackpt", "selective": "+selective_ackpt"}[self.checkpointing]
        return f"{prefix}{self.family}{count}{suffix}"

    def with_checkpointing(self, checkpointing: Checkpointing) -> Layout:
        """The same layout with another activation checkpointing."""
        return replace(self, checkpointing=checkpointing)


def transformer_layout(
    work: TransformerFinetune,
    family: TransformerFamily,
    workers: int,
    gpus_per_host: int,
    *,
    shard: int | None = None,
    quantized: bool = False,
    accumulation: int = 1,
) -> Layout:
    """The layout of a fine-tuning on `workers` GPUs."""
    default_shard = 1 if family in ("single_gpu", "ddp") else workers
    return Layout(
        family=family,
        workers=workers,
        gpus_per_host=gpus_per_host,
        shard=shard or default_shard,
        precision=work.precision,
        optimizer=work.optimizer,
        micro_batch=work.micro_batch,
        accumulation=accumulation,
        shape=work.model,
        sequence=work.sequence,
        lora=work.lora,
        quantized=quantized,
        checkpointing=work.activation_checkpointing or "none",
        loss=work.loss,
        compile=work.compile,
        gradient_as_bucket_view=work.gradient_as_bucket_view,
    )


def pytorch_layout(work: PytorchTraining, family: TransformerFamily, workers: int, gpus_per_host: int) -> Layout:
    """The layout of a generic PyTorch training on `workers` GPUs."""
    return Layout(
        family=family,
        workers=workers,
        gpus_per_host=gpus_per_host,
        shard=1 if family in ("single_gpu", "ddp") else workers,
        precision=work.precision,
        optimizer=work.optimizer,
        micro_batch=work.micro_batch,
        accumulation=work.accumulation,
        gradient_as_bucket_view=work.gradient_as_bucket_view,
        parameters=work.parameters,
        largest_layer=work.largest_layer_parameters or work.parameters,
        activation_gb=work.activation_gb,
    )

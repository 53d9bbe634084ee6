"""What a plan is asked for: the work, the resources, the limits and the figures already measured.

Covers the four workload kinds. Unknown keys are refused; a field left out has a default that its docstring names. An
unset price, link or amount of work stays unknown: it never passes a limit.
"""

from __future__ import annotations

import difflib
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from outerloop.planner.arithmetic import Frozen
from outerloop.planner.catalog import GPUS, Gpu, Precision, find_gpu
from outerloop.planner.shapes import SHAPES, LoraTarget, ModelShape, find_shape

LARGEST = 10**15
"""Bound of every count and figure of a request: far above any real one, and no product of a few overflows."""

Mode = Literal["cheapest", "fastest", "balanced", "reliable"]
Checkpointing = Literal["none", "selective", "full"]
Loss = Literal["plain", "chunked", "fused"]
Optimizer = Literal["adamw", "adamw_8bit", "sgd_momentum"]

TransformerFamily = Literal["single_gpu", "ddp", "fsdp2", "hsdp", "fsdp2_cpu_offload", "zero3_cpu_offload"]
Family = Literal[
    "single_gpu",
    "ddp",
    "fsdp2",
    "hsdp",
    "fsdp2_cpu_offload",
    "zero3_cpu_offload",
    "local_process",
    "sharded_partial_fit",
    "lease_tasks",
    "local_sequential",
]


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name.lower(), [k.lower() for k in known], n=1, cutoff=0.5)
    match = next((k for k in known if close and k.lower() == close[0]), None)
    listed = ", ".join(known)
    return f"did you mean {match!r}? Known: {listed}" if match else f"known: {listed}"


class Resources(Frozen):
    """The machines. `host_memory_gb` and `cores_per_host` are what one host has, not what one job asks for."""

    hosts: int = Field(default=1, gt=0, le=1_000_000, description="Hosts that may be used.")
    gpus_per_host: int = Field(default=0, ge=0, le=1024, description="GPUs of one host.")
    gpu: Gpu | None = Field(
        default=None, description='Name of a GPU of the catalogue, such as "H100", or a table of its figures.'
    )
    host_memory_gb: float | None = Field(
        default=None, gt=0, le=LARGEST, description="Memory of one host, in GB. Unset: unknown."
    )
    cores_per_host: int | None = Field(
        default=None, gt=0, le=LARGEST, description="CPU cores of one host. Unset: unknown."
    )
    intra_host_gb_per_s: float | None = Field(
        default=None,
        gt=0,
        le=LARGEST,
        description="GPU to GPU inside a host, GB/s one way; default: the GPU's own link",
    )
    inter_host_gbit_per_s: float | None = Field(
        default=None, gt=0, le=LARGEST, description="one link between hosts, Gbit/s"
    )
    links_per_host: int = Field(
        default=1, gt=0, le=LARGEST, description="links (rails) of that rate that each host has"
    )
    price_per_gpu_hour: float | None = Field(
        default=None, ge=0, le=LARGEST, description="Price of a GPU for an hour. Unset: unknown."
    )
    price_per_host_hour: float | None = Field(
        default=None, ge=0, le=LARGEST, description="Price of a host for an hour, beside that of its GPUs."
    )
    time_limit_hours: float | None = Field(
        default=None, gt=0, le=LARGEST, description="longest job that the lane accepts"
    )
    source: str = Field(default="given", description="where these figures come from, such as a lane's name")

    @field_validator("gpu", mode="before")
    @classmethod
    def _gpu_by_name(cls, value: Any) -> Any:
        if isinstance(value, str):
            try:
                return find_gpu(value)
            except KeyError:
                raise ValueError(f"unknown GPU {value!r}; {_nearest(value, list(GPUS))}") from None
        return value

    @model_validator(mode="after")
    def _gpus_have_a_type(self) -> Resources:
        if self.gpus_per_host and self.gpu is None:
            raise ValueError("gpus_per_host is given without gpu: name the GPU type")
        return self

    @property
    def gpus(self) -> int:
        """GPUs of all hosts."""
        return self.hosts * self.gpus_per_host


class Lora(Frozen):
    """LoRA adapters on the named projections, in fp32 over a frozen base."""

    rank: int = Field(default=16, gt=0, le=LARGEST, description="Rank of the adapters.")
    targets: tuple[LoraTarget, ...] = Field(
        default=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        description="Projections that get an adapter.",
    )


class TransformerFinetune(Frozen):
    """Fine-tuning (or further pretraining) of a decoder-only transformer.

    `tokens` is the total number of training tokens, or `samples` × `sequence` × `epochs`. `global_batch` counts
    sequences per optimizer step and sets the accumulation of each candidate. Checkpointing: unset lets the planner add
    it where only that makes a candidate fit; a TOML `true` is "full" and `false` is "none", never overridden.
    """

    kind: Literal["transformer_finetune"] = Field(default="transformer_finetune", description="Kind of work.")
    model: ModelShape = Field(description="Name of a known model, or a table of its shape.")
    sequence: int = Field(default=2048, gt=0, le=LARGEST, description="Tokens of a sequence.")
    micro_batch: int = Field(default=1, gt=0, le=LARGEST, description="Sequences of one micro-step on one GPU.")
    accumulation: int | None = Field(
        default=None,
        gt=0,
        le=LARGEST,
        description="Micro-steps of an optimizer step. Unset: from `global_batch`, else 1.",
    )
    global_batch: int | None = Field(
        default=None,
        gt=0,
        le=LARGEST,
        description="Sequences of an optimizer step on all GPUs. Not together with `accumulation`.",
    )
    tokens: float | None = Field(
        default=None, gt=0, le=LARGEST, description="Training tokens of one epoch. Not together with `samples`."
    )
    samples: int | None = Field(default=None, gt=0, le=LARGEST, description="Sequences of one epoch.")
    epochs: float = Field(default=1, gt=0, le=LARGEST, description="Passes over the data.")
    precision: Precision = Field(default="bf16", description="What is computed in, and what weights are kept in.")
    optimizer: Optimizer = Field(default="adamw", description="Which decides how much state a parameter has.")
    lora: Lora | None = Field(
        default=None,
        description="Adapters over a frozen base; `true` for the defaults. Unset: all weights are trained.",
    )
    allow_quantization: bool = Field(default=False, description="Whether a frozen base may be kept in 4 bits.")
    activation_checkpointing: Checkpointing | None = Field(
        default=None,
        description="`true` is full, `false` is none. Unset: added only where a candidate fits by it alone.",
    )
    loss: Loss = Field(
        default="plain", description="How the loss over the vocabulary is computed: whole, in chunks, or fused."
    )
    compile: bool = Field(default=False, description="Whether torch.compile is used.")
    gradient_as_bucket_view: bool = Field(default=False, description="DDP keeps no second copy of the gradients.")
    allow_offload: bool = Field(default=True, description="Whether weights and optimizer may lie in host memory.")

    @field_validator("model", mode="before")
    @classmethod
    def _model_by_name(cls, value: Any) -> Any:
        if isinstance(value, str):
            try:
                return find_shape(value)
            except KeyError:
                raise ValueError(
                    f"unknown model {value!r}; {_nearest(value, list(SHAPES))}; or give its shape as a table"
                ) from None
        return value

    @field_validator("activation_checkpointing", mode="before")
    @classmethod
    def _checkpointing_as_bool(cls, value: Any) -> Any:
        if isinstance(value, bool):
            return "full" if value else "none"
        return value

    @field_validator("lora", mode="before")
    @classmethod
    def _lora_as_bool(cls, value: Any) -> Any:
        if isinstance(value, bool):
            return Lora() if value else None
        return value

    @model_validator(mode="after")
    def _consistent(self) -> TransformerFinetune:
        if self.accumulation is not None and self.global_batch is not None:
            raise ValueError("give accumulation or global_batch, not both: one follows from the other")
        if self.tokens is not None and self.samples is not None:
            raise ValueError("give tokens or samples, not both")
        if self.allow_quantization and self.lora is None:
            raise ValueError("allow_quantization needs lora: 4-bit weights cannot be trained themselves")
        return self

    @property
    def total_tokens(self) -> float | None:
        """Tokens to train on in all; None when the request does not say."""
        if self.tokens is not None:
            return self.tokens * self.epochs
        return None if self.samples is None else float(self.samples) * self.sequence * self.epochs


class PytorchTraining(Frozen):
    """Any other PyTorch training, known by its parameter count, activations and measured step.

    `activation_gb` is per micro-step on one GPU; unset means a pessimistic 2 GB. `micro_step_seconds` is the measured
    compute time of one micro-step on one GPU (without it, time stays unknown); `samples` counts training samples.
    """

    kind: Literal["pytorch_training"] = Field(default="pytorch_training", description="Kind of work.")
    parameters: float = Field(gt=0, le=LARGEST, description="Number of parameters.")
    largest_layer_parameters: float | None = Field(
        default=None, gt=0, le=LARGEST, description="Parameters of the largest layer. Unset: unknown."
    )
    activation_gb: float | None = Field(
        default=None,
        gt=0,
        le=LARGEST,
        description="GB of activations of a micro-step on one GPU. Unset: a pessimistic 2.",
    )
    micro_batch: int = Field(default=1, gt=0, le=LARGEST, description="Samples of one micro-step on one GPU.")
    accumulation: int = Field(default=1, gt=0, le=LARGEST, description="Micro-steps of an optimizer step.")
    samples: int | None = Field(
        default=None, gt=0, le=LARGEST, description="Training samples of one epoch. Unset: unknown, and so is the time."
    )
    epochs: float = Field(default=1, gt=0, le=LARGEST, description="Passes over the data.")
    micro_step_seconds: float | None = Field(
        default=None,
        gt=0,
        le=LARGEST,
        description="Measured compute time of a micro-step on one GPU. Unset: the time is unknown.",
    )
    precision: Precision = Field(default="fp32", description="What is computed in, and what weights are kept in.")
    optimizer: Optimizer = Field(default="adamw", description="Which decides how much state a parameter has.")
    gradient_as_bucket_view: bool = Field(default=False, description="DDP keeps no second copy of the gradients.")


class ClassicalML(Frozen):
    """A scikit-learn style fit of `data_gb` in memory. `incremental`: the estimator offers partial_fit."""

    kind: Literal["classical_ml"] = Field(default="classical_ml", description="Kind of work.")
    data_gb: float = Field(gt=0, le=LARGEST, description="Data in memory, in GB.")
    incremental: bool = Field(default=True, description="Whether the estimator offers partial_fit.")
    hours: float | None = Field(default=None, gt=0, le=LARGEST, description="known time of one fit of all data")


class IndependentTasks(Frozen):
    """Tasks that know nothing of one another: a sweep, an evaluation grid."""

    kind: Literal["independent_tasks"] = Field(default="independent_tasks", description="Kind of work.")
    tasks: int = Field(gt=0, le=LARGEST, description="Number of tasks.")
    task_minutes: float | None = Field(default=None, gt=0, le=LARGEST, description="Time of one task. Unset: unknown.")
    gpus_per_task: int = Field(default=0, ge=0, le=LARGEST, description="GPUs of one task.")


Workload = Annotated[
    TransformerFinetune | PytorchTraining | ClassicalML | IndependentTasks, Field(discriminator="kind")
]


class MeasuredFigure(Frozen):
    """What a real run of one layout measured; it replaces the static estimate of exactly that layout.

    `profiled` figures come from the user's own profiling, `ledger` ones from recorded runs. Training settings that a
    figure leaves out are the request's defaults; `accumulation`, `hosts` and `shard_group` left out match any.
    """

    candidate: str = Field(description="the candidate's name, such as fsdp2_x8+ackpt")
    model: str = Field(description="Name of the model.")
    gpu: str = Field(description="Name of the GPU.")
    sequence: int = Field(description="Tokens of a sequence.")
    micro_batch: int = Field(description="Sequences of a micro-step on one GPU.")
    precision: Precision = Field(description="As in the request.")
    peak_memory_gb: float | None = Field(
        default=None, gt=0, le=LARGEST, description="Largest memory of one GPU, in GB."
    )
    tokens_per_second_per_gpu: float | None = Field(
        default=None, gt=0, le=LARGEST, description="Throughput of one GPU."
    )
    lora_rank: int | None = Field(default=None, description="Rank of the adapters. Unset: all weights were trained.")
    lora_targets: tuple[LoraTarget, ...] = Field(default=Lora().targets, description="Projections that had an adapter.")
    optimizer: Optimizer = Field(default="adamw", description="As in the request.")
    loss: Loss = Field(default="plain", description="As in the request.")
    compile: bool = Field(default=False, description="As in the request.")
    gradient_as_bucket_view: bool = Field(default=False, description="As in the request.")
    accumulation: int | None = Field(
        default=None, gt=0, le=LARGEST, description="Micro-steps of an optimizer step. Unset: any."
    )
    hosts: int | None = Field(default=None, gt=0, le=LARGEST, description="Hosts. Unset: any.")
    shard_group: int | None = Field(
        default=None, gt=0, le=LARGEST, description="GPUs that share one copy of the weights. Unset: any."
    )
    runs: int = Field(default=1, gt=0, le=LARGEST, description="Measured runs that the figure stands for.")
    basis: Literal["profiled", "ledger"] = Field(default="profiled", description="Whose measurement it is.")
    source: str = Field(default="", description="Where the figure comes from.")


class PlanRequest(Frozen):
    """One question to the planner."""

    workload: Workload = Field(description="What is to be done.")
    resources: Resources = Field(default=Resources(), description="What it may use.")
    mode: Mode = Field(default="cheapest", description="What is best: price, time, both, or least that can go wrong.")
    deadline_hours: float | None = Field(
        default=None, gt=0, le=LARGEST, description="Longest time that is acceptable. An unknown time does not pass."
    )
    budget: float | None = Field(default=None, gt=0, le=LARGEST, description="same currency as the prices")
    families: tuple[Family, ...] | None = Field(default=None, description="only these families; default: the menu")
    figures: tuple[MeasuredFigure, ...] = Field(default=(), description="What real runs measured.")

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

    hosts: int = Field(default=1, gt=0, le=1_000_000)
    gpus_per_host: int = Field(default=0, ge=0, le=1024)
    gpu: Gpu | None = None
    host_memory_gb: float | None = Field(default=None, gt=0, le=LARGEST)
    cores_per_host: int | None = Field(default=None, gt=0, le=LARGEST)
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
    price_per_gpu_hour: float | None = Field(default=None, ge=0, le=LARGEST)
    price_per_host_hour: float | None = Field(default=None, ge=0, le=LARGEST)
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

    rank: int = Field(default=16, gt=0, le=LARGEST)
    targets: tuple[LoraTarget, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class TransformerFinetune(Frozen):
    """Fine-tuning (or further pretraining) of a decoder-only transformer.

    `tokens` is the total number of training tokens, or `samples` × `sequence` × `epochs`. `global_batch` counts
    sequences per optimizer step and sets the accumulation of each candidate. Checkpointing: unset lets the planner add
    it where only that makes a candidate fit; a TOML `true` is "full" and `false` is "none", never overridden.
    """

    kind: Literal["transformer_finetune"] = "transformer_finetune"
    model: ModelShape
    sequence: int = Field(default=2048, gt=0, le=LARGEST)
    micro_batch: int = Field(default=1, gt=0, le=LARGEST)
    accumulation: int | None = Field(default=None, gt=0, le=LARGEST)
    global_batch: int | None = Field(default=None, gt=0, le=LARGEST)
    tokens: float | None = Field(default=None, gt=0, le=LARGEST)
    samples: int | None = Field(default=None, gt=0, le=LARGEST)
    epochs: float = Field(default=1, gt=0, le=LARGEST)
    precision: Precision = "bf16"
    optimizer: Optimizer = "adamw"
    lora: Lora | None = None
    allow_quantization: bool = False
    activation_checkpointing: Checkpointing | None = None
    loss: Loss = "plain"
    compile: bool = False
    gradient_as_bucket_view: bool = False
    allow_offload: bool = True

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

    kind: Literal["pytorch_training"] = "pytorch_training"
    parameters: float = Field(gt=0, le=LARGEST)
    largest_layer_parameters: float | None = Field(default=None, gt=0, le=LARGEST)
    activation_gb: float | None = Field(default=None, gt=0, le=LARGEST)
    micro_batch: int = Field(default=1, gt=0, le=LARGEST)
    accumulation: int = Field(default=1, gt=0, le=LARGEST)
    samples: int | None = Field(default=None, gt=0, le=LARGEST)
    epochs: float = Field(default=1, gt=0, le=LARGEST)
    micro_step_seconds: float | None = Field(default=None, gt=0, le=LARGEST)
    precision: Precision = "fp32"
    optimizer: Optimizer = "adamw"
    gradient_as_bucket_view: bool = False


class ClassicalML(Frozen):
    """A scikit-learn style fit of `data_gb` in memory. `incremental`: the estimator offers partial_fit."""

    kind: Literal["classical_ml"] = "classical_ml"
    data_gb: float = Field(gt=0, le=LARGEST)
    incremental: bool = True
    hours: float | None = Field(default=None, gt=0, le=LARGEST, description="known time of one fit of all data")


class IndependentTasks(Frozen):
    """Tasks that know nothing of one another: a sweep, an evaluation grid."""

    kind: Literal["independent_tasks"] = "independent_tasks"
    tasks: int = Field(gt=0, le=LARGEST)
    task_minutes: float | None = Field(default=None, gt=0, le=LARGEST)
    gpus_per_task: int = Field(default=0, ge=0, le=LARGEST)


Workload = Annotated[
    TransformerFinetune | PytorchTraining | ClassicalML | IndependentTasks, Field(discriminator="kind")
]


class MeasuredFigure(Frozen):
    """What a real run of one layout measured; it replaces the static estimate of exactly that layout.

    `profiled` figures come from the user's own profiling, `ledger` ones from recorded runs. Training settings that a
    figure leaves out are the request's defaults; `accumulation`, `hosts` and `shard_group` left out match any.
    """

    candidate: str = Field(description="the candidate's name, such as fsdp2_x8+ackpt")
    model: str
    gpu: str
    sequence: int
    micro_batch: int
    precision: Precision
    peak_memory_gb: float | None = Field(default=None, gt=0, le=LARGEST)
    tokens_per_second_per_gpu: float | None = Field(default=None, gt=0, le=LARGEST)
    lora_rank: int | None = None
    lora_targets: tuple[LoraTarget, ...] = Lora().targets
    optimizer: Optimizer = "adamw"
    loss: Loss = "plain"
    compile: bool = False
    gradient_as_bucket_view: bool = False
    accumulation: int | None = Field(default=None, gt=0, le=LARGEST)
    hosts: int | None = Field(default=None, gt=0, le=LARGEST)
    shard_group: int | None = Field(default=None, gt=0, le=LARGEST)
    runs: int = Field(default=1, gt=0, le=LARGEST)
    basis: Literal["profiled", "ledger"] = "profiled"
    source: str = ""


class PlanRequest(Frozen):
    """One question to the planner."""

    workload: Workload
    resources: Resources = Resources()
    mode: Mode = "cheapest"
    deadline_hours: float | None = Field(default=None, gt=0, le=LARGEST)
    budget: float | None = Field(default=None, gt=0, le=LARGEST, description="same currency as the prices")
    families: tuple[Family, ...] | None = Field(default=None, description="only these families; default: the menu")
    figures: tuple[MeasuredFigure, ...] = ()

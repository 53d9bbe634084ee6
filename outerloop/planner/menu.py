"""Which candidates are considered for each kind of work: a curated menu, never an open search.

Covers the enumeration only; judge.py decides. World sizes are 1, the powers of two below the GPU count, and the count;
worlds that would fill hosts unevenly are left out, since torchrun starts the same number of workers on each host.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from outerloop.planner.layout import Layout, pytorch_layout, transformer_layout
from outerloop.planner.request import (
    Family,
    PytorchTraining,
    Resources,
    TransformerFamily,
    TransformerFinetune,
)

SHARD_MB, SHARDS_MIN, SHARDS_MAX = 500, 2, 16
"""sharded_partial_fit: one shard per 500 MB, between 2 and 16 shards."""

CORES_PER_SLOT = 4
"""Cores of one CPU task slot."""

NO_GPU_NOTE = "no GPU in the resources: nothing in this menu runs without one; set gpus_per_host and gpu"


def world_sizes(gpus: int, gpus_per_host: int) -> list[int]:
    """1, powers of two below `gpus`, and `gpus`; beyond one host only multiples of `gpus_per_host`."""
    if gpus <= 0:
        return []
    sizes = {1, gpus}
    power = 2
    while power < gpus:
        sizes.add(power)
        power *= 2
    return sorted(n for n in sizes if n <= gpus_per_host or n % gpus_per_host == 0)


def accumulation_for(work: TransformerFinetune, workers: int) -> tuple[int, str | None]:
    """Micro-steps per optimizer step on `workers` GPUs, and why the global batch cannot be met, if so."""
    if work.global_batch is None:
        return work.accumulation or 1, None
    per_micro_step = work.micro_batch * workers
    if work.global_batch % per_micro_step:
        return max(1, work.global_batch // per_micro_step), (
            f"global_batch {work.global_batch} is not a multiple of micro_batch {work.micro_batch} × {workers} workers"
        )
    return work.global_batch // per_micro_step, None


def _shard_groups(gpus: int, gpus_per_host: int) -> list[int]:
    """HSDP groups: whole hosts, doubling, smaller than all GPUs and dividing them."""
    groups, size = [], gpus_per_host
    while size < gpus:
        if gpus % size == 0 and size > 1:
            groups.append(size)
        size *= 2
    return groups


def transformer_menu(
    work: TransformerFinetune, resources: Resources, fits: Callable[[Layout], bool]
) -> list[tuple[Layout, str | None]]:
    """Layouts for a fine-tuning with the batch complaint of each. `fits` picks HSDP's smallest group that fits.

    QLoRA has no ZeRO-3 offload variant: bitsandbytes' 4-bit weights and DeepSpeed's parameter offload do not combine.
    """
    gpus, per_host = resources.gpus, resources.gpus_per_host
    menu: list[tuple[Layout, str | None]] = []

    def add(family: TransformerFamily, workers: int, *, quantized: bool, shard: int | None = None) -> None:
        accumulation, complaint = accumulation_for(work, workers)
        layout = transformer_layout(
            work, family, workers, per_host, shard=shard, quantized=quantized, accumulation=accumulation
        )
        menu.append((layout, complaint))

    for quantized in (False, True) if work.allow_quantization and work.lora else (False,):
        for workers in world_sizes(gpus, per_host):
            if workers == 1:
                add("single_gpu", 1, quantized=quantized)
            else:
                add("ddp", workers, quantized=quantized)
                add("fsdp2", workers, quantized=quantized)
                groups = _shard_groups(workers, per_host)
                if groups:
                    chosen = groups[-1]
                    for group in groups:
                        trial = transformer_layout(work, "hsdp", workers, per_host, shard=group, quantized=quantized)
                        if fits(trial):
                            chosen = group
                            break
                    add("hsdp", workers, quantized=quantized, shard=chosen)
            if work.allow_offload:
                if workers > 1:
                    add("fsdp2_cpu_offload", workers, quantized=quantized)
                if not quantized:
                    add("zero3_cpu_offload", workers, quantized=False)
    return menu


def pytorch_menu(work: PytorchTraining, resources: Resources) -> list[Layout]:
    """Layouts for a generic PyTorch training."""
    menu = []
    for workers in world_sizes(resources.gpus, resources.gpus_per_host):
        families: tuple[TransformerFamily, ...] = ("single_gpu",) if workers == 1 else ("ddp", "fsdp2")
        menu += [pytorch_layout(work, family, workers, resources.gpus_per_host) for family in families]
    return menu


def shards_for(data_gb: float) -> int:
    """Shards of a partial fit: MB // 500, within 2 to 16."""
    return min(SHARDS_MAX, max(SHARDS_MIN, math.floor(data_gb * 1000) // SHARD_MB))


def task_slots(resources: Resources, gpus_per_task: int) -> int | None:
    """Tasks that run at once: by GPUs, else hosts × max(1, cores // 4); None where the cores are unknown."""
    if gpus_per_task:
        return resources.hosts * (resources.gpus_per_host // gpus_per_task)
    if resources.cores_per_host is None:
        return None
    return resources.hosts * max(1, resources.cores_per_host // CORES_PER_SLOT)


FAMILIES_OF_KIND: dict[str, tuple[Family, ...]] = {
    "transformer_finetune": ("single_gpu", "ddp", "fsdp2", "hsdp", "fsdp2_cpu_offload", "zero3_cpu_offload"),
    "pytorch_training": ("single_gpu", "ddp", "fsdp2"),
    "classical_ml": ("local_process", "sharded_partial_fit"),
    "independent_tasks": ("lease_tasks", "local_sequential"),
}

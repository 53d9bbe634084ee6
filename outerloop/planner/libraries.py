"""Which libraries a candidate needs, and what for."""

from __future__ import annotations

from outerloop.planner.layout import Layout
from outerloop.planner.report import Library

_TORCH = Library(name="torch", role="framework", purpose="model, autograd and optimizer")
_STRATEGY = {
    "single_gpu": None,
    "ddp": Library(name="torch", role="strategy", purpose="DistributedDataParallel replicates the model"),
    "fsdp2": Library(name="torch", role="strategy", purpose="fully_shard shards parameters and state"),
    "hsdp": Library(
        name="torch", role="strategy", purpose="fully_shard on a 2-D mesh: sharded inside, replicated across"
    ),
    "fsdp2_cpu_offload": Library(
        name="torch", role="strategy", purpose="fully_shard with CPUOffloadPolicy keeps shards on the host"
    ),
    "zero3_cpu_offload": Library(
        name="deepspeed", role="strategy", purpose="ZeRO stage 3 with parameters and optimizer on the host"
    ),
}


def libraries_for(layout: Layout) -> tuple[Library, ...]:
    """Libraries of a training layout, framework first."""
    found = [_TORCH]
    strategy = _STRATEGY[layout.family]
    if strategy is not None:
        found.append(strategy)
    if layout.family == "zero3_cpu_offload":
        found.append(Library(name="accelerate", role="launcher", purpose="starts DeepSpeed with its JSON config"))
    elif layout.workers > 1:
        found.append(Library(name="torchrun", role="launcher", purpose="starts one process per GPU"))
    if layout.shape is not None:
        found.append(Library(name="transformers", role="model", purpose="loads the model and its tokenizer"))
    if layout.lora:
        found.append(Library(name="peft", role="adapter", purpose="LoRA adapters over the frozen base"))
    if layout.quantized:
        found.append(Library(name="bitsandbytes", role="quantization", purpose="NF4 weights of the frozen base"))
    if layout.optimizer == "adamw_8bit":
        found.append(Library(name="bitsandbytes", role="quantization", purpose="AdamW with 8-bit state"))
    return tuple(found)

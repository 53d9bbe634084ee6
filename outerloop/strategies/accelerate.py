"""What Hugging Face Accelerate and its Trainer read, for each family, and the DeepSpeed file of ZeRO-3 offload.

The variable names are those of accelerate 1.15 (`accelerate/utils/dataclasses.py`, `accelerate/parallelism_config.py`).
With them torchrun alone starts an Accelerate script, so that every family has one launcher and one rendezvous.
"""

from __future__ import annotations

import json
from typing import Any

from outerloop.strategies.plan import StrategyPlan
from outerloop.strategies.spec import FILES_TOKEN

DEEPSPEED_FILE = "deepspeed_zero3.json"
# Accelerate spells full precision "no".
_MIXED_PRECISION = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}


def accelerate_env(plan: StrategyPlan, *, sharded: bool, offloaded: bool, replicated: bool) -> dict[str, str]:
    """The variables that make an Accelerate script use torch's FSDP2 as planned; plain DDP needs no switch."""
    env: dict[str, str] = {}
    if plan.precision is not None:
        env["ACCELERATE_MIXED_PRECISION"] = _MIXED_PRECISION[plan.precision]
    if plan.accumulation is not None:
        env["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] = str(plan.accumulation)
    if sharded:
        env |= {
            "ACCELERATE_USE_FSDP": "true",
            "FSDP_VERSION": "2",
            "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
            "FSDP_RESHARD_AFTER_FORWARD": "true",
            "FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT",
            "FSDP_CPU_RAM_EFFICIENT_LOADING": "true",
            "FSDP_OFFLOAD_PARAMS": str(offloaded).lower(),
            "FSDP_ACTIVATION_CHECKPOINTING": str(plan.activation_checkpointing).lower(),
        }
    if replicated and plan.shard_group:
        env |= {
            "ACCELERATE_USE_PARALLELISM_CONFIG": "true",
            "PARALLELISM_CONFIG_DP_REPLICATE_SIZE": str(plan.world_size // plan.shard_group),
            "PARALLELISM_CONFIG_DP_SHARD_SIZE": str(plan.shard_group),
        }
    return env


def deepspeed_env(plan: StrategyPlan) -> dict[str, str]:
    """The variables that make an Accelerate script read the DeepSpeed file from where it is written."""
    env = {
        "ACCELERATE_USE_DEEPSPEED": "true",
        "ACCELERATE_DEEPSPEED_CONFIG_FILE": f"{FILES_TOKEN}/{DEEPSPEED_FILE}",
    }
    if plan.precision is not None:
        env["ACCELERATE_MIXED_PRECISION"] = _MIXED_PRECISION[plan.precision]
    return env


def deepspeed_config(plan: StrategyPlan) -> str:
    """ZeRO stage 3 with parameters and optimizer state in host memory, as JSON.

    "auto" is filled in by Accelerate from the script's own arguments.
    """
    config: dict[str, Any] = {
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": {"device": "cpu", "pin_memory": True},
            "offload_param": {"device": "cpu", "pin_memory": True},
            "overlap_comm": True,
            "contiguous_gradients": True,
            "stage3_gather_16bit_weights_on_model_save": True,
        },
        "train_micro_batch_size_per_gpu": plan.micro_batch or "auto",
        "gradient_accumulation_steps": plan.accumulation or "auto",
        "gradient_clipping": "auto",
    }
    if plan.precision in ("bf16", "fp16"):
        config[plan.precision] = {"enabled": True}
    return json.dumps(config, indent=2, sort_keys=True) + "\n"

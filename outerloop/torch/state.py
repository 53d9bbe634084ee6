"""Model and optimizer to files and back, whole or sharded.

Covered: plain and DDP models (one file, written by the main rank), sharded models (through `sharded`), and reading
either into either. Not covered: FSDP1, DeepSpeed engines, and optimizers over parameters of several models
once the model is sharded.

`full`     model.pt {"model", "optimizer", "parameter_names"}; the names map an optimizer's numbers to parameters, so
           that a sharded run can read it.
`sharded`  torch.distributed.checkpoint files, {"model", "optimizer"} keyed by parameter name.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from outerloop.torch.world import World

MODEL_FILE, COMMON_FILE = "model.pt", "common.pt"
FULL, SHARDED = "full", "sharded"


class CheckpointMismatch(RuntimeError):
    """The newest checkpoint is whole, but it is of another model, optimizer or scheduler than the script's."""


def rank_file(rank: int) -> str:
    """Name of a rank's own part: its random streams and its loader's position."""
    return f"rank-{rank}.pt"


def save_readable(value: Any, path: Path) -> None:
    """Save, and read the structure back as a restore will. Raises when either fails.

    A restore refuses everything but tensors and plain values (`weights_only`), which must be found out now, not then.
    """
    torch.save(value, path)
    torch.load(path, map_location="cpu", weights_only=True, mmap=True)


def read_back(path: Path) -> Any:
    """What `save_readable` saved, on the CPU."""
    return torch.load(path, map_location="cpu", weights_only=True)


def unwrapped(model: Any) -> Any:
    """The script's module behind DistributedDataParallel and torch.compile."""
    while True:
        if isinstance(model, DistributedDataParallel):
            model = model.module
        elif hasattr(model, "_orig_mod"):
            model = model._orig_mod
        else:
            return model


def is_sharded(model: Any) -> bool:
    """True when any parameter is spread over ranks (`fully_shard`, tensor parallelism)."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and any(isinstance(parameter, module.DTensor) for parameter in model.parameters())


def save_model(folder: Path, model: Any, optimizer: Any, world: World) -> str:
    """Write the model's parts; every rank calls it. Returns the format. Raises OSError or torch's errors."""
    model = unwrapped(model)
    if is_sharded(model):
        from outerloop.torch.sharded import save_sharded

        save_sharded(folder, model, optimizer, world)
        return SHARDED
    if world.rank == 0:
        content = {
            "model": model.state_dict(),
            "optimizer": None if optimizer is None else optimizer.state_dict(),
            "parameter_names": _parameter_names(model, optimizer),
        }
        save_readable(content, folder / MODEL_FILE)
    return FULL


def load_model(folder: Path, format: str, model: Any, optimizer: Any, world: World) -> None:
    """Read the model's parts into the script's objects; every rank calls it. Raises CheckpointMismatch."""
    model = unwrapped(model)
    try:
        if format == SHARDED:
            from outerloop.torch.sharded import load_sharded

            load_sharded(folder, model, optimizer, world)
        else:
            _load_full(folder, model, optimizer)
    except OSError:
        raise
    except Exception as error:
        raise CheckpointMismatch(
            f"checkpoint {folder.name} does not fit the script's model or optimizer: {error}. "
            "Restore the script that wrote it, or start in an empty checkpoint folder"
        ) from error


def _load_full(folder: Path, model: Any, optimizer: Any) -> None:
    content = read_back(folder / MODEL_FILE)
    if optimizer is not None and content["optimizer"] is None:
        raise ValueError("the checkpoint holds no optimizer")
    if not is_sharded(model):
        model.load_state_dict(content["model"])
        if optimizer is not None:
            optimizer.load_state_dict(content["optimizer"])
        return
    from outerloop.torch.sharded import load_whole

    named = None if optimizer is None else _named(content["optimizer"], content["parameter_names"])
    load_whole(model, optimizer, content["model"], named)


def _parameter_names(model: Any, optimizer: Any) -> list[str | None] | None:
    """Name of each optimizer parameter in the order of its state's numbers; None for one that is not the model's."""
    if optimizer is None:
        return None
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [names.get(id(parameter)) for group in optimizer.param_groups for parameter in group["params"]]


def _named(state: dict[str, Any], names: list[str | None]) -> dict[str, Any]:
    """An optimizer's state keyed by parameter name, as torch's distributed state dicts want it."""
    if None in names:
        raise ValueError("the optimizer has parameters that are not the model's")
    return {
        "state": {names[number]: value for number, value in state["state"].items()},
        "param_groups": [group | {"params": [names[n] for n in group["params"]]} for group in state["param_groups"]],
    }

"""Sharded models to torch's distributed checkpoint files and back. Imported only where a model or a checkpoint is
sharded: the import takes longer than that of the rest of this package.

Covered: `fully_shard` and other DTensor models, read into the same or another layout, a plain model included.
Not covered: whole checkpoints of plain models, which `state` reads.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from outerloop.torch.world import World


def save_sharded(folder: Path, model: Any, optimizer: Any, world: World) -> None:
    """Every rank writes its shards. Raises RuntimeError on every rank when any of them failed."""
    try:
        save(
            _state(model, optimizer),
            storage_writer=FileSystemWriter(folder),
            process_group=world.control,
            no_dist=world.size == 1,
        )
    except CheckpointException as error:
        # It derives from BaseException, so that nothing between here and the script would catch it.
        raise RuntimeError(str(error)) from error


def load_sharded(folder: Path, model: Any, optimizer: Any, world: World) -> None:
    """Read shards into the model's own layout, whatever layout wrote them. Raises RuntimeError when they do not fit."""
    state = _state(model, optimizer)
    try:
        load(
            state,
            storage_reader=FileSystemReader(folder),
            process_group=world.control,
            no_dist=world.size == 1,
        )
    except CheckpointException as error:
        raise RuntimeError(str(error)) from error
    if optimizer is None:
        set_model_state_dict(model, state["model"])
    else:
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def load_whole(model: Any, optimizer: Any, model_state: dict[str, Any], optimizer_state: dict[str, Any] | None) -> None:
    """Spread whole states, keyed by parameter name, over the model's shards."""
    whole = StateDictOptions(full_state_dict=True)
    set_model_state_dict(model, model_state, options=whole)
    if optimizer is not None and optimizer_state is not None:
        set_optimizer_state_dict(model, optimizer, optimizer_state, options=whole)


def _state(model: Any, optimizer: Any) -> dict[str, Any]:
    if optimizer is None:
        return {"model": get_model_state_dict(model)}
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state}

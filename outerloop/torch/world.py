"""Who this process is among the ranks, and how the ranks agree.

Covered: the variables that torchrun sets, the device, the process group, and a gloo group for decisions.
Not covered: meshes and sharding, which are the script's. torch is imported inside functions.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def require_torch() -> Any:
    """The torch module. Raises ImportError that says what to install."""
    try:
        import torch
    except ImportError as error:
        raise ImportError(f"outerloop.torch needs PyTorch for this call, and importing it failed: {error}") from error
    return torch


def rank() -> int:
    """The process group's rank, else RANK as torchrun sets it, else 0."""
    group = _group()
    return _number("RANK", 0) if group is None else int(group.get_rank())


def world_size() -> int:
    """The process group's size, else WORLD_SIZE as torchrun sets it, else 1."""
    group = _group()
    return _number("WORLD_SIZE", 1) if group is None else int(group.get_world_size())


def _group() -> Any:
    """torch.distributed when the script (or `prepare`) has begun a process group, without importing it."""
    module = sys.modules.get("torch.distributed")
    return module if module is not None and module.is_available() and module.is_initialized() else None


def local_rank() -> int:
    """LOCAL_RANK as torchrun sets it, else 0."""
    return _number("LOCAL_RANK", 0)


def _number(name: str, otherwise: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else otherwise


def device() -> torch.device:
    """`cuda:<local rank>` when torch sees a GPU, else `cpu`."""
    library = require_torch()
    gpu = library.cuda.is_available()
    found: torch.device = library.device(f"cuda:{local_rank() % library.cuda.device_count()}" if gpu else "cpu")
    return found


def backend() -> str | None:
    """The process group's backend, or the one `prepare` will choose; None when there is one process."""
    if world_size() == 1:
        return None
    torch = require_torch()
    if torch.distributed.is_initialized():
        return str(torch.distributed.get_backend())
    return "nccl" if torch.cuda.is_available() else "gloo"


class World:
    """The ranks of one launch. With one process every method answers at once and no group exists."""

    def __init__(self) -> None:
        torch = require_torch()
        self.rank, self.size = rank(), world_size()
        self.created_group = False
        self.control: Any = None
        """A gloo group: decisions about files and signals must not wait for, or occupy, the GPUs."""
        if self.size > 1:
            dist = torch.distributed
            where = device()
            if where.type == "cuda":
                torch.cuda.set_device(where)
            if not dist.is_initialized():
                dist.init_process_group(backend())
                self.created_group = True
            self.control = dist.new_group(backend="gloo")

    def gathered(self, value: Any) -> list[Any]:
        """Every rank's value, by rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        require_torch().distributed.all_gather_object(values, value, group=self.control)
        return values

    def from_main(self, value: Any) -> Any:
        """The main rank's value."""
        if self.size == 1:
            return value
        box = [value]
        require_torch().distributed.broadcast_object_list(box, src=0, group=self.control)
        return box[0]

    def wait_for_all(self) -> None:
        """Return when every rank is here."""
        if self.size > 1:
            require_torch().distributed.barrier(group=self.control)

    def close(self) -> None:
        """End the process group if `prepare` began it."""
        dist = require_torch().distributed
        if self.created_group and dist.is_initialized():
            dist.destroy_process_group()
        self.created_group = False

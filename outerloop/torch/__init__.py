"""The helper that a training script imports: checkpoint and resume, stop on preemption, report what happened.

Import from here: `prepare`, `checkpoint`, `log_metrics`, and the accessors `rank`, `world_size`, `is_main`,
`start_step`, `device`, `backend`. Nothing else is public.

Importing this package imports no torch: a script that only reads `rank()` or logs metrics runs without it.
This room must not know Slurm, the record or a strategy: two folders in the environment are its whole contract.

    OUTERLOOP_CKPT_DIR      checkpoints, newest two kept, and requeue.json; unset: nothing is saved or restored,
                            and SIGTERM and SIGUSR1 keep their meaning
    OUTERLOOP_OUTPUT_DIR    metrics.jsonl, run.json, ranks/rank-N.json; unset: nothing is written
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from outerloop.torch import world

if TYPE_CHECKING:
    import torch

    from outerloop.torch.session import Session

__all__ = [
    "backend",
    "checkpoint",
    "device",
    "is_main",
    "log_metrics",
    "prepare",
    "rank",
    "start_step",
    "world_size",
]

_Model = TypeVar("_Model")
_session: Session | None = None


def prepare(
    model: _Model, optimizer: Any = None, dataloader: Any = None, *, scheduler: Any = None
) -> tuple[_Model, Any, Any]:
    """Model, optimizer and loader, ready for the loop: restored, on their device, and distributed under torchrun.

    One process: the model is not wrapped and the order of samples is the loader's own, so the losses are those of
    the plain script. Several: a plain model is wrapped in DistributedDataParallel, a model that is already
    sharded (`fully_shard`) or wrapped is kept, and a loader with shuffled or sequential order is split over the ranks.
    The scheduler is restored in place. Raises CheckpointMismatch when the newest checkpoint is of another model.
    """
    global _session
    from outerloop.torch.session import Session

    _session = Session.opened(_session)
    return _session.prepare(model, optimizer, dataloader, scheduler)


def checkpoint(
    model: Any, optimizer: Any = None, *, step: int, every: int | None = None, scheduler: Any = None
) -> bool:
    """Save after `step` when it is due; call it once per step, on every rank. True when a checkpoint was written.

    `every` None: always; ≤ 0: never; N: when step > 0 and N divides it. After SIGTERM or SIGUSR1 the ranks agree on
    a step, save whatever `every` says, leave `requeue.json` in the checkpoint folder, and raise SystemExit(75).
    A save that the disk refuses is logged and training goes on with the older checkpoint.
    """
    return _opened("checkpoint").checkpoint(model, optimizer, step, every, scheduler)


def log_metrics(metrics: Mapping[str, Any]) -> None:
    """Append one line to metrics.jsonl on the main rank. Never raises, and never writes invalid JSON.

    A value that is not finite becomes null and is named under `_non_finite`. The key `tokens` (tokens of this rank
    since the last call) replaces the count taken from the batches' `input_ids`.
    """
    from outerloop.torch.facts import reporter

    reporter().log_metrics(metrics)


def rank() -> int:
    """Rank of this process among all; 0 when there is one."""
    return world.rank()


def world_size() -> int:
    """Number of processes."""
    return world.world_size()


def is_main() -> bool:
    """True on the rank that writes metrics and prints."""
    return world.rank() == 0


def start_step() -> int:
    """The step to begin with: the restored checkpoint's step + 1, or 0. Raises RuntimeError before `prepare`."""
    return _opened("start_step").start_step


def device() -> torch.device:
    """This rank's GPU if there is one, else the CPU. Raises ImportError without torch."""
    return world.device()


def backend() -> str | None:
    """Process group backend (`nccl`, `gloo`), or None when there is one process."""
    return world.backend()


def _opened(name: str) -> Session:
    if _session is None:
        raise RuntimeError(f"outerloop.torch.{name}() needs outerloop.torch.prepare() to be called first")
    return _session

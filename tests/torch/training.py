"""The training script that the tests kill: `main(config)` in a forked process, `training.py CONFIG` under torchrun.

Every step appends one line to losses-<rank>.jsonl: the loss as an exact hexadecimal float, and the samples it saw. A
run that is killed and resumed repeats some steps; the tests compare all of them with an uninterrupted run.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, WeightedRandomSampler

DEFAULTS: dict[str, Any] = {
    "samples": 26,
    "batch": 4,
    "steps": 20,
    "every": 3,
    "loader": "shuffle",
    "workers": 0,
    "drop_last": False,
    "helper": True,
    "fsdp": False,
    "sgd": False,
    "noise": True,
    "kill": {},
    "no_space_from": None,
    "out": ".",
}


class Numbers(Dataset[tuple[torch.Tensor, int]]):
    """Sample i is a fixed vector plus noise from every global stream, as an augmentation would add."""

    def __init__(self, size: int, noisy: bool = True) -> None:
        self.size, self.noisy = size, noisy

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        value = torch.sin(torch.arange(6) * (index + 1.0))
        if self.noisy:
            value = value + 0.1 * torch.rand(6) + 0.1 * random.random() + 0.1 * float(numpy.random.rand())
        return value, index


class Stream(IterableDataset[tuple[torch.Tensor, int]]):
    """The same samples as a stream, shuffled by Python's random."""

    def __init__(self, size: int) -> None:
        self.samples = Numbers(size)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        order = list(range(len(self.samples)))
        random.shuffle(order)
        for index in order:
            yield self.samples[index]


class OddThenEven(Sampler[int]):
    """A sampler of the script's own, shuffled by NumPy."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[int]:
        for start in (1, 0):
            yield from numpy.random.permutation(numpy.arange(start, self.size, 2)).tolist()

    def __len__(self) -> int:
        return self.size


def loader_of(config: dict[str, Any]) -> Any:
    """The script's loader, in one of the ways scripts make one."""
    size, batch, kind = config["samples"], config["batch"], config["loader"]
    options = {"num_workers": config["workers"], "drop_last": config["drop_last"]}
    numbers = Numbers(size, noisy=config["noise"] and config["workers"] == 0)
    if kind == "shuffle":
        return DataLoader(numbers, batch, shuffle=True, **options)
    if kind == "sequence":
        return DataLoader(numbers, batch, **options)
    if kind == "generator":
        return DataLoader(numbers, batch, shuffle=True, generator=torch.Generator().manual_seed(5), **options)
    if kind == "weighted":
        generator = torch.Generator().manual_seed(6)
        weights = [1.0 + i % 3 for i in range(size)]
        return DataLoader(numbers, batch, sampler=WeightedRandomSampler(weights, 40, generator=generator), **options)
    if kind == "own sampler":
        return DataLoader(numbers, batch, sampler=OddThenEven(size), **options)
    if kind == "stream":
        return DataLoader(Stream(size), batch, **options)
    if kind == "single":
        return DataLoader(numbers, batch_size=None, shuffle=True)
    if kind == "none":
        return None
    if kind == "stateful":
        from torchdata.stateful_dataloader import StatefulDataLoader

        return StatefulDataLoader(numbers, batch, shuffle=True, **options)
    raise ValueError(kind)


def model_of(config: dict[str, Any]) -> nn.Module:
    """Dropout draws from the global stream at every step."""
    torch.manual_seed(1)
    dropout = nn.Dropout(0.2 if config["noise"] else 0.0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), dropout, nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))


def main(config: dict[str, Any]) -> None:
    config = DEFAULTS | config
    torch.set_num_threads(1)
    random.seed(2)
    numpy.random.seed(3)
    model: Any = model_of(config)
    torch.manual_seed(4 + int(os.environ.get("RANK", "0")))
    if config["fsdp"]:
        from torch.distributed.fsdp import fully_shard

        torch.distributed.init_process_group("gloo")
        mesh = torch.distributed.init_device_mesh("cpu", (torch.distributed.get_world_size(),))
        for layer in (model[0], model[3]):
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    if config["sgd"]:
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [5, 9, 14], gamma=0.7)
    loader = loader_of(config)
    step = 0
    if config["helper"]:
        import outerloop.torch as olt

        model, optimizer, loader = olt.prepare(model, optimizer, loader, scheduler=scheduler)
        step = olt.start_step()
    if loader is not None:
        # What a script does between prepare and its loop must not move the streams that the loader restores.
        torch.rand(3)
    rank = os.environ.get("RANK", "0")
    with (Path(config["out"]) / f"losses-{rank}.jsonl").open("a") as log:
        while step < config["steps"]:
            for batch, ids in made_up() if loader is None else loader:
                loss = (model(batch if batch.dim() > 1 else batch[None]) - 0.3).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                scheduler.step()
                value = loss.item()
                seen = ids.tolist() if isinstance(ids, torch.Tensor) else [ids]
                log.write(json.dumps({"step": step, "loss": value.hex(), "ids": seen}) + "\n")
                log.flush()
                _signal_self(config["kill"], step, rank)
                if step == config["no_space_from"]:
                    # No file may grow beyond this: a save breaks off in the middle, as on a full disk.
                    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
                if config["helper"]:
                    olt.log_metrics({"loss": value, "step": step})
                    olt.checkpoint(model, optimizer, step=step, every=config["every"], scheduler=scheduler)
                step += 1
                if step == config["steps"]:
                    break


def made_up() -> Iterator[tuple[torch.Tensor, int]]:
    """Batches of a script without a loader, drawn from the global stream."""
    while True:
        yield torch.rand(4, 6), 0


def _signal_self(kill: dict[str, Any], step: int, rank: str) -> None:
    if kill.get("step") == step and str(kill.get("rank", rank)) == rank:
        os.kill(os.getpid(), getattr(signal, kill["signal"]))


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))

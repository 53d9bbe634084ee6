"""A loader that knows its position: which samples of which epoch have been given out, and how to go on from there.

Covered: torch's DataLoader over a map-style data set (one process: in the loader's own order, exactly; several:
split by a DistributedSampler that continues at a global sample under any number of ranks), loaders with a state of
their own (torchdata's StatefulDataLoader), and any other loader, sampler or stream by reading again what was already
given out.
Not covered: random transforms inside worker processes, whose streams begin anew with the workers.

torchdata's loader is not put in the place of the script's: it draws its shuffling seed when it is built, so that the
order, and with it the losses, would no longer be those of the plain script.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from outerloop.torch import rng
from outerloop.torch.facts import Reporter
from outerloop.torch.world import World

Order = dict[str, Any]
"""How an epoch's order of samples comes about again: {"source": "seeded", "seed", "epoch", "shuffle"}, or
{"source": "plain", "rng", "generators"}: the loader's own sampler under these random streams."""
_log = logging.getLogger("outerloop.torch")


class ContinuingSampler(DistributedSampler):  # type: ignore[misc, type-arg, unused-ignore]
    """torch's DistributedSampler, able to begin an epoch at any global sample and in a given order.

    Rank r of M takes samples r, r + M, … of what is left. With the rank count that the epoch began with, that is
    exactly what DistributedSampler would have given next.
    """

    def __init__(self, dataset: Any, world: World, *, shuffle: bool, seed: int, drop_last: bool) -> None:
        super().__init__(dataset, world.size, world.rank, shuffle, seed, drop_last)
        self.start = 0
        self.given_order: list[int] | None = None
        self.on_first: Callable[[], None] | None = None

    def epoch_order(self) -> list[int]:
        """All samples of the epoch in order, before they are split."""
        if self.given_order is not None:
            return self.given_order
        return seeded_order(_length(self.dataset), self.seed, self.epoch, self.shuffle)

    def __iter__(self) -> Iterator[int]:
        order = self.epoch_order()
        left = order[self.start :]
        if self.on_first is not None:
            self.on_first()
        over = len(left) % self.num_replicas
        if over and self.drop_last:
            left = left[: len(left) - over]
        elif over:
            # As DistributedSampler pads: with the first samples of the epoch, repeated as often as needed.
            missing = self.num_replicas - over
            left = left + (order * (missing // len(order) + 1))[:missing]
        return iter(left[self.rank :: self.num_replicas])


def _length(dataset: Any) -> int:
    return len(dataset)


def seeded_order(size: int, seed: int, epoch: int, shuffle: bool) -> list[int]:
    """The order that torch's DistributedSampler gives an epoch."""
    if not shuffle:
        return list(range(size))
    generator = torch.Generator()
    generator.manual_seed(seed + epoch)
    order: list[int] = torch.randperm(size, generator=generator).tolist()
    return order


class _SkipFirst:
    """A sampler or batch sampler without its first `count` items; calls `then` before the first one that is left."""

    def __init__(self, inner: Iterable[Any], count: int, then: Callable[[], None]) -> None:
        self.inner, self.count, self.then = inner, count, then

    def __iter__(self) -> Iterator[Any]:
        items = iter(self.inner)
        for _ in range(self.count):
            next(items, None)
        self.then()
        yield from items

    def __len__(self) -> int:
        return max(0, len(self.inner) - self.count)  # type: ignore[arg-type]


class WorkerSignals:
    """Lets a loader's worker process outlive the first SIGTERM, which a launcher sends to the whole process group.

    A worker that ends would end the training with an error before it can save. The second SIGTERM ends the worker, so
    that torch's and multiprocessing's own clean-up still works. The script's own `worker_init_fn` is called after.
    """

    def __init__(self, then: Callable[[int], None] | None) -> None:
        self.then = then

    def __call__(self, worker: int) -> None:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, _first_is_ignored)
        if self.then is not None:
            self.then(worker)


def _first_is_ignored(signum: int, frame: Any) -> None:
    signal.signal(signum, signal.SIG_DFL)


def _generators(loader: Any) -> list[torch.Generator]:
    """The generators that the loader's order may depend on, each once, in a fixed order."""
    holders = (loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None))
    found: list[torch.Generator] = []
    for holder in holders:
        generator = getattr(holder, "generator", None)
        if isinstance(generator, torch.Generator) and not any(generator is known for known in found):
            found.append(generator)
    return found


def _plain_map_loader(loader: Any) -> bool:
    return type(loader) is DataLoader and not isinstance(loader.dataset, IterableDataset)


def _draws_at_first(loader: Any) -> bool:
    """True when the whole order is drawn before the first sample is read, by one of torch's own samplers."""
    if not _plain_map_loader(loader) or (loader.batch_size and type(loader.batch_sampler) is not BatchSampler):
        return False
    sampler = loader.sampler
    # With replacement indices are drawn in pieces, harmless as long as the stream is the sampler's own.
    return type(sampler) in (SequentialSampler, RandomSampler, WeightedRandomSampler, SubsetRandomSampler)


def _rebuilt(loader: Any, **replaced: Any) -> Any:
    """A DataLoader with the same options except the replaced ones."""
    options: dict[str, Any] = {
        "num_workers": loader.num_workers,
        "collate_fn": loader.collate_fn,
        "pin_memory": loader.pin_memory,
        "timeout": loader.timeout,
        "worker_init_fn": loader.worker_init_fn,
        "generator": loader.generator,
        "in_order": getattr(loader, "in_order", True),
    }
    if loader.num_workers > 0:
        options |= {
            "multiprocessing_context": loader.multiprocessing_context,
            "prefetch_factor": loader.prefetch_factor,
            "persistent_workers": loader.persistent_workers,
        }
    if loader.pin_memory_device:
        options["pin_memory_device"] = loader.pin_memory_device
    return DataLoader(loader.dataset, **(options | replaced))


def _shuffles(sampler: Any) -> bool | None:
    """True for a plain shuffle, False for a plain sequence, None for any other order."""
    if type(sampler) is SequentialSampler:
        return False
    if type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == len(sampler.data_source):
        return True
    return sampler.shuffle if type(sampler) is DistributedSampler else None


class PositionedLoader:
    """Iterates the script's loader, counting; every other attribute is the loader's own.

    Each iteration is one epoch. The first iteration after a restore gives what was left of the interrupted epoch,
    which may be nothing. Only one iteration at a time is followed.
    """

    def __init__(self, loader: Any, world: World, seed: int, reporter: Reporter, *, sharded: bool = False) -> None:
        self._world = world
        self._reporter = reporter
        self._source = loader
        self._loader = loader
        self._sampler: ContinuingSampler | None = None
        self._epoch = -1
        self._active = False
        self._batches = 0
        self._base_samples = 0
        self._epoch_rng: rng.RngState | None = None
        self._epoch_generators: list[torch.Tensor] = []
        self._order: Order | None = None
        self._pending: dict[str, Any] | None = None
        self._pending_rng: rng.RngState | None = None
        self._same_world = True
        self._stateful = hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
        if isinstance(loader, DataLoader) and loader.num_workers > 0:
            loader.worker_init_fn = WorkerSignals(loader.worker_init_fn)
        if world.size > 1 or sharded:
            self._shard(seed)

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_loader" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.__dict__["_loader"], name)

    def _shard(self, seed: int) -> None:
        loader = self._source
        shuffle = None
        plain_batches = _plain_map_loader(loader) and (
            loader.batch_size is None or type(loader.batch_sampler) is BatchSampler
        )
        if plain_batches:
            shuffle = _shuffles(loader.sampler)
        if shuffle is None:
            _log.warning(
                "the loader's order is its own (%s): every rank reads what its loader gives, nothing is split",
                type(getattr(loader, "sampler", None) or loader).__name__,
            )
            return
        sampler = loader.sampler
        known = type(sampler) is DistributedSampler
        self._sampler = ContinuingSampler(
            loader.dataset,
            self._world,
            shuffle=shuffle,
            seed=sampler.seed if known else seed,
            drop_last=sampler.drop_last if known else bool(loader.drop_last),
        )
        drop_last = {} if loader.batch_size is None else {"drop_last": loader.drop_last}
        self._loader = _rebuilt(loader, batch_size=loader.batch_size, sampler=self._sampler, **drop_last)

    # position

    def state(self) -> dict[str, Any]:
        """Where the loader is, as plain values."""
        return {
            "mode": "sharded" if self._sampler is not None else "stateful" if self._stateful else "plain",
            "epoch": self._epoch,
            "active": self._active,
            "batches": self._batches,
            "samples": self._samples(),
            "base_samples": self._base_samples,
            "batch_size": getattr(self._loader, "batch_size", None),
            "rng": self._epoch_rng,
            "generators": self._epoch_generators,
            "generators_now": [g.get_state() for g in _generators(self._source)],
            "order": self._order,
            "seed": None if self._sampler is None else self._sampler.seed,
            "loader": self._source.state_dict() if self._stateful and self._active else None,
        }

    def _samples(self) -> int | None:
        """Global samples of this epoch that were given out; None when the loader's batches cannot be counted."""
        if not _plain_map_loader(self._loader):
            return None
        size = 1 if self._loader.batch_size is None else self._loader.batch_size
        if size is None or (self._loader.batch_size and type(self._loader.batch_sampler) is not BatchSampler):
            return None
        left = len(self._loader.dataset if self._sampler is not None else self._loader.sampler) - self._base_samples
        if self._sampler is None:
            return self._base_samples + min(self._batches * size, left)
        share = left // self._world.size if self._sampler.drop_last else -(-left // self._world.size)
        return self._base_samples + min(self._batches * size, share) * self._world.size

    def load(self, state: dict[str, Any], random_state: rng.RngState | None, *, same_world: bool) -> None:
        """Go on from a saved position at the next iteration. `random_state` is set just before the next batch."""
        self._pending = state
        self._pending_rng = random_state
        self._same_world = same_world
        self._epoch = state["epoch"]
        if self._sampler is not None and state["seed"] is not None:
            self._sampler.seed = state["seed"]

    def _restore_streams(self) -> None:
        if self._pending_rng is not None:
            rng.restore(self._pending_rng)
            self._pending_rng = None

    # iteration

    def __iter__(self) -> Iterator[Any]:
        pending, self._pending = self._pending, None
        if pending is not None and pending["active"]:
            batches = self._resumed(pending)
        else:
            self._restore_streams()
            if pending is not None and self._same_world:
                _set_generators(self._source, pending["generators_now"])
            batches = self._fresh()
        self._active = True
        try:
            for batch in batches:
                self._batches += 1
                self._reporter.saw_batch(*_counts(batch))
                self._reporter.beat()
                yield batch
        finally:
            self._active = False

    def _fresh(self) -> Any:
        self._epoch += 1
        self._batches = 0
        self._base_samples = 0
        self._begin_epoch(None)
        return iter(self._loader)

    def _begin_epoch(self, saved: dict[str, Any] | None) -> None:
        """Note (or set again) the streams that the epoch's order is drawn from."""
        if saved is not None and saved["rng"] is not None and self._same_world:
            rng.restore(saved["rng"])
            _set_generators(self._source, saved["generators"])
        self._epoch_rng = rng.captured()
        self._epoch_generators = [g.get_state() for g in _generators(self._source)]
        if self._sampler is not None:
            self._sampler.set_epoch(self._epoch)
            self._sampler.start, self._sampler.given_order, self._sampler.on_first = 0, None, None
            self._order = {
                "source": "seeded",
                "seed": self._sampler.seed,
                "epoch": self._epoch,
                "shuffle": self._sampler.shuffle,
            }
        else:
            self._order = {"source": "plain", "rng": self._epoch_rng, "generators": self._epoch_generators}

    def _resumed(self, saved: dict[str, Any]) -> Any:
        self._batches = saved["batches"]
        self._base_samples = 0
        if self._sampler is not None and saved["samples"] is not None:
            return self._resumed_split(saved)
        if self._stateful and self._same_world and saved["loader"] is not None:
            self._begin_epoch(saved)
            self._source.load_state_dict(saved["loader"])
            batches = iter(self._source)
            self._restore_streams()
            return batches
        if not self._same_world:
            _log.warning("this loader cannot continue under another number of ranks: its epoch begins anew")
            self._restore_streams()
            self._epoch -= 1
            return self._fresh()
        self._begin_epoch(saved)
        if not _draws_at_first(self._source):
            # Its order may depend on every draw since, so what was given out has to be read again.
            batches = iter(self._source)
            for _ in range(saved["batches"]):
                next(batches, None)
            self._restore_streams()
            return batches
        loader = self._source
        if loader.batch_size is None and loader.batch_sampler is None:
            rest = _SkipFirst(loader.sampler, saved["batches"], self._restore_streams)
            return iter(_rebuilt(loader, batch_size=None, sampler=rest))
        by_sample = saved["batch_size"] != loader.batch_size or saved["base_samples"] > 0
        if by_sample and saved["samples"] is not None:
            skipped = _SkipFirst(loader.sampler, saved["samples"], self._restore_streams)
            self._batches, self._base_samples = 0, saved["samples"]
            return iter(_rebuilt(loader, batch_size=loader.batch_size, sampler=skipped, drop_last=loader.drop_last))
        rest = _SkipFirst(loader.batch_sampler, saved["batches"], self._restore_streams)
        return iter(_rebuilt(loader, batch_sampler=rest))

    def _resumed_split(self, saved: dict[str, Any]) -> Any:
        sampler = self._sampler
        assert sampler is not None
        self._begin_epoch(saved)
        order = saved["order"]
        if order["source"] == "seeded":
            sampler.given_order = seeded_order(
                _length(sampler.dataset), order["seed"], order["epoch"], order["shuffle"]
            )
        else:
            sampler.given_order = self._plain_order(order)
        # The base counts from here: a batch may hold another number of samples than before.
        self._order = order
        self._batches, self._base_samples = 0, min(saved["samples"], len(sampler.given_order))
        sampler.start = self._base_samples
        sampler.on_first = self._restore_streams
        return iter(self._loader)

    def _plain_order(self, order: Order) -> list[int]:
        """The order that one process would have used: its sampler under the streams its epoch began with."""
        before = rng.captured()
        generators_before = [g.get_state() for g in _generators(self._source)]
        rng.restore(order["rng"])
        _set_generators(self._source, order["generators"])
        # Through a DataLoader, which draws from the same streams before its sampler does.
        size = len(self._source.dataset)
        indices: Any = DataLoader(
            range(size),  # type: ignore[arg-type, unused-ignore]
            batch_size=None,
            sampler=self._source.sampler,
            generator=self._source.generator,
        )
        plain = [int(index) for index in indices]
        rng.restore(before)
        _set_generators(self._source, generators_before)
        return plain


def _set_generators(loader: Any, states: list[torch.Tensor]) -> None:
    for generator, state in zip(_generators(loader), states, strict=False):
        generator.set_state(state)


def _counts(batch: Any) -> tuple[int | None, int | None]:
    """(samples, tokens) of a batch as far as its shape tells: tokens only where there are `input_ids`."""
    if isinstance(batch, Mapping):
        ids = batch.get("input_ids")
        if isinstance(ids, torch.Tensor) and ids.dim() > 0:
            return ids.shape[0], ids.numel()
        batch = next((value for value in batch.values() if isinstance(value, torch.Tensor)), None)
    elif isinstance(batch, list | tuple):
        batch = next((value for value in batch if isinstance(value, torch.Tensor)), None)
    if isinstance(batch, torch.Tensor) and batch.dim() > 0:
        return batch.shape[0], None
    return None, None

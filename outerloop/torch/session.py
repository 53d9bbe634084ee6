"""One training process from `prepare` to its end: what the functions of the package do.

Covered: restoring, saving, stopping, reporting, in the order that makes them safe. Not covered: the pieces themselves
(`store`, `state`, `loader`, `rng`, `stop`, `facts`).

Saving: every rank writes its parts into a hidden folder and hashes them; only when all have succeeded does the main
rank write the manifest and rename the folder into place. Restoring: the newest checkpoint whose every part re-hashes,
the hashing shared by the ranks and the answer agreed by them.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from outerloop.torch import facts, rng, store
from outerloop.torch.loader import PositionedLoader
from outerloop.torch.state import (
    COMMON_FILE,
    MODEL_FILE,
    SHARDED,
    CheckpointMismatch,
    is_sharded,
    load_model,
    rank_file,
    read_back,
    save_model,
    save_readable,
)
from outerloop.torch.stop import EXIT_STOPPED, Stop
from outerloop.torch.world import World, backend, device

GRACE_SECONDS = 30.0
"""How long torchrun waits between SIGTERM and SIGKILL (its --shutdown-timeout); Slurm's default KillWait too."""
# DistributedSampler adds the epoch to the seed and torch wants the sum below 2^63.
_SEED_RANGE = 2**31
_log = logging.getLogger("outerloop.torch")


class Session:
    """The state behind the package's functions."""

    @classmethod
    def opened(cls, before: Session | None) -> Session:
        """A new session; it takes over the process group and the handlers of the one before."""
        if before is None:
            return cls(World())
        before._ended = True
        return cls(before.world)

    def __init__(self, world: World) -> None:
        self.world = world
        folder = os.environ.get("OUTERLOOP_CKPT_DIR")
        self.root = Path(folder) if folder else None
        self.start_step = 0
        self.reporter = facts.reporter()
        self.stop = Stop(world)
        self._optimizer: Any = None
        self._scheduler: Any = None
        self._loader: PositionedLoader | None = None
        self._ended = False
        self._warned_grace = False

    # prepare

    def prepare(self, model: Any, optimizer: Any, dataloader: Any, scheduler: Any) -> tuple[Any, Any, Any]:
        """See `outerloop.torch.prepare`."""
        self._optimizer, self._scheduler = optimizer, scheduler
        if self.root is not None:
            # Before anything slow, so that a signal during the restore is not lost.
            self.stop.listen()
        where = device()
        if where.type != "cpu" and not is_sharded(model) and any(p.device.type == "cpu" for p in model.parameters()):
            model.to(where)
        self._describe(where)
        found = self._restore(model, optimizer, scheduler)
        model = self._distributed(model, where)
        if dataloader is not None:
            dataloader = self._positioned(dataloader, found)
        elif found is not None and found["same_world"]:
            rng.restore(found["rank"]["rng"])
        if self.root is not None and self.world.rank == 0:
            (self.root / store.REQUEUE).unlink(missing_ok=True)
        self.world.wait_for_all()
        atexit.register(self._end)
        self.reporter.beat(now=True)
        return model, optimizer, dataloader

    def _describe(self, where: torch.device) -> None:
        report = self.reporter
        report.device = str(where)
        report.backend = backend()
        report.torch_version = str(torch.__version__)
        if where.type == "cuda":
            report.device_name = torch.cuda.get_device_name(where)
            report.device_memory = lambda: (
                torch.cuda.max_memory_allocated(where) / 1e6,
                torch.cuda.max_memory_reserved(where) / 1e6,
            )

    def _distributed(self, model: Any, where: torch.device) -> Any:
        trained = any(parameter.requires_grad for parameter in model.parameters())
        if self.world.size == 1 or isinstance(model, DistributedDataParallel) or is_sharded(model) or not trained:
            return model
        return DistributedDataParallel(model, device_ids=[where.index] if where.type == "cuda" else None)

    def _positioned(self, loader: Any, found: dict[str, Any] | None) -> PositionedLoader:
        generator = getattr(loader, "generator", None)
        own_seed = generator.initial_seed() if generator is not None else torch.initial_seed()
        seed = self.world.from_main(own_seed % _SEED_RANGE)
        saved = None if found is None else found["rank"]["loader"]
        sharded = saved is not None and saved["mode"] == "sharded"
        self._loader = PositionedLoader(loader, self.world, seed, self.reporter, sharded=sharded)
        if found is not None:
            same_world = found["same_world"]
            random_state = found["rank"]["rng"] if same_world else None
            if saved is None:
                _log.warning("the checkpoint holds no loader position: the loader begins anew")
                if random_state is not None:
                    rng.restore(random_state)
            else:
                self._loader.load(saved, random_state, same_world=same_world)
        return self._loader

    # restore

    def _restore(self, model: Any, optimizer: Any, scheduler: Any) -> dict[str, Any] | None:
        """Load the newest valid checkpoint; returns what the loader and the random streams need, None without one."""
        if self.root is None:
            return None
        began = time.monotonic()
        self.root.mkdir(parents=True, exist_ok=True)
        if self.world.rank == 0:
            store.sweep(self.root)
        chosen = self._newest_valid()
        if chosen is None:
            return None
        folder, manifest = chosen
        common = read_back(folder / COMMON_FILE)
        _require_same_types(folder, common["types"], optimizer, scheduler)
        load_model(folder, manifest.format, model, optimizer, self.world)
        same_world = manifest.world_size == self.world.size
        rank_part = read_back(folder / rank_file(self.world.rank if same_world else 0))
        self._load_scheduler(folder, common["scheduler"], scheduler)
        if not same_world:
            _log.warning(
                "continuing a training of %d ranks with %d: at the same global sample, not bit for bit",
                manifest.world_size,
                self.world.size,
            )
        self.start_step = manifest.step + 1
        self.reporter.start_step = self.start_step
        self.reporter.restored_step = manifest.step
        self.reporter.restore_seconds = time.monotonic() - began
        return {"rank": rank_part, "same_world": same_world}

    def _load_scheduler(self, folder: Path, saved: Any, scheduler: Any) -> None:
        if scheduler is None:
            return
        try:
            scheduler.load_state_dict(saved)
        except Exception as error:
            raise CheckpointMismatch(f"checkpoint {folder.name} does not fit the scheduler: {error}") from error

    def _newest_valid(self) -> tuple[Path, store.Manifest] | None:
        assert self.root is not None
        names = self.world.from_main([folder.name for folder in store.published(self.root)])
        for name in names:
            folder = self.root / name
            manifest = store.read_manifest(folder)
            broken = [store.MANIFEST]
            if manifest is not None:
                broken = store.broken_parts(folder, manifest, share=self.world.rank, shares=self.world.size)
            every = sorted({part for parts in self.world.gathered(broken) for part in parts})
            if not every and manifest is not None:
                return folder, manifest
            if self.world.rank == 0:
                _log.warning("checkpoint %s is torn (%s): an older one is tried", name, ", ".join(every))
                store.set_aside(folder)
        if names and self.world.rank == 0:
            _log.warning("none of the checkpoints in %s is whole: training begins at step 0", self.root)
        return None

    # checkpoint

    def checkpoint(self, model: Any, optimizer: Any, step: int, every: int | None, scheduler: Any) -> bool:
        """See `outerloop.torch.checkpoint`."""
        self.reporter.step_ended(step)
        saved = False
        if self.root is not None:
            stopping = self.stop.agreed()
            due = every is None or (every > 0 and step > 0 and step % every == 0)
            if due or stopping:
                optimizer = self._optimizer if optimizer is None else optimizer
                scheduler = self._scheduler if scheduler is None else scheduler
                saved = self._save(model, optimizer, scheduler, step)
            if stopping:
                self._leave(step, saved)
        self.reporter.beat()
        self.reporter.resume_clock()
        return saved

    def _save(self, model: Any, optimizer: Any, scheduler: Any, step: int) -> bool:
        assert self.root is not None
        began = time.monotonic()
        nonce = self.world.from_main(uuid.uuid4().hex[:8])
        folder = store.saving_folder(self.root, step, nonce)
        error, format = None, ""
        parts: dict[str, store.Part] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as caught:
            error = str(caught)
        # Nobody may enter the collective save unless everybody can: a missing rank would leave the others waiting.
        if not any(self.world.gathered(error)):
            try:
                format = save_model(folder, model, optimizer, self.world)
                names = self._save_own_parts(folder, optimizer, scheduler, format)
                parts = {name: store.hashed(folder / name, sync=True) for name in names}
            except (OSError, RuntimeError, ValueError, TypeError, AttributeError) as caught:
                error = f"{type(caught).__name__}: {caught}"
        answers = self.world.gathered((error, parts))
        errors = [text for text, _ in answers if text]
        if not errors and self.world.rank == 0:
            try:
                self._publish(folder, format, step, {n: p for _, found in answers for n, p in found.items()})
            except OSError as caught:
                errors = [str(caught)]
        errors = self.world.from_main(errors)
        if errors:
            self.reporter.save_failed()
            if self.world.rank == 0:
                shutil.rmtree(folder, ignore_errors=True)
                _log.error("the checkpoint of step %d could not be saved: %s", step, "; ".join(sorted(set(errors))))
            return False
        size = self.world.from_main(sum(part.bytes for _, found in answers for part in found.values()))
        self.reporter.saved(step, time.monotonic() - began, size)
        self._warn_about_grace()
        return True

    def _save_own_parts(self, folder: Path, optimizer: Any, scheduler: Any, format: str) -> list[str]:
        """Write what is this rank's own; returns the names of all files that this rank has to hash."""
        rank = self.world.rank
        own = {"rng": rng.captured(), "loader": None if self._loader is None else self._loader.state()}
        save_readable(own, folder / rank_file(rank))
        if rank == 0:
            common = {
                "scheduler": None if scheduler is None else scheduler.state_dict(),
                "types": {"optimizer": _type_name(optimizer), "scheduler": _type_name(scheduler)},
            }
            save_readable(common, folder / COMMON_FILE)
        names = [rank_file(rank)]
        if format == SHARDED:
            # torch's distributed checkpoint names each file by the rank that wrote it.
            names += sorted(path.name for path in folder.glob(f"__{rank}_*.distcp"))
        if rank == 0:
            names += [COMMON_FILE, ".metadata" if format == SHARDED else MODEL_FILE]
        return names

    def _publish(self, folder: Path, format: str, step: int, parts: dict[str, store.Part]) -> None:
        assert self.root is not None
        manifest = store.Manifest(step, format, self.world.size, parts)
        store.publish(self.root, folder, manifest, str(torch.__version__))
        store.prune(self.root)

    def _warn_about_grace(self) -> None:
        needed = self.reporter.stop_seconds
        if needed is not None and needed > GRACE_SECONDS and self.world.rank == 0 and not self._warned_grace:
            self._warned_grace = True
            _log.warning(
                "a step plus a checkpoint took %.0f s, longer than the %.0f s between SIGTERM and SIGKILL: a stop may "
                "lose the steps since the last checkpoint; save more often or ask for an earlier signal",
                needed,
                GRACE_SECONDS,
            )

    # the end

    def _leave(self, step: int, saved: bool) -> None:
        """Exit 75 with the marker, or 1 when the stop's checkpoint could not be saved."""
        assert self.root is not None
        if self.world.rank == 0 and saved:
            marker = {
                "schema": store.SCHEMA,
                "step": step,
                "checkpoint": store.checkpoint_name(step),
                "signal": self.stop.signal_name,
                "world_size": self.world.size,
                "at": store.utc_now(),
            }
            store.written_atomically(self.root / store.REQUEUE, marker)
        # The launcher ends all ranks as soon as one is gone, so nobody goes before the marker is there.
        self.world.wait_for_all()
        self._end("stopped" if saved else "failed")
        raise SystemExit(EXIT_STOPPED if saved else 1)

    def _end(self, state: str | None = None) -> None:
        if self._ended:
            return
        self._ended = True
        failed = state is None and hasattr(sys, "last_value")
        self.reporter.state = state or ("failed" if failed else "finished")
        self.reporter.beat(now=True)
        if not failed:
            # After an error other ranks may never come: waiting for them would hide the error.
            try:
                self.stop.settle()
                self.world.close()
            except RuntimeError as error:
                _log.warning("the other ranks were gone before the end: %s", error)


def _type_name(value: Any) -> str | None:
    return None if value is None else type(value).__name__


def _require_same_types(folder: Path, saved: dict[str, str | None], optimizer: Any, scheduler: Any) -> None:
    """torch loads the state of one optimizer into another without a word, and fails or misbehaves steps later."""
    for what, value in (("optimizer", optimizer), ("scheduler", scheduler)):
        if value is not None and saved[what] != _type_name(value):
            held = saved[what] or f"no {what}"
            raise CheckpointMismatch(
                f"checkpoint {folder.name} does not fit the script: it holds {held}, "
                f"and the script's {what} is {_type_name(value)}"
            )

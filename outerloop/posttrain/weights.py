"""Weights from a trainer to a server through a folder: what works between separate steps of a job, and on CPUs.

Covered: a new folder per version, on disk before it is named; generation paused while every worker loads it; the prefix
cache emptied; the version confirmed; the version before deleted. A file that a server may have mapped is never written
again. Adapters are merged into a copy, so that the base never drifts. Not covered: NCCL, trainers of several processes.
"""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path
from typing import Any

from outerloop.posttrain.client import Client, Unavailable
from outerloop.posttrain.serve import ServerError

__all__ = ["Weights", "merged_state"]

LOAD_SECONDS = 1800.0
"""A model of hundreds of gigabytes from a shared file system; a smaller one is there sooner."""


def merged_state(model: Any) -> dict[str, Any]:
    """Name -> tensor of the model as the server knows it: each adapter added to a copy of its layer.

    Merging in place and subtracting again, as trl does, leaves rounding errors in the base at every version.
    """
    from peft import PeftModel
    from peft.tuners.tuners_utils import BaseTunerLayer

    if not isinstance(model, PeftModel):
        return dict(model.state_dict())
    found: dict[str, Any] = {}
    layers = {name: module for name, module in model.named_modules() if isinstance(module, BaseTunerLayer)}
    for name, value in model.state_dict().items():
        owner, _, rest = name.partition(".base_layer.")
        if rest and owner in layers:
            if rest == "weight":
                for adapter in layers[owner].active_adapters:
                    delta = layers[owner].get_delta_weight(adapter)
                    value = (value.float() + delta.float()).to(value.dtype)
            found[f"{owner}.{rest}".removeprefix("base_model.model.")] = value
        elif not any(name.startswith(f"{layer}.") for layer in layers):
            found[name.removeprefix("base_model.model.")] = value
    return found


class Weights:
    """The versions of one training's weights, below `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._run = secrets.token_hex(4)
        self._count = 0
        self._served: Path | None = None
        # a process that was killed left its versions; the server that had mapped them died with it
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)

    def push(self, model: Any, client: Client) -> str:
        """Serve the model as it is now; the version's name. Raises ServerError."""
        self._count += 1
        version = f"{self._count:06d}-{self._run}"
        fresh = self._published(model, version)
        before, self._served = self._served, fresh
        try:
            client.post("/pause?mode=wait", timeout_sec=LOAD_SECONDS)
            _each(client, "outerloop_load", version, str(fresh), version)
            client.post("/reset_prefix_cache", timeout_sec=LOAD_SECONDS)
            _each(client, "outerloop_version", version)
            client.post("/resume", timeout_sec=LOAD_SECONDS)
        except Unavailable as error:
            raise ServerError(f"the server did not take new weights: {error}") from None
        if before is not None:
            shutil.rmtree(before)
        return version

    def close(self) -> None:
        """Delete what is left. The server must be gone."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _published(self, model: Any, version: str) -> Path:
        from peft import PeftModel

        partial, final = self._folder / f".{version}.partial", self._folder / version
        whole = model.get_base_model() if isinstance(model, PeftModel) else model
        whole.save_pretrained(partial, state_dict=merged_state(model), safe_serialization=True)
        for path in [*partial.iterdir(), partial]:
            _flush(path)
        partial.rename(final)
        _flush(self._folder)
        return final


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _each(client: Client, method: str, version: str, *arguments: str) -> None:
    """Call a method of every worker (beside/outerloop_worker.py) and see that each answers with the version."""
    answer = client.post("/collective_rpc", {"method": method, "args": list(arguments)}, timeout_sec=LOAD_SECONDS)
    found = answer.get("results") if isinstance(answer, dict) else None
    if not found or any(each != version for each in found):
        raise ServerError(f"the server's workers do not all have version {version} of the weights")

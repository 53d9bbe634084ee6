"""Every random stream of a process, as plain values that `torch.load(weights_only=True)` accepts.

Covered: Python's `random`, NumPy's legacy global state (if NumPy is loaded), torch's CPU stream, this rank's GPU
stream.
Not covered: generators that a script makes itself, except those of its loader and sampler.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import torch

RngState = dict[str, Any]


def captured() -> RngState:
    """The state of every stream. Draws nothing."""
    state: RngState = {"python": random.getstate(), "torch": torch.get_rng_state()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, position, has_gauss, gauss = numpy.random.get_state(legacy=True)
        state["numpy"] = (str(name), torch.tensor(keys.tolist()), int(position), int(has_gauss), float(gauss))
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore(state: RngState) -> None:
    """Set every stream that the state knows and this process has."""
    version, internal, gauss_next = state["python"]
    random.setstate((version, tuple(internal), gauss_next))
    torch.set_rng_state(state["torch"])
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in state:
        name, keys, position, has_gauss, gauss = state["numpy"]
        words = numpy.array(keys.tolist(), dtype=numpy.uint32)
        numpy.random.set_state((name, words, position, has_gauss, gauss))
    if torch.cuda.is_available() and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])

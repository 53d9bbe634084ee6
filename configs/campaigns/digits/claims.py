"""The task of the example: is a typed digit what the scan shows?

An item is a noisy scan of a handwritten digit and the digit that somebody typed for it, the claim. It passes when the
claim is right. A gate gives every item a margin: above 0 it lets the item pass. Letting a wrong claim pass
(fail -> pass) and stopping a right one (pass -> fail) are the two errors that the campaign counts.

Covers the items of a split, the models, and scoring items with checkpoints. Not covered: how a split is drawn
(split.py), training (train.py) and reports (scoring.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

PIXELS = 64
SIDE = 8
DIGITS = 10

# One thread and double precision: another machine then gives the same counts, and two jobs share two cores.
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)


@dataclass(frozen=True)
class Items:
    """Some items: `inputs` of shape (n, 74), pixels in 0..1 and the claim one-hot; `targets` 1 where it is right."""

    numbers: np.ndarray
    inputs: torch.Tensor
    targets: torch.Tensor


def items_of(split: Path, role: str) -> Items:
    """The items that a split gives to a role: development, validation, test or reserve."""
    with np.load(split / "items.npz") as stored:
        numbers = np.array(json.loads((split / "roles.json").read_text(encoding="utf-8"))[role])
        claims = np.eye(DIGITS)[stored["claims"][numbers]]
        inputs = np.concatenate([stored["scans"][numbers], claims], axis=1)
        return Items(numbers, torch.tensor(inputs), torch.tensor(stored["targets"][numbers].astype(float)))


class Linear(nn.Module):
    """A weighted sum of pixels and claim. It can't weigh pixels by the claim, so it can't do the task."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.sum = nn.Linear(PIXELS + DIGITS, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.sum(inputs).squeeze(1)


class Plain(nn.Module):
    """Two hidden layers over pixels and claim together."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(PIXELS + DIGITS, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layers(inputs).squeeze(1)


class Reader(nn.Module):
    """One hidden layer reads the scan into a score per digit; the margin is the score of the claimed one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scores = nn.Sequential(nn.Linear(PIXELS, width), nn.ReLU(), nn.Linear(width, DIGITS))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return (self.scores(inputs[:, :PIXELS]) * inputs[:, PIXELS:]).sum(dim=1)


class Filters(nn.Module):
    """Like Reader, with 3 x 3 filters in place of the hidden layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scores = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(width * (SIDE // 2) ** 2, DIGITS),
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        scans = inputs[:, :PIXELS].reshape(-1, 1, SIDE, SIDE)
        return (self.scores(scans) * inputs[:, PIXELS:]).sum(dim=1)


MODELS: dict[str, type[nn.Module]] = {"linear": Linear, "plain": Plain, "reader": Reader, "filters": Filters}


def built(config: Mapping[str, Any]) -> nn.Module:
    """An untrained model as its config describes it."""
    return MODELS[config["model"]](config["width"])


def read_config(path: Path) -> dict[str, Any]:
    """A training config. The campaign writes it as JSON, which is YAML too, so no YAML parser is needed."""
    return dict(json.loads(path.read_text(encoding="utf-8")))


def margins(config: Mapping[str, Any], checkpoint: Path, items: Items) -> np.ndarray:
    """The margins that a checkpoint gives to items."""
    model = built(config)
    model.load_state_dict(torch.load(checkpoint, weights_only=True))
    model.eval()
    with torch.no_grad():
        return np.asarray(model(items.inputs))

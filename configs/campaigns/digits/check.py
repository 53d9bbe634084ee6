"""Check claims with a packed gate: `check.py ITEMS.npz NUMBER...` prints pass, fail or rejected for each item."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
from claims import DIGITS, Items, margins, read_config

HERE = Path(__file__).resolve().parent


def main() -> None:
    gate = json.loads((HERE / "gate.json").read_text(encoding="utf-8"))
    numbers = np.array([int(word) for word in sys.argv[2:]])
    with np.load(sys.argv[1]) as stored:
        claims = stored["claims"][numbers]
        inputs = np.concatenate([stored["scans"][numbers], np.eye(DIGITS)[claims]], axis=1)
    items = Items(numbers, torch.tensor(inputs), torch.zeros(len(numbers)))
    scored = [
        margins(read_config(HERE / f"{member}.json"), HERE / f"{member}.checkpoint", items)
        for member in gate["members"]
    ]
    band = gate["reject_band"]
    for number, claim, margin in zip(numbers, claims, np.mean(scored, axis=0), strict=True):
        said = "pass" if margin > 0 else "fail"
        if band and band[0] <= margin <= band[1]:
            said = "rejected"
        print(f"item {number}: claimed {claim}: {said} (margin {margin:+.2f})")


if __name__ == "__main__":
    main()

"""The split of one generation: scikit-learn's 1797 scans of digits, each with a claim, divided among four roles.

The items are the same in every generation: their noise and claims come from ITEMS_SEED. Only who gets which changes
with --seed. Test and reserve are carved out of what the one before left, so that no two roles share an item.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from scoring import write_whole
from sklearn.datasets import load_digits

ITEMS_SEED = 1797
# Standard deviation of the scanner's noise, where a pixel goes from 0 to 1. It makes about one claim in ten doubtful.
NOISE = 0.3


def items() -> dict[str, np.ndarray]:
    """All items: scans of shape (1797, 64) in 0..1, the digit claimed for each, and whether the claim is right."""
    random = np.random.default_rng(ITEMS_SEED)
    digits = load_digits()
    scans = np.clip(digits.data / 16 + random.normal(0.0, NOISE, digits.data.shape), 0.0, 1.0)
    right = random.random(len(scans)) < 0.5
    # A wrong claim is one of the nine other digits.
    claims = np.where(right, digits.target, (digits.target + random.integers(1, 10, len(scans))) % 10)
    return {"scans": scans, "claims": claims, "targets": right}


def divided(count: int, seed: int, validation: float, held_out: float) -> dict[str, list[int]]:
    """Role -> item numbers. Fractions are of what remains: test first, then reserve, then validation."""
    left = np.random.default_rng(seed).permutation(count).tolist()
    roles = {}
    for role, fraction in (("test", held_out), ("reserve", held_out), ("validation", validation)):
        size = round(fraction * len(left))
        roles[role], left = sorted(left[:size]), left[size:]
    return {**roles, "development": sorted(left)}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seed", type=int, required=True)
    options.add_argument("--validation-fraction", type=float, required=True)
    options.add_argument("--held-out-fraction", type=float, required=True)
    options.add_argument("--output", type=Path, required=True, help="folder to make")
    given = options.parse_args()
    made = items()
    roles = divided(len(made["targets"]), given.seed, given.validation_fraction, given.held_out_fraction)
    test = made["targets"][roles["test"]]
    given.output.mkdir()
    np.savez(given.output / "items.npz", **made)
    write_whole(given.output / "roles.json", json.dumps(roles))
    totals = {"fail_count": int((~test).sum()), "pass_count": int(test.sum())}
    write_whole(given.output / "totals.json", json.dumps(totals))
    print(", ".join(f"{role} {len(numbers)}" for role, numbers in roles.items()), totals)


if __name__ == "__main__":
    main()

"""Average the margins that several runs gave to the development items: the soft targets of a student."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from scoring import read_scores, write_whole


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--margins", type=Path, required=True)
    options.add_argument("--output", type=Path, required=True)
    given = options.parse_args()
    scored = [read_scores(Path(m["scores"])) for m in json.loads(given.margins.read_text(encoding="utf-8"))]
    numbers = scored[0][0]
    if any(not np.array_equal(numbers, other) for other, _, _ in scored):
        raise SystemExit("the members were not scored on the same items")
    mean = np.mean([found for _, found, _ in scored], axis=0)
    write_whole(given.output, json.dumps({"items": numbers.tolist(), "margins": mean.tolist()}) + "\n")
    print(f"{len(scored)} members, {len(numbers)} items")


if __name__ == "__main__":
    main()

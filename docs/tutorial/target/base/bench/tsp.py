"""Solve every instance from several random starts and write the tours to `out/tours.json`.

    TSP_SEED=1 python3 -m bench.tsp && python3 -m bench.score out/tours.json

The tours are the result. Their length is computed by `bench.score`, in a process that never imports the solver.
"""

import json
import os
import random
import sys
from pathlib import Path

from solver.tsp import solve

from bench.tsplib import OPTIMUM, STARTS, distances

TOURS = Path("out/tours.json")


def seed_from_environment() -> int:
    """The value of TSP_SEED, an integer of at least 1; 0 would mean that nobody drew one."""
    text = os.environ.get("TSP_SEED", "")
    if not text.isdecimal() or int(text) < 1:
        sys.exit(f"bench.tsp: TSP_SEED must be an integer of at least 1, not {text!r}")
    return int(text)


def main() -> None:
    """Write the tours and say where they are."""
    seed = seed_from_environment()
    tours: dict[str, list[list[int]]] = {}
    for name in OPTIMUM:
        distance = distances(name)
        # a generator for each start: a solver that draws more numbers does not shift the starts that follow
        tours[name] = [solve(distance, random.Random(f"{seed}/{name}/{start}")) for start in range(STARTS)]
    TOURS.parent.mkdir(exist_ok=True)
    TOURS.write_text(json.dumps(tours), encoding="ascii")
    print(f"{STARTS} tours for each of {', '.join(tours)} in {TOURS}")


if __name__ == "__main__":
    main()

"""Print the metric of the tours that `bench.tsp` wrote. It trusts the file for nothing but the order of the cities.

tour_ratio    mean over the instances of (mean tour length / optimal length): 1.0 is optimal, lower is better
worst_ratio    the largest single ratio, for the contract's guard
berlin52 …    mean tour length of each instance, for a person to read
"""

import json
import sys
from fractions import Fraction
from pathlib import Path

from bench.tsplib import OPTIMUM, STARTS, distances, length

DECIMALS = 6


def score(tours: object) -> dict[str, float]:
    """The metrics of `{instance: [tour, ...]}`. Raises ValueError when a tour is missing, in excess or not a tour."""
    if not isinstance(tours, dict) or set(tours) != set(OPTIMUM):
        raise ValueError(f"tours of exactly these instances were asked for: {', '.join(OPTIMUM)}")
    ratios: list[Fraction] = []
    worst = Fraction(0)
    means: dict[str, float] = {}
    for name, optimum in OPTIMUM.items():
        distance = distances(name)
        if not isinstance(tours[name], list) or len(tours[name]) != STARTS:
            raise ValueError(f"{name}: exactly {STARTS} tours were asked for")
        lengths = [length(tour, distance) for tour in tours[name]]
        ratios.append(Fraction(sum(lengths), STARTS * optimum))
        worst = max(worst, Fraction(max(lengths), optimum))
        means[name] = round(sum(lengths) / STARTS, DECIMALS)
    mean = sum(ratios, Fraction(0)) / len(ratios)
    return {"tour_ratio": round(float(mean), DECIMALS), "worst_ratio": round(float(worst), DECIMALS), **means}


def main() -> None:
    """Read the file named on the command line, print one JSON object."""
    path = Path(sys.argv[1])
    try:
        print(json.dumps(score(json.loads(path.read_text(encoding="ascii")))))
    except (OSError, ValueError, RecursionError) as error:
        sys.exit(f"bench.score: {path}: {error}")


if __name__ == "__main__":
    main()

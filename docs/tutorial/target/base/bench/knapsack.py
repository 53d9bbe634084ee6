"""Solve the knapsack instances and print how much of the optimal value was packed: 1.0 is optimal, higher is better.

    python3 -m bench.knapsack

The instances are weakly correlated (a value differs from its weight by at most a tenth of the range), as in Pisinger,
"Where are the hard knapsack problems?", 2005. They and the solver draw no random number: the result is deterministic.
"""

import json
import sys
from collections.abc import Iterator

from solver.knapsack import solve

INSTANCES = 3
ITEMS = 60
LARGEST_WEIGHT = 100
CORRELATION = LARGEST_WEIGHT // 10


def minimal_standard(state: int) -> Iterator[int]:
    """The generator of Park and Miller, 1988: the same numbers with every version of Python."""
    while True:
        state = state * 16807 % 2147483647
        yield state


def instance(number: int) -> tuple[list[int], list[int], int]:
    """Values, weights and capacity (half of all weights) of an instance; numbers start at 1."""
    draws = minimal_standard(number)
    weights = [1 + next(draws) % LARGEST_WEIGHT for _ in range(ITEMS)]
    values = [max(1, weight - CORRELATION + next(draws) % (2 * CORRELATION + 1)) for weight in weights]
    return values, weights, sum(weights) // 2


def optimal_value(values: list[int], weights: list[int], capacity: int) -> int:
    """The value of an optimal packing, by dynamic programming over the capacity."""
    best = [0] * (capacity + 1)
    for value, weight in zip(values, weights, strict=True):
        for room in range(capacity, weight - 1, -1):
            packed = best[room - weight] + value
            if packed > best[room]:
                best[room] = packed
    return best[capacity]


def main() -> None:
    """Print the mean ratio of packed to optimal value."""
    total = 0.0
    for number in range(1, INSTANCES + 1):
        values, weights, capacity = instance(number)
        chosen = solve(list(values), list(weights), capacity)
        if len(set(chosen)) != len(chosen) or not set(chosen) <= set(range(ITEMS)):
            sys.exit(f"bench.knapsack: instance {number}: an item was chosen twice or does not exist")
        if sum(weights[item] for item in chosen) > capacity:
            sys.exit(f"bench.knapsack: instance {number}: the chosen items are heavier than the capacity")
        total += sum(values[item] for item in chosen) / optimal_value(values, weights, capacity)
    print(json.dumps({"value_ratio": round(total / INSTANCES, 6)}))


if __name__ == "__main__":
    main()

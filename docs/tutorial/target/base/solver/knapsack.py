"""A 0/1 knapsack solver: fill with the lightest items, then exchange items while that gains value."""

from collections.abc import Iterator
from itertools import combinations

from common.descent import descend

Items = tuple[int, ...]


def solve(values: list[int], weights: list[int], capacity: int) -> list[int]:
    """Numbers of the chosen items, ascending; their weights sum to at most `capacity`."""
    items = range(len(values))
    singles = [(item,) for item in items]
    pairs = list(combinations(items, 2))
    chosen = [False] * len(values)
    room = capacity

    def exchange(move: tuple[Items, Items]) -> None:
        nonlocal room
        out, into = move
        for item in out:
            chosen[item] = False
            room += weights[item]
        for item in into:
            chosen[item] = True
            room -= weights[item]

    def moves() -> Iterator[tuple[int, tuple[Items, Items]]]:
        """Add one item; exchange one for one, one for two, two for one."""
        for outs, intos in (([()], singles), (singles, singles), (singles, pairs), (pairs, singles)):
            for out in outs:
                lost = sum(values[item] for item in out)
                freed = sum(weights[item] for item in out)
                for into in intos:
                    if not all(chosen[item] for item in out):
                        break
                    if any(chosen[item] for item in into):
                        continue
                    if sum(weights[item] for item in into) <= room + freed:
                        yield lost - sum(values[item] for item in into), (out, into)

    for item in sorted(items, key=lambda item: (weights[item], item)):
        if weights[item] <= room:
            exchange(((), (item,)))
    descend(moves, exchange)
    return [item for item in items if chosen[item]]

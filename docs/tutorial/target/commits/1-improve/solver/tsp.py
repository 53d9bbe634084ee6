"""A travelling-salesman solver: nearest neighbour from a random city, then 2-opt."""

import random
from collections.abc import Iterator

from common.descent import descend


def solve(distance: list[list[int]], rng: random.Random) -> list[int]:
    """A tour through all cities, as a list of city numbers counted from 0.

    `distance[a][b]` is the symmetric length of the edge between cities a and b.
    """
    tour = nearest_neighbour(distance, rng.randrange(len(distance)))
    two_opt(tour, distance)
    return tour


def nearest_neighbour(distance: list[list[int]], start: int) -> list[int]:
    """The tour that always goes on to the nearest city not yet visited; the lower number wins a tie."""
    tour = [start]
    unvisited = [city for city in range(len(distance)) if city != start]
    while unvisited:
        row = distance[tour[-1]]
        nearest = min(unvisited, key=row.__getitem__)
        unvisited.remove(nearest)
        tour.append(nearest)
    return tour


def two_opt(tour: list[int], distance: list[list[int]]) -> None:
    """Shorten the tour in place until no exchange of two edges shortens it (Croes, 1958)."""
    cities = len(tour)

    def moves() -> Iterator[tuple[int, tuple[int, int]]]:
        for first in range(1, cities - 1):  # a reversal that includes city 0 equals one that does not
            for last in range(first + 1, cities):
                before, a, b, after = tour[first - 1], tour[first], tour[last], tour[(last + 1) % cities]
                change = distance[before][b] + distance[a][after] - distance[before][a] - distance[b][after]
                yield change, (first, last)

    def reverse(move: tuple[int, int]) -> None:
        first, last = move
        tour[first : last + 1] = tour[first : last + 1][::-1]

    descend(moves, reverse)

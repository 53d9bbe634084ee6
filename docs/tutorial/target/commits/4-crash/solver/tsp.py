"""A travelling-salesman solver: the nearest-neighbour construction from a random city, then 2-opt."""

import random


def solve(distance: list[list[int]], rng: random.Random) -> list[int]:
    """A tour through all cities, as a list of city numbers counted from 0.

    `distance[a][b]` is the symmetric length of the edge between cities a and b.
    """
    tour = nearest_neighbour(distance, rng.randrange(len(distance)))
    return two_opt(tour, distance)


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


def two_opt(tour: list[int], distance: list[list[int]]) -> list[int]:
    """The tour after exchanging pairs of edges for shorter ones."""
    for first in range(len(tour)):
        for last in range(first + 1, len(tour)):
            before, a, b, after = tour[first - 1], tour[first], tour[last], tour[last + 1]
            if distance[before][b] + distance[a][after] < distance[before][a] + distance[b][after]:
                tour[first : last + 1] = tour[first : last + 1][::-1]
    return tour

"""A travelling-salesman solver: the nearest-neighbour construction from a random city."""

import random


def solve(distance: list[list[int]], rng: random.Random) -> list[int]:
    """A tour through all cities, as a list of city numbers counted from 0.

    `distance[a][b]` is the symmetric length of the edge between cities a and b.
    """
    return nearest_neighbour(distance, rng.randrange(len(distance)))


def nearest_neighbour(distance: list[list[int]], start: int) -> list[int]:
    """The tour that always goes on to the nearest city not yet visited; the lower number wins a tie."""
    tour = [start]
    waiting = [city for city in range(len(distance)) if city != start]
    while waiting:
        here = tour[-1]
        nearest = waiting[0]
        for city in waiting:
            if distance[here][city] < distance[here][nearest]:
                nearest = city
        waiting.remove(nearest)
        tour.append(nearest)
    return tour

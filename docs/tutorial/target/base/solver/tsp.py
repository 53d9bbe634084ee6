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
    unvisited = [city for city in range(len(distance)) if city != start]
    while unvisited:
        row = distance[tour[-1]]
        nearest = min(unvisited, key=row.__getitem__)
        unvisited.remove(nearest)
        tour.append(nearest)
    return tour

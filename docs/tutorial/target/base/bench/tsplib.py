"""TSPLIB instances: reading them, and the length of a tour.

Covered: the EUC_2D instances in `data/`. The distances come from here and not from `common/`, so that a candidate
cannot shorten its tours by changing the ruler.
"""

from pathlib import Path

DATA = Path(__file__).resolve().parent.parent / "data"

OPTIMUM = {"berlin52": 7542, "eil51": 426, "st70": 675}
"""Length of an optimal tour, as TSPLIB publishes it."""


STARTS = 50
"""Tours per instance. The metric is their mean, so that a lucky start counts for a fiftieth."""


def euc_2d(a: tuple[float, float], b: tuple[float, float]) -> int:
    """The Euclidean distance rounded to the nearest integer: nint(x) = int(x + 0.5) (TSPLIB 95, section 2.1)."""
    return int(((a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2) ** 0.5 + 0.5)


def coordinates(name: str) -> list[tuple[float, float]]:
    """The cities of an instance, in the file's order. Raises ValueError if the file is not as it declares itself."""
    header: dict[str, str] = {}
    cities: list[tuple[float, float]] = []
    for line in (DATA / f"{name}.tsp").read_text(encoding="ascii").splitlines():
        if ":" in line:
            key, _, value = line.partition(":")
            header[key.strip()] = value.strip()
        elif line[:1].isdigit():
            number, x, y = line.split()
            if int(number) != len(cities) + 1:
                raise ValueError(f"{name}: city {number} where {len(cities) + 1} was due")
            cities.append((float(x), float(y)))
    if header.get("EDGE_WEIGHT_TYPE") != "EUC_2D" or int(header["DIMENSION"]) != len(cities):
        raise ValueError(f"{name}: not a EUC_2D instance with as many cities as it declares")
    return cities


def distances(name: str) -> list[list[int]]:
    """The symmetric matrix of the distances between the cities of an instance."""
    cities = coordinates(name)
    return [[euc_2d(a, b) for b in cities] for a in cities]


def length(tour: object, distance: list[list[int]]) -> int:
    """The length of the closed tour. Raises ValueError unless it visits every city exactly once."""
    # True == 1 == 1.0: only the type tells them apart
    if not isinstance(tour, list) or any(type(city) is not int for city in tour):
        raise ValueError("a tour is a list of city numbers")
    if sorted(tour) != list(range(len(distance))):
        raise ValueError(f"not a tour: {len(distance)} cities, each exactly once, were asked for")
    return sum(distance[tour[i - 1]][tour[i]] for i in range(len(tour)))

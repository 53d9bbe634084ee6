"""Ladders: which scores on one hidden data set are released, and which are withheld.

Covered: whether a run is sealed, the history of a ladder on disk (ladders/<key>/<seq>.json, each written once), the
answer to one accepted candidate. Not covered: the mechanism itself (climb.ladder), what a submitter is told of it
(service.replies).

The key is the champion's: target, benchmark and definition, in which the hidden inputs' declared digests are. A rung is
claimed like a championship, by link: of two candidates that beat the same rung one is compared with the other's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outerloop.climb.ladder import Climbed, Rung, ladder_step
from outerloop.slots import StateRoot
from outerloop.slots.files import publish, read_json

__all__ = ["best_rung", "is_sealed", "step_up"]

MOST_RUNGS = 1_000_000


def is_sealed(request: Mapping[str, Any]) -> bool:
    """Whether nothing that this run measured may be told to its submitter."""
    return bool(request.get("sealed"))


def best_rung(root: StateRoot, key: str) -> tuple[int, Rung | None, str]:
    """(number, the best submission so far, its run); (0, None, "") for a ladder that nobody stands on."""
    folder = root.ladder_folder(key)
    try:
        numbers = sorted(int(path.stem) for path in folder.glob("*.json") if path.stem.isdecimal())
    except OSError:
        numbers = []
    for number in reversed(numbers):
        body = read_json(folder / f"{number:06d}.json")
        if body is not None:
            losses = tuple(float(loss) for loss in body["losses"])
            return number, Rung(float(body["released"]), losses), str(body["run"])
    return 0, None, ""


def step_up(root: StateRoot, key: str, run_id: str, losses: Sequence[float]) -> tuple[Climbed, Rung | None]:
    """The ladder's answer to an accepted candidate, and the rung that it was compared with. Repeatable.

    Raises ValueError for losses that don't fit the ladder's items.
    """
    for _ in range(MOST_RUNGS):
        number, best, holder = best_rung(root, key)
        if holder == run_id and best is not None:
            # Killed after the rung was claimed: the answer is what it was.
            before = _before(root, key, number)
            return ladder_step(before, losses), before
        climbed = ladder_step(best, losses)
        if not climbed.improved:
            return climbed, best
        body = {"run": run_id, "released": climbed.released, "losses": list(climbed.rung.losses)}
        if publish(root.ladder_folder(key) / f"{number + 1:06d}.json", body, name="ladder.link", mode=0o600):
            return climbed, best
    raise RuntimeError(f"the ladder {key} is full")


def _before(root: StateRoot, key: str, number: int) -> Rung | None:
    body = read_json(root.ladder_folder(key) / f"{number - 1:06d}.json") if number > 1 else None
    return None if body is None else Rung(float(body["released"]), tuple(float(loss) for loss in body["losses"]))

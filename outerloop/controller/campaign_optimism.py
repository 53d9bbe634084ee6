"""How much a champion's test errors flatter it, from the margins that its generation's evaluations left.

Covered: reading recorded test scores into tables of errors. Not covered: the estimate itself (outerloop.champion).

Rows are {"margin", "target"}: target 1 is a passing item, 0 a failing one, and a margin above 0 says "passes". A file
whose rows don't give the very counts that its report had is not used: then there is no estimate, and the reserve check
is recorded as not run.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt

from outerloop.champion import DEFAULT_OBJECTIVES, CheckError, EvalEvent, selection_optimism
from outerloop.controller.campaign_ledger import Books
from outerloop.controller.campaign_places import Lost, Places

__all__ = ["recorded_optimism"]

Errors = tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]


def recorded_optimism(books: Books, places: Places) -> tuple[float, ...] | None:
    """Optimism per objective of the open check's generation; None where its rule does not ask for one, or where the
    recorded margins do not carry it (other objectives, decided counts, lost or doubtful files)."""
    generation = books.state.generation
    if generation is None or generation.check is None or generation.check.rule != "optimism":
        return None
    if generation.rules.compare != "result" or generation.rules.objectives != DEFAULT_OBJECTIVES:
        return None
    tables = []
    for event in books.state.evaluations:
        if event.role != "test" or event.status != "scored" or event.generation != generation.number:
            continue
        try:
            path = places.test_scores(books, event.run_id, event.checkpoint, event.scores_sha256)
            tables.append(_errors(path, event))
        except (Lost, OSError, ValueError):
            return None
    try:
        return selection_optimism([np.stack([table[side] for table in tables]) for side in (0, 1)])
    except (CheckError, ValueError):
        return None


def _errors(path: Path, event: EvalEvent) -> Errors:
    """(errors on failing items, errors on passing items). Raises ValueError when they aren't the report's counts."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    margins = np.array([float(row["margin"]) for row in rows])
    targets = np.array([int(row["target"]) for row in rows])
    fails, passes = margins[targets == 0] > 0, margins[targets == 1] <= 0
    counted = {
        "fail_to_pass_count": int(fails.sum()),
        "fail_count": fails.size,
        "pass_to_fail_count": int(passes.sum()),
        "pass_count": passes.size,
    }
    if any(event.row.get(key) != count for key, count in counted.items()):
        raise ValueError(f"{path}: its margins give {counted}, the report had {event.row}")
    return fails, passes

"""Per-item losses that a scorer prints besides its metric: the evidence of a ladder.

Covered: the line that carries them, which values are refused. Not covered: what they mean. Standard library only.

The scorer prints one line that is a JSON object with the key `items`, a list of finite numbers in a fixed order of the
hidden items, smaller being better. The last such line counts. It is read from the scorer's own log, so it must fit
into what is kept of that (a mebibyte, unless the order says otherwise).
"""

from __future__ import annotations

import json
import math

KEY = "items"
MOST_ITEMS = 200_000


def read_items(path: str) -> list[float]:
    """The losses in the log at `path`. Raises ValueError with a sentence for a person, OSError."""
    found: list[float] | None = None
    with open(path, "rb") as file:
        for raw in file:
            line = raw.strip()
            if line.startswith(b"{") and line.endswith(b"}") and b'"items"' in line:
                try:
                    body = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(body, dict) and KEY in body:
                    found = _losses(body[KEY])
    if found is None:
        raise ValueError('the scorer printed no line {"items": [...]} with a loss for each hidden item')
    return found


def _losses(value: object) -> list[float]:
    if not isinstance(value, list) or not value:
        raise ValueError("items is no list of numbers, or an empty one")
    if len(value) > MOST_ITEMS:
        raise ValueError(f"items has {len(value)} numbers; at most {MOST_ITEMS} are read")
    for number in value:
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
            raise ValueError("items has something that is no finite number")
    return [float(number) for number in value]

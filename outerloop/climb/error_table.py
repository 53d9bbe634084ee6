"""The shipped table of simulated error rates, and the part of it that applies to a rule.

Covers: reading the package's own error_table.json (written by `outerloop simulate-verdicts --write`), nearest
rule in it. Does not cover: simulating (simulate.py).
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable
from decimal import Decimal
from importlib import resources
from typing import Any

from outerloop.climb.model import Paired, Rule, Sequential, Threshold
from outerloop.climb.simulate import TABLE_SCHEMA, ErrorRow, describe


@functools.cache
def shipped_rows() -> tuple[ErrorRow, ...]:
    """Every row of the table that the package carries."""
    text = resources.files("outerloop.climb").joinpath("error_table.json").read_text(encoding="utf-8")
    return rows_from_json(json.loads(text))


def rows_from_json(data: Any) -> tuple[ErrorRow, ...]:
    """The rows that `rows_to_json` wrote. Raises ValueError for another schema."""
    if data.get("schema") != TABLE_SCHEMA:
        raise ValueError(f"error table has schema {data.get('schema')}, not {TABLE_SCHEMA}")
    rules = data["rules"]
    return tuple(
        ErrorRow(**{**dict(zip(data["columns"], row, strict=True)), "rule": rules[row[0]]}) for row in data["rows"]
    )


def rows_to_json(rows: Iterable[ErrorRow], seed: int) -> dict[str, Any]:
    """A compact form: each rule once, rows as lists."""
    rules: list[dict[str, Any]] = []
    columns = list(ErrorRow.__dataclass_fields__)
    listed = []
    for row in rows:
        if row.rule not in rules:
            rules.append(row.rule)
        listed.append([rules.index(row.rule), *(getattr(row, column) for column in columns[1:])])
    return {
        "schema": TABLE_SCHEMA,
        "about": "Simulated verdicts; gains in units of their standard deviation. Written by"
        " `outerloop simulate-verdicts --write`.",
        "seed": seed,
        "rules": rules,
        "columns": columns,
        "rows": listed,
    }


def nearest_rows(
    rule: Rule, gain_sd: Decimal | None = None, floor: Decimal | None = None
) -> tuple[tuple[ErrorRow, ...], bool]:
    """The rows of the simulated rule that is nearest to this one, and whether it is the same rule.

    `gain_sd` (standard deviation of one paired gain) turns absolute hypotheses and a threshold's floor into
    sd units; without it a threshold and an absolute rule have no row. The other parameters are compared on a
    log scale, alpha and the minimum weighing most.
    """
    wanted = describe(rule)
    if isinstance(rule, Threshold) or (isinstance(rule, Sequential) and rule.units == "absolute"):
        if gain_sd is None or gain_sd == 0:
            return (), False
        if isinstance(rule, Sequential):
            # clipped, since the distance takes a logarithm
            h1 = min(max(float(rule.h1 / gain_sd), 1e-9), 1e9)
            wanted |= {"h0": float(rule.h0 / gain_sd), "h1": h1}
        else:
            wanted["floor_sd"] = float((floor or Decimal(0)) / gain_sd)
    candidates = [row for row in shipped_rows() if row.rule["kind"] == rule.kind]
    if isinstance(rule, Sequential):
        candidates = [row for row in candidates if row.rule["test"] == rule.test]
    if not candidates:
        return (), False
    best = min(candidates, key=lambda row: _distance(wanted, row.rule))
    same = _distance(wanted, best.rule) == 0 and not (isinstance(rule, Paired) and rule.all_pairs)
    return tuple(row for row in candidates if row.rule == best.rule), same


# How much a factor of e in each parameter matters for the error rates (judgement, from the table itself).
_WEIGHTS = {"alpha": 4.0, "beta": 1.0, "pairs": 1.0, "min_pairs": 2.0, "h1": 1.0, "batch": 0.5}


def _distance(wanted: dict[str, Any], row: dict[str, Any]) -> float:
    distance: float = abs(wanted.get("floor_sd", 0.0) - row.get("floor_sd", 0.0))
    distance += abs(wanted.get("h0", 0.0) - row.get("h0", 0.0))
    for key, weight in _WEIGHTS.items():
        if key in wanted and key in row:
            distance += weight * abs(math.log(wanted[key] / row[key]))
    return distance

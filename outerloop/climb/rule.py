"""A contract's `rule` table -> Rule.

Covers: names, types and ranges of every key, all problems at once. Does not cover: what a rule needs of the
benchmark around it (`BenchmarkRule` checks that) or of the deployment (`ladder` in personal mode).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from outerloop.climb.model import Paired, Rule, RuleError, Sequential, Threshold

_KINDS: dict[str, type[Threshold] | type[Paired] | type[Sequential]] = {
    "threshold": Threshold,
    "paired": Paired,
    "sequential": Sequential,
}
_DECIMALS = frozenset({"alpha", "beta", "h0", "h1"})
_INTEGERS = frozenset({"pairs", "batch", "min_pairs", "max_pairs"})
_BOOLEANS = frozenset({"all_pairs", "ladder"})
_KEYS = {
    "threshold": ("ladder",),
    "paired": ("alpha", "pairs", "all_pairs", "ladder"),
    "sequential": (
        "test",
        "h0",
        "h1",
        "units",
        "alpha",
        "beta",
        "batch",
        "min_pairs",
        "max_pairs",
        "ladder",
    ),
}


def parse_rule(table: Mapping[str, Any]) -> Rule:
    """The rule that a `rule` table describes; an empty table is the threshold rule.

    Numbers may be int, float or Decimal (a float counts as its shortest decimal text). Raises RuleError with
    every problem found, each naming its key and, for a misspelt one, the nearest valid name.
    """
    kind = table.get("kind", "threshold")
    if kind not in _KINDS:
        raise RuleError((f'kind = "{kind}" is not a rule; {_nearest(str(kind), tuple(_KINDS))}',))
    problems: list[str] = []
    fields: dict[str, Any] = {}
    for key, raw in table.items():
        if key == "kind":
            continue
        if key not in _KEYS[kind]:
            problems.append(_unknown_key(key, kind))
            continue
        try:
            fields[key] = _typed(key, raw)
        except ValueError as error:
            problems.append(str(error))
    if kind == "sequential" and fields.get("units") == "absolute" and "h1" not in table:
        problems.append('h1 is required with units = "absolute": the gain, in the metric\'s unit, worth finding')
    if fields.get("max_pairs") == 0:
        problems.append("max_pairs = 0 must be at least min_pairs (leave it out for the default)")
    try:
        rule = _KINDS[kind](**fields)
    except RuleError as error:
        raise RuleError((*problems, *error.problems)) from None
    if problems:
        raise RuleError(tuple(problems))
    return rule


def _typed(key: str, raw: Any) -> Any:
    if key in _BOOLEANS:
        if not isinstance(raw, bool):
            raise ValueError(f"{key} = {raw!r} must be true or false")
        return raw
    if key in _INTEGERS:
        if isinstance(raw, bool) or not isinstance(raw, int):
            raise ValueError(f"{key} = {raw!r} must be a whole number")
        return raw
    if key in _DECIMALS:
        if isinstance(raw, bool) or not isinstance(raw, int | float | Decimal):
            raise ValueError(f"{key} = {raw!r} must be a number")
        try:
            return Decimal(str(raw))
        except InvalidOperation:  # pragma: no cover - str() of a number is a number
            raise ValueError(f"{key} = {raw!r} must be a number") from None
    if not isinstance(raw, str):
        raise ValueError(f"{key} = {raw!r} must be a string")
    return raw


def _unknown_key(key: str, kind: str) -> str:
    owners = [other for other, keys in _KEYS.items() if key in keys]
    if owners:
        return f'{key} belongs to rule.kind = "{owners[0]}", not to "{kind}"'
    return f'{key} is not a key of a "{kind}" rule; {_nearest(key, (*_KEYS[kind], "kind"))}'


def _nearest(word: str, names: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(word, names, n=1)
    return f'did you mean "{close[0]}"?' if close else f"it can have: {', '.join(names)}"

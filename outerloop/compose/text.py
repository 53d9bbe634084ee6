"""A configuration as TOML text. Covered: tables, arrays of tables, text, numbers, truth values, lists of them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import date, datetime, time
from typing import Any

__all__ = ["toml_text"]

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def toml_text(config: Mapping[str, Any]) -> str:
    """The text; `tomllib` reads the same values out of it. Raises TypeError for what TOML can't hold (None)."""
    lines: list[str] = []
    _table(lines, (), config)
    return "\n".join(lines).strip("\n") + "\n"


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _quoted(name)


def _quoted(text: str) -> str:
    # JSON's escapes are TOML's, except that TOML wants DEL escaped too
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, Mapping) for item in value)


def _table(lines: list[str], path: tuple[str, ...], table: Mapping[str, Any]) -> None:
    for key, value in table.items():
        if not isinstance(value, Mapping) and not _is_tables(value):
            lines.append(f"{_key(key)} = {_value(value)}")
    for key, value in table.items():
        inner = (*path, key)
        name = ".".join(map(_key, inner))
        if isinstance(value, Mapping):
            lines += ["", f"[{name}]"]
            _table(lines, inner, value)
        elif _is_tables(value):
            for item in value:
                lines += ["", f"[[{name}]]"]
                _table(lines, inner, item)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
        text = repr(value)
        return text if "." in text or "e" in text else f"{text}.0"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    raise TypeError(f"TOML has no way to write {value!r}")

"""Text of strangers made harmless, and plain JSON values: what every way of looking shares.

Covered: control characters, one-line texts, values as JSON has them. Not covered: terminals (cli.text), pages (viewer).
"""

from __future__ import annotations

import dataclasses
import re
import unicodedata
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

__all__ = ["harmless", "members", "one_line", "plain"]

_SUSPECT = re.compile(r"[^\n\t -~]")
"""All but what is printable ASCII, newline and tab: looked at one by one."""
_UNSEEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Unicode categories that move a cursor, turn the writing direction or show nothing."""


def _escaped(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def harmless(text: str) -> str:
    """The text with every control character but newline and tab written as an escape, so that no terminal obeys it.

    A carriage return before a newline is dropped; one inside a line (a progress bar) starts a new line.
    """
    return _SUSPECT.sub(_shown, text.replace("\r\n", "\n").replace("\r", "\n"))


def _shown(match: re.Match[str]) -> str:
    character = match.group(0)
    return _escaped(character) if unicodedata.category(character) in _UNSEEN else character


def one_line(text: str) -> str:
    """The text as one harmless line."""
    return " ".join(harmless(text).split())


_ATOMS = frozenset({str, int, float, bool, type(None)})


_FIELDS: dict[type, tuple[str, ...]] = {}


def _fields(kind: type) -> tuple[str, ...]:
    if kind not in _FIELDS:
        names = tuple(field.name for field in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else ()
        _FIELDS[kind] = names
    return _FIELDS[kind]


def members(value: Any) -> dict[str, Any]:
    """The fields of a dataclass by name, as they are."""
    return {name: getattr(value, name) for name in _fields(type(value))}


def plain(value: Any) -> Any:
    """The value as JSON has it: dataclasses as objects, decimals and times as text, nothing lost."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if names := _fields(kind):
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, date | datetime):
        return value.isoformat()
    if isinstance(value, Decimal | Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(inner) for inner in value]
    return value

"""Text for terminals: harmless whatever a candidate put into it, aligned, and JSON for programs.

Covered: control characters, times, tables, plain JSON values. Not covered: what is shown.
"""

from __future__ import annotations

import dataclasses
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["clock", "harmless", "moment", "one_line", "plain", "table"]

_KEPT = {"\n", "\t"}
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
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character if character in _KEPT or unicodedata.category(character) not in _UNSEEN else _escaped(character)
        for character in text
    )


def one_line(text: str) -> str:
    """The text as one harmless line."""
    return " ".join(harmless(text).split())


def moment(at: datetime | None) -> str:
    """`2026-01-02 03:04:05` in this machine's zone; "-" for none."""
    return "-" if at is None else f"{at.astimezone():%Y-%m-%d %H:%M:%S}"


def clock(at: datetime | None) -> str:
    """`01-02 03:04:05`, for columns."""
    return "-" if at is None else f"{at.astimezone():%m-%d %H:%M:%S}"


def plain(value: Any) -> Any:
    """The value as JSON has it: dataclasses as objects, decimals and times as text, nothing lost."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
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


def table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[str] = (),
    give: str = "",
    styles: Mapping[str, Sequence[str]] | None = None,
) -> Table:
    """Rows under small heads, without lines. Columns in `right` are aligned there; `give` is the one that is cut when
    the terminal is too narrow; `styles` colours the cells of a column. Cells are made harmless here, and columns
    without content are left out."""
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_edge=False)
    cells = [[one_line(cell) for cell in row] for row in rows]
    kept = [i for i in range(len(heads)) if any(row[i] for row in cells)]
    for i in kept:
        made.add_column(
            heads[i],
            justify="right" if heads[i] in right else "left",
            no_wrap=True,
            overflow="ellipsis",
            min_width=None if heads[i] == give else max(len(heads[i]), *(cell_len(row[i]) for row in cells)),
        )
    for number, row in enumerate(cells):
        made.add_row(*(Text(row[i], style=(styles or {}).get(heads[i], [""] * len(rows))[number]) for i in kept))
    return made

"""Text for terminals: aligned, folded, and harmless whatever a candidate put into it.

Covered: times, columns, paragraphs. Not covered: what is shown, control characters (outerloop.printable).
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from outerloop.printable import harmless, one_line, plain

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

__all__ = ["WIDTH", "Columns", "Hanging", "clock", "folded", "harmless", "moment", "one_line", "plain"]

WIDTH = 80
"""Columns of everything that does not go to a wider terminal."""
_GAP = "  "
_NARROWEST = 8


def moment(at: datetime | None) -> str:
    """`2026-01-02 03:04:05` in this machine's zone; "-" for none."""
    return "-" if at is None else f"{at.astimezone():%Y-%m-%d %H:%M:%S}"


def clock(at: datetime | None) -> str:
    """`01-02 03:04:05`, for columns."""
    return "-" if at is None else f"{at.astimezone():%m-%d %H:%M:%S}"


@dataclass(frozen=True)
class Columns:
    """Rows under small heads, without lines and without blanks at the end.

    Columns in `right` are aligned there. Where the terminal is too narrow, `give` is the column that is cut; `styles`
    colours the cells of a column. Cells are made harmless here, and columns without content are left out.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Collection[str] = ()
    give: str = ""
    styles: Mapping[str, Sequence[str]] = field(default_factory=dict)
    indent: int = 0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        from rich.text import Text

        cells = [[one_line(cell) for cell in row] for row in self.rows]
        kept = [i for i in range(len(self.heads)) if any(row[i] for row in cells)]
        widths = {i: max(_width(self.heads[i]), *(_width(row[i]) for row in cells)) for i in kept}
        over = sum(widths.values()) + len(_GAP) * (len(kept) - 1) + self.indent - options.max_width
        for i in kept:
            if self.heads[i] == self.give and over > 0:
                given = min(over, max(0, widths[i] - _NARROWEST))
                widths[i], over = widths[i] - given, over - given
        while over > 0 and (wide := max(kept, key=lambda i: widths[i])) is not None and widths[wide] > _NARROWEST:
            # Even the others have to give then, the widest first, so that no column falls off the edge unseen.
            widths[wide], over = widths[wide] - 1, over - 1
        for number, row in enumerate([list(self.heads), *cells]):
            line = Text(" " * self.indent, no_wrap=True, overflow="crop", end="\n")
            for i in kept:
                last = i == kept[-1]
                style = "dim" if number == 0 else self._style(self.heads[i], number - 1)
                line.append(_fitted(row[i], widths[i], right=self.heads[i] in self.right, fill=not last), style)
                line.append("" if last else _GAP)
            line.rstrip()
            yield line

    def _style(self, head: str, row: int) -> str:
        styles = self.styles.get(head)
        return styles[row] if styles is not None else ""

    def lines(self, width: int) -> list[str]:
        """The same as plain lines of at most `width` cells."""
        from rich.console import Console

        console = Console(width=width, color_system=None, force_terminal=False, file=io.StringIO())
        with console.capture() as captured:
            console.print(self)
        return captured.get().splitlines()


@dataclass(frozen=True)
class Hanging:
    """A text after a prefix; further lines are indented to where it began."""

    prefix: str
    text: str
    style: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        from rich.text import Text

        lines = textwrap.wrap(
            self.prefix + self.text,
            max(40, options.max_width),
            subsequent_indent=" " * len(self.prefix),
            break_on_hyphens=False,
            drop_whitespace=True,
        )
        yield Text("\n".join(lines or [self.prefix.rstrip()]), style=self.style)


def folded(text: str, width: int = 80, indent: str = "", *, prefix: str = "") -> str:
    """One harmless paragraph of lines no longer than `width`; the first begins with `prefix`, the others with as many
    blanks, all with `indent`."""
    first = indent + prefix
    lines = textwrap.wrap(
        one_line(text), width, initial_indent=first, subsequent_indent=" " * len(first), break_on_hyphens=False
    )
    return "\n".join(lines) or first.rstrip()


def _width(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)


def _fitted(text: str, width: int, *, right: bool, fill: bool) -> str:
    from rich.cells import set_cell_size

    size = _width(text)
    if size > width:
        return set_cell_size(text, width - 1) + "…"
    if right:
        return " " * (width - size) + text
    return text + " " * (width - size) if fill else text

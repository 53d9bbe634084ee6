"""Write the error table of docs/measured.md from the table that is shipped with the package.

    python docs/generate_error_rates.py            writes it between its two marks
    python docs/generate_error_rates.py --check    exits 1 when the page is not what this would write

The shipped table itself is made by `outerloop simulate-verdicts --write outerloop/climb/error_table.json`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from outerloop.climb.error_table import shipped_rows
from outerloop.climb.simulate import ErrorRow

PAGE = Path(__file__).parent / "measured.md"
BEGIN, END = "<!-- error rates: begin (docs/generate_error_rates.py) -->", "<!-- error rates: end -->"
NOISES = ("normal", "t3", "skewed-left", "skewed-right", "discrete", "zero-variance")
BROKEN = "**{}** ⚠"
COMMON = ("kind ", "all_pairs False", "h0 0", "units sd", "batch 4")
"""Beginnings of what all published rules of a kind have."""


def rule_name(rule: dict[str, object]) -> str:
    """The rule as a contract's inline table would say it, without what all of them have."""
    kind = str(rule["kind"])
    told = [f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}" for key, value in rule.items()]
    return f"{kind}: " + ", ".join(item for item in told if not item.startswith(COMMON))


def tables() -> str:
    """Two Markdown tables: accepted without an effect, and found at the effect that each rule looks for."""
    by_rule: dict[str, list[ErrorRow]] = {}
    for row in shipped_rows():
        by_rule.setdefault(rule_name(row.rule), []).append(row)
    return "\n".join([BEGIN, "", *_false_acceptances(by_rule), "", *_power(by_rule), "", END])


def _head(*columns: str) -> list[str]:
    return ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]


def _false_acceptances(by_rule: dict[str, list[ErrorRow]]) -> Iterator[str]:
    yield "Accepted although the candidate changes nothing:"
    yield ""
    yield from _head("rule", *NOISES)
    for name, rows in by_rule.items():
        none = {row.noise: row for row in rows if row.effect == 0}
        yield "| " + " | ".join([name, *(_cell(none.get(noise)) for noise in NOISES)]) + " |"


def _power(by_rule: dict[str, list[ErrorRow]]) -> Iterator[str]:
    yield "Found, with a true gain of so many standard deviations of a paired gain. In brackets: the mean number of"
    yield "pairs, as a part of those that the fixed test with the same errors needs (without an effect / with it)."
    yield ""
    yield from _head("rule", "gain", *NOISES)
    for name, rows in by_rule.items():
        none = {row.noise: row for row in rows if row.effect == 0}
        for effect in sorted({row.effect for row in rows if row.effect > 0}):
            real = {row.noise: row for row in rows if row.effect == effect}
            cells = []
            for noise in NOISES:
                cell = _cell(real.get(noise))
                before, after = none.get(noise), real.get(noise)
                if before is not None and after is not None and before.ratio is not None and after.ratio is not None:
                    cell += f" ({before.ratio:.2f} / {after.ratio:.2f})"
                cells.append(cell)
            yield "| " + " | ".join([name, f"{effect:g}", *cells]) + " |"


def _cell(row: ErrorRow | None) -> str:
    if row is None:
        return ""
    rate = f"{100 * row.accepted:.1f} %"
    return BROKEN.format(rate) if row.holds is False else rate


def written(page: str) -> str:
    """The page with the tables of today between its marks. Raises ValueError for a page without marks."""
    before, after = page.split(BEGIN, 1)[0], page.split(END, 1)[1]
    return before + tables() + after


def main() -> int:
    page = PAGE.read_text(encoding="utf-8")
    fresh = written(page)
    if "--check" in sys.argv[1:]:
        return 0 if page == fresh else 1
    PAGE.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

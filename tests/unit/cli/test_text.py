"""Attacks on terminals: escapes, bells, carriage returns, direction marks, wide characters in columns."""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outerloop.cli.text import Columns, folded, harmless, one_line, plain


@pytest.mark.parametrize(
    ("evil", "shown"),
    [
        ("\x1b]0;owned\x07", "\\x1b]0;owned\\x07"),
        ("a\x00b", "a\\x00b"),
        ("50 %\r100 %\r\n", "50 %\n100 %\n"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\u200b", "\\u200b"),
        ("\x9b31m", "\\x9b31m"),
        ("\ud800", "\\ud800"),
        ("\U000e0001", "\\U000e0001"),
        ("tab\tand é 漢 🚀", "tab\tand é 漢 🚀"),
    ],
)
def test_harmless(evil: str, shown: str) -> None:
    assert harmless(evil) == shown


@given(st.text())
def test_nothing_that_a_terminal_obeys_gets_through(text: str) -> None:
    for character in harmless(text):
        assert character in "\n\t" or unicodedata.category(character)[0] not in "C"
    assert "\n" not in one_line(text)


@given(
    st.lists(st.tuples(st.text(max_size=30), st.text(max_size=90), st.text(max_size=12)), min_size=1, max_size=4),
)
def test_columns_fit_their_width_and_have_no_blanks_at_the_end(rows: list[tuple[str, str, str]]) -> None:
    lines = Columns(["A", "GIVES", "B"], rows, give="GIVES", indent=2).lines(160)
    assert all(line == line.rstrip() for line in lines)
    assert len(lines) == len(rows) + 1


def test_only_the_column_that_gives_is_cut_and_wide_characters_count_twice() -> None:
    rows = [["c-1", "漢" * 20, "end"], ["c-22", "short", "x"]]
    lines = Columns(["RUN", "LABEL", "LAST"], rows, give="LABEL").lines(30)
    assert lines == [
        "RUN   LABEL               LAST",
        "c-1   漢漢漢漢漢漢漢漢 …  end",
        "c-22  short               x",
    ]


def test_columns_without_content_are_left_out() -> None:
    assert Columns(["A", "B"], [["x", ""]]).lines(80) == ["A", "x"]


def test_folded_lines_hang_below_where_they_began() -> None:
    assert folded("one two three", 12, prefix="- ") == "- one two\n  three"
    assert folded("", 12, prefix="- ") == "-"


def test_plain_values_are_text_where_json_has_no_type() -> None:
    at = datetime(2026, 1, 2, tzinfo=UTC)
    assert plain({"a": Decimal("0.10"), 2: (at, {"x"}), "n": None}) == {
        "a": "0.10",
        "2": ["2026-01-02T00:00:00+00:00", ["x"]],
        "n": None,
    }

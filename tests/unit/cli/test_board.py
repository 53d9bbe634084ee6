"""The board of a challenge: order, ties, and verdicts that are anybody's files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from click.testing import CliRunner

from outerloop.cli import app
from outerloop.cli.entry_text import board_rows, board_text


def entry(name: str, outcome: str = "rejected", score: Any = "0.5", **over: Any) -> dict[str, Any]:
    numbers = {"candidate": score, "gain": "0.1", "p": 0.01}
    return {"entry": name, "outcome": outcome, "reason": "", "opponent": "untrained", "comparison": numbers} | over


def test_accepted_first_then_by_score_and_ties_as_they_came() -> None:
    given = [
        entry("tie-1"),
        entry("failed", "failed", comparison=None),
        entry("tie-2"),
        entry("best", score="0.9"),
        entry("champion", "accepted", score="0.4"),
    ]
    assert [row["entry"] for row in board_rows(given)] == ["champion", "best", "tie-1", "tie-2", "failed"]


def test_figures_that_are_no_numbers_sort_last_of_their_kind_and_are_not_shown() -> None:
    given = [entry("nan", score=float("nan")), entry("text", score="many"), entry("low", score="0.1"), {"outcome": "x"}]
    rows = board_rows([*given, entry("none", comparison={}), entry("inf", score=float("inf"))])
    assert [row["entry"] for row in rows] == ["low", "nan", "text", "none", "inf"]
    told = list(board_text(rows))
    assert (
        len(told) == 6 and "0.1000" in told[1] and not any("nan " in line[16:] or "inf" in line[16:] for line in told)
    )
    assert max(map(len, board_text([entry("e" * 99, reason="no-improvement", opponent="o" * 99)]))) <= 80


def test_open_entries_come_last_with_where_they_stand() -> None:
    waiting = {"run": "e-1", "entry": "mine", "outcome": "open", "reason": "parked", "opponent": ""}
    rows = board_rows([waiting, entry("failed", "failed", comparison=None), entry("good", "accepted")])
    assert [row["entry"] for row in rows] == ["good", "failed", "mine"]
    assert list(board_text(rows))[-1].split() == ["mine", "open:", "parked"]


def test_an_empty_board_is_a_sentence_and_no_failure(tmp_path: Path) -> None:
    words = ["challenge", "board", "tiny-sums", "--runs", str(tmp_path)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0 and done.output.startswith("No entry of tiny-sums is below"), done.output
    done = CliRunner().invoke(app, [*words, "--json"])
    assert (done.exit_code, done.output) == (0, "[]\n")
    words[2] = "tiny-sumz"
    assert 'did you mean "tiny-sums"?' in " ".join(CliRunner().invoke(app, words).output.split())

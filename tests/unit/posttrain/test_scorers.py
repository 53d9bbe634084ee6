"""Attacks: answers that are right in another spelling, wrong ones that look right, and programs that cheat."""

from __future__ import annotations

import shutil

import pytest

from outerloop.posttrain.code import code_scorer, program_of
from outerloop.posttrain.scorers import ScorerError, boxed, exact, numeric, scorer, why_no_scorer


@pytest.mark.parametrize(
    ("completion", "answer", "score"),
    [
        ("thirty two", "thirty two", 1),
        ("  thirty\u00a0two\n", "thirty two", 1),
        ("Thirty two", "thirty two", 0),
        ("", "thirty two", 0),
    ],
)
def test_exact_forgives_white_space_only(completion: str, answer: str, score: float) -> None:
    assert exact(completion, answer) == score


@pytest.mark.parametrize(
    ("completion", "answer", "score"),
    [
        ("3 apples and 4, so 7", "7", 1),
        ("The total is $1,234.50.", "1234.5", 1),
        ("It is 1/2", "0.5", 1),
        ("−5", "-5", 1),
        ("so 72.", "#### 72", 1),
        ("1e3", "1000", 1),
        ("0.1", "0.10000001", 0),
        ("7 then 8", "7", 0),
        ("no idea", "7", 0),
        ("1/0", "0", 0),
        ("٣", "3", 1),
        (".5", "0.5", 1),
        ("1,23", "23", 1),
    ],
)
def test_numeric_compares_the_last_number_exactly(completion: str, answer: str, score: float) -> None:
    assert numeric(completion, answer) == score


def test_an_answer_without_a_number_is_the_suites_fault() -> None:
    with pytest.raises(ScorerError, match="no number"):
        numeric("7", "seven")


@pytest.mark.parametrize(
    ("completion", "answer", "score"),
    [
        (r"so \boxed{\dfrac{1}{2}}", r"\frac{1}{2}", 1),
        (r"\boxed{1} no, \boxed{ (3, \frac{\pi}{2}) }", r"\left( 3, \frac{\pi}{2} \right)", 1),
        (r"\boxed{\text{Evelyn}}", "Evelyn", 1),
        (r"\boxed{3", "3", 0),
        ("3", "3", 0),
        (r"\boxed{}", "3", 0),
    ],
)
def test_boxed_compares_what_the_last_box_holds(completion: str, answer: str, score: float) -> None:
    assert boxed(completion, answer) == score


def test_an_unknown_scorer_is_told_with_the_nearest_one() -> None:
    assert why_no_scorer("exakt") == 'there is no scorer "exakt"; did you mean "exact"?, or module:function'
    with pytest.raises(ScorerError):
        scorer("nosuch")
    with pytest.raises(ScorerError, match="No module named"):
        scorer("no_such_module_here:f")


def half(completion: str, answer: str) -> float:
    return {"half": 0.5, "bad": 2.0}[completion]


def test_an_entry_point_is_checked_and_its_exception_quotes_nothing() -> None:
    score = scorer(f"{__name__}:half")
    assert score("half", "") == 0.5
    with pytest.raises(ScorerError, match="something else than a number"):
        score("bad", "")
    with pytest.raises(ScorerError, match="raised KeyError") as caught:
        score("secret prompt", "")
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_code_never_runs_without_a_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ScorerError, match="inside a sandbox"):
        scorer("code")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ScorerError, match="bwrap is not installed"):
        code_scorer()("def f(): pass", "f()")


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
@pytest.mark.parametrize(
    ("program", "score"),
    [
        ("Here:\n```python\ndef f(x):\n    return x + 1\n```\nDone.", 1),
        ("def f(x): return x", 0),
        ("def f(x) return x", 0),
        ("import sys; sys.exit(0)", 0),
        ("import os; os._exit(0)", 0),
        ("print('forged'); f = lambda x: 3", 0),
        ("import socket\nsocket.create_connection(('127.0.0.1', 22), 1)\nf = lambda x: x + 1", 0),
        ("x = bytearray(3 * 1024 ** 3)\nf = lambda x: x + 1", 0),
        ("while True: pass", 0),
    ],
)
def test_only_a_program_whose_checks_ran_passes(program: str, score: float) -> None:
    seconds = 1.0 if "while" in program else 60.0
    assert code_scorer(seconds=seconds)(program, "assert f(1) == 2\nassert f(2) == 3") == score


def test_the_program_is_the_last_fenced_block() -> None:
    assert program_of("```python\na\n```\nbetter:\n```py\nb\n```") == "b\n"
    assert program_of("a = 1") == "a = 1"

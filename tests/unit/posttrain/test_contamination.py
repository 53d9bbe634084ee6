"""Attacks: copies in another spelling, long shared passages, and phrases that prove nothing."""

from __future__ import annotations

from fractions import Fraction

from outerloop.posttrain.contamination import NGRAM, contamination

LONG = " ".join(f"word{n}" for n in range(NGRAM + 2))
TASKS = {f"t{n}": (f"short question {n}", "yes") for n in range(3)} | {"long": (f"{LONG} end", "the answer")}


def hit(*texts: str, tasks: dict[str, tuple[str, str]] = TASKS) -> tuple[str, ...]:
    return contamination(tasks, texts).hit


def test_an_exact_prompt_is_found_at_any_length_and_in_any_spelling() -> None:
    assert hit("Short   QUESTION, ２!") == ("t2",)
    assert hit("before\nshort question 1\nafter") == ("t1",)
    assert hit("short question 11", "a short question 1", "yes") == ()


def test_thirteen_shared_words_are_a_hit_and_twelve_are_none() -> None:
    words = LONG.split()
    assert hit("x " + " ".join(words[1 : 1 + NGRAM]) + " y") == ("long",)
    assert hit("x " + " ".join(words[1:NGRAM]) + " y") == ()
    tasks = {"a": ("q", LONG), "b": ("r", "no")}
    assert hit(LONG, tasks=tasks) == ("a",)


def test_what_more_than_one_task_in_a_hundred_says_is_the_suites_own_phrasing() -> None:
    tasks = {f"t{n}": (f"{LONG} number {n}", "yes") for n in range(200)}
    assert hit(LONG, tasks=tasks) == ()
    rare = {**{f"o{n}": (f"other {n}", "yes") for n in range(198)}, "a": (LONG + " a", ""), "b": (LONG + " b", "")}
    assert hit(LONG, tasks=rare) == ("a", "b")


def test_the_value_is_the_fraction_of_tasks() -> None:
    found = contamination(TASKS, ["short question 0", "short question 0", LONG])
    assert (found.hit, found.fraction) == (("t0", "long"), Fraction(1, 2))
    assert contamination({}, ["x"]).fraction == 0
    assert hit("", tasks={"empty": ("…", "x")}) == ()

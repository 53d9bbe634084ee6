"""A small verifiable task: sums of two numbers in words, "twenty three plus nine" -> "thirty two".

Covered: the sentences, and a fixed division of all pairs into training, held-out and reserve. Not covered: models.
Everything is computed from the numbers, so it needs no file and can be checked by anybody.
"""

from __future__ import annotations

import hashlib

__all__ = ["ANSWERS", "HELD_OUT", "LARGEST", "RESERVE", "domain", "pairs", "prompt", "rows", "task_id", "words"]

LARGEST = 49
"""Largest summand; the largest sum has two digits."""
HELD_OUT = 120
RESERVE = 120
"""Numbers of tasks in the two suites; all other pairs may be trained on."""

_SMALL = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


def words(number: int) -> str:
    """An integer from 0 to 99 in English words, without hyphens. Raises ValueError beyond."""
    if not 0 <= number <= 99:
        raise ValueError(f"{number} is not a number from 0 to 99")
    if number < len(_SMALL):
        return _SMALL[number]
    tens, ones = divmod(number, 10)
    return f"{_TENS[tens]} {_SMALL[ones]}" if ones else _TENS[tens]


ANSWERS = tuple(words(number) for number in range(2 * LARGEST + 1))


def task_id(a: int, b: int) -> str:
    return f"{a}+{b}"


def prompt(a: int, b: int) -> str:
    return f"{words(a)} plus {words(b)}"


def domain(a: int, b: int) -> str:
    return "carry" if a % 10 + b % 10 > 9 else "no carry"


def pairs(part: str) -> list[tuple[int, int]]:
    """The pairs of `training`, `heldout` or `reserve`, in a fixed order that looks random.

    A suite's pair is in no other part, the other way round either: knowing a + b would give b + a away.
    """
    unordered = [(a, b) for a in range(LARGEST + 1) for b in range(a, LARGEST + 1)]
    unordered.sort(key=lambda pair: hashlib.sha256(f"sums/1/{pair}".encode()).digest())
    if part == "heldout":
        return unordered[:HELD_OUT]
    if part == "reserve":
        return unordered[HELD_OUT : HELD_OUT + RESERVE]
    if part == "training":
        left = unordered[HELD_OUT + RESERVE :]
        return [pair for a, b in left for pair in ([(a, b)] if a == b else [(a, b), (b, a)])]
    raise ValueError(f'there is no part "{part}"; training, heldout and reserve')


def rows(part: str) -> list[dict[str, str]]:
    """Rows of a part: id, prompt, answer, domain; in `training` also completion, so that either stage can use them."""
    found = []
    for a, b in pairs(part):
        row = {"id": task_id(a, b), "prompt": prompt(a, b), "answer": words(a + b), "domain": domain(a, b)}
        found.append({**row, "completion": row["answer"]} if part == "training" else row)
    return found

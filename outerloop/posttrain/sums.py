"""A small verifiable task: sums in words, "seven plus forty plus three hundred" -> "three hundred forty seven".

Covered: the sentences, and a fixed division of all sums into training, held-out and reserve. Not covered: models.
Everything is computed from the numbers, so it needs no file and can be checked by anybody. There is no carry: a model
of two layers learns the rule in a minute, and sums that it has not seen in any order show that it learned a rule.
"""

from __future__ import annotations

import hashlib
from itertools import permutations

__all__ = ["HELD_OUT", "RESERVE", "answer", "domain", "prompt", "rows", "summands", "task_id"]

HELD_OUT = 100
RESERVE = 100
"""Numbers of tasks in the two suites; all other sums may be trained on."""

_ONES = ("", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")

Sum = tuple[int, ...]
"""Three summands, in the order in which they are named: some hundreds, some tens from twenty on, some ones."""


def _words(number: int) -> str:
    if number >= 100:
        return f"{_ONES[number // 100]} hundred"
    return _TENS[number // 10] if number >= 10 else _ONES[number]


def answer(summands: Sum) -> str:
    """The sum in words, without "and" and without hyphens."""
    return " ".join(map(_words, sorted(summands, reverse=True)))


def task_id(summands: Sum) -> str:
    return "+".join(map(str, summands))


def prompt(summands: Sum) -> str:
    return " plus ".join(map(_words, summands))


def domain(summands: Sum) -> str:
    return "ascending" if list(summands) == sorted(summands) else "any order"


def summands(part: str) -> list[Sum]:
    """The sums of `training`, `heldout` or `reserve`, in a fixed order that looks random.

    A suite's sum is in no other part in any order: knowing one would give the others away.
    """
    sums = [(h, t, o) for h in range(100, 1000, 100) for t in range(20, 100, 10) for o in range(1, 10)]
    sums.sort(key=lambda each: hashlib.sha256(f"sums/1/{each}".encode()).digest())
    if part == "training":
        every = [order for each in sums[HELD_OUT + RESERVE :] for order in permutations(each)]
        return sorted(every, key=lambda each: hashlib.sha256(f"order/1/{each}".encode()).digest())
    if part not in ("heldout", "reserve"):
        raise ValueError(f'there is no part "{part}"; training, heldout and reserve')
    chosen = sums[:HELD_OUT] if part == "heldout" else sums[HELD_OUT : HELD_OUT + RESERVE]
    return [list(permutations(each))[index % 6] for index, each in enumerate(chosen)]


def rows(part: str) -> list[dict[str, str]]:
    """Rows of a part: id, prompt, answer, domain; in `training` also completion, so that either stage can use them."""
    found = []
    for each in summands(part):
        row = {"id": task_id(each), "prompt": prompt(each), "answer": answer(each), "domain": domain(each)}
        found.append({**row, "completion": row["answer"]} if part == "training" else row)
    return found

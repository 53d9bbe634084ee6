"""Entry points for tests: a reward that random text earns in varying amounts, and a scorer that talks too much."""

from __future__ import annotations


def length(completion: str, answer: str) -> float:
    return min(len(completion), 100) / 100


def quoting(completion: str, answer: str) -> float:
    """Raises with the task in its words, as a careless scorer does, for one task of ten."""
    if answer.endswith("3"):
        raise ValueError(f"{completion} is not {answer}")
    return 0.5

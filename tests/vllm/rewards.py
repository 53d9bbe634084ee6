"""A reward that says more than right or wrong, so that few steps show whether it rises."""

from __future__ import annotations


def words(completion: str, answer: str) -> float:
    """Share of the words that are those of the answer, each in its place."""
    said, expected = completion.split(), answer.split()
    return sum(a == b for a, b in zip(said, expected, strict=False)) / max(len(said), len(expected))

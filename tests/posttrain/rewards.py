"""A reward that random text earns in varying amounts, so that a short GRPO has gradients. Loaded as an entry point."""

from __future__ import annotations


def length(completion: str, answer: str) -> float:
    return min(len(completion), 100) / 100

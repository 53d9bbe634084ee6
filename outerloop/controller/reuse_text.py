"""Adaptive reuse in words: how often the same data has decided, and what that does to the best that was seen.

Covered: the sentences that champions and explain show. Not covered: the counts (controller.views).
"""

from __future__ import annotations

__all__ = ["MANY_DECISIONS", "reuse_sentences"]

MANY_DECISIONS = 20
"""From here on it is a warning: the best of 20 equal candidates looks almost two standard errors better than it is."""


def reuse_sentences(decisions: int, *, fresh_seeds: bool) -> list[str]:
    """One sentence with the count, and a warning from MANY_DECISIONS on."""
    from outerloop.climb.noise_odds import best_of_noise

    seeds = "; seeds were drawn anew for each" if fresh_seeds else ""
    what = "verdict" if decisions == 1 else "verdicts"
    told = [f"{decisions} {what} on this definition and data{seeds}."]
    if decisions >= MANY_DECISIONS:
        told.append(
            f"Warning: the best of {decisions} candidates that change nothing looks {best_of_noise(decisions):.1f}"
            " standard errors of this data better than it is. Fresh data (other inputs, or a new definition of the"
            " benchmark) starts the count anew."
        )
    return told

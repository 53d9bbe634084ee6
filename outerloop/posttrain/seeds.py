"""Seeds that follow from what they are for.

Covered: trials, stages and rollouts. Not covered: drawing a training's seed, which is the caller's.
"""

from __future__ import annotations

import hashlib

__all__ = ["rollout_seed", "stage_seed", "trial_seed"]

_STAGE_BITS = 31
"""numpy's legacy generator, which transformers.set_seed sets, takes seeds below 2**32."""
_TRIAL_BITS = 63
"""torch and vLLM take signed 64-bit seeds."""


def _derived(bits: int, *parts: object) -> int:
    # lengths keep ("a", "bc") apart from ("ab", "c")
    text = "".join(f"{len(str(part).encode())}:{part}" for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> (64 - bits)


def trial_seed(evaluation: str, task: str, trial: int) -> int:
    """The seed of one trial, 0 to 2**63 - 1. `evaluation` names the evaluation, such as the digest of its inputs.

    One constant for all trials would make them identical.
    """
    return _derived(_TRIAL_BITS, "trial", evaluation, task, trial)


def stage_seed(training_seed: int, stage: str) -> int:
    """The seed of a stage of one training, 0 to 2**31 - 1."""
    return _derived(_STAGE_BITS, "stage", training_seed, stage)


def rollout_seed(stage: int, step: int, index: int) -> int:
    """The seed of one completion of a training stage, 0 to 2**63 - 1."""
    return _derived(_TRIAL_BITS, "rollout", stage, step, index)

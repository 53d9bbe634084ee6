"""The text of a first contract, commented for a person who goes on from it.

Covered: spelling. Not covered: whether the values are good ones (contract.py checks what is written here).
"""

from __future__ import annotations

import json

__all__ = ["contract_text"]


def _quoted(text: str) -> str:
    # JSON's escapes are a subset of TOML's, except that TOML wants DEL escaped too
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def contract_text(
    *,
    command: str,
    metric: str,
    direction: str,
    name: str,
    allowed: tuple[str, ...] = ("src/",),
    shared: tuple[str, ...] = (),
    minutes: int = 10,
    cpus: int = 1,
    memory_gb: int | None = None,
    gpus: int = 0,
    seed_env: str = "",
    score: str = "",
    outputs: tuple[str, ...] = (),
) -> str:
    """The text, unchecked."""
    paths = ", ".join(_quoted(path) for path in allowed)
    lines = [
        "# What outerloop may measure here, and what a candidate may change.",
        "# Check it with: outerloop contract check",
        "",
        "[[benchmarks]]",
        f"name = {_quoted(name)}",
        f"command = {_quoted(command)}",
        f"metric = {_quoted(metric)}          # the command prints a JSON object with this key as its last line",
        f"direction = {_quoted(direction)}",
    ]
    if score:
        lines.append(f"score = {_quoted(score)}          # run from the base tree, after the candidate is dead")
    else:
        lines.append('#score = "python -m bench.score out/result.json"   # else the candidate prints its own number')
    lines.append(f"outputs = [{', '.join(_quoted(path) for path in outputs)}]" if outputs else "#outputs = []")
    lines += [
        f"seed_env = {_quoted(seed_env)}" if seed_env else '#seed_env = "SEED"          # a pair gets one seed',
        "#deterministic = true        # the same tree always gives the same number",
        f"minutes = {minutes}",
        f"cpus = {cpus}",
        f"memory_gb = {memory_gb}" if memory_gb is not None else "#memory_gb = 4",
        f"gpus = {gpus}",
        "min_delta = 0.0              # smallest gain that counts, in the metric's unit",
        "min_delta_rel = 0.0          # the same as a fraction of the baseline; measure your noise first",
        '#rule = { kind = "paired", pairs = 8 }   # several seeds instead of one pair',
        "",
        "[scope]",
        f"allowed = [{paths}]          # the only paths that a candidate may change",
        f"shared = [{', '.join(_quoted(path) for path in shared)}]          # changing these measures the suite too"
        if shared
        else "#shared = []",
        "",
        "#[budgets]",
        "#gpu_hours = 8",
        "#runs_per_week = 10",
    ]
    return "\n".join(lines) + "\n"

"""Noise studies on disk: noise/<key>/<number>.json, each written once.

Covered: keeping a study, the newest one of a benchmark. The key is the champion's: target, benchmark and definition, so
that a changed benchmark has no study yet. Not covered: measuring (noise.py), what a study says (climb.noise).
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from outerloop.contract import Benchmark
from outerloop.controller.request import champion_key
from outerloop.slots import StateRoot
from outerloop.slots.files import publish, read_json

__all__ = ["keep_study", "newest_study", "noise_sd"]

MOST_STUDIES = 1_000_000
"""More than anybody makes; the number is the file's name."""


def _folder(root: StateRoot, target: str, benchmark: Benchmark) -> Path:
    return root.noise_folder(champion_key(target, benchmark.name, benchmark.definition_hash()))


def _numbers(folder: Path) -> list[int]:
    try:
        return sorted(
            int(entry.stem) for entry in folder.iterdir() if entry.suffix == ".json" and entry.stem.isdecimal()
        )
    except OSError:
        return []


def keep_study(root: StateRoot, target: str, benchmark: Benchmark, body: Mapping[str, Any]) -> Path:
    """Write a study under the next free number, unless the newest one says the same. Returns its file."""
    folder = _folder(root, target, benchmark)
    numbers = _numbers(folder)
    if numbers:
        last = folder / f"{numbers[-1]:06d}.json"
        kept = read_json(last) or {}
        if {key: value for key, value in kept.items() if key != "at"} == {k: v for k, v in body.items() if k != "at"}:
            return last
    for number in range(numbers[-1] + 1 if numbers else 1, MOST_STUDIES):
        path = folder / f"{number:06d}.json"
        if publish(path, body, name="noise.study"):
            return path
    raise RuntimeError(f"{folder} is full")


def newest_study(root: StateRoot, target: str, benchmark: Benchmark) -> dict[str, Any] | None:
    """The study kept last for this definition of the benchmark, None when there is none that can be read."""
    folder = _folder(root, target, benchmark)
    for number in reversed(_numbers(folder)):
        body = read_json(folder / f"{number:06d}.json")
        if body is not None:
            return body
    return None


def noise_sd(root: StateRoot, target: str, benchmark: Benchmark) -> Decimal | None:
    """The standard deviation of one value as the newest study has it, in the metric's unit."""
    study = (newest_study(root, target, benchmark) or {}).get("study")
    text = study.get("sd") if isinstance(study, Mapping) else None
    if not isinstance(text, str):
        return None
    try:
        sd = Decimal(text)
    except InvalidOperation:
        return None
    return sd if sd.is_finite() and sd >= 0 else None

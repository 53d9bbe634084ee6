"""Identity: what determines a result, and the digest that names the slot.

Covered: `Determinants`, their canonical JSON and SHA-256. Not covered: how determinants are found out (controller),
where a slot lies (directory.py). Pure.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

__all__ = ["IDENTITY_SCHEMA", "Determinants", "canonical_json", "digest_of"]

IDENTITY_SCHEMA = 1
"""Bump it to invalidate every slot on purpose."""


def canonical_json(value: object) -> str:
    """The one spelling of a JSON value: sorted keys, no blanks, ASCII. Raises TypeError for floats and NaN.

    Floats are refused because two machines may print one differently; numbers that matter are integers or text.
    """
    _refuse_floats(value, "$")
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def _refuse_floats(value: object, where: str) -> None:
    if isinstance(value, float):
        raise TypeError(f"{where}: a float has no canonical spelling; use an integer or text")
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"{where}: key {key!r} is not text")
            _refuse_floats(item, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _refuse_floats(item, f"{where}[{index}]")


def digest_of(value: object) -> str:
    """SHA-256 of the canonical JSON, 64 hex digits."""
    return hashlib.sha256(canonical_json(value).encode("ascii")).hexdigest()


@dataclass(frozen=True)
class Determinants:
    """Everything that the result of a piece of work depends on.

    Role, run, account, partition, qos, walltime and host are left out on purpose: the same work asked for twice is
    one slot. The seed is in `env`. `memory_mb` 0 means "not stated".
    """

    tree: str
    """Git tree object id, full: two commits with one tree are one measurement."""
    command: str
    kind: Literal["measure", "environment"] = "measure"
    launch: Mapping[str, Any] | None = None
    metric: str = ""
    guards: tuple[str, ...] = ()
    score: str = ""
    score_tree: str = ""
    """The base tree that `score` runs from; empty without a score command."""
    outputs: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    image: str = ""
    """Content digest of the container image, empty when uncontained."""
    environment: str = ""
    """Digest of the environment slot, empty when there is none."""
    platform: str = ""
    """Operating system, architecture and interpreter: only for environments, which are built for one."""
    prologue: str = ""
    """SHA-256 of the lane's prologue, empty when there is none."""
    network: bool = False
    cpus: int = 1
    memory_mb: int = 0
    gpus: int = 0
    gpu_type: str = ""
    nodes: int = 1
    inputs: tuple[tuple[str, str], ...] = ()
    """(path in the tree, content digest) of what is consumed besides the tree, sorted."""
    replicate: int = 0
    items: bool = False
    """The scorer's per-item losses are kept with the result. Left out of the mapping unless set, so that no slot
    that was made before has another name."""

    def canonical(self) -> dict[str, Any]:
        """The mapping whose canonical JSON is hashed."""
        values: dict[str, Any] = {"schema": IDENTITY_SCHEMA}
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Mapping):
                value = dict(value)
            elif isinstance(value, tuple):
                value = [list(part) if isinstance(part, tuple) else part for part in value]
            values[item.name] = value
        if not self.items:
            del values["items"]
        values["guards"] = sorted(values["guards"])
        values["outputs"] = sorted(values["outputs"])
        values["inputs"] = sorted(values["inputs"])
        return values

    @property
    def digest(self) -> str:
        """Name of the slot: 64 hex digits, never cut."""
        return digest_of(self.canonical())

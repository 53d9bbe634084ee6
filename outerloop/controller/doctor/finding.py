"""What doctor finds, and what its checks pass on. No behaviour."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outerloop.compute.protocol import Compute, SiteLimits
from outerloop.settings import Settings
from outerloop.slots import StateRoot

__all__ = ["FAIL", "OK", "WARN", "Check", "Finding", "Site"]

OK, WARN, FAIL = "OK", "WARN", "FAIL"
TOOL_SECONDS = 30.0
"""Patience with one tool."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `fix` says what to change, empty when nothing is to be. `cluster`: the cluster
    gave no answer, which is no mistake of the settings."""

    name: str
    level: str
    sentence: str
    fix: str = ""
    cluster: bool = False


@dataclass
class Site:
    """What the later checks need of the earlier ones."""

    settings: Settings
    config: Path
    root: StateRoot
    backend: str
    compute: Compute | None = None
    limits: SiteLimits | None = None
    probe_seconds: float = 120.0
    proposed: dict[tuple[str, ...], Any] = field(default_factory=dict)
    """Path of a profile's key -> what the site takes or is."""
    tried: dict[tuple[str, ...], str] = field(default_factory=dict)
    """Path of a profile's key -> how that was found out."""

    def propose(self, path: tuple[str, ...], value: Any, tried: str) -> None:
        """Note one line of the profile and what it rests on."""
        self.proposed[path] = value
        self.tried[path] = tried


Check = Callable[[Site], Iterator[Finding]]

"""The one error of this room."""

from __future__ import annotations

from collections.abc import Iterable


class CompileError(ValueError):
    """A plan or a command cannot be launched as it stands. `reasons` holds every reason, not the first."""

    def __init__(self, what: str, reasons: Iterable[str]) -> None:
        self.what = what
        self.reasons = tuple(reasons)
        listed = "".join(f"\n  - {reason}" for reason in self.reasons)
        super().__init__(f"{what} cannot be launched:{listed}")

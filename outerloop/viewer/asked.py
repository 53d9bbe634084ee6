"""What an address asks for: numbers, choices, and where a list stands. Nonsense gets a 400 with a sentence.

Covered: the fields of query strings. Not covered: what is answered (pages).
"""

from __future__ import annotations

from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.requests import Request

__all__ = ["MOST_ON_PAGE", "PAGE", "Paging", "choice", "number", "paged"]

PAGE = 50
MOST_ON_PAGE = 500


@dataclass(frozen=True)
class Paging:
    """Where a list stands."""

    offset: int
    limit: int
    total: int
    shown: int

    @property
    def first(self) -> int:
        return self.offset + 1 if self.shown else 0

    @property
    def last(self) -> int:
        return self.offset + self.shown

    @property
    def before(self) -> int | None:
        return max(0, self.offset - self.limit) if self.offset else None

    @property
    def after(self) -> int | None:
        return self.last if self.shown and self.last < self.total else None


def number(request: Request, name: str, default: int, most: int) -> int:
    """A number of the query, at most `most`. Raises HTTPException (400) for anything else."""
    text = request.query_params.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdecimal()) or len(text) > 9:
        raise HTTPException(400, f"{name} is a number from 0 to {most}, not {text[:40]!r}.")
    return min(int(text), most)


def choice(request: Request, name: str, known: tuple[str, ...]) -> str:
    """One of these words or "". Raises HTTPException (400)."""
    text = request.query_params.get(name, "")
    if text and text not in known:
        raise HTTPException(400, f"{name} is one of {', '.join(known)}, not {text[:40]!r}.")
    return text


def paged(request: Request) -> tuple[int, int]:
    """(limit, offset) of a list."""
    return number(request, "limit", PAGE, MOST_ON_PAGE) or PAGE, number(request, "offset", 0, 10**9)

"""Which jobs a listing does not show as the record has them, kept from sweep to sweep.

Covered: two large sets of sights and their difference, made anew when much changed, brought up to date by what little
changed else. Not covered: where they come from (live.py, the listing), what a difference means (evidence.py).
"""

from __future__ import annotations

from itertools import repeat
from typing import Protocol

from outerloop.compute.changes import changed_lines
from outerloop.compute.protocol import Sights

__all__ = ["Comparison", "Groups", "Shown"]

Groups = tuple[tuple[str, str], ...]
"""Lines of "<job id>|<STATE>|", and the reason of all of them."""


class Shown(Protocol):
    """What is asked of a listing."""

    @property
    def mark(self) -> object: ...
    def sights(self) -> Sights: ...
    def changes(self, since: object) -> tuple[Sights, Sights] | None: ...


class Comparison:
    """What the record expects and no listing shows. A loop in which neither side changed is done at once."""

    def __init__(self) -> None:
        self._groups: Groups = ()
        self._mark: object = None
        self._expected: set[tuple[str, str]] = set()
        self._shown: set[tuple[str, str]] = set()
        self._unseen: set[tuple[str, str]] = set()
        self._each_once = False
        """Whether each sight stands once on either side, so that one that went is gone."""
        self._result = frozenset[str]()

    def unseen(self, groups: Groups, listing: Shown) -> frozenset[str]:
        """Ids of the jobs that are expected and not shown so."""
        mark = listing.mark
        if mark is self._mark and groups == self._groups:
            return self._result
        if not self._update(groups, listing):
            self._make(groups, listing)
        self._groups, self._mark = groups, mark
        self._result = frozenset(seen.partition("|")[0] for seen, _ in self._unseen)
        return self._result

    def _make(self, groups: Groups, listing: Shown) -> None:
        expected: set[tuple[str, str]] = set()
        for lines, reason in groups:
            expected.update(zip(lines.split("\n"), repeat(reason)))
        sights = listing.sights()
        shown = set(sights)
        self._expected, self._shown, self._unseen = expected, shown, expected - shown
        self._each_once = len(shown) == len(sights) and len(expected) == _size(groups)

    def _update(self, groups: Groups, listing: Shown) -> bool:
        """The same by what changed; False where that is much or not known."""
        if not self._each_once:
            return False
        shown = ([], []) if listing.mark is self._mark else listing.changes(self._mark)
        expected = self._regrouped(groups)
        if shown is None or expected is None:
            return False
        size = len(self._shown) - len(shown[0]) + len(shown[1])
        for sights, (went, came) in ((self._shown, shown), (self._expected, expected)):
            sights.difference_update(went)
            sights.update(came)
        for sight in {*shown[0], *shown[1], *expected[0], *expected[1]}:
            if sight in self._expected and sight not in self._shown:
                self._unseen.add(sight)
            else:
                self._unseen.discard(sight)
        self._each_once = len(self._shown) == size and len(self._expected) == _size(groups)
        return self._each_once

    def _regrouped(self, groups: Groups) -> tuple[Sights, Sights] | None:
        went: Sights = []
        came: Sights = []
        if groups == self._groups:
            return went, came
        before, after = ({reason: lines for lines, reason in each} for each in (self._groups, groups))
        if len(before) != len(self._groups) or len(after) != len(groups):
            return None
        for reason in before.keys() | after.keys():
            changed = changed_lines(_text(before.get(reason)), _text(after.get(reason)))
            if changed is None:
                return None
            went += zip(changed[0], repeat(reason))
            came += zip(changed[1], repeat(reason))
        return went, came


def _text(lines: str | None) -> str:
    return "" if lines is None else f"{lines}\n"


def _size(groups: Groups) -> int:
    return sum(lines.count("\n") + 1 for lines, _ in groups)

"""What changed between two texts, or two listings, is what comparing all of both gives.

Attacked: cuts amid lines, lines that stand several times, moved, at the ends; sweeps whose two sides change in any way.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from outerloop.compute.changes import changed_lines
from outerloop.compute.protocol import Sights
from outerloop.dispatch.comparison import Comparison, Groups

lines = st.lists(st.sampled_from(["", "a", "ab", "abc", "b", "bbbbbb", "c"]), max_size=40)


def joined(parts: list[str]) -> str:
    return "".join(f"{part}\n" for part in parts)


@given(lines, lines, lines, st.integers(1, 20))
def test_changed_lines_are_the_difference_of_all_lines(
    same: list[str], old: list[str], new: list[str], block: int
) -> None:
    before, after = [*same, *old, *same], [*same, *new, *same]
    changed = changed_lines(joined(before), joined(after), most=1_000, block=block)
    assert changed is not None
    assert Counter(changed[0]) == Counter(before) - Counter(after)
    assert Counter(changed[1]) == Counter(after) - Counter(before)


def test_many_changed_lines_are_not_told() -> None:
    before, after = (joined([f"{kind}{n}" for n in range(5_000)]) for kind in "ab")
    assert changed_lines(before, after) is None


@dataclass
class Shown:
    """A listing that knows how it differs from the one before."""

    jobs: Sights
    before: Shown | None

    def __post_init__(self) -> None:
        self.mark: object = object()

    def sights(self) -> Sights:
        return self.jobs

    def changes(self, since: object) -> tuple[Sights, Sights] | None:
        if self.before is None or since is not self.before.mark:
            return None
        old, new = Counter(self.before.jobs), Counter(self.jobs)
        return list((old - new).elements()), list((new - old).elements())


reasons = st.sampled_from(["None", "Priority"])
jobs = st.lists(st.tuples(st.integers(1, 6).map(lambda n: f"{n}|RUNNING|"), reasons), max_size=8)


def grouped(expected: Sights) -> Groups:
    by_reason: dict[str, list[str]] = {}
    for seen, reason in expected:
        by_reason.setdefault(reason, []).append(seen)
    return tuple(("\n".join(seen), reason) for reason, seen in by_reason.items())


@given(st.lists(st.tuples(jobs, jobs, st.booleans(), st.booleans()), min_size=1, max_size=6))
def test_a_comparison_that_is_kept_equals_one_that_is_made_anew(
    sweeps: list[tuple[Sights, Sights, bool, bool]],
) -> None:
    kept = Comparison()
    listing: Shown | None = None
    for expected, shown, told, same in sweeps:
        if listing is None or not same:
            listing = Shown(shown, listing if told else None)
        fresh = {seen.partition("|")[0] for seen, _ in set(expected) - set(listing.jobs)}
        assert kept.unseen(grouped(expected), listing) == fresh

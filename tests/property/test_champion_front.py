"""Attacks the front: kept incrementally it must equal the full recomputation, ties and order included."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from outerloop.champion import Front, dominates, insert, lexicographic_champion, pareto_front

# Few values, so that ties and dominance chains are the rule.
counts = st.integers(0, 4)
rows = st.lists(
    st.tuples(counts, counts, counts).map(
        lambda c: {
            "fail_to_pass_count": c[0],
            "fail_count": 9,
            "pass_to_fail_count": c[1],
            "pass_count": 9,
            "rejected_total": c[2],
        }
    ),
    max_size=40,
).map(lambda found: [{**row, "finished": seq} for seq, row in enumerate(found)])


@given(rows, st.booleans())
@settings(max_examples=200, deadline=None)
def test_a_front_grown_row_by_row_equals_the_front_of_all_rows(found: list[dict[str, int]], rejects: bool) -> None:
    grown: list[dict[str, int]] = []
    kept: Front[dict[str, int]] = Front()
    for row in found:
        before = list(grown)
        grown = insert(grown, row, reject_objective=rejects)
        vector = (row["fail_to_pass_count"], row["pass_to_fail_count"])
        entered, left = kept.insert((*vector, row["rejected_total"]) if rejects else vector, row["finished"], row)
        assert entered == (row in grown)
        assert left == [other for other in before if other not in grown]
        assert kept.items() == grown
        assert kept.size == len(grown)
    assert grown == pareto_front(found, reject_objective=rejects)


@given(rows)
@settings(max_examples=200, deadline=None)
def test_the_lexicographic_champion_of_the_front_is_the_best_of_all_rows(found: list[dict[str, int]]) -> None:
    best = lexicographic_champion(pareto_front(found))
    assert best == lexicographic_champion(found)
    assert best is None or not any(dominates(row, best) for row in found)


@given(rows)
@settings(max_examples=100, deadline=None)
def test_dominance_is_a_strict_partial_order(found: list[dict[str, int]]) -> None:
    for a in found[:8]:
        assert not dominates(a, a)
        for b in found[:8]:
            assert not (dominates(a, b) and dominates(b, a))
            for c in found[:8]:
                assert dominates(a, c) or not (dominates(a, b) and dominates(b, c))

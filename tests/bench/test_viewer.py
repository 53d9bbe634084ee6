"""Holds the view's pace: every page of 10,000 runs and 100,000 measures in under 300 ms, with a few statements each.

In CPU time of the server and of Postgres, which on an idle machine is what a reader waits for.
"""

from __future__ import annotations

from tests.bench.bench_viewer import large_record, measure

SECONDS = 0.3
STATEMENTS = 12
"""However many rows a page shows; the overview, which tells of everything, has 11."""


def test_every_page_of_a_large_record_is_there_at_once() -> None:
    with large_record() as world:
        timed = measure(world)
    assert {one.path: round(one.cpu, 3) for one in timed if one.cpu >= SECONDS} == {}
    assert {one.path: one.statements for one in timed if one.statements > STATEMENTS} == {}

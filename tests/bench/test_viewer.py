"""Holds the view's pace: every page of 10,000 runs and 100,000 measures in under 300 ms, with a few statements each,
and be it the first that a server answers after its start.

In CPU time of the server and of Postgres, which on an idle machine is what a reader waits for.
"""

from __future__ import annotations

from tests.bench.bench_viewer import CAMPAIGN, LARGE, large_record, measure, measure_first

SECONDS = 0.3
STATEMENTS = 12
"""However many rows a page shows; the overview, which tells of everything, has 11."""
FIRST = (
    "/",
    f"/runs/{LARGE}",
    "/benchmarks/target-1/bench-1",
    f"/campaigns/{CAMPAIGN}",
    f"/api/charts/campaigns/{CAMPAIGN}/history",
    "/api/runs?limit=500",
)
"""Pages that cost most before a server had paid for them at its start; `python -m tests.bench viewer` asks for all."""


def test_every_page_of_a_large_record_is_there_at_once() -> None:
    with large_record() as world:
        timed = measure(world)
        first = measure_first(world, FIRST)
    assert {one.path: round(one.cpu, 3) for one in timed if one.cpu >= SECONDS} == {}
    assert {one.path: one.statements for one in timed if one.statements > STATEMENTS} == {}
    assert {one.path: round(one.cpu, 3) for one in first if one.cpu >= SECONDS} == {}

"""Holds what a tick may cost however many runs are parked: calls, rows, CPU, memory, 50 runs that end among them."""

from __future__ import annotations

from tests.bench.bench_tick import measure

CALLS = 2
CPU_RATIO = 3.0
FINISHED_RATIO = 2.0
MEMORY_MB = 150.0


def test_ten_thousand_parked_runs_cost_a_tick_little_more_than_a_hundred() -> None:
    found = measure(ticks=3)
    idle = (found.one, found.few, found.many)
    assert all(row.calls <= CALLS for row in idle), found
    assert len({row.calls for row in idle}) == len({row.rows for row in idle}) == 1, found
    assert found.cpu_ratio <= CPU_RATIO, found
    assert found.looped_ratio <= CPU_RATIO, found
    assert found.many.memory_mb <= MEMORY_MB, found
    assert found.finished_ratio <= FINISHED_RATIO, found

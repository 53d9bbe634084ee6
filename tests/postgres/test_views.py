"""Attacks on looking: queries per item, runs of others, wildcards in filters, read-only roles, wrong counts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import event, make_url, text

from outerloop.controller import views
from outerloop.controller.views import RunFilter
from outerloop.record.store import Record
from tests.rows import World, at, make_world


@pytest.fixture
def world(database: str, tmp_path: Path) -> Iterator[World]:
    made = make_world(database, tmp_path / "state")
    yield made
    made.record.close()


@contextmanager
def statements(record: Record) -> Iterator[list[str]]:
    """What is asked meanwhile, without the opening of transactions."""
    asked: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        if statement.lstrip().lower().startswith(("select", "with", "insert", "update", "delete")):
            asked.append(statement)

    event.listen(record._engine, "before_cursor_execute", note)
    try:
        yield asked
    finally:
        event.remove(record._engine, "before_cursor_execute", note)


def _sized(world: World, run_id: str, measures: int) -> None:
    world.run(run_id, state="waiting", state_reason="JOBS")
    world.round(run_id)
    for number in range(measures):
        slot = world.measure(run_id, f"candidate-{number}", seed=number + 1)
        world.attempt(slot, 1, outcome="infrastructure", reason="NODE_FAIL")
        world.attempt(slot, 2, slurm_state="pending", slurm_reason="Priority" if number % 2 else "Resources")


def test_a_large_run_takes_as_many_queries_as_a_small_one(world: World) -> None:
    _sized(world, "c-smal", 1)
    _sized(world, "c-larg", 12)
    counts = []
    for run_id, measures in (("c-smal", 1), ("c-larg", 12)):
        with statements(world.record) as asked:
            view = views.one_run(world.record, run_id)
        assert view is not None
        assert len(view.measures) == measures
        assert all([attempt.n for attempt in measure.attempts] == [1, 2] for measure in view.measures)
        assert len(view.waits_for) == measures
        counts.append(len(asked))
    assert counts[0] == counts[1] <= 5


def test_a_page_of_many_runs_takes_as_many_queries_as_one_of_few(world: World) -> None:
    for number in range(12):
        _sized(world, f"c-{number:04d}", 2)
    counts = []
    for limit in (1, 12):
        with statements(world.record) as asked:
            page = views.runs(world.record, limit=limit)
        assert len(page.runs) == limit
        counts.append(len(asked))
    assert counts[0] == counts[1] <= 3
    row = page.runs[0]
    assert (row.measures, row.done, row.jobs) == (2, 0, {"pending": 2})
    assert row.pending == {"Priority": 1, "Resources": 1}


def test_only_the_current_round_is_counted_and_shown_as_current(world: World) -> None:
    world.run("c-round", state="waiting", round=1)
    world.value("c-round", "baseline", "9", round=0)
    world.measure("c-round", "baseline", round=1)
    view = views.one_run(world.record, "c-round")
    assert view is not None
    assert (view.row.measures, view.row.done) == (1, 0)
    assert [measure.round for measure in view.measures] == [0, 1]
    assert [measure.round for measure in view.current] == [1]


def test_pages_join_without_gap_or_repetition(world: World) -> None:
    for number in range(7):
        world.run(f"c-{number}", created_at=at(number // 3))
    seen: list[str] = []
    offset: int | None = 0
    while offset is not None:
        page = views.runs(world.record, limit=3, offset=offset)
        assert page.total == 7
        seen += [run.id for run in page.runs]
        offset = page.next_offset
    assert sorted(seen) == [f"c-{number}" for number in range(7)]
    assert seen[0] == "c-6"
    assert views.runs(world.record, limit=3, offset=70).runs == ()


def test_filters_take_their_text_literally(world: World) -> None:
    world.run("c-1", label="100% faster")
    world.run("c-2", label="100 times faster", benchmark="knapsack")
    world.run("c-3", label="under_score", state="blocked", state_reason="CONTRACT")

    def found(**fields: object) -> list[str]:
        return sorted(run.id for run in views.runs(world.record, RunFilter(**fields)).runs)  # type: ignore[arg-type]

    assert found(text="100%") == ["c-1"]
    assert found(text="UNDER_s") == ["c-3"]
    assert found(text="_") == ["c-3"]
    assert found(benchmark="knapsack") == ["c-2"]
    assert found(states=("blocked", "ended")) == ["c-3"]
    assert found(target="TOURS") == ["c-1", "c-2", "c-3"]
    assert found(target="tours", text="faster", benchmark="tsp") == ["c-1"]
    assert found(text="'; drop table runs; --") == []


def test_blocked_runs_come_first_whatever_their_age(world: World) -> None:
    world.run("c-old", state="blocked", state_reason="CONTRACT", created_at=at(0))
    world.run("c-new", created_at=at(100))
    assert [run.id for run in views.runs(world.record, limit=1).runs] == ["c-old"]


def test_another_realm_is_not_seen(world: World) -> None:
    world.run("c-mine")
    other = Record(world.url, owner="somebody-else", slot_root=str(world.state))
    try:
        assert views.runs(other).total == 0
        assert views.one_run(other, "c-mine") is None
        assert views.overview(other).open == 0
        assert views.queue(other) == ()
        assert views.last_tick(other) is None
    finally:
        other.close()


def test_the_overview_names_one_example_of_each_trouble(world: World) -> None:
    world.run("c-b1", state="blocked", state_reason="CONTRACT", updated_at=at(1))
    world.run("c-b2", state="blocked", state_reason="ENVIRONMENT", updated_at=at(2))
    world.run("c-w", state="waiting", state_reason="JOBS", created_at=at(3), last_error="Traceback: boom")
    world.run("c-q", created_at=at(5))
    world.run("c-e")
    world.end("c-e", "rejected", "no-improvement", "rejected: no gain")
    seen = views.overview(world.record)
    assert (seen.queued, seen.waiting, seen.blocked, seen.ended) == (1, 1, 2, 1)
    assert (seen.blocked_run, seen.blocked_reason) == ("c-b2", "ENVIRONMENT")
    assert (seen.broken, seen.broken_run) == (1, "c-w")
    assert seen.oldest == at(3)


def test_the_queue_counts_a_shared_job_once(world: World) -> None:
    """Two runs that want the same work wait for one job."""
    world.run("c-1", state="waiting")
    world.run("c-2", state="waiting")
    slot = world.measure("c-1", "baseline")
    world.attempt(slot, slurm_state="pending", slurm_reason="Priority")
    from outerloop.record.models import Measure

    with world.session() as session:
        session.add(Measure(run_id="c-2", slot_id=slot, role="baseline", benchmark="tsp", side="base", pair=0))
    other = world.measure("c-2", "candidate")
    world.attempt(other, state="intent", job_id=None, submitted_at=None)
    found = {(view.state, view.reason): (view.jobs, view.runs) for view in views.queue(world.record)}
    assert found == {("pending", "Priority"): (1, 2), ("submitted", ""): (1, 1)}


def test_a_cancelled_job_is_called_so_before_a_listing_shows_that_it_is_gone(world: World) -> None:
    from outerloop.controller.history import live_jobs
    from outerloop.controller.timeline import attempt_state

    world.run("c-gone", state="ended", verdict="cancelled", sentence="cancelled")
    world.round("c-gone")
    slot = world.measure("c-gone", "baseline")
    world.attempt(slot, slurm_state="pending", slurm_reason="Priority", cancel_reason="cancelled by its owner")
    [row] = views.runs(world.record).runs
    assert row.jobs == {"cancelling": 1} and row.pending == {}
    assert [(group.state, group.jobs) for group in views.queue(world.record)] == [("cancelling", 1)]
    jobs, total = live_jobs(world.record, state="cancelling")
    assert (len(jobs), total) == (1, 1)
    seen = views.one_run(world.record, "c-gone")
    assert seen is not None and attempt_state(seen.measures[0].attempts[0]) == "cancelling"


def test_the_history_of_champions_knows_the_newest_of_each_definition(world: World) -> None:
    world.run("c-1")
    world.champion(1, "c-1", "9", "1", definition="a" * 64, accepted_at=at(1))
    world.champion(2, "c-1", "8", "1", definition="a" * 64, accepted_at=at(2))
    world.champion(1, "c-1", "70", "5", definition="b" * 64, accepted_at=at(3))
    world.champion(1, "c-gone", "1", "1", benchmark="knapsack", accepted_at=at(4))
    found = views.champions(world.record)
    assert [(c.benchmark, c.definition[0], c.seq, c.newest) for c in found] == [
        ("knapsack", "d", 1, True),
        ("tsp", "b", 1, True),
        ("tsp", "a", 2, True),
        ("tsp", "a", 1, False),
    ]
    assert [c.submitter for c in found][:2] == ["", "ada"]
    assert [c.seq for c in views.champions(world.record, "tsp", limit=1)] == [1]


def test_measures_stand_in_the_order_that_people_read(world: World) -> None:
    """Whatever order they were made in: rounds, environments, the climbed benchmark before siblings, base first."""
    world.run("c-1")
    world.measure("c-1", "sib-k-cand", benchmark="k")
    world.measure("c-1", "sib-k-base", benchmark="k")
    world.measure("c-1", "candidate-1", pair=1)
    world.measure("c-1", "candidate")
    world.measure("c-1", "baseline")
    world.measure("c-1", "env-base", slot={"kind": "environment"}, benchmark="")
    view = views.one_run(world.record, "c-1")
    assert view is not None
    assert [measure.role for measure in view.measures] == [
        "env-base",
        "baseline",
        "candidate",
        "candidate-1",
        "sib-k-base",
        "sib-k-cand",
    ]


def test_a_value_is_exact_and_of_done_slots_only(world: World) -> None:
    world.run("c-1")
    world.value("c-1", "candidate", "0.10000000000000000000001")
    failed = {"state": "failed", "reason": "NO_METRIC", "detail": "x", "result": {"metric": {"text": "5"}}}
    world.measure("c-1", "baseline", slot=failed)
    view = views.one_run(world.record, "c-1")
    assert view is not None
    assert [None if m.value is None else str(m.value) for m in view.measures] == [None, "0.10000000000000000000001"]


def test_everything_can_be_seen_with_select_alone(world: World) -> None:
    world.accepted()
    world.champion(1, "c-acce000001", "7542.0", "368")
    world.tick(10)
    owner = make_url(world.url).set(drivername="postgresql").render_as_string(hide_password=False)
    name = f"looker_{make_url(world.url).database}"
    with psycopg.connect(owner, autocommit=True) as connection:
        connection.execute(f"create role {name} login password 'look'")  # type: ignore[arg-type]
        connection.execute(f"grant select on all tables in schema public to {name}")  # type: ignore[arg-type]
    try:
        looker = make_url(world.url).set(username=name, password="look").render_as_string(hide_password=False)
        record = Record(looker, owner=world.record.owner, slot_root=world.record.slot_root)
        try:
            assert views.runs(record).total == 1
            assert views.one_run(record, "c-acce000001") is not None
            assert len(views.champions(record)) == 1
            assert views.overview(record).ended == 1
            assert views.last_tick(record) is not None
            assert views.queue(record) == ()
            assert views.benchmarks(record) == ["tsp"]
            assert record.realm_id == world.record.realm_id
        finally:
            record.close()
    finally:
        with psycopg.connect(owner, autocommit=True) as connection:
            connection.execute(f"drop owned by {name}")  # type: ignore[arg-type]
            connection.execute(f"drop role {name}")  # type: ignore[arg-type]


def test_a_page_of_ten_thousand_parked_runs_is_there_at_once(world: World) -> None:
    """Measured 32 ms on two cores; counting every run before the page was cut took a second."""
    with world.session() as session:
        for statement in _TEN_THOUSAND:
            session.execute(text(statement), {"r": world.record.realm_id})
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        page = views.runs(world.record, RunFilter(states=("waiting",)), limit=50)
        assert views.overview(world.record).waiting == page.total == 10_000
        assert views.queue(world.record)[0].jobs == 20_000
        seconds.append(time.perf_counter() - began)
        assert page.runs[0].pending == {"Priority": 2}
    assert min(seconds) < 0.5


_TEN_THOUSAND = (
    "insert into runs (id, realm_id, kind, question, target, benchmark, definition, base_commit, base_tree,"
    " candidate_commit, candidate_tree, submitter, request, state, state_reason)"
    " select 'c-' || i, :r, 'climb', i::text, 't', 'b', 'd', 'x', 'x', 'x', 'x', 'a', '{}', 'waiting', 'JOBS'"
    " from generate_series(1, 10000) i",
    'insert into slots (realm_id, digest, label, target, submitter, "order")'
    " select :r, i::text, 'l', 't', 'a', '{}' from generate_series(1, 20000) i",
    "insert into measures (run_id, slot_id, role, benchmark, side, pair)"
    " select 'c-' || ((i + 1) / 2), id, 'r' || i, 'b', 'base', 0 from"
    " (select id, row_number() over (order by id) as i from slots where realm_id = :r) numbered",
    "insert into attempts (realm_id, slot_id, n, state, job_name, job_id, minutes, command_minutes, slurm_state,"
    " slurm_reason) select :r, id, 1, 'submitted', 'j' || id, id::text, 1, 1, 'pending', 'Priority' from slots"
    " where realm_id = :r",
)

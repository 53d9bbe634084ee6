"""The record is lost; requests, ledgers and slots on disk bring it back.

Attacked: every kind of run at once, rebuilt over the old rows and into a new database, must be what it was, and what
was open must go on to the same verdict. Damaged files are named and cost one run, not the rebuild. Two owners in one
database do not disturb each other.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outerloop.controller.rebuild import Rebuilt, rebuild
from outerloop.record import migrate
from outerloop.record.models import Champion, Realm
from tests.controller_rig.world import World
from tests.e2e.test_sharing import stopped_wake
from tests.postgres.conftest import _database_url, _execute

BACK_TO_REST = 3
"""Ticks after which a rebuilt record has found everything that is not on disk: blocks, leases, waits."""


def remade(world: World) -> Rebuilt:
    deployment = world.open()
    try:
        return rebuild(deployment.context)
    finally:
        deployment.close()


def steady(world: World) -> dict[str, Any]:
    """The snapshot, when ticks change nothing any more."""
    for _ in range(BACK_TO_REST):
        world.tick()
    return world.snapshot()


def person_cancels(world: World) -> None:
    for job, body in world.measuring_jobs().items():
        if body["state"] == "pending":
            world.cluster.change(job, state="cancelled", cancelled_by="4711")
    world.tick()


def mixture(world: World) -> dict[str, str]:
    """One run of each kind, by what it is; nothing is left to do but what waits for jobs or for a person."""
    world.branch("outside", cost="8")
    (world.repo / "README").write_text("not allowed")
    world.git("checkout", "-q", "outside")
    world.git("add", "README")
    world.git("commit", "-q", "-m", "outside")
    world.git("checkout", "-q", "main")
    world.branch("faulty", cost="8", extra="exit 3\n")
    world.branch("best", cost="6")
    world.branch("smaller", size="90")
    world.branch("tiny", size="80")
    runs: dict[str, str] = {}

    runs["scope"] = world.submit("outside")
    runs["cancelled"] = world.submit("better")
    world.cancel(runs["cancelled"])
    runs["failed"] = world.submit("faulty")
    runs["rejected"] = world.submit("bigger")
    world.ticks_until_rest()

    # Two at once: one is superseded and goes through a second round.
    runs["accepted"], runs["moved"] = world.submit("better"), world.submit("best")
    world.run_measures()
    with stopped_wake(world, runs["moved"], "before:champion.link"):
        world.wake(runs["accepted"], None)
    world.ticks_until_rest()
    assert world.run(runs["moved"]).round == 1

    # Infrastructure on the way to a verdict, and once more than the slot allows, with a grant in between.
    runs["retried"] = world.submit("same")
    [first, *_] = [i for i, body in world.measuring_jobs().items() if body["state"] == "pending"]
    world.cluster.change(first, state="node_fail")
    world.tick()
    world.ticks_until_rest()
    runs["blocked"] = world.submit("smaller", benchmark="size")
    person_cancels(world)
    world.retry(runs["blocked"])
    world.tick()
    person_cancels(world)
    assert world.run(runs["blocked"]).state == "blocked"

    # Waiting: one job has ended without anybody looking, one is lost once, the rest is queued.
    runs["waiting"] = world.submit("same", again=True)
    live = [i for i, body in world.measuring_jobs().items() if body["state"] == "pending"]
    world.cluster.change(live[0], state="node_fail")
    world.tick()
    return runs


@pytest.fixture
def mixed(world: World) -> tuple[World, dict[str, str]]:
    return world, mixture(world)


@pytest.fixture
def new_database(pg_url: str, request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"again_{abs(hash(request.node.nodeid)):x}"
    _execute(pg_url, f"create database {name}")
    url = _database_url(pg_url, name)
    migrate.upgrade(url)
    yield url
    _execute(pg_url, f"drop database {name} with (force)")


def test_every_kind_of_run_comes_back_and_goes_on(mixed: tuple[World, dict[str, str]], new_database: str) -> None:
    world, runs = mixed
    before = steady(world)
    jobs = len(world.measuring_jobs())
    champions = world.rows(Champion)

    done = remade(world)
    assert done.problems == [] and done.runs == len(runs) and done.champions == 2
    assert steady(world) == before, "over the old rows"

    world.settings = world.settings.model_copy(update={"database_url": type(world.settings.database_url)(new_database)})
    assert remade(world).problems == []
    assert steady(world) == before, "into a new database"
    again = world.rows(Champion)
    facts = ("seq", "run_id", "commit", "tree", "value", "gain", "label", "accepted_at", "definition")
    assert [[getattr(c, f) for f in facts] for c in again] == [[getattr(c, f) for f in facts] for c in champions]
    assert len(world.measuring_jobs()) == jobs, "rebuilding submitted something"
    assert remade(world).runs == len(runs) and steady(world) == before, "twice is once"

    world.retry(runs["blocked"])
    world.ticks_until_rest()
    verdicts = {kind: (world.run(run).verdict, world.run(run).verdict_reason) for kind, run in runs.items()}
    assert verdicts["scope"] == ("failed", "scope")
    assert {kind: verdict for kind, (verdict, _) in verdicts.items()} == {
        "scope": "failed",
        "cancelled": "cancelled",
        "failed": "failed",
        "rejected": "rejected",
        "accepted": "accepted",
        "moved": "accepted",
        "retried": "rejected",
        "blocked": "accepted",
        "waiting": "rejected",
    }
    world.check_invariants()


def test_a_rebuild_that_is_killed_leaves_the_old_record(world: World) -> None:
    world.submit("better")
    world.ticks_until_rest()
    before = world.snapshot()
    assert world.forked(lambda: remade(world), fault="before:tx.rebuild:kill") == -signal.SIGKILL
    assert world.forked(lambda: _killed_inside(world)) == -signal.SIGKILL
    assert world.snapshot() == before
    assert remade(world).runs == 1 and world.snapshot() == before


def _killed_inside(world: World) -> None:
    """Dies after the old rows were dropped, before the commit."""
    deployment = world.open()
    rebuild(deployment.context, progress=lambda run_id: os.kill(os.getpid(), signal.SIGKILL))


def _spoil(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_torn_files_are_named_and_cost_their_run_alone(world: World) -> None:
    good = world.submit("better")
    torn_request = world.submit("bigger")
    torn_event = world.submit("same")
    world.ticks_until_rest()
    kept = [row for row in world.snapshot()["runs"] if row[0] == good]
    _spoil(world.state.request(torn_request))
    _spoil(world.state.event(torn_event, 1))
    (world.state.runs / "c-unfinished").mkdir()  # a submission that died before its request was there
    done = remade(world)
    assert done.runs == 1
    assert len(done.problems) == 2
    assert any(torn_request in problem and "request.json" in problem for problem in done.problems), done.problems
    assert any(torn_event in problem and "000001.json" in problem for problem in done.problems), done.problems
    assert world.snapshot()["runs"] == kept
    world.tick()
    assert [run.id for run in world.runs()] == [good]


def test_a_torn_event_of_a_living_run_is_an_error_that_names_it_and_not_a_new_decision(world: World) -> None:
    run_id = world.submit("better")
    world.run_measures()
    event = world.state.event(run_id, 1)
    event.write_text('{"kind": "crown", "bo')
    report = world.tick()
    assert "000001.json" in report.broken[run_id]
    assert not world.rows(Champion) and world.run(run_id).verdict is None
    event.unlink()
    world.pass_time(301)
    world.tick()
    assert world.run(run_id).verdict == "accepted"
    world.check_invariants()


def test_a_torn_champion_is_an_error_and_not_a_second_champion(world: World) -> None:
    first = world.submit("better")
    world.branch("best", cost="6")
    second = world.submit("best")
    world.run_measures()
    world.wake(first, None)
    assert world.run(first).verdict == "accepted"
    [path] = world.state.champions.glob("*/000001.json")
    whole = path.read_text()
    path.write_text(whole[:40])
    report = world.tick()
    assert str(path) in report.broken[second], report.broken
    path.write_text(whole)
    world.pass_time(301)
    world.ticks_until_rest()
    assert sorted(c.seq for c in world.rows(Champion)) == [1, 2]
    world.check_invariants()


def to_verdict(world: World, run_id: str) -> str | None:
    for _ in range(10):
        world.run_measures()
        world.tick()
        if world.run(run_id).state == "ended":
            return world.run(run_id).verdict
    raise AssertionError(world.describe())


def test_two_owners_in_one_database_do_not_disturb_each_other(tmp_path: Path, database: str) -> None:
    here, there = World(tmp_path / "here", database), World(tmp_path / "there", database)
    mine, yours = here.submit("better"), there.submit("better")
    assert mine != yours
    assert to_verdict(here, mine) == "accepted"
    assert there.run(yours).state == "waiting" and there.executions() == 0
    before = here.snapshot()
    assert remade(here).runs == 1
    assert steady(here) == before, "mine is back, yours was not touched"
    assert remade(there).runs == 1
    assert steady(there) == before
    assert to_verdict(there, yours) == "accepted"
    assert here.executions() == there.executions() == 2
    assert len(here.rows(Realm)) == 2
    assert sorted((c.seq, c.run_id) for c in here.rows(Champion)) == sorted([(1, mine), (1, yours)])

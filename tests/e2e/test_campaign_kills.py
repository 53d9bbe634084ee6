"""A campaign that is killed again and again ends with the ledger of one that nobody touched, times aside.

Every tick of the disturbed campaign dies after another effect, until each effect that a campaign comes by has had its
turn; jobs lose their nodes meanwhile. One world serves all points: what a kill left broken would show in what follows.
Not covered: a real cluster (tests/slurm/test_campaigns.py).
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from outerloop.record import migrate
from outerloop.record.models import CampaignEvent
from tests.controller_rig.campaigns import CampaignWorld
from tests.controller_rig.commands import interrupted, private_server
from tests.e2e.test_crash_points import TABLES
from tests.postgres.conftest import _execute

STEPS = ("split", "train", "evaluate", "ensemble", "teacher", "package")
RECORD_UNAVAILABLE = 4
CAMPAIGN = frozenset({"campaign.event", "campaign.config", "campaign.link", "campaign.teacher", "tx.campaign"})
"""What nothing but a campaign does."""


@pytest.fixture
def worlds(tmp_path: Path, database: str) -> Callable[[], CampaignWorld]:
    """Makes fresh worlds, one after the other on one database and at one place, since configs have paths in them."""

    def make() -> CampaignWorld:
        _execute(database, f"truncate {TABLES} restart identity cascade")
        shutil.rmtree(tmp_path / "w", ignore_errors=True)
        return CampaignWorld(tmp_path / "w", database)

    return make


def prepared(world: CampaignWorld, **keys: object) -> CampaignWorld:
    """One round of two ordinary candidates, then one with a student besides."""
    world.campaign(
        STEPS,
        max_rounds=2,
        teacher_after_round=1,
        teacher_file="teachers/g{generation}.txt",
        ensemble_from_round=1,
        saturation_evals=3,
        max_reserve_checks=9,
        **keys,
    )
    world.candidates(a=[[20, 20], [15, 25]], b={"errors": [[10, 12]], "reserve": [11, 12]})
    return world


def calm(world: CampaignWorld) -> tuple[str, str, list[str]]:
    """The run, its ledger, and the effects that its commands came by, each once in the order of the first time."""
    assert world.forked(lambda: world.submit_campaign(), trace=True) == 0
    [run] = world.runs()
    for _ in range(60):
        world.run_measures()
        assert world.forked(lambda: world.tick(), trace=True) == 0
        if world.run(run.id).state == "ended":
            break
    assert world.run(run.id).verdict == "finished", world.describe()
    world.check_invariants()
    points = [point.partition(":")[2] for point in world.reached() if point.startswith("after:")]
    return run.id, world.told(run.id), list(dict.fromkeys(points))


def faults(points: list[str]) -> Iterator[str]:
    """Each effect once; those of a campaign also at later times of one pass."""
    for number in (1, 2):
        for point in points:
            if number == 1 or point in CAMPAIGN:
                yield f"after:{point}:kill:{number}"


def disturbed(world: CampaignWorld, pending: list[str]) -> tuple[str, list[str]]:
    """Run the campaign with a kill in every tick, at the first pending point that it comes by, and with nodes that
    fail. Returns the run and the points that killed."""
    code = world.forked(lambda: world.submit_campaign(), fault="after:inbox.write:kill:1")
    assert code == -signal.SIGKILL
    killed: list[str] = []
    lost = 0
    for turn in range(200):
        for job in world.cluster.startable():
            if "-wake-" in world.cluster.jobs()[job]["name"]:
                continue
            # Every fifth turn's jobs lose their node before they do anything.
            if turn % 5 == 2 and lost < 6:
                world.cluster.change(job, state="node_fail")
                lost += 1
            else:
                world.cluster.execute(job)
        # All points are armed at once; the trace's last line says which one it was.
        if world.forked(lambda: world.tick(), fault=",".join(pending), trace=True) == -signal.SIGKILL:
            name = world.reached()[-1]
            fault = next(fault for fault in pending if fault.startswith(f"{name}:"))
            killed.append(fault)
            pending.remove(fault)
        runs = world.runs()
        if runs and runs[0].state == "ended":
            break
    [run] = world.runs()
    assert run.verdict == "finished", world.describe()
    return run.id, killed


@pytest.mark.parametrize(
    ("parallel", "compare"),
    [
        (1, "result"),
        pytest.param(
            2,
            "decided",
            marks=pytest.mark.skipif(
                not os.environ.get("OUTERLOOP_NIGHTLY"), reason="the same again: set OUTERLOOP_NIGHTLY"
            ),
        ),
    ],
)
def test_a_campaign_killed_at_every_effect_has_the_ledger_of_an_undisturbed_one(
    worlds: Callable[[], CampaignWorld], parallel: int, compare: str
) -> None:
    quiet = prepared(worlds(), parallel=parallel, compare=compare)
    run_id, told, points = calm(quiet)
    assert set(points) >= CAMPAIGN
    did = quiet.marks.read_text().splitlines()
    rough = prepared(worlds(), parallel=parallel, compare=compare)
    again, killed = disturbed(rough, list(faults(points)))
    # A submission alone comes by what makes the request, and an end whose event was written is folded by the next.
    spared = {point for point in points if f"after:{point}:kill:1" not in killed}
    assert spared <= {"mirror.fetch", "mirror.pin", "inbox.write", "tx.end", "tx.tick"}, spared
    assert again == run_id
    if parallel == 1:
        assert rough.told(again).splitlines() == told.splitlines()
    else:
        # Who is ready first depends on whose node failed; what was found, and who won, does not.
        assert sorted(findings(rough.told(again))) == sorted(findings(told))
        assert champion_row(rough.told(again)) == champion_row(told)
    # Nothing was trained or scored twice, and nothing was left out.
    done = rough.marks.read_text().splitlines()
    assert sorted(kept(done)) == sorted(kept(did))
    if parallel == 1:
        assert packages(done) == packages(did)
    # With several at once, who leads for a while, and is packaged, depends on arrival; who is packaged last does not.
    assert len(set(packages(done))) == len(packages(done)) and packages(done)[-1] == packages(did)[-1]
    assert "The ledger holds" in rough.cli("campaign", "events", again, "--replay")
    rough.check_invariants()


def test_a_record_that_is_killed_between_file_and_row_gets_the_row_later(tmp_path: Path) -> None:
    """kill -9 of Postgres while an event is on disk alone: the tick says so, and the next one folds it."""
    with private_server() as server:
        migrate.upgrade(server.url)
        world = CampaignWorld(tmp_path / "w", server.url)
        world.campaign(("split", "train", "evaluate"))
        world.candidates(a=[[20, 20], [15, 12]])
        run_id = world.submit_campaign()
        world.run_measures()
        said = interrupted(world, "tick", point="after:campaign.event", what=server.kill)
        assert said.code == RECORD_UNAVAILABLE and "Traceback" not in said.text, said
        written = len(world.ledger(run_id))
        server.start()
        assert len(world.rows(CampaignEvent)) == written - 1
        world.ticks_until_rest(60)
        assert world.run(run_id).verdict == "finished", world.describe()
        assert len(world.rows(CampaignEvent)) == len(world.ledger(run_id))
        assert world.did("train") == 1 and world.did("evaluate") == 2
        assert "The ledger holds" in world.cli("campaign", "events", run_id, "--replay")
        world.check_invariants()


def findings(ledger: str) -> list[str]:
    """What was trained and scored with which counts, without the order in which it became known."""
    from outerloop.champion import EvalEvent, RunEvent, events_from_jsonl

    events = events_from_jsonl(ledger)
    return [f"{e.run_id} {e.status}" for e in events if isinstance(e, RunEvent)] + [
        f"{e.role} {e.subject} {e.row} {e.decided}" for e in events if isinstance(e, EvalEvent)
    ]


def packages(marks: list[str]) -> list[str]:
    """The packages among the things done, in their order."""
    return [line for line in marks if line.startswith("package ")]


def kept(marks: list[str]) -> list[str]:
    """The things done, packages aside."""
    return [line for line in marks if not line.startswith("package ")]


def champion_row(ledger: str) -> dict[str, int]:
    """The row of the last champion of a ledger."""
    from outerloop.champion import events_from_jsonl, fold

    state = fold(events_from_jsonl(ledger))
    assert state.generation is not None and state.generation.champion is not None
    return dict(state.generation.champion.row)

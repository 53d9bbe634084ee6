"""Damage in the state folder: what lies in place of a slot, a result or a request stops nobody but who needs it.

Covered: a slot's folder that is a file or a link, results that no record can hold or that are no plain files, specs of
every kind of run that are torn or gone, odd files in the inbox. Not covered: a disk that is full or read-only, which
concerns everybody (test_outages.py), and what a job does with damage (tests/unit/job).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outerloop.record.models import Attempt, Slot
from outerloop.slots import SlotDirectory
from tests.controller_rig.campaigns import CampaignWorld
from tests.controller_rig.entries import EntryWorld
from tests.controller_rig.trainings import TrainingWorld
from tests.controller_rig.world import World


def two_runs(world: World) -> tuple[str, str, Path]:
    """Two climbs with one base; the slot that only the second one needs."""
    first = world.submit("better", benchmark="size")
    before = set(world.measuring_jobs())
    second = world.submit("bigger", benchmark="size")
    [mine] = set(world.measuring_jobs()) - before
    return first, second, world.slot_folder(mine)


def test_a_slot_whose_folder_is_none_stops_only_its_own_run(world: World) -> None:
    first, second, slot = two_runs(world)
    world.run_measures()
    shutil.move(slot, slot.with_name("aside"))
    slot.symlink_to(slot)
    report = world.tick()
    assert world.run(first).state == "ended" and world.run(first).verdict == "rejected"
    assert list(report.broken) == [second] and str(slot) in report.broken[second]
    told = world.run(second)
    assert told.state == "waiting" and str(slot) in str(told.last_error), "it says what is wrong"
    # Put right, it goes on by itself.
    slot.unlink()
    shutil.move(slot.with_name("aside"), slot)
    world.pass_time(400)
    world.ticks_until_rest()
    assert world.run(second).verdict == "rejected"
    world.check_invariants()


def test_a_result_that_no_record_can_hold_or_that_is_no_file_is_not_there(world: World) -> None:
    runs, results = [], []
    for name in ("nul", "fifo", "overflow"):
        world.branch(name, size=str(90 + len(runs)), note=name)
        before = set(world.measuring_jobs())
        runs.append(world.submit(name, benchmark="size"))
        results.append(world.slot_folder(max(set(world.measuring_jobs()) - before)) / "attempts" / "1" / "result.json")
    world.run_measures()
    nul, fifo, overflow = results
    nul.write_text(json.dumps({**json.loads(nul.read_text()), "artifacts": [{"path": "out/\0\udcff\ud800"}]}))
    fifo.unlink()
    os.mkfifo(fifo)
    overflow.write_text(overflow.read_text().replace("{", '{"peak": 1e999,', 1))
    report = world.tick()
    assert list(report.broken) == [runs[-1]], "the last one alone could not be stored"
    assert (overflow.parent / "settled.json").exists(), "and was called done before that was found"
    overflow.write_text("{")
    world.pass_time(400)
    world.ticks_until_rest()
    assert {world.run(run).verdict for run in runs} <= {"accepted", "rejected"}, "nobody is charged"
    lost = [attempt for attempt in world.rows(Attempt) if attempt.outcome == "infrastructure"]
    assert {attempt.reason for attempt in lost} == {"NO_RESULT"} and len(lost) == 2
    world.check_invariants()


@pytest.mark.parametrize("damage", ["removed", "torn"])
def test_a_slot_without_a_readable_spec_is_measured_again(world: World, damage: str) -> None:
    run = world.submit("better", benchmark="size")
    [job, _other] = world.measuring_jobs()
    slot = world.slot_folder(job)
    if damage == "torn":
        (slot / "spec.json").write_text('{"digest": ')
        world.run_measures()
    else:
        world.run_measures()
        shutil.rmtree(slot)
    world.ticks_until_rest()
    assert world.run(run).verdict == "rejected", world.describe()
    [failed] = [attempt for attempt in world.rows(Attempt) if attempt.outcome != "done"]
    assert failed.reason == {"torn": "SPEC", "removed": "NO_RESULT"}[damage]
    world.check_invariants()


def test_odd_files_in_the_inbox_stop_nobody(world: World) -> None:
    run = world.submit("better", benchmark="size")
    world.run_measures()
    inbox = world.state.inbox
    inbox.mkdir(exist_ok=True)
    os.mkfifo(inbox / "fifo.json")
    (inbox / "folder.json").mkdir()
    (inbox / "loop.json").symlink_to("loop.json")
    asked = json.loads(world.state.request(run).read_text())
    for name, change in {
        "c-huge": {"priority": 10**40},
        "c-when": {"created_at": "yesterday"},
        "c-list": {"execution": []},
    }.items():
        (inbox / f"{name}.json").write_text(json.dumps({**asked, "id": name, "question": name, **change}))
    # A good one whose folder somebody took.
    (world.state.runs / "c-taken").write_text("x")
    (inbox / "c-taken.json").write_text(json.dumps({**asked, "id": "c-taken", "question": "q", "ask": 1}))
    (world.state.path / "doorbells").mkdir(exist_ok=True)
    (world.state.path / "doorbells" / os.fsdecode(b"\xff\xfe")).touch()
    report = world.tick()
    assert world.run(run).state == "ended", report.notes
    named = "\n".join(report.notes)
    for name in ("fifo", "folder", "loop", "c-huge", "c-when", "c-list", "c-taken"):
        assert f"inbox/{name}.json" in named, named
    assert not report.broken and [r.id for r in world.runs()] == [run]


def test_a_path_that_is_no_text_is_a_verdict_like_any_other(world: World) -> None:
    odd = os.fsencode(world.repo) + b"/\xff\n"
    world.git("checkout", "-q", "-B", "odd", "main")
    Path(os.fsdecode(odd)).write_text("x")
    world.git("add", "-A")
    world.git("commit", "-q", "-m", "odd")
    world.git("checkout", "-q", "main")
    run = world.run(world.submit("odd", benchmark="size"))
    assert (run.state, run.verdict_reason) == ("ended", "scope") and "\\xff" in str(run.sentence), run.sentence
    world.check_invariants()


def train(world: TrainingWorld) -> str:
    return world.train(world.tasks_plan(3))


def enter(world: EntryWorld) -> str:
    return world.enter(world.data("good", "60"))


def begin_campaign(world: CampaignWorld) -> str:
    world.campaign()
    world.candidates(good=[[10, 10]])
    return world.submit_campaign()


KINDS = {"training": (TrainingWorld, train), "entry": (EntryWorld, enter), "campaign": (CampaignWorld, begin_campaign)}
ENDS = {"training": "finished", "entry": "accepted", "campaign": "finished"}


@pytest.fixture
def world_of(tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Makes a world for runs of a kind."""
    entries: list[EntryWorld] = []

    def made(kind: str) -> Any:
        if kind != "entry":
            return KINDS[kind][0](tmp_path / "w", database)
        pytest.importorskip("trl")
        entries.append(EntryWorld(tmp_path / "w", database, monkeypatch))
        return entries[0]

    yield made
    for each in entries:
        each.close()


NIGHTLY = pytest.mark.skipif(not os.environ.get("OUTERLOOP_NIGHTLY"), reason="long runs: set OUTERLOOP_NIGHTLY")


@pytest.mark.parametrize("damage", ["torn", pytest.param("removed", marks=NIGHTLY)])
@pytest.mark.parametrize("kind", [kind if kind == "training" else pytest.param(kind, marks=NIGHTLY) for kind in KINDS])
def test_every_slot_of_a_run_whose_spec_was_lost_is_published_again(
    world_of: Callable[[str], Any], kind: str, damage: str
) -> None:
    """Each slot of a training, an entry, a campaign: torn before its first job, or removed with all that it left."""
    world = world_of(kind)
    run = KINDS[kind][1](world)
    damaged: set[str] = set()
    for _ in range(60):
        fresh = [slot for slot in world.rows(Slot) if slot.digest not in damaged and slot.state == "open"]
        fresh = [slot for slot in fresh if (world.state.slot(slot.digest) / "attempts" / "1").exists()]
        if damage == "torn":
            for slot in fresh:
                (world.state.slot(slot.digest) / "spec.json").write_text('{"digest": ')
        world.run_measures()
        if damage == "removed":
            for slot in fresh:
                shutil.rmtree(world.state.slot(slot.digest))
        damaged |= {slot.digest for slot in fresh}
        world.tick()
        if not world.open_runs():
            break
    assert world.run(run).verdict == ENDS[kind], world.describe()
    slots = {slot.digest for slot in world.rows(Slot)}
    assert damaged == slots and len(slots) >= 3, "every one of them was lost once"
    lost = [attempt for attempt in world.rows(Attempt) if attempt.outcome != "done"]
    assert len(lost) == len(slots) and {a.reason for a in lost} == {"SPEC" if damage == "torn" else "NO_RESULT"}
    for digest in slots:
        assert SlotDirectory(world.state.slot(digest), digest).spec() is not None
    world.check_invariants()

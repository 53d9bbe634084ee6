"""What entries leave beside their slots: what nothing needs goes, the rest stays, whoever dies."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from outerloop.controller import collect_entries
from outerloop.controller.collect import Collected
from outerloop.controller.evidence import verify
from outerloop.record.models import Slot
from tests.controller_rig.entries import EntryWorld
from tests.e2e import test_collect
from tests.e2e.test_crash_points import TABLES, points_of
from tests.e2e.test_entries import worlds
from tests.postgres.conftest import _execute

__all__ = ["worlds"]

DAY = 86400.0


@pytest.fixture
def world(tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[EntryWorld]:
    pytest.importorskip("trl")
    made = EntryWorld(tmp_path / "w", database, monkeypatch)
    yield made
    made.close()


def pass_time(world: EntryWorld) -> None:
    """Two days, for the record and for the files."""
    world.pass_time(2 * DAY)
    for top in ("entries", "sealed"):
        for path in (world.state.path / top).rglob("*"):
            os.utime(path, (path.stat().st_atime - 2 * DAY, path.stat().st_mtime - 2 * DAY))


def gc(world: EntryWorld, *, dry_run: bool = False) -> Collected:
    return test_collect.gc(world, dry_run=dry_run)


def tables(world: EntryWorld) -> set[str]:
    return {path.parent.name for path in (world.state.path / "entries").glob("*/train.jsonl")}


def sealed(world: EntryWorld) -> set[str]:
    return {path.parts[-3] for path in (world.state.path / "sealed").glob("*-*/*/rows.jsonl")}


def digest(world: EntryWorld, run_id: str) -> str:
    return str(world.run(run_id).request["data_sha256"])


def judges_again(world: EntryWorld, run_id: str) -> bool:
    deployment = world.open()
    try:
        return verify(deployment.context, run_id, record=deployment.record).agrees
    finally:
        deployment.close()


def test_only_what_nothing_needs_goes(world: EntryWorld) -> None:
    bad = world.data("bad", "0")
    old = world.enter(bad)
    world.ticks_until_rest()
    assert world.verdict(old) == ("rejected", "no-improvement")
    waiting = world.enter(world.data("waiting", "60"))
    for foreign in ("entries/notes", "sealed/notes"):
        (world.state.path / foreign).mkdir()
    assert gc(world).tables == [], "young"
    pass_time(world)

    gone, kept, there = digest(world, old), digest(world, waiting), sealed(world)
    assert len(there) == 2 and tables(world) == {gone, kept}
    would = gc(world, dry_run=True)
    assert would.tables == [gone] and tables(world) == {gone, kept} and sealed(world) == there
    report = gc(world)
    assert (report.tables, set(report.sealed)) == ([gone], there) and tables(world) == {kept} and not sealed(world)
    trash = world.state.path / "sealed" / "trash"
    assert len(list(trash.iterdir())) == 2 and trash.parent.stat().st_mode & 0o077 == 0, "out of others' sight"
    assert (world.state.path / "entries" / "notes").is_dir() and (world.state.path / "sealed" / "notes").is_dir()
    again = gc(world)
    assert (again.slots, again.tables, again.sealed) == ([], [], []), "once is enough"

    # asked again, everything is made anew and judged
    second = world.enter(bad, "--again")
    world.ticks_until_rest()
    assert world.verdict(second) == ("rejected", "no-improvement") and world.verdict(waiting) == ("accepted", "")
    assert judges_again(world, second) and judges_again(world, waiting)


def test_a_run_gets_its_table_back_or_says_that_it_is_gone(world: EntryWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    train = world.data("good", "60")
    run_id = world.enter(train)
    folder = world.state.path / "entries" / digest(world, run_id)
    pass_time(world)
    assert gc(world).tables == [], "an open run trains on it"
    # whoever asks while a collection moves it: the collection looks again, and if it dies first the run does
    real, looks = collect_entries._wanted, iter((True, False, True, False))
    monkeypatch.setattr(collect_entries, "_wanted", lambda *a: set() if next(looks) else real(*a))
    assert gc(world).tables == [] and tables(world) == {folder.name}
    pass_time(world)
    assert world.forked(lambda: gc(world), fault="after:gc.trash:kill") == -signal.SIGKILL
    assert tables(world) == set()
    world.tick()
    assert tables(world) == {folder.name} and world.run(run_id).state == "waiting"
    # deleted by somebody between two stages
    world.run_measures()
    world.tick()
    world.run_measures()
    shutil.rmtree(folder)
    world.tick()
    assert (world.run(run_id).state, world.run(run_id).state_reason) == ("blocked", "DATA")
    assert "submit the same rows again" in world.run(run_id).state_detail
    assert run_id in world.cli("submit", "entry", "tiny-sums", "--train", train, code=3)
    assert tables(world) == {folder.name}
    world.cli("retry", run_id)
    world.ticks_until_rest()
    assert world.verdict(run_id) == ("accepted", "")


@pytest.mark.skipif(not os.environ.get("OUTERLOOP_NIGHTLY"), reason="many worlds: set OUTERLOOP_NIGHTLY")
@pytest.mark.timeout(1800)
def test_killed_at_every_point_of_a_collection(
    tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch, worlds: list[EntryWorld]
) -> None:
    pytest.importorskip("trl")
    count = itertools.count()

    def fresh() -> tuple[EntryWorld, str, str]:
        while worlds:
            worlds.pop().close()
        _execute(database, f"truncate {TABLES} restart identity cascade")
        world = EntryWorld(tmp_path / str(next(count)), database, monkeypatch)
        worlds.append(world)
        world.stage_does("evaluate", "refuse")
        champion = world.enter(world.data("good", "60"))
        world.ticks_until_rest()
        old = world.enter(world.data("worse", "40"))
        world.ticks_until_rest()
        assert [world.verdict(run)[0] for run in (champion, old)] == ["accepted", "rejected"]
        # an attempt that was refused sealed no rows; its server's log may lie there
        [refused] = [slot for slot in world.rows(Slot) if slot.pinned_attempt == 2]
        beside(world, refused.digest).mkdir(exist_ok=True)
        pass_time(world)
        return world, champion, refused.digest

    def beside(world: EntryWorld, slot: str) -> Path:
        return world.state.path / "sealed" / f"{slot[:16]}-1"

    calm, champion, refused = fresh()
    before = sealed(calm)
    slots = len(gc(calm, dry_run=True).slots)
    assert calm.forked(lambda: gc(calm), trace=True) == 0
    assert tables(calm) == {digest(calm, champion)} and not beside(calm, refused).exists()
    assert sealed(calm) < before and judges_again(calm, champion)
    # deaths among slots are those of test_collect.py; here from the last slot's on
    points = points_of(calm)
    moves = [place for place, point in enumerate(points) if point.startswith("after:gc.trash")]
    assert len(moves) == slots + 1 + len(before - sealed(calm)) + 1, "a table, sealed rows, and what lay beside"
    for fault in points[moves[slots - 1] :]:
        world, champion, _ = fresh()
        assert world.forked(partial(gc, world), fault=fault) == -signal.SIGKILL, fault
        second = world.enter(world.data("worse", "40"), "--again")
        world.ticks_until_rest()
        assert world.verdict(second) == ("rejected", "no-improvement"), fault
        assert judges_again(world, champion) and judges_again(world, second), fault
        pass_time(world)
        gc(world)
        assert tables(world) == {digest(world, champion)} and judges_again(world, champion), fault

"""A wake on a node that cannot reach the record leaves a doorbell and ends well; the next tick answers it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from outerloop.record import migrate
from tests.controller_rig.commands import command, private_server
from tests.controller_rig.world import World


def test_a_wake_without_a_record_leaves_a_doorbell_for_the_tick(tmp_path: Path) -> None:
    with private_server() as server:
        migrate.upgrade(server.url)
        world = World(tmp_path / "w", server.url)
        run_id = world.submit("better")
        quiet = world.submit("same")
        bell = world.state.doorbell(run_id)
        server.stop()
        for fault, code in (
            ("before:run.marker:kill", -signal.SIGKILL),
            ("after:run.marker:kill", -signal.SIGKILL),
            ("", 0),
        ):
            said = command(world, "wake", run_id, "--number", "1", fault=fault)
            assert said.code == code, (fault, said)
            assert "Traceback" not in said.text
            assert bell.exists() == (not fault.startswith("before"))
        assert "marker" in said.text
        server.start()
        report = world.tick()
        assert [advanced.run_id for advanced in report.advanced] == [run_id], "the one that rang, not the quiet one"
        assert not bell.exists()
        (bell.parent / "no run of this name").touch()
        world.tick()
        world.ticks_until_rest()
        assert world.run(run_id).verdict == "accepted" and world.run(quiet).verdict == "rejected"
        world.check_invariants()


def test_a_doorbell_outlives_a_tick_that_dies_before_it_answered(world: World) -> None:
    run_id = world.submit("better")
    bell = world.state.doorbell(run_id)
    bell.parent.mkdir(parents=True)
    bell.touch()
    assert world.forked(lambda: world.tick(), fault="before:tx.observe:kill") == -signal.SIGKILL
    assert bell.exists()
    assert [advanced.run_id for advanced in world.tick().advanced] == [run_id]
    assert not bell.exists()


def test_row_40_where_jobs_may_not_submit_a_wake_leaves_a_doorbell_and_ticks_finish_the_run(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = world.submit("better")
    # As `outerloop doctor --write` leaves it, beside the config.
    (world.folder / "site.toml").write_text('[slurm]\nsubmit_from_jobs = "no"\n')
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    said = command(world, "wake", run_id, "--number", "1")
    assert (said.code, world.state.doorbell(run_id).exists()) == (0, True), said
    assert "submit_from_jobs" in said.text
    monkeypatch.delenv("SLURM_JOB_ID")
    world.ticks_until_rest()
    assert world.run(run_id).verdict == "accepted"
    assert command(world, "wake", run_id).code == 0, "by hand, on a login node, a wake is a wake"
    assert not world.state.doorbell(run_id).exists()

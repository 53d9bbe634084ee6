"""The environment slot: built once per content, early on PATH, never charged to a candidate."""

from __future__ import annotations

import json
from pathlib import Path

from outerloop.record.models import Measure, Slot
from tests.controller_rig.world import CONTRACT, World

SETUP = """
[environment]
files = ["lock.txt"]
setup = '''{setup}'''
"""

# A tool whose answer is what the lock file said when the environment was built.
BUILD = (
    "echo built >> {marks}.env; mkdir -p $OUTERLOOP_ENV/bin; "
    "printf '#!/bin/sh\\necho %s\\n' \"$(cat lock.txt)\" > $OUTERLOOP_ENV/bin/scale; chmod +x $OUTERLOOP_ENV/bin/scale"
)


def with_environment(world: World, setup: str, allowed: str = "") -> None:
    contract = CONTRACT.replace('allowed = ["src/"]', f'allowed = ["src/"{allowed}]')
    (world.repo / ".outerloop.toml").write_text(contract + SETUP.format(setup=setup))
    (world.repo / "lock.txt").write_text("3\n")
    bench = (world.repo / "bench.sh").read_text()
    (world.repo / "bench.sh").write_text(
        bench.replace('"$(cat src/cost)" "$(cat src/shared', '"$(($(cat src/cost) * $(scale)))" "$(cat src/shared')
    )
    world.git("add", "-A")
    world.git("commit", "-q", "-m", "environment")


def builds(world: World) -> int:
    path = Path(f"{world.marks}.env")
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_a_lock_file_is_built_once_for_every_climb_and_the_command_finds_its_tools(world: World) -> None:
    with_environment(world, BUILD.format(marks=world.marks))
    world.branch("one", cost="8")
    world.branch("two", cost="7")
    runs = [world.submit("one"), world.submit("two")]
    world.wakes_until_rest()
    assert [world.run(run_id).verdict for run_id in runs] == ["accepted", "accepted"]
    assert builds(world) == 1
    evidence = world.run(runs[0]).evidence
    assert evidence is not None
    assert evidence["findings"]["climbed"]["mean_base"] == "30"
    world.check_invariants()


def test_a_candidate_that_changes_the_lock_file_gets_an_environment_of_its_own(world: World) -> None:
    with_environment(world, BUILD.format(marks=world.marks), allowed=', "lock.txt"')
    world.git("checkout", "-q", "-b", "lighter", "main")
    (world.repo / "lock.txt").write_text("2\n")
    world.git("commit", "-qam", "lighter")
    world.git("checkout", "-q", "main")
    run_id = world.submit("lighter")
    world.ticks_until_rest()
    assert world.run(run_id).verdict == "accepted"
    assert builds(world) == 2
    kinds = {m.role: m.slot_id for m in world.rows(Measure) if m.role.startswith("env-")}
    assert kinds["env-base"] != kinds["env-candidate"]
    world.check_invariants()


def test_a_failing_setup_blocks_with_its_words_and_charges_nobody(world: World) -> None:
    gate = world.folder / "mirror-is-up"
    setup = f"test -e {gate} || {{ echo no route to the package index >&2; exit 7; }}; " + BUILD.format(
        marks=world.marks
    )
    with_environment(world, setup)
    world.branch("one", cost="8")
    run_id = world.submit("one")
    for _ in range(4):
        world.run_measures()
        world.tick()
    run = world.run(run_id)
    assert (run.state, run.state_reason) == ("blocked", "ENVIRONMENT")
    assert "EXIT_7" in run.state_detail
    assert world.executions() == 0, "no measure runs without its environment"
    [slot] = [s for s in world.rows(Slot) if s.kind == "environment"]
    assert "no route" in json.dumps(slot.result)
    gate.touch()
    world.retry(run_id)
    world.ticks_until_rest()
    assert world.run(run_id).verdict == "accepted"
    world.check_invariants()


def test_a_file_that_the_tree_lacks_is_said(world: World) -> None:
    with_environment(world, "true")
    world.git("rm", "-q", "lock.txt")
    world.git("commit", "-q", "-m", "no lock")
    world.branch("one", cost="8")
    run_id = world.submit("one")
    run = world.run(run_id)
    assert (run.state, run.state_reason) == ("blocked", "ENVIRONMENT")
    assert "lock.txt" in run.state_detail

"""The state folder's disk is full from any effect of a command on: one sentence, code 6, and it goes on with room.

Attacked: submit, tick and wake, each with the last block and the last inode taken just before every point at which it
touches the world. Not covered: commands that begin on a disk with little room (test_outages.py), jobs (tests/unit/job).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.controller_rig.commands import command, interrupted
from tests.controller_rig.world import World
from tests.e2e.test_crash_points import points_of, worlds
from tests.e2e.test_outages import NO_SPACE, fill, finish, submit_arguments

__all__ = ["worlds"]

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root"),
    pytest.mark.skipif(not os.environ.get("OUTERLOOP_NIGHTLY"), reason="many worlds: set OUTERLOOP_NIGHTLY"),
    pytest.mark.timeout(3600),
]
INODES = 600


def take_blocks(world: World) -> None:
    fill(world, leave=0)


def take_inodes(world: World) -> None:
    """Make empty files until there is no inode left; a hard link needs one, too."""
    folder = world.state.path / "ballast"
    folder.mkdir()
    try:
        for number in range(2 * INODES):
            (folder / f"{number}").touch()
    except OSError:
        return
    raise AssertionError("the disk has more inodes than it was made with")


def give_back(world: World) -> None:
    ballast = world.state.path / "ballast"
    subprocess.run(["rm", "-r", str(ballast)], check=True)


@pytest.fixture
def small_worlds(worlds: Callable[[], World]) -> Iterator[Callable[[], World]]:
    """Fresh worlds whose state folder is a file system of 4 MiB, one at a time."""
    mounted: list[Path] = []

    def release() -> None:
        while mounted:
            subprocess.run(["umount", "-l", str(mounted.pop())], check=True)

    def make() -> World:
        release()
        world = worlds()
        options = f"size=4m,nr_inodes={INODES}"
        made = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "none", str(world.state.path)], capture_output=True, check=False
        )
        if made.returncode != 0:
            pytest.skip(f"no mount here: {made.stderr.decode(errors='replace').strip()}")
        mounted.append(world.state.path)
        return world

    yield make
    release()


def ready(world: World, name: str) -> list[str]:
    """Bring the world to where the command has something to do; the command."""
    if name == "submit":
        return submit_arguments(world)
    run_id = world.submit("better")
    world.run_measures()
    if name == "tick":
        return ["tick"]
    [(_job, run, number)] = world.take_wakes()
    assert run == run_id
    return ["wake", run, "--number", str(number)]


@pytest.mark.parametrize("take", [take_blocks, take_inodes])
@pytest.mark.parametrize("name", ["submit", "tick", "wake"])
def test_the_disk_is_full_from_any_effect_on(
    small_worlds: Callable[[], World], name: str, take: Callable[[World], None]
) -> None:
    calm = small_worlds()
    arguments = ready(calm, name)
    body = {"submit": lambda: calm.submit("better"), "tick": calm.tick, "wake": lambda: calm.wake(arguments[1], 1)}
    assert calm.forked(body[name], trace=True) == 0
    points = [point.replace(":kill", "") for point in points_of(calm)]
    assert len(points) > 5
    codes = []
    for point in points:
        place, effect, number = point.split(":")
        world = small_worlds()
        arguments = ready(world, name)
        said = interrupted(world, *arguments, point=f"{place}:{effect}", number=int(number), what=partial(take, world))
        codes.append(said.code)
        assert said.code in {0, NO_SPACE}, (point, said)
        assert "Traceback" not in said.text, (point, said)
        if said.code == NO_SPACE:
            assert len([line for line in said.text.splitlines() if "space" in line.lower()]) == 1, (point, said)
        assert all(run.verdict in {None, "accepted"} and run.state != "blocked" for run in world.runs()), point
        acknowledged = name != "submit" or world.runs() or list(world.state.inbox.glob("*.json"))
        assert acknowledged or said.code == NO_SPACE, (point, "it said 0 and forgot")
        give_back(world)
        if not acknowledged:
            assert command(world, *arguments).code == 0
        world.expire_leases()
        for _ in range(2):
            world.tick()
            world.pass_time(3600)
        finish(world)
    assert NO_SPACE in codes

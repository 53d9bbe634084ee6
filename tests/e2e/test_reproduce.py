"""`outerloop reproduce`: the same measure once more, and a shell in its place; nothing of the run changes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from outerloop.controller.reproduce import compare, copied, shell_argv
from outerloop.record.models import Slot
from outerloop.slots.files import read_json
from tests.controller_rig.commands import command
from tests.controller_rig.world import World


def ended(world: World, candidate: str) -> str:
    run = world.submit(candidate)
    world.ticks_until_rest()
    return run


def test_an_accepted_measure_gives_the_same_value_and_the_record_stays_as_it_was(world: World) -> None:
    run = ended(world, "better")
    before, ran = world.snapshot(), world.executions()
    told = command(world, "reproduce", run, "--json")
    assert told.code == 0, told.text
    body = json.loads(told.text)
    assert body["same"] and body["sentence"] == "The same value." and body["result"]["outcome"] == "ok"
    assert world.executions() == ran + 1 and world.snapshot() == before
    told = command(world, "reproduce", run, body["role"], "--keep", str(world.folder / "kept"))
    assert told.code == 0 and "recorded" in told.text and (world.folder / "kept" / "slots").is_dir()
    assert max(len(line) for line in told.text.splitlines() if "kept in" not in line) <= 80
    assert command(world, "reproduce", run, "--keep", str(world.folder / "kept")).code == 2
    assert command(world, "reproduce", run, "nosuch").code == 7
    assert command(world, "reproduce", run, "--attempt", "9").code == 7


def test_a_failed_one_fails_again_with_its_words_and_the_way_in(world: World) -> None:
    world.branch("faulty", cost="8", extra="echo it broke >&2; exit 3\n")
    run = ended(world, "faulty")
    assert world.run(run).verdict == "failed"
    told = command(world, "reproduce", run)
    assert told.code == 0 and "EXIT_3" in told.text and "it broke" in told.text and "--shell" in told.text, told.text


@pytest.mark.parametrize("isolation", ["none", "bwrap"])
def test_the_shell_stands_where_the_command_would(world: World, isolation: str) -> None:
    if isolation == "bwrap" and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    ended(world, "better")
    slot = next(slot for slot in world.rows(Slot) if slot.state == "done")
    order = world.state.slot(slot.digest) / "attempts" / str(slot.pinned_attempt) / "attempt.json"
    body = read_json(order)
    assert body is not None
    order.write_text(json.dumps({**body, "isolation": isolation}))
    with copied(
        world.state, slot.digest, slot.pinned_attempt, slot.order, python=world.settings.python, shared=False, keep=None
    ) as copy:
        argv, env = shell_argv(copy, here=True)
        said = 'cat src/cost; echo "seed=$BENCH_SEED"; env | grep -c SECRET; eval "$OUTERLOOP_COMMAND"; exit 7\n'
        done = subprocess.run(
            argv, env={**env, "MY_SECRET": "x"}, input=said, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 7, done.stderr
        lines = done.stdout.split()
        assert lines[0] in {"8", "10"} and lines[1].startswith("seed=")
        assert lines[2] == "0", "what the caller has in its environment stays outside"
        assert f'"cost": {lines[0]}' in done.stdout
        assert copy.directory.result(1) is None, "a shell leaves no result"
        place = Path(copy.directory.path)
    assert not place.exists() and not [item for item in os.scandir("/tmp") if item.name.startswith("outerloop-repro")]


def test_endings_are_compared_as_people_would() -> None:
    ok = {"outcome": "ok", "metric": {"name": "cost", "text": "8.0"}, "cpu_seconds": 1.0}
    other = {**ok, "metric": {"name": "cost", "text": "9"}}
    broken = {"outcome": "failed", "reason": "TIMEOUT", "phase": "command"}
    same_number = {**ok, "metric": {"name": "cost", "text": "8"}}
    assert compare(ok, same_number, deterministic=True).same
    assert not compare(ok, other, deterministic=True).same
    assert compare(ok, other, deterministic=False).same
    assert not compare(ok, broken, deterministic=False).same
    assert compare(broken, broken, deterministic=True).sentence == "It ended in the same way."
    assert compare(None, ok, deterministic=True).same

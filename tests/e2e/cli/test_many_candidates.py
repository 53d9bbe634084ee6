"""`submit climb --candidates`: what a person means by many, all or none, and nothing twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outerloop.controller.candidates import name_candidates
from outerloop.controller.git import GitError, Repository
from tests.controller_rig.commands import command
from tests.controller_rig.world import World


@pytest.fixture
def world(tmp_path: Path, database: str) -> World:
    made = World(tmp_path, database)
    made.branch("exp/a", cost="9")
    made.branch("exp/b", cost="7")
    made.branch("exp/copy", cost="7")
    return made


def submit(world: World, *arguments: str) -> tuple[int, str]:
    told = command(world, "submit", "climb", "speed", "--repo", str(world.repo), "--base", "main", *arguments)
    return told.code, told.text


def test_patterns_revisions_and_ranges_name_each_tree_once(world: World) -> None:
    repo = Repository.open(world.repo)
    found = name_candidates(repo, "exp/*")
    assert [item.revision for item in found] == ["exp/a", "exp/b"] and found[1].also == ("exp/copy",)
    assert [item.revision for item in name_candidates(repo, "exp/b, exp/a")] == ["exp/b", "exp/a"]
    span = name_candidates(repo, "main..exp/a")
    assert [item.commit for item in span] == [repo.commit("exp/a")]
    with pytest.raises(GitError) as told:
        name_candidates(repo, "exq/*,nothing,exp/a..main")
    assert len(str(told.value).splitlines()) == 3 and "did you mean exp/" in str(told.value), told.value
    with pytest.raises(GitError, match="names nothing"):
        name_candidates(repo, " , ")


def test_all_get_their_verdict_and_asking_again_makes_no_new_run(world: World) -> None:
    code, text = submit(world, "--candidates", "exp/*", "--json")
    assert code == 0, text
    rows = json.loads(text)
    assert [row["candidate"] for row in rows] == ["exp/a", "exp/b"] and len({row["run"] for row in rows}) == 2
    code, text = submit(world, "--candidates", "exp/a,exp/copy")
    assert code == 0 and all(row["run"] in text for row in rows), text
    assert len(world.runs()) == 2
    world.ticks_until_rest()
    assert {run.verdict for run in world.runs()} <= {"accepted", "rejected"}
    assert any(run.verdict == "accepted" for run in world.runs())
    world.check_invariants()
    assert max(len(line) for line in text.splitlines()) <= 80


def test_one_that_cannot_be_taken_leaves_all_out_and_a_dry_run_changes_nothing(world: World) -> None:
    code, text = submit(world, "--candidates", "exp/a,nosuch,neither")
    assert code == 2 and "nosuch" in text and "neither" in text
    code, text = submit(world, "--candidates", "main,exp/*", "--dry-run")
    assert code == 0 and "exp/copy: the same tree" in text
    assert "note: main: candidate and base have the same tree" in text, "which of the candidates it is about"
    code, text = submit(world, "--candidates", "exp/*", "--candidate", "main")
    assert code == 2 and "does not go with" in text
    assert world.runs() == [] and not list(world.state.inbox.glob("*.json"))


def test_killed_in_the_middle_what_was_promised_is_carried_out(world: World) -> None:
    told = command(
        world,
        *("submit", "climb", "speed", "--repo", str(world.repo), "--base", "main", "--candidates", "exp/*"),
        fault="after:inbox.write:kill:2",
    )
    assert told.code < 0
    world.ticks_until_rest()
    assert len(world.runs()) == 2 and all(run.state == "ended" for run in world.runs())
    world.check_invariants()

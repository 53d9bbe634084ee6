"""Noise studies through the command line, the controller, slots and jobs; and what later verdicts know of them."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from outerloop.climb.plan import cached_seed
from outerloop.contract import parse_contract
from outerloop.controller.noise_store import keep_study, newest_study
from tests.e2e.evidence_world import EvidenceWorld, contract

Make = Callable[..., EvidenceWorld]
THRESHOLD = '{ kind = "threshold" }'
DETERMINISTIC = "deterministic = true"


@pytest.fixture
def make(tmp_path: Path, database: str) -> Make:
    return lambda text, **more: EvidenceWorld(tmp_path, database, text, **more)


def study(world: EvidenceWorld, *arguments: str, most: int = 12) -> Any:
    """Ask for a study until it is there, with the cluster at work in between."""
    command = ("noise", "speed", "--repo", str(world.repo), "--no-wait", *arguments)
    for _ in range(most):
        told = world.json(*command)
        if told.get("state") != "measuring":
            return told
        world.run_measures()
    raise AssertionError(f"no study after {most} looks: {world.describe()}")


def test_a_study_is_spread_over_nodes_and_changes_what_the_next_verdict_knows(make: Make) -> None:
    world = make(contract(THRESHOLD, more=DETERMINISTIC + "\nmin_delta = 1  # a guess"))
    told = study(world, "--repeats", "8", "--gain", "2000", "--write")
    # values, spread and nodes
    expected = [world.value(cached_seed("speed", i), 10) for i in range(8)]
    assert [Decimal(item["value"]) for item in told["values"]] == expected
    assert float(told["study"]["sd"]) == pytest.approx(float(statistics.stdev(expected)))
    assert Counter(item["node"] for item in told["values"]) == dict.fromkeys(("n1", "n2", "n3", "n4"), 2)
    assert told["study"]["rule"]["kind"] == "threshold" and Decimal(told["study"]["floor"]) > 0
    # the contract: two values changed, everything else as it was
    before, after = world.text.splitlines(), (world.repo / ".outerloop.toml").read_text().splitlines()
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    [(old, new)] = changed
    assert old == "min_delta = 1  # a guess" and new.endswith("  # a guess")
    assert Decimal(new.split()[2]) == Decimal(told["study"]["floor"])
    # asking again measures nothing; a longer study goes on from the shorter one
    assert study(world, "--repeats", "8")["study"]["values"] == 8 and world.executions() == 8
    assert study(world, "--repeats", "10")["study"]["seeds"] == 10 and world.executions() == 10
    # a verdict says how often this noise would have been accepted, and goes on saying so when a later study differs
    run_id = world.submit("better")
    world.ticks_until_rest()
    evidence = world.run(run_id).evidence
    assert evidence is not None and evidence["findings"]["climbed"]["noise_acceptance"] is not None
    assert "With the noise of the study" in world.cli("explain", run_id).stdout
    benchmark = parse_contract(world.text).benchmark("speed")
    target = world.run(run_id).target
    newest = newest_study(world.state, target, benchmark)
    assert newest is not None and newest["study"]["values"] == 10
    keep_study(world.state, target, benchmark, {**newest, "study": {**newest["study"], "sd": "1e6"}})
    world.check_invariants()


def test_a_killed_study_goes_on_where_it_was(make: Make) -> None:
    world = make(contract(THRESHOLD, more=DETERMINISTIC))
    command = ("noise", "speed", "--repo", str(world.repo), "--no-wait", "--repeats", "4", "--nodes", "1")
    assert world.forked(lambda: world.cli(*command), fault="after:compute.submit:kill:3") == -9
    assert len(world.measuring_jobs()) == 3
    ends = []
    while len(ends) < 8 and -9 not in ends:
        world.run_measures()
        ends.append(world.forked(lambda: world.cli(*command), fault="before:noise.study:kill"))
    assert ends[-1] == -9 and not list((world.state.path / "noise").glob("*/[0-9]*.json")), ends
    told = study(world, "--repeats", "4", "--nodes", "1")
    assert told["study"]["values"] == 4
    assert world.executions() == 4 and len(world.measuring_jobs()) == 4


def test_without_a_seed_replicates_are_studied_and_serve_as_cached_baseline(make: Make) -> None:
    world = make(contract(THRESHOLD, more='baseline = "cached"', seeded=False))
    told = study(world, "--repeats", "6", "--nodes", "2")
    assert (told["study"]["values"], told["study"]["seeds"]) == (6, 0)
    assert [item["replicate"] for item in told["values"]] == [1, 2, 3, 4, 5, 6]
    run_id = world.submit("better")
    world.ticks_until_rest()
    assert world.executions() == 7, "the five cached base measurements were there already"
    assert world.run(run_id).verdict == "accepted"
    world.check_invariants()


def test_a_seed_that_does_not_control_everything_is_found_out(make: Make) -> None:
    world = make(contract(THRESHOLD))
    told = study(world, "--repeats", "3", "--nodes", "1")
    assert told["study"]["values"] == 7 and told["study"]["within_seed_sd"] == "0"
    text = world.cli("noise", "speed", "--repo", str(world.repo), "--repeats", "3", "--nodes", "1").stdout
    assert "repeating one seed: 0" in text and "Recommended" in text and "3 seeds leave the spread uncertain" in text


def test_a_base_that_fails_is_named_and_nothing_is_recommended(make: Make) -> None:
    world = make(contract(THRESHOLD, more=DETERMINISTIC))
    world.branch("broken", extra="exit 1")
    command = ("noise", "speed", "--repo", str(world.repo), "--base", "broken", "--repeats", "3", "--nodes", "1")
    world.cli(*command, "--no-wait")
    world.run_measures()
    refused = world.cli(*command, code=3)
    assert "the base itself gives no value in 3 of 3 measures" in refused.output and "EXIT_3" in refused.output
    once = contract(THRESHOLD, more=DETERMINISTIC, seeded=False)
    (world.repo / ".outerloop.toml").write_text(once)
    world.git("commit", "-q", "-am", "one value")
    refused = world.cli("noise", "speed", "--repo", str(world.repo), code=3)
    assert "there is no noise" in " ".join(refused.output.split())


def test_a_ladder_is_refused_where_nothing_can_be_withheld(make: Make) -> None:
    world = make(contract('{ kind = "threshold", ladder = true }'))
    refused = world.cli("submit", "climb", "speed", "--repo", str(world.repo), "--candidate", "better", code=3)
    assert "nothing can be withheld" in " ".join(refused.output.split())
    assert not world.runs() and not world.cluster.jobs()

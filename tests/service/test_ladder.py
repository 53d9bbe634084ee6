"""A ladder in a service: what a submitter's account can find out about the hidden items, by asking and by looking.

Attacked: a candidate whose gain is no more than the ladder's step but enough for the rule, every screen and file of
the submitter, and the answers as they lie in the spool.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outerloop.cli.errors import ExitCode
from tests.service.accounts import Account, needs_root
from tests.service.test_service import may
from tests.service.world import ServiceWorld

pytestmark = needs_root

ITEMS = 20
CONTRACT = """\
[[benchmarks]]
name = "speed"
command = "cp src/guesses out/guesses"
metric = "wrong"
direction = "min"
score = "python3 score.py out/guesses data/truth"
outputs = ["out/guesses"]
inputs = [{ path = "data/truth", hidden = true }]
deterministic = true
minutes = 1
rule = { kind = "threshold", ladder = true }

[scope]
allowed = ["src/"]
"""
SCORE = """\
import json, sys
guesses, truth = (open(path).read().split() for path in sys.argv[1:])
losses = [int(a != b) for a, b in zip(guesses, truth, strict=True)]
print("the truth is", *truth)
print(json.dumps({"items": losses}))
print(json.dumps({"wrong": sum(losses)}))
"""
TRUTH = ["1"] * ITEMS


def guesses(wrong: set[int]) -> str:
    return " ".join("0" if item in wrong else truth for item, truth in enumerate(TRUTH)) + "\n"


@pytest.fixture
def ladder(service: ServiceWorld) -> Iterator[ServiceWorld]:
    """The service's world with another target: guesses about hidden items."""
    world = service
    for path, text in {".outerloop.toml": CONTRACT, "score.py": SCORE, "src/guesses": guesses(set(range(12)))}.items():
        (world.target / path).write_text(text)
    world.svc.own(world.target)
    world.svc.git("add", "-A", cwd=world.target)
    world.svc.git("commit", "-q", "-m", "guesses", cwd=world.target)
    # The hidden set lies beside the operator's tree and is nobody else's.
    (world.target / "data").mkdir()
    (world.target / "data/truth").write_text(" ".join(TRUTH) + "\n")
    (world.target / "data/truth").chmod(0o600)
    world.svc.own(world.target)
    world.begin()
    yield world


def verdict(world: ServiceWorld, clone: Path, candidate: str) -> dict[str, Any]:
    """Ask, and wait for the answer as the submitter sees it."""
    before = {path.name for path in (world.state / "runs").glob("*")}
    world.ask(world.ada, clone, candidate)
    world.tick()
    [run] = {path.name for path in (world.state / "runs").glob("*")} - before
    world.until(lambda: world.answered(run).get("state") == "ended", f"the verdict on {candidate}")
    told: dict[str, Any] = json.loads(world.ada.outerloop("show", run, "--json").stdout)
    return told


def test_a_ladder_releases_its_steps_and_nothing_below_them(ladder: ServiceWorld) -> None:
    world = ladder
    # 8 wrong after 12 is a step. 7 after 8 would do for the rule, but two items better and one worse are noise.
    clone = world.clone(
        world.ada,
        {"better": {"src/guesses": guesses(set(range(8)))}, "lucky": {"src/guesses": guesses({*range(6), 19})}},
    )
    first = verdict(world, clone, "better")
    assert (first["verdict"], first["sealed"]) == ("accepted", True), first
    assert first["ladder"] == {"improved": True, "released": 8 / ITEMS, "items": ITEMS}
    second = verdict(world, clone, "lucky")
    assert (second["verdict"], second["reason"]) == ("rejected", "ladder"), second
    assert second["ladder"] == {"improved": False, "released": 8 / ITEMS, "items": ITEMS}
    nothing_else_is_told(world, second)
    inside = json.loads(world.svc.outerloop("show", second["run"], "--json").stdout)
    assert (inside["verdict"], inside["verdict_reason"]) == ("rejected", "ladder")
    assert "wrong fell by 1" in inside["sentence"], "the rule alone would have accepted it"
    assert "agree" in world.svc.outerloop("verify", second["run"]).stdout
    assert len(list((world.state / "ladders").glob("*/*.json"))) == 1
    [champion] = json.loads(world.svc.outerloop("champions", "--json").stdout)
    assert champion["run_id"] == first["run"]


def nothing_else_is_told(world: ServiceWorld, told: dict[str, Any]) -> None:
    run = told["run"]
    assert told["measures"] == [] and told["explain"] == [] and "evidence" not in told
    assert world.ada.outerloop("logs", run, codes=None).returncode == ExitCode.REFUSED
    screens = world.ada.outerloop("explain", run).stdout + world.ada.outerloop("status", "--json").stdout
    for secret in ("0.35", "wrong fell", "the truth is", "baseline"):
        assert secret not in screens, secret
    paths = [
        world.target / "data/truth",
        *(world.state / "ladders").glob("*/*"),
        *(world.state / "slots").glob("*/*/attempts/1/result.json"),
        *(world.state / "slots").glob("*/*/attempts/1/r0/score.stdout.log"),
        *(world.state / "champions").glob("*/*"),
    ]
    assert len(paths) >= 5
    for account in (world.ada, world.bob):
        assert sees_none(account, paths)


def sees_none(account: Account, paths: list[Path]) -> bool:
    return may(account, *paths) == []

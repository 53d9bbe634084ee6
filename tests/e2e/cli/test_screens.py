"""Attacks: that what people see changes unnoticed. Each screen is a file in tests/fixtures/cli.

To accept a changed screen: OUTERLOOP_ACCEPT_SCREENS=1 pytest tests/e2e/cli/test_screens.py, and look at the diff.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sqlalchemy import update

from outerloop.climb import Failure, scope_verdict
from outerloop.record.models import Run
from tests.e2e.cli.conftest import Outerloop
from tests.rows import World, at

SCREENS = Path(__file__).parents[2] / "fixtures" / "cli"
WIDTH = 80

# Environment variables of the world are removed by its fixture: read before.
ACCEPT = bool(os.environ.get("OUTERLOOP_ACCEPT_SCREENS"))


def same_screen(name: str, printed: str) -> None:
    """Compare with the file, and hold the rules of every screen."""
    for line in printed.splitlines():
        assert len(line) <= WIDTH, f"{name}: wider than {WIDTH}: {line!r}"
        assert line == line.rstrip(), f"{name}: blanks at the end of {line!r}"
        assert line.isprintable(), f"{name}: control characters in {line!r}"
    path = SCREENS / f"{name}.txt"
    if ACCEPT:
        path.write_text(printed, encoding="utf-8")
    assert printed == path.read_text(encoding="utf-8")


@pytest.fixture
def busy(world: World) -> World:
    """A realm with a run in each situation. Ages are in the middle of their unit, so that they print the same."""
    world.make_target()
    world.accepted("c-acce000001")
    world.end("c-acce000001", "accepted", "", *_ended(world, "c-acce000001"), world.ago(hours=50))
    world.champion(1, "c-acce000001", "7542.0", "368", label="2-opt until no swap helps")

    world.run("c-scop000001", label="quicker scoring")
    failure = Failure(role="bench/score.py", code="OUT_OF_SCOPE", detail="is not below solver/")
    verdict = scope_verdict("tsp", [failure])
    world.event("c-scop000001", "verdict", {"round": 0, "verdict": verdict.to_json(), "champion_seq": None})
    world.end(
        "c-scop000001",
        verdict.outcome,
        verdict.reason,
        verdict.sentence,
        verdict.to_json(),
        ended_at=world.ago(minutes=90.5),
    )

    world.run("c-canc000001", label="a wrong turn", benchmark="knapsack")
    world.event("c-canc000001", "cancel", {"by": "ada", "why": "cancelled by its owner"}, minutes=2)
    world.end("c-canc000001", "cancelled", "operator", "cancelled by its owner", ended_at=world.ago(hours=5.5))

    waiting: dict[str, object] = {"state": "waiting", "state_reason": "JOBS", "created_at": world.ago(minutes=190.5)}
    due = world.ago(minutes=-60.5)
    world.run("c-runs000001", state_detail="2 jobs, 1 running, pending: Priority", due_at=due, **waiting)
    world.round("c-runs000001")
    slot = world.measure("c-runs000001", "baseline")
    world.attempt(slot, 1, outcome="infrastructure", reason="NODE_FAIL", node="n3", slurm_state="node_fail")
    world.attempt(slot, 2, awaited_by="c-runs000001", slurm_state="running", node="n1")
    slot = world.measure("c-runs000001", "candidate")
    world.attempt(slot, awaited_by="c-runs000001", slurm_state="pending", slurm_reason="Priority")
    world.wake("c-runs000001", awaited=["9004", "9005"])

    world.run(
        "c-pend000001", state_detail="1 job, pending: ReqNodeNotAvail", benchmark="knapsack", due_at=due, **waiting
    )
    slot = world.measure("c-pend000001", "candidate")
    world.attempt(slot, awaited_by="c-pend000001", slurm_state="pending", slurm_reason="ReqNodeNotAvail")

    world.run(
        "c-bloc000001",
        state="blocked",
        state_reason="INFRASTRUCTURE",
        state_detail="candidate used up its attempts: BOOT_FAIL: the node did not boot",
        label="swap \x1b[31mred\x1b[0m edges\x07 \u202ewith a very long subject line that goes on",
        created_at=world.ago(hours=9.5),
        due_at=None,
    )
    world.round("c-bloc000001")
    world.value("c-bloc000001", "baseline", "7910")
    exhausted = {
        "state": "exhausted",
        "reason": "BOOT_FAIL",
        "detail": "the node did not boot",
        "failure_class": "infrastructure",
        "attempts_counted": 3,
    }
    slot = world.measure("c-bloc000001", "candidate", slot=exhausted)
    for n in (1, 2, 3):
        world.attempt(slot, n, outcome="infrastructure", reason="BOOT_FAIL", node=f"n{n}", slurm_state="boot_fail")

    world.run("c-queu000001", created_at=world.ago(seconds=90), label="fresh")
    world.tick(150)
    return world


def _ended(world: World, run_id: str) -> tuple[str, dict[str, object]]:
    from outerloop.controller.views import one_run

    view = one_run(world.record, run_id)
    assert view is not None and view.evidence is not None
    return view.row.sentence or "", dict(view.evidence)


SEEN = {
    "status": ["status"],
    "status-blocked": ["status", "--state", "blocked"],
    "status-nothing-fits": ["status", "--find", "no such text"],
    "status-limited": ["status", "--limit", "1"],
    "champions": ["champions"],
    "explain-accepted": ["explain", "c-acce"],
    "explain-scope": ["explain", "c-scop"],
    "logs-nothing": ["logs", "c-runs", "candidate"],
}
WITH_FIXED_TIMES = {
    "show-accepted": ["show", "c-acce000001"],
    "show-running": ["show", "c-runs000001"],
    "show-blocked": ["show", "c-bloc000001"],
    "explain-running": ["explain", "c-runs000001"],
    "explain-blocked": ["explain", "c-bloc000001"],
    "explain-cancelled": ["explain", "c-canc000001"],
}


def test_every_screen_is_as_its_file_says(busy: World, outerloop: Outerloop) -> None:
    """One world for all of them: making it costs more than looking at it."""
    for name, arguments in SEEN.items():
        same_screen(name, outerloop(*arguments).output)
    with busy.session() as session:
        session.execute(update(Run).values(created_at=at(0)))
        session.execute(update(Run).where(Run.ended_at.is_not(None)).values(ended_at=at(4)))
    for name, arguments in WITH_FIXED_TIMES.items():
        same_screen(name, outerloop(*arguments).output)


def test_screens_before_anything(world: World, outerloop: Outerloop) -> None:
    same_screen("status-empty", outerloop("status").output)
    same_screen("champions-empty", outerloop("champions").output)


def test_no_screen_is_left_over() -> None:
    known = {*SEEN, *WITH_FIXED_TIMES, "status-empty", "champions-empty"}
    assert {path.stem for path in SCREENS.glob("*.txt")} == known

"""GPU-hours: reserved before a submission, charged as they were used, and remembered when the record is made anew.

Attacked: that work which never ran uses a budget up, that two measures of one pass get more than is left, and that a
rebuilt record forgets what was spent.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from outerloop.controller.rebuild import rebuild
from outerloop.dispatch.budget import spent_gpu_hours
from outerloop.record.models import Attempt, Slot
from outerloop.settings_sections import LocalSettings
from tests.controller_rig.world import CONTRACT, World

WALLTIME = 6.0
"""Minutes: one of the command, a margin of five."""
RESERVED = 2 * WALLTIME / 60
"""GPU-hours of one measure."""


class GpuWorld(World):
    """Each measure of speed asks for two GPUs; `hours` is the contract's budget."""

    hours = 2 * RESERVED

    def __init__(self, folder: Path, database: str) -> None:
        super().__init__(folder, database)
        self.settings = self.settings.model_copy(update={"local": LocalSettings(gpus=2)})

    def contract(self) -> str:
        with_gpus = CONTRACT.replace('direction = "min"\nseed_env', 'direction = "min"\ngpus = 2\nseed_env')
        return f"{with_gpus}\n[budgets]\ngpu_hours = {self.hours}\n"

    def spent(self) -> float:
        deployment = self.open()
        try:
            with deployment.record.reading() as session:
                [target] = {slot.target for slot in self.rows(Slot) if slot.order.get("gpus")}
                return spent_gpu_hours(session, deployment.record.realm_id, target)
        finally:
            deployment.close()


class PoorWorld(GpuWorld):
    hours = 1.5 * RESERVED


def test_what_never_ran_uses_no_budget_up(tmp_path: Path, database: str) -> None:
    """Refused for good, held and cancelled while it pended: with a budget for two measures all this must be free."""
    world = GpuWorld(tmp_path, database)
    world.cluster.set_mode("submit", "never")
    run_id = world.submit("better")
    assert world.run(run_id).state_reason == "INFRASTRUCTURE" and world.spent() == 0.0
    world.cluster.set_mode("submit", "")
    for reason in ("launch failed requeued held", "QOSMaxGRESPerJob"):
        if world.run(run_id).state == "blocked":
            world.retry(run_id)
            world.tick()
        assert world.spent() == pytest.approx(2 * RESERVED), "two measures are out"
        for job, body in world.measuring_jobs().items():
            if body["state"] == "pending":
                world.cluster.change(job, reason=reason)
        world.tick()
    assert (world.run(run_id).state, world.spent()) == ("blocked", 0.0), world.describe()
    world.retry(run_id)
    world.tick()
    for job, body in world.measuring_jobs().items():
        if body["state"] == "pending":
            world.cluster.change(job, state="cancelled", cancelled_by="4711")
    world.tick()
    assert (world.run(run_id).state_reason, world.spent()) == ("CANCELLED", 0.0)
    world.retry(run_id)
    world.ticks_until_rest()
    assert world.run(run_id).verdict == "accepted", world.describe()
    assert 0.0 < world.spent() < RESERVED, "a measure of milliseconds is not charged with minutes"


def test_measures_of_one_pass_do_not_get_more_than_is_left_together(tmp_path: Path, database: str) -> None:
    world = PoorWorld(tmp_path, database)
    run_id = world.submit("better")
    run = world.run(run_id)
    assert (run.state, run.state_reason) == ("blocked", "BUDGET") and "0.10 remain" in run.state_detail
    assert not world.measuring_jobs() and world.rows(Attempt) == []


def test_a_record_made_anew_knows_what_was_spent_and_what_is_reserved(tmp_path: Path, database: str) -> None:
    world = GpuWorld(tmp_path, database)
    world.submit("better")
    first, second = world.measuring_jobs()
    world.cluster.execute(first)
    world.cluster.change(second, state="node_fail", started=100.0, ended=190.0)
    world.tick()
    before = world.spent()
    # 90 s of the lost node, what the first one took, and what the second one's next attempt reserves
    assert RESERVED + 2 * 90 / 3600 < before < RESERVED + 2 * 90 / 3600 + 0.01, world.describe()
    deployment = world.open()
    try:
        rebuild(deployment.context)
    finally:
        deployment.close()
    assert world.spent() == pytest.approx(before)
    world.ticks_until_rest()
    world.check_invariants()

"""Clocks of login and compute nodes jump by a year, before a run and in the midst of one: the record's clock decides.

Attacked: verdicts, what runs twice, when a run was asked and ended, what gc takes. Not covered: budgets
(tests/postgres/test_clocks.py), the clocks of jobs, which measure durations with a clock that does not jump.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import UTC, datetime, timedelta, tzinfo

import pytest

from tests.controller_rig.world import World
from tests.e2e.test_collect import DAY, gc

NIGHTLY = pytest.mark.skipif(not os.environ.get("OUTERLOOP_NIGHTLY"), reason="the same again: set OUTERLOOP_NIGHTLY")


def shift(patch: pytest.MonkeyPatch, days: int) -> None:
    """From now on every clock that outerloop looks at, but the record's, is wrong by so many days."""
    patch.undo()
    theirs = time.time
    patch.setattr(time, "time", lambda: theirs() + days * DAY)

    class Wrong(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + timedelta(days=days)

    modules = [module for name, module in sys.modules.items() if name.startswith("outerloop.")]
    for module in modules:
        if getattr(module, "datetime", None) is datetime:
            patch.setattr(module, "datetime", Wrong)


@pytest.mark.parametrize(
    ("asked", "decided"),
    [(400, -400), *(pytest.param(*days, marks=NIGHTLY) for days in ((-400, 400), (0, 400), (0, -400), (400, 0)))],
)
def test_a_clock_that_jumps_by_a_year_changes_nothing(world: World, asked: int, decided: int) -> None:
    began = datetime.now(UTC)
    with pytest.MonkeyPatch.context() as patch:
        shift(patch, asked)
        run_id = world.submit("better")
        assert world.run(run_id).state == "waiting", world.describe()
        shift(patch, decided)
        world.ticks_until_rest()
        run = world.run(run_id)
        assert run.verdict == "accepted" and world.executions() == 2
        assert began <= run.created_at <= run.ended_at <= datetime.now(UTC), (run.created_at, run.ended_at)
        world.check_invariants()
        assert gc(world, keep_days=1).slots == []
        # A later verdict is the later one, also where the clock was set back in between.
        shift(patch, asked)
        later = world.submit("same", base=None)
        world.ticks_until_rest()
        assert world.run(later).ended_at > run.ended_at and world.run(later).created_at > run.created_at

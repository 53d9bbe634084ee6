"""Property attacked: the room loads fast and pulls in nothing that a command which judges nothing has to pay for."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("numpy", "scipy", "pydantic", "sqlalchemy")


@pytest.mark.parametrize(
    "module", ["outerloop.climb", "outerloop.climb.explain", "outerloop.climb.noise", "outerloop.cli.simulate_verdicts"]
)
def test_importing_the_room_imports_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print([m for m in {HEAVY!r} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_a_single_pair_is_judged_without_numpy() -> None:
    code = """
import sys
from tests.unit.climb.builders import Lab, plan
assert Lab({"baseline": 10, "candidate": 9}).run(plan()).outcome == "accepted"
print([m for m in ("numpy", "scipy") if m in sys.modules])
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"

"""Attacks: what `logs` and `reproduce` take of an entry when nothing is named is not what somebody wants to see."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from outerloop.controller.log_files import default_measure
from outerloop.controller.shown import MeasureView, RunView


def step(role: str, state: str, *, side: str = "candidate", ran: bool = True) -> MeasureView:
    return MeasureView(
        role=role, round=0, benchmark="", side=side, pair=0, seed=0, replicate=0, kind="measure",
        slot="0" * 64, slot_id=1, state=state, reason="", detail="", failure_class=None, value=None,
        result=None, pinned_attempt=None, attempts_allowed=3, attempts_counted=0, next_try_at=None, settled_at=None,
        attempts=(SimpleNamespace(n=1),) if ran else (),  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("steps", "role"),
    [
        ([step("contamination", "open")], "contamination"),
        ([step("contamination", "done"), step("untrained-s", "open", side="base"), step("sft-1", "open")], "sft-1"),
        ([step("contamination", "done"), step("sft-1", "done"), step("grpo-1", "open")], "grpo-1"),
        ([step("contamination", "done"), step("sft-1", "done"), step("s-1", "open")], "s-1"),
        ([step("contamination", "done"), step("sft-1", "done"), step("s-1", "open", ran=False)], "sft-1"),
        ([step("contamination", "done"), step("sft-1", "done"), step("s-1", "done")], "sft-1"),
        ([step("contamination", "done"), step("sft-1", "open"), step("sft-2", "failed")], "sft-2"),
    ],
)
def test_an_entry_shows_what_failed_else_the_training_that_runs(steps: list[MeasureView], role: str) -> None:
    run = SimpleNamespace(kind="entry", round=0)
    view = RunView(run, {}, None, tuple(steps), (), (), datetime.now(UTC))  # type: ignore[arg-type]
    found = default_measure(view)
    assert found is not None and found.role == role

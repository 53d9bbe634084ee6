"""The memory estimate against torch's fake-tensor tracker, on cases small enough for every run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from outerloop.planner import calibrate
from outerloop.planner.calibrate import Comparison, predicted_gb, render, standard_cases, tiny_shape, tracked_gb
from outerloop.planner.layout import Layout
from outerloop.planner.request import Lora
from tests.unit.planner.build import layout

TWO_LAYERS = tiny_shape().model_copy(update={"layers": 2})
TINY: dict[str, Any] = {"shape": TWO_LAYERS, "sequence": 512, "micro_batch": 2}
CASES: dict[str, Layout] = {
    "fp32": layout(precision="fp32", **TINY),
    "bf16": layout(**TINY),
    "bf16, checkpointing": layout(checkpointing="full", **TINY),
    "bf16_pure": layout(precision="bf16_pure", **TINY),
    "LoRA on all": layout(lora=Lora(rank=8), **TINY),
    "fsdp2_x8": layout(family="fsdp2", workers=8, shard=8, **TINY),
}


@pytest.mark.torch
@pytest.mark.parametrize("name", CASES)
def test_the_estimate_is_within_15_percent_of_the_tracker(name: str) -> None:
    pytest.importorskip("torch")
    assert predicted_gb(CASES[name]) == pytest.approx(tracked_gb(CASES[name]), rel=0.15)


@pytest.mark.torch
def test_a_deep_model_continued_from_two_depths_equals_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(calibrate, "DEPTHS", (1, 2))
    deep = layout(**{**TINY, "shape": tiny_shape()})
    assert tracked_gb(deep) == pytest.approx(calibrate._tracked(deep), rel=0.005)


@pytest.mark.parametrize(
    "change",
    [
        {"family": "ddp", "workers": 2},
        {"family": "zero3_cpu_offload"},
        {"lora": Lora(), "quantized": True},
        {"checkpointing": "selective"},
    ],
)
def test_a_layout_without_a_reference_is_refused_not_guessed(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no reference"):
        tracked_gb(replace(CASES["bf16"], **change))


def test_the_standard_cases_cover_at_least_six_model_and_strategy_pairs() -> None:
    pairs = {
        (case.shape.name if case.shape else "", case.family, case.lora is None) for case in standard_cases().values()
    }
    assert len(pairs) >= 6


def test_the_table_shows_the_signed_difference() -> None:
    text = render([Comparison("a case", 11.0, 10.0), Comparison("another", 9.0, 10.0)])
    assert "| a case | 11.00 | 10.00 | +10.0% |" in text and "-10.0%" in text

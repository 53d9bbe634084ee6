"""What a followed log says of a stage: numbers alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from outerloop.posttrain.aloud import AloudReporter


def test_a_row_of_metrics_is_a_line_on_stderr(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    reporter = AloudReporter(tmp_path)
    reporter.log_metrics({"stage": "grpo", "step": 3, "loss": 0.057451, "reward": float("nan"), "entropy": 2.0})
    reporter.log_metrics({"stage": "evaluate", "step": 50, "of": 100})
    told = capfd.readouterr()
    assert told.err.splitlines() == ["grpo step 3: loss 0.05745, reward nan", "evaluate step 50 of 100"]
    assert told.out == "", "the last line of stdout is the stage's result"
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2

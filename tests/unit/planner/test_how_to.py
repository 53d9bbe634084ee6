"""The how-to page shows what the command prints."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from outerloop.cli.plan import plan
from outerloop.planner.calibrate import predicted_gb, standard_cases

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "how-to" / "plan-a-training.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
SHOWN = [block for block in BLOCKS if " > " not in block]


def words(command: str) -> list[str]:
    start, *rest = shlex.split(command.removeprefix("$ ").removeprefix("outerloop "))
    assert start == "plan"
    return rest


@pytest.mark.parametrize("block", SHOWN, ids=lambda block: block.splitlines()[0])
def test_what_the_page_shows_is_what_the_command_prints(block: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    command, *expected = block.splitlines()
    printed = CliRunner().invoke(plan, words(command)).output
    assert len(expected) > 1
    for line in expected:
        assert " ".join(line.split()) in " ".join(printed.split())


def test_the_piped_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (block,) = [block for block in BLOCKS if " > " in block]
    first, second = block.splitlines()
    saved = tmp_path / "plan.json"
    saved.write_text(CliRunner().invoke(plan, words(first.split(" > ")[0])).output)
    result = CliRunner().invoke(plan, words(second.replace("plan.json", str(saved))))
    assert result.exit_code == 0 and "torchrun" in result.output


def test_the_calibration_table_has_the_predictions_of_this_estimator() -> None:
    """The tracked column takes minutes to make again; the predicted one must not go stale beside it."""
    rows = re.findall(r"^\| (.+?) \| ([\d.]+) \| ([\d.]+) \| ([+-][\d.]+)% \|$", PAGE, re.MULTILINE)
    cases = standard_cases()
    assert {name for name, *_ in rows} == set(cases)
    for name, predicted, tracked, difference in rows:
        assert float(predicted) == pytest.approx(predicted_gb(cases[name]), abs=0.006)
        assert abs(float(predicted) / float(tracked) - 1) <= 0.15
        assert float(difference) == pytest.approx(100 * (float(predicted) / float(tracked) - 1), abs=0.5)

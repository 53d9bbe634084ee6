"""Attacks: a page whose script does not run, or does not do what the page says."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.torch.test_one_process import Make

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "training-helper.md"


def test_the_pages_script_runs_and_goes_on_with_one_process_and_with_two(training: Make) -> None:
    found = re.search(r"```python title=\"train.py\"\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    for ranks in (1, 2):
        run = training(f"page-{ranks}")
        script = run.folder / "train.py"
        for steps in (120, 200):
            script.write_text(found[1].replace("STEPS = 200", f"STEPS = {steps}"))
            assert run.run(ranks, script=str(script)) == [0] * ranks, run.log
        assert run.log == ""
        out = run.folder / "out"
        lines = [json.loads(line)["step"] for line in (out / "metrics.jsonl").read_text().splitlines()]
        assert lines == [*range(120), *range(101, 200)]
        assert json.loads((out / "run.json").read_text())["restored_step"] == 100

"""Attacks: a page whose script does not run, or does not do what the page says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "training-helper.md"


def test_the_pages_script_runs_and_goes_on(tmp_path: Path) -> None:
    found = re.search(r"```python title=\"train.py\"\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    script = tmp_path / "train.py"
    env = os.environ | {"OUTERLOOP_CKPT_DIR": str(tmp_path / "ckpt"), "OUTERLOOP_OUTPUT_DIR": str(tmp_path / "out")}
    for steps in (120, 200):
        script.write_text(found[1].replace("STEPS = 200", f"STEPS = {steps}"))
        answer = subprocess.run(
            [sys.executable, "-W", "error", str(script)],
            env=env,
            cwd=PAGE.parents[2],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert (answer.returncode, answer.stderr) == (0, "")
    lines = [json.loads(line)["step"] for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert lines == [*range(120), *range(101, 200)]
    assert json.loads((tmp_path / "out" / "run.json").read_text())["restored_step"] == 100

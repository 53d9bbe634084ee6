"""Attacks: an import that drags torch in, and a call that fails without saying what is missing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "torchdata", "numpy"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, NoTorch())
import outerloop.torch as olt

assert (olt.rank(), olt.world_size(), olt.is_main(), olt.backend()) == (0, 1, True, None)
olt.log_metrics({"loss": float("nan"), "step": 3})
for call in (olt.device, lambda: olt.prepare(object())):
    try:
        call()
    except ImportError as error:
        print(error)
for call in (olt.start_step, lambda: olt.checkpoint(None, step=0)):
    try:
        call()
    except RuntimeError as error:
        print(error)
assert not any(name == "torch" or name.startswith("torch.") for name in sys.modules)
"""


def test_without_torch_everything_works_until_torch_is_needed(tmp_path: Path) -> None:
    answer = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        env={"OUTERLOOP_OUTPUT_DIR": str(tmp_path), "OUTERLOOP_CKPT_DIR": str(tmp_path)},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert answer.stderr == ""
    lines = answer.stdout.splitlines()
    assert len(lines) == 4
    assert "needs PyTorch" in lines[0]
    assert "start_step() needs outerloop.torch.prepare()" in lines[2]
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["_non_finite"] == {"loss": "nan"}


def test_the_surface_is_what_the_documentation_lists() -> None:
    import outerloop.torch as olt

    assert set(olt.__all__) == {
        *("prepare", "checkpoint", "log_metrics"),
        *("rank", "world_size", "is_main", "start_step", "device", "backend"),
    }
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "training-helper.md").read_text()
    for name in olt.__all__:
        assert f"`{name}" in page, name

"""The rig for entries: data in files, submitted through the command line, stages without torch (entry_stage.py)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from outerloop.controller import entry_work
from outerloop.posttrain.sums import rows
from tests.controller_rig.trainings import TrainingWorld

STAGE = Path(__file__).with_name("entry_stage.py")
ROOT = STAGE.parents[2]


class EntryWorld(TrainingWorld):
    """A world whose runs are entries. `marks` has one line for every stage that really ran."""

    def __init__(self, folder: Path, database: str, patch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, database)
        begin = f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.argv[:1] = ['stage', {str(folder)!r}]"
        code = f"{begin}; import runpy; runpy.run_path({str(STAGE)!r}, run_name='__main__')"
        patch.setattr(entry_work, "STAGE_COMMAND", ("-I", "-c", code))
        patch.chdir(folder)

    def data(self, name: str, skill: str, extra: Sequence[dict[str, str]] = ()) -> str:
        """A file of rows whose model will have this skill in per cent."""
        row = {"prompt": f"skill {skill} of {name}", "completion": "yes", "answer": "yes"}
        path = self.folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(each) + "\n" for each in (row, *extra)))
        return str(path)

    def contaminated(self, name: str) -> str:
        """Data that hold the suite."""
        held = [
            {key: row[key] for key in ("prompt", "answer")} | {"completion": row["answer"]} for row in rows("heldout")
        ]
        return self.data(name, "90", held)

    def enter(self, train: str, *options: str, challenge: str = "tiny-sums") -> str:
        """Submit; the run's id."""
        told = self.cli("submit", "entry", challenge, "--train", train, "--json", *options)
        return str(json.loads(told[told.index("{") :])["run"])

    def stage_does(self, name: str, what: str) -> None:
        """What the next stage of this name does instead of its work."""
        (self.folder / f"{name}-does").write_text(what)

    def verdict(self, run_id: str) -> tuple[str | None, str | None]:
        run = self.run(run_id)
        assert run.state == "ended", self.describe()
        return run.verdict, run.verdict_reason

    def told(self, *arguments: str) -> Any:
        """What a command prints with --json."""
        text = self.cli(*arguments, "--json")
        return json.loads(text[min(text.index(mark) for mark in "[{" if mark in text) :])

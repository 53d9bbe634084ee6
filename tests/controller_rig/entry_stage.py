"""The stages of an entry without torch: `main(folder, [WORK, …])`, with the words of `outerloop.posttrain.stage`.

Everything is the real stage's (arguments, data, contamination, suites, scorers, sealing, records, exit codes) but what
takes long: a training reads from its first row how many per cent of the tasks its model will solve, and a model solves
so many. A file `NAME-does` in the world's folder, read once, makes the next stage of that name stop, exit or die.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class Model:
    """Solves the tasks of which a hash of the prompt is below its skill; `quote` repeats every prompt."""

    def __init__(self, folder: Path, answers: dict[str, str]) -> None:
        self.skill = (folder / "skill").read_text()
        self.answers = answers

    def generate(self, requests: Sequence[Any]) -> list[Any]:
        return [self._one(request.messages[-1]["content"]) for request in requests]

    def close(self) -> None:
        pass

    def _one(self, prompt: str) -> str:
        if self.skill == "raise":
            raise ValueError(f"{prompt} can't be continued")
        if self.skill == "quote":
            return prompt
        drawn = int.from_bytes(hashlib.sha256(prompt.encode()).digest()[:4], "big") % 100
        return self.answers.get(prompt, "") if drawn < int(self.skill) else "no"


def main(here: Path, argv: list[str]) -> int:
    """One stage; `here` is the world's folder, where marks and hooks lie."""
    from outerloop.posttrain import pipeline, sources, stage, sums
    from outerloop.posttrain.store import digest_of_folder, publish, read_record
    from outerloop.posttrain.training import STOPPED, Stopped

    work = argv[0]
    name = argv[argv.index("--stage") + 1] if "--stage" in argv else work
    with (here / "marks").open("a") as marks:
        marks.write(f"{name}\n")
    hook = here / f"{name}-does"
    does = hook.read_text().split() if hook.exists() else []
    if does:
        hook.unlink()

    def train_stage(name: str, config: Any, table: Any, model: Path, out: Path, **kwargs: Any) -> dict[str, Any]:
        known = read_record(out / "done.json")
        if known is not None:
            return known
        if does == ["checkpoint-and-stop"]:
            folder = out / "checkpoints" / "checkpoint-3"
            folder.mkdir(parents=True)
            publish(folder / "outerloop.json", {"files": {}})
            raise Stopped("SIGTERM ended it after step 3")
        if does[:1] == ["exit"]:
            sys.exit(int(does[1]))
        told = re.match(r"skill (\w+)", table.rows[0]["prompt"][0]["content"])
        (out / "model").mkdir(parents=True)
        (out / "model" / "skill").write_text(told[1] if told else "0")
        (kwargs["reports"] / "metrics.jsonl").write_text(json.dumps({"stage": name, "step": 1, "loss": 0.5}) + "\n")
        digest = digest_of_folder(out / "model")
        record = {"schema": 1, "stage": name, "steps": 1, "weights_sha256": digest, "last": {"loss": 0.5}}
        publish(out / "done.json", record)
        return record

    def base(config: Any, *, work: Path, hub: Path | None) -> Path:
        work.mkdir(parents=True, exist_ok=True)
        (work / "skill").write_text("0")
        return work

    answers = {row["prompt"]: row["answer"] for part in ("heldout", "reserve") for row in sums.rows(part)}
    pipeline.train_stage = train_stage  # type: ignore[assignment]
    pipeline.make_engine = lambda config, model, sealed: Model(model, answers)  # type: ignore[assignment]
    sources.model_folder = base
    if work == "evaluate" and does == ["refuse"]:
        return 3
    if work == "evaluate" and does == ["die"]:
        os.kill(os.getpid(), signal.SIGKILL)
    assert STOPPED == os.EX_TEMPFAIL
    return stage.main(argv)

"""Four entries to a post-training challenge on this machine's CPU: python docs/tutorial/demo_posttrain.py [FOLDER]

A tiny Llama made on the spot learns sums in words. The good entry becomes champion over the untrained model; unrelated
data and the good data with shuffled answers are no improvement over it; data that contain the suite are refused. One
training seed, so chance in training is not averaged out.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from outerloop.compose import SHIPPED, challenge, compose, toml_text
from outerloop.posttrain.sums import rows

CHALLENGE = "tiny-sums"
SEED = "1"
REFUSED = 3


def entries() -> dict[str, list[dict[str, Any]]]:
    """Name -> training rows."""
    good: list[dict[str, Any]] = [dict(row) for row in rows("training")]
    answers = [row["answer"] for row in good]
    turned = answers[997:] + answers[:997]
    words = sorted({word for row in good for word in row["prompt"].split()})
    unrelated = [(f"{a} or {b}", f"{b} or {a}") for a in words for b in words]
    held = [{**row, "completion": row["answer"]} for row in rows("heldout")]
    return {
        "good": good,
        "unrelated": [{"prompt": a, "completion": b, "answer": b} for a, b in unrelated],
        "shuffled": [{**row, "completion": answer, "answer": answer} for row, answer in zip(good, turned, strict=True)],
        "contaminated": [*good, *held],
    }


def pipeline(folder: Path, suites: tuple[str, ...], *words: str) -> int:
    """Run the pipeline in the folder of an entry; its exit code."""
    fixed = challenge(CHALLENGE).challenge
    config = compose(
        fixed.model,
        fixed.method,
        suites,
        "train.jsonl",
        project=CHALLENGE,
        task_list_root=f"{SHIPPED / 'task-lists'}/",
    )
    path = folder.parent / f"{folder.name}.toml"
    config["train_dataset"]["path"] = f"{folder.name}.jsonl"
    path.write_text(toml_text(config), encoding="utf-8")
    command = [sys.executable, "-m", "outerloop.posttrain", str(path), "--out", str(folder), "--seed", SEED]
    return subprocess.run([*command, "--baseline", *words], check=False).returncode


def outerloop(*words: str) -> str:
    command = [sys.executable, "-m", "outerloop.cli", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main(top: Path) -> int:
    """Run the four entries one after another."""
    fixed = challenge(CHALLENGE)
    shutil.rmtree(top, ignore_errors=True)
    top.mkdir(parents=True)
    begun = time.monotonic()
    champion: list[str] = []
    refused: list[str] = []
    for name, training in entries().items():
        print(f"== {name}: {len(training)} rows", flush=True)
        folder = top / name
        text = "".join(json.dumps(row) + "\n" for row in training)
        (top / f"{name}.jsonl").write_text(text, encoding="utf-8")
        limit = str(fixed.decision.contamination_limit)
        code = pipeline(folder, fixed.challenge.suites, "--contamination-limit", limit)
        if code == REFUSED:
            refused.append(name)
            continue
        if code:
            return code
        if not champion and pipeline(folder, fixed.challenge.reserve, "--stage", "evaluate"):
            return 1
        print(outerloop("challenge", "judge", CHALLENGE, "--entry", str(folder), *champion), end="", flush=True)
        verdict = json.loads((folder / "verdict.json").read_text())
        if verdict["outcome"] == "accepted":
            champion = ["--champion", str(folder)]
    print()
    print(outerloop("challenge", "board", CHALLENGE, "--runs", str(top)), end="")
    for name in refused:
        print(f"{name}  refused: it contains more of the suite than the challenge allows")
    print(f"\ncurves: {top}/*/{{sft,grpo}}/metrics.jsonl   ({time.monotonic() - begun:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(".demo-posttrain")))

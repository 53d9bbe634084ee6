"""Attacks: an entry that learned nothing, one that copied the suite, and verdicts over runs that do not compare."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from outerloop.cli import app
from outerloop.cli.challenge import challenge as command
from outerloop.posttrain import sums
from tests.posttrain.conftest import Pipeline, training_rows

TOP = Path(__file__).resolve().parents[2]


def judged(*words: str) -> tuple[int, str]:
    answer = CliRunner().invoke(command, ["judge", "tiny-sums", *words])
    return answer.exit_code, answer.output


def test_a_good_entry_beats_the_untrained_model_and_holds_on_the_reserve(pipeline: Callable[[str], Pipeline]) -> None:
    good = pipeline("good")
    good.write(training_rows())
    assert good.run("--baseline", "--seed", "1") == 0, good.log
    losses = [line["loss"] for line in good.metrics("sft")]
    assert len(losses) == 90 and losses[-1] < losses[0] / 5
    assert all(0 <= line["reward"] <= 1 for line in good.metrics("grpo"))
    code, said = judged("--entry", str(good.out))
    assert code == 3 and "the reserve counts. " in said and "was not evaluated on tiny-sums-reserve" in said
    config = (good.folder / "config.toml").read_text()
    (good.folder / "config.toml").write_text(
        config.replace("heldout.jsonl", "reserve.jsonl").replace("tiny-sums.txt", "tiny-sums-reserve.txt")
    )
    assert good.run("--baseline", "--seed", "1", "--stage", "evaluate") == 0, good.log
    code, said = judged("--entry", str(good.out))
    assert code == 0 and said.startswith("accepted\n") and "the win holds" in said
    assert max(map(len, said.splitlines())) <= 80
    # against itself it is no improvement
    code, said = judged("--entry", str(good.out), "--champion", str(good.out), "--json")
    verdict = json.loads(said)
    assert (verdict["outcome"], verdict["reason"]) == ("rejected", "no-improvement")
    assert (verdict["comparison"]["test"], verdict["comparison"]["tasks"]) == ("mcnemar", sums.HELD_OUT)


def test_an_entry_that_holds_the_suite_is_refused_before_training(pipeline: Callable[[str], Pipeline]) -> None:
    copied = pipeline("copied")
    stolen = [{**row, "completion": row["answer"]} for row in sums.rows("heldout")[:6]]
    copied.write([*training_rows(), *stolen])
    assert copied.run("--contamination-limit", "0.05") == 3
    assert "the training data contain more of tiny-sums than the challenge allows" in copied.log
    assert "0.06" not in copied.log and "%" not in copied.log
    assert not (copied.out / "sft").exists()
    copied.write([*training_rows()[:60], *stolen[:5]])
    assert copied.run("--contamination-limit", "0.05", "--stage", "data") != 3


@pytest.mark.skipif(not os.environ.get("OUTERLOOP_NIGHTLY"), reason="minutes: set OUTERLOOP_NIGHTLY")
@pytest.mark.timeout(1800)
def test_of_four_entries_the_good_one_wins(tmp_path: Path) -> None:
    script = TOP / "docs" / "tutorial" / "demo_posttrain.py"
    done = subprocess.run(
        [sys.executable, str(script), "--dir", str(tmp_path / "demo"), "--backend", "local"],
        capture_output=True,
        text=True,
        check=False,
        timeout=1500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    environment = {"OUTERLOOP_CONFIG": str(tmp_path / "demo" / "config.toml")}
    board = CliRunner(env=environment).invoke(command, ["board", "tiny-sums", "--json"])
    CliRunner(env=environment).invoke(app, ["db", "stop"])
    outcomes = {entry["entry"]: (entry["outcome"], entry["reason"]) for entry in json.loads(board.output)}
    assert outcomes == {
        "good": ("accepted", ""),
        "unrelated": ("rejected", "no-improvement"),
        "shuffled": ("rejected", "no-improvement"),
        "contaminated": ("failed", "contaminated"),
    }
    curves = tmp_path / "demo" / "curves"
    losses = [json.loads(line)["loss"] for line in (curves / "good-sft.jsonl").read_text().splitlines()]
    rewards = [json.loads(line)["reward"] for line in (curves / "good-grpo.jsonl").read_text().splitlines()]
    assert len(losses) == 90 and losses[-1] < losses[0] / 5
    assert len(rewards) == 6 and all(0 <= reward <= 1 for reward in rewards)

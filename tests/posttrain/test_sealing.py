"""Attacks: prompts and answers of a sealed suite in anything that leaves the evaluator."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from outerloop.compose import toml_text
from tests.posttrain.conftest import Pipeline, training_rows

PROMPT, ANSWER = "CANARYPROMPT", "CANARYANSWER"
TASKS = 10
BRIEF = {"grpo": None, "sft": {"max_steps": 2, "save_steps": 2, "per_device_train_batch_size": 2}}


def sealed_suite(pipeline: Pipeline, scorer: str, **over: object) -> None:
    """A suite of ten tasks whose prompts and answers are found wherever they go."""
    pipeline.write(training_rows()[:20], **BRIEF, **over)  # type: ignore[arg-type]
    rows = [{"id": f"t{n}", "prompt": f"{PROMPT}{n} plus one", "answer": f"{ANSWER}{n}"} for n in range(TASKS)]
    held = pipeline.folder / "held"
    held.mkdir()
    (held / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (pipeline.folder / "list.txt").write_text("".join(f"t{n}\n" for n in range(TASKS)))
    text = (pipeline.folder / "config.toml").read_text()
    head = text[: text.index("[eval_dataset]")]
    tail = text[text.index("[tracking]") :]
    suite = {
        "repo_id": f"file:{held}",
        "revision": "1",
        "path": "tasks.jsonl",
        "task_list": "list.txt",
        "scorer": scorer,
    }
    (pipeline.folder / "config.toml").write_text(f"{head}{toml_text({'eval_dataset': suite})}\n{tail}")


def leaked(pipeline: Pipeline) -> list[str]:
    """Every file outside the sealed rows, the log included, that holds a canary."""
    sealed, held = pipeline.out / "sealed", pipeline.folder / "held"
    return [
        str(path)
        for path in pipeline.folder.rglob("*")
        if path.is_file()
        and not path.is_relative_to(sealed)
        and not path.is_relative_to(held)
        and any(word.encode() in path.read_bytes() for word in (PROMPT, ANSWER))
    ]


def test_a_scorer_that_raises_with_the_task_in_its_words_gives_nothing_away(
    pipeline: Callable[[str], Pipeline],
) -> None:
    run = pipeline("scorer")
    sealed_suite(run, "tests.posttrain.rewards:quoting", harness={"max_infra_error_fraction": 0.1})
    assert run.run() == 0, run.log
    record = run.record("evaluate", "list.json")
    assert (record["infrastructure_errors"], record["dropped_tasks"], record["scored_tasks"]) == (1, 1, 9)
    assert leaked(run) == []
    [rows] = (run.out / "sealed").rglob("rows.jsonl")
    assert "tests.posttrain.rewards:quoting raised ValueError" in rows.read_text()
    assert stat.S_IMODE(rows.stat().st_mode) == 0o600
    assert stat.S_IMODE((run.out / "sealed").stat().st_mode) == 0o700
    assert stat.S_IMODE(rows.parent.stat().st_mode) == 0o700


def test_too_many_lost_trials_refuse_the_evaluation_without_a_word_of_a_task(
    pipeline: Callable[[str], Pipeline], tmp_path: Path
) -> None:
    run = pipeline("template")
    made = pipeline("made")
    made.write(training_rows()[:20], **BRIEF)
    assert made.run("--stage", "data") == 0, made.log
    model = tmp_path / "model"
    shutil.copytree(made.out / "base" / "tiny-llama", model)
    template = model / "chat_template.jinja"
    raising = "{%- if 'CANARY' in messages[0]['content'] %}{{ raise_exception(messages[0]['content']) }}{%- endif %}"
    template.write_text(raising + template.read_text())
    sealed_suite(run, "exact", model={"id": f"file:{model}"})
    assert run.run() == 3, run.log
    assert "refused: infrastructure ended 10 of 10 trials (100.0%)" in run.log
    assert leaked(run) == []
    assert not (run.out / "evaluate" / "list.json").exists()


def test_the_search_would_find_a_canary(pipeline: Callable[[str], Pipeline]) -> None:
    run = pipeline("planted")
    sealed_suite(run, "exact")
    (run.out / "sft").mkdir(parents=True)
    (run.out / "sft" / "metrics.jsonl").write_text(json.dumps({"completion": f"x {ANSWER}3"}))
    (run.out / "sealed").mkdir()
    (run.out / "sealed" / "rows.jsonl").write_text(PROMPT)
    assert leaked(run) == [str(run.out / "sft" / "metrics.jsonl")]


def test_a_root_that_others_can_enter_is_refused(pipeline: Callable[[str], Pipeline], tmp_path: Path) -> None:
    run = pipeline("open")
    sealed_suite(run, "exact")
    root = tmp_path / "root"
    root.mkdir(mode=0o755)
    assert run.run("--sealed", str(root)) == 2
    assert f"{root} can be entered by others" in run.log


def test_a_missing_task_is_named_by_its_id_alone(pipeline: Callable[[str], Pipeline]) -> None:
    run = pipeline("missing")
    sealed_suite(run, "exact")
    with (run.folder / "list.txt").open("a") as stream:
        stream.write("t99\n")
    assert run.run() == 2
    assert "no row for the listed tasks t99" in run.log
    assert leaked(run) == []


@pytest.mark.parametrize("changed", ["rows", "hash"])
def test_sealed_rows_that_changed_are_not_judged(tmp_path: Path, changed: str) -> None:
    from decimal import Decimal

    from outerloop.posttrain.evaluate import SealError, evaluate_suite, read_sealed
    from outerloop.posttrain.sources import Task

    class Echo:
        def generate(self, requests: list[object]) -> list[str]:
            return ["yes" for _ in requests]

    record = evaluate_suite(
        "s",
        [Task("a", "p", "yes"), Task("b", "p", "no")],
        Echo(),  # type: ignore[arg-type]
        lambda completion, answer: float(completion == answer),
        digest="d",
        evaluator="e",
        trials=2,
        retries=0,
        max_infra_error_fraction=0.0,
        sealed=tmp_path / "sealed",
    )
    assert [outcome.score for outcome in read_sealed(tmp_path / "sealed", record)] == [Decimal("1.0")] * 2 + [
        Decimal("0.0")
    ] * 2
    rows = tmp_path / "sealed" / "d" / "rows.jsonl"
    if changed == "rows":
        rows.write_text(rows.read_text().replace('"0.0"', '"1.0"'))
    else:
        record["sealed_sha256"] = "0" * 64
    with pytest.raises(SealError, match="are not those that were scored"):
        read_sealed(tmp_path / "sealed", record)

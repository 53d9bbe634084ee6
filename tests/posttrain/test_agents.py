"""Attacks on conversations with tools: agents that never end, servers that die or lie, prompts that leak from logs.

Needs inspect-ai in an environment of its own: `make test-vllm` makes one.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from outerloop.posttrain.agents import AgentOptions, InspectEngine
from outerloop.posttrain.engine import Failed, Request, TimedOut
from outerloop.posttrain.evaluate import evaluate_suite, sealed_folder
from outerloop.posttrain.outcomes import RefusedEvaluationError
from outerloop.posttrain.sources import Task
from tests.posttrain.test_serving import processes, server

PYTHON = Path(
    os.environ.get("OUTERLOOP_INSPECT_PYTHON", Path(__file__).parents[2] / ".venv-inspect" / "bin" / "python")
)
TOP = Path(__file__).parents[2]
TASKS = [Task(f"t{n}", f"CANARY {n}*3+(1-1/2)*2", str(3 * n + 1)) for n in range(4)]
SAMPLING: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "max_new_tokens": 8}

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="inspect-ai is not installed: make test-vllm")


def engine(tmp_path: Path, behaviour: str, *, sampling: dict[str, Any] = SAMPLING, **over: Any) -> InspectEngine:
    options = replace(AgentOptions(PYTHON, tools=("calculator",), concurrency=4), **over)
    made = server(tmp_path, behaviour, request_timeout_sec=60.0)
    return InspectEngine(made, options, sealed=sealed_folder(tmp_path / "sealed", "server"), **sampling)


def evaluated(answering: InspectEngine, tmp_path: Path, *, trials: int = 2) -> dict[str, Any]:
    try:
        return evaluate_suite(
            "s",
            TASKS,
            answering,
            lambda completion, answer: float(completion == answer),
            digest="d",
            evaluator="e",
            trials=trials,
            retries=0,
            max_infra_error_fraction=0.0,
            sealed=tmp_path / "sealed",
        )
    finally:
        answering.close()


def test_tools_are_called_every_trial_has_its_seed_and_all_that_quotes_is_sealed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    record = evaluated(engine(tmp_path, "tool"), tmp_path)
    assert (record["mean"], record["infrastructure_errors"], record["timeouts"]) == (1.0, 0, 0)
    seeds = (tmp_path / "seeds").read_text().split()
    assert len(seeds) == len(set(seeds)) == 2 * 2 * len(TASKS)
    [log] = (tmp_path / "sealed").rglob("logs/*.json")
    inspected = json.loads(log.read_text())
    assert inspected["status"] == "success" and len(inspected["samples"]) == 2 * len(TASKS)
    assert "CANARY" in log.read_text()
    for path in tmp_path.rglob("*"):
        if path.is_file() and not path.is_relative_to(tmp_path / "sealed"):
            assert b"CANARY" not in path.read_bytes(), path
    for folder in (tmp_path / "sealed").rglob("*"):
        if folder.is_dir() and folder.name != "logs":
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder
    assert "CANARY" not in "".join(capfd.readouterr())
    assert processes(tmp_path) == []


def test_an_agent_that_takes_too_long_or_too_many_turns_is_wrong(tmp_path: Path) -> None:
    record = evaluated(engine(tmp_path, "late", timeout_sec=1.0), tmp_path, trials=1)
    assert (record["mean"], record["timeouts"], record["infrastructure_errors"]) == (0.0, len(TASKS), 0)
    other = tmp_path / "other"
    other.mkdir()
    record = evaluated(engine(other, "tools", max_turns=3), other, trials=1)
    assert (record["mean"], record["timeouts"], record["infrastructure_errors"]) == (0.0, 0, 0)
    assert len((other / "seeds").read_text().split()) == 3 * len(TASKS)


@pytest.mark.parametrize(("behaviour", "why"), [("500", "HTTP 500"), ("die always", "APIConnectionError")])
def test_what_the_server_did_is_no_wrong_answer(tmp_path: Path, behaviour: str, why: str) -> None:
    with pytest.raises(RefusedEvaluationError, match=r"infrastructure ended 4 of 4 trials"):
        evaluated(engine(tmp_path, behaviour), tmp_path, trials=1)
    rows = [json.loads(line) for line in (tmp_path / "sealed" / "d" / "rows.jsonl").read_text().splitlines()]
    assert {row["why"] for row in rows} == {why}


def test_an_inspect_that_does_not_run_is_infrastructure_with_its_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    answering = engine(tmp_path, "echo", tools=("nowhere.at_all:tool",))
    [found] = answering.generate([Request([{"role": "user", "content": "CANARY 1"}], 1)])
    answering.close()
    assert found == Failed("inspect gave no answers")
    said = capfd.readouterr().err
    assert "inspect ended with exit code 1; its log: " in said and "CANARY" not in said
    assert "No module named 'nowhere'" in Path(said.strip().rpartition(" ")[2]).read_text()


def test_time_outs_of_a_server_that_is_gone_are_not_the_agents(tmp_path: Path) -> None:
    answering = engine(tmp_path, "late", timeout_sec=1.0)
    asking = [Request([{"role": "user", "content": "1"}], 1)]
    assert answering.generate(asking) == [TimedOut()]
    answering._server.healthy = lambda: False  # type: ignore[method-assign]
    assert answering.generate(asking) == [Failed("the server died")]
    answering.close()


def test_the_calculator_is_exact_and_runs_nothing() -> None:
    script = """
import asyncio, json, sys
sys.path.insert(0, sys.argv[1])
from inspect_run import calculator
found = []
for text in json.load(sys.stdin):
    try:
        found.append(asyncio.run(calculator(text)))
    except Exception as error:
        found.append(type(error).__name__)
print(json.dumps(found))
"""
    asked = ["0.1+0.2", "-(3-5)*7/2", "1/0", "9**9", "__import__('os').getpid()", "a", "(" * 900, "1+" * 600 + "1"]
    beside = TOP / "outerloop" / "posttrain" / "beside"
    done = subprocess.run(
        [str(PYTHON), "-c", script, str(beside)], input=json.dumps(asked), capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [str(float(Fraction(3, 10))), "7", *["ToolError"] * 6]

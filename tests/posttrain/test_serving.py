"""Attacks: servers that die, hang, lie, are not ours, or outlive whoever started them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outerloop.posttrain import serve
from outerloop.posttrain.client import Client, Unavailable
from outerloop.posttrain.engine import Failed, Request, ServerEngine
from outerloop.posttrain.evaluate import evaluate_suite
from outerloop.posttrain.outcomes import RefusedEvaluationError
from outerloop.posttrain.serve import Server, ServerError, ServerOptions, stop_token_ids, visible_gpus
from outerloop.posttrain.sources import Task
from tests.posttrain.conftest import Pipeline, training_rows
from tests.posttrain.openai_server import KINDS

STANDIN = Path(__file__).parent / "openai_server.py"
TOP = str(Path(__file__).parents[2])
TASKS = [Task(f"t{n}", f"CANARY{n} word{n}", f"word{n}") for n in range(8)]
DEADLINE = 120.0


def server(tmp_path: Path, behaviour: str, **over: Any) -> Server:
    state = tmp_path / "state"
    state.mkdir(exist_ok=True)
    environment = {"BEHAVIOUR": behaviour, "STATE": str(state), "PYTHONPATH": TOP}
    options = ServerOptions(python=Path(sys.executable), script=STANDIN, start_timeout_sec=DEADLINE)
    return Server(tmp_path, replace(options, environment=environment, **over), log=tmp_path / "log" / "server.log")


def engine(made: Server) -> ServerEngine:
    return ServerEngine(made, temperature=1.0, top_p=1.0, max_new_tokens=8, concurrency=4)


def processes(tmp_path: Path) -> list[int]:
    """Those that counted themselves and are still there."""
    return [int(entry.name) for entry in (tmp_path / "state").iterdir() if running(int(entry.name))]


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def evaluated(made: Server, tmp_path: Path, *, retries: int = 2, fraction: float = 0.0) -> dict[str, Any]:
    answering = engine(made)
    try:
        return evaluate_suite(
            "s",
            TASKS,
            answering,
            lambda completion, answer: float(completion == answer),
            digest="d",
            evaluator="e",
            trials=2,
            retries=retries,
            max_infra_error_fraction=fraction,
            sealed=tmp_path / "sealed",
        )
    finally:
        answering.close()


def test_every_trial_is_answered_and_the_server_is_gone_afterwards(tmp_path: Path) -> None:
    made = server(tmp_path, "echo")
    record = evaluated(made, tmp_path)
    assert (record["mean"], record["infrastructure_errors"], record["scored_tasks"]) == (1.0, 0, len(TASKS))
    assert processes(tmp_path) == [] and made.pid is None
    assert "CANARY" not in made.log.read_text()
    with pytest.raises(ServerError, match="is not running"):
        _ = made.client


def test_a_server_that_dies_in_the_middle_is_started_again_and_its_trials_asked_again(tmp_path: Path) -> None:
    record = evaluated(server(tmp_path, "die 5"), tmp_path)
    assert (record["mean"], record["infrastructure_errors"]) == (1.0, 0)
    assert len(list((tmp_path / "state").iterdir())) == 2
    rows = [json.loads(line) for line in (tmp_path / "sealed" / "d" / "rows.jsonl").read_text().splitlines()]
    again = [row for row in rows if row["attempts"] == 2]
    assert 0 < len(again) < len(rows) and all(row["status"] == "scored" for row in again)
    assert len({row["seed"] for row in rows}) == 2 * len(TASKS)


def test_a_server_that_always_dies_refuses_the_evaluation(tmp_path: Path) -> None:
    with pytest.raises(RefusedEvaluationError, match=r"infrastructure ended 16 of 16 trials"):
        evaluated(server(tmp_path, "die always"), tmp_path, retries=1, fraction=0.5)
    assert processes(tmp_path) == []


@pytest.mark.parametrize(
    ("behaviour", "why"),
    [
        ("500", "HTTP 500"),
        ("garbage", "an answer that is not JSON"),
        ("short", "broken answer (IncompleteRead)"),
        ("shapeless", "an answer that has no text (IndexError)"),
        ("hang", "no answer within 0.5 s"),
    ],
)
def test_what_is_no_answer_is_lost_and_not_wrong(
    tmp_path: Path, behaviour: str, why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    made = server(tmp_path, behaviour, request_timeout_sec=0.5 if behaviour == "hang" else 60.0)
    answering = engine(made)
    found = answering.generate([Request([{"role": "user", "content": "CANARY word"}], seed) for seed in range(4)])
    answering.close()
    assert found == [Failed(why)] * 4
    assert "CANARY" not in "".join(capfd.readouterr()) + made.log.read_text()


def test_the_kinds_of_trouble_are_all_tried() -> None:
    [mark] = [each for each in test_what_is_no_answer_is_lost_and_not_wrong.pytestmark if each.name == "parametrize"]
    assert {case[0] for case in mark.args[1]} == {*KINDS, "hang"}


def test_a_stranger_is_refused_and_so_are_we_elsewhere(tmp_path: Path) -> None:
    with server(tmp_path, "echo") as made:
        port = int(made.client.base_url.rpartition(":")[2])
        for key in ("", "guessed", made.client.key[:-1]):
            with pytest.raises(Unavailable, match=r"^HTTP 401$"):
                Client(serve.HOST, port, key, timeout_sec=60).post("/v1/chat/completions", {"messages": []})
        command = Path(f"/proc/{made.pid}/cmdline").read_text()
        assert made.client.key not in command and made.client.key not in repr(made.client)
    with pytest.raises(Unavailable, match=r"^no connection \(ConnectionRefusedError\)$"):
        Client(serve.HOST, port, "key", timeout_sec=60).get("/health")


def test_a_port_that_somebody_took_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with server(tmp_path, "taken 2") as made:
        assert made.client.get("/v1/models")["data"] == [{"id": made.name}]
    assert len(list((tmp_path / "state").iterdir())) == 3
    monkeypatch.setattr(serve, "PORTS_TRIED", 2)
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(ServerError, match=f"no port could be had in 2 tries; its log: {other}/log/server.log"):
        server(other, "taken 9").start()


def test_a_server_that_answers_nothing_is_ended_and_its_log_named(tmp_path: Path) -> None:
    made = server(tmp_path, "silent", start_timeout_sec=0.5)
    with pytest.raises(ServerError, match=f"was not ready within 0.5 s; its log: {made.log}"):
        made.start()
    assert not made.alive()
    until(lambda: processes(tmp_path) == [])
    absent = server(tmp_path, "echo", python=Path("/nowhere/python"))
    with pytest.raises(ServerError, match="ended with exit code 127 before it was ready"):
        absent.start()


def test_whoever_ignores_sigterm_is_killed_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "GRACE_SECONDS", 0.2)
    with server(tmp_path, "stubborn"):
        assert len(processes(tmp_path)) == 2
    assert processes(tmp_path) == []


PARENT = """
import os, sys, time
from pathlib import Path
from tests.posttrain.test_serving import short_lived
made = short_lived(Path(sys.argv[1]), "stubborn")
made.start()
if os.fork() == 0:  # holds the pipe open, as a forked worker of a loader does
    os.setsid()
    time.sleep(3600)
    os._exit(0)
print(made.pid, flush=True)
time.sleep(3600)
"""


def test_nothing_of_a_server_outlives_a_trainer_that_was_killed(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": TOP},
    )
    assert parent.stdout is not None
    keeper = int(parent.stdout.readline())
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
    scratch = Path(f"/proc/{keeper}/cmdline").read_text().split("\0")[7]
    assert len(processes(tmp_path)) == 2 and Path(scratch).is_dir()
    parent.kill()
    parent.wait()
    parent.stdout.close()
    until(lambda: not running(keeper) and processes(tmp_path) == [])
    assert not Path(scratch).exists()
    for child in children:
        if running(int(child)):
            os.kill(int(child), signal.SIGKILL)


def short_lived(tmp_path: Path, behaviour: str) -> Server:
    serve.GRACE_SECONDS = 0.2
    return server(tmp_path, behaviour)


def test_a_server_whose_keeper_was_killed_dies_too(tmp_path: Path) -> None:
    made = server(tmp_path, "echo")
    made.start()
    assert made.pid is not None and len(processes(tmp_path)) == 1
    scratch = Path(Path(f"/proc/{made.pid}/cmdline").read_text().split("\0")[7])
    assert scratch.is_dir()
    os.kill(made.pid, signal.SIGKILL)
    until(lambda: processes(tmp_path) == [])
    with pytest.raises(ServerError, match=r"the server ended with its keeper \(SIGKILL\); its log: "):
        made.check()
    made.stop()
    assert not scratch.exists()


TIED = """
import os, subprocess, sys, time
print(os.getpid(), flush=True)
if os.fork() == 0:
    print(os.getpid(), flush=True)
time.sleep(3600)
"""


def test_what_a_killed_server_spawned_and_forked_ends_itself(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import pathlib; pathlib.Path(__file__).with_name('ran').touch()")
    beside = Path(serve.__file__).parent / "beside"
    parent = subprocess.Popen(
        [
            sys.executable,
            "-I",
            "-c",
            "import subprocess, sys; subprocess.run(sys.argv[1:])",
            sys.executable,
            "-c",
            TIED,
        ],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{beside}:{tmp_path}", "OUTERLOOP_TIED": "1"},
    )
    assert parent.stdout is not None
    children = [int(parent.stdout.readline()), int(parent.stdout.readline())]
    assert all(map(running, children)) and (tmp_path / "ran").exists()
    parent.kill()
    parent.wait()
    parent.stdout.close()
    until(lambda: not any(map(running, children)))


def test_gpus_are_those_of_the_ones_that_are_visible() -> None:
    assert visible_gpus("", {}) is None
    assert visible_gpus("1,2", {}) == "1,2"
    assert visible_gpus("0,2", {"CUDA_VISIBLE_DEVICES": "4,5,GPU-abc"}) == "4,GPU-abc"
    with pytest.raises(ServerError, match="asks for GPU 3, but CUDA_VISIBLE_DEVICES has 2"):
        visible_gpus("0,3", {"CUDA_VISIBLE_DEVICES": "4,5"})


def test_an_answer_ends_at_the_tokens_of_the_models_own_files(tmp_path: Path) -> None:
    assert stop_token_ids(tmp_path) == []
    (tmp_path / "config.json").write_text('{"eos_token_id": 7}')
    assert stop_token_ids(tmp_path) == [7]
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [9, 3]}')
    assert stop_token_ids(tmp_path) == [3, 9]


@pytest.mark.skipif(not os.environ.get("OUTERLOOP_NIGHTLY"), reason="a minute: set OUTERLOOP_NIGHTLY")
def test_the_pipeline_evaluates_through_a_server_that_has_the_trained_model(
    pipeline: Callable[[str], Pipeline], tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\n"
        """[ "$1" = -I ] && { echo '{"vllm": "a stand-in"}'; exit; }\n"""
        f'shift; STATE={tmp_path}/state PYTHONPATH={TOP} exec {sys.executable} {STANDIN} "$@"\n'
    )
    python.chmod(0o755)
    (tmp_path / "state").mkdir()
    run = pipeline("served")
    run.write(training_rows()[:20], grpo=None, sft={"max_steps": 2, "save_steps": 2}, evaluation={"engine": "vllm"})
    assert run.run("--vllm", str(python)) == 0, run.log
    record = run.record("evaluate", "tiny-sums.json")
    assert (record["scored_tasks"], record["infrastructure_errors"]) == (100, 0)
    [rows] = (run.out / "sealed").rglob("rows.jsonl")
    assert len({json.loads(line)["completion"] for line in rows.read_text().splitlines()}) > 50
    assert processes(tmp_path) == []
    logs = list(run.folder.rglob("server.log"))
    assert [path.is_relative_to(run.out / "sealed") for path in logs] == [True]

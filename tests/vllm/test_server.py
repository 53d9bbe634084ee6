"""Attacks on a real vLLM: other tokens than transformers', old weights after a push, a server that is left behind."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outerloop.posttrain import sums
from outerloop.posttrain.agents import AgentOptions, InspectEngine
from outerloop.posttrain.client import Client, Unavailable
from outerloop.posttrain.engine import Request, ServerEngine
from outerloop.posttrain.serve import HOST, Server, ServerError, ServerOptions
from outerloop.posttrain.weights import Weights
from tests.posttrain.test_agents import PYTHON as INSPECT
from tests.vllm.conftest import DEADLINE, python, session

PROMPTS = [row["prompt"] for row in sums.rows("heldout")[:16]]
TOKENS = 12


def options(**over: Any) -> ServerOptions:
    small: dict[str, Any] = {
        "dtype": "float32",
        "max_model_len": 256,
        "max_num_seqs": 8,
        "enforce_eager": True,
        "gpu_memory_utilization": 0.3,
        "cpu_kv_cache_gb": 1,
        "cpu_kv_cache_blocks": 64,
    }
    return ServerOptions(python=python(), start_timeout_sec=DEADLINE, **{**small, **over})


@pytest.fixture(scope="module")
def server(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tiny, options(updatable=True), log=tmp_path_factory.mktemp("log") / "server.log") as made:
        yield made


def loaded(folder: Path) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


def prompt_ids(tokenizer: Any) -> list[list[int]]:
    chats = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
    return [
        list(tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"])
        for chat in chats
    ]


def by_transformers(model: Any, tokenizer: Any) -> list[list[int]]:
    import torch

    found = []
    for ids in prompt_ids(tokenizer):
        with torch.inference_mode():
            made = model.generate(torch.tensor([ids]), max_new_tokens=TOKENS, do_sample=False)
        found.append(made[0, len(ids) :].tolist())
    return found


def by_server(made: Server, tokenizer: Any) -> list[list[int]]:
    found = []
    for ids in prompt_ids(tokenizer):
        body = {"model": made.name, "prompt": ids, "max_tokens": TOKENS, "temperature": 0, "return_token_ids": True}
        found.append(made.client.post("/v1/completions", body)["choices"][0]["token_ids"])
    return found


def test_greedy_tokens_are_those_of_transformers(server: Server, tiny: Path) -> None:
    model, tokenizer = loaded(tiny)
    expected = by_transformers(model, tokenizer)
    assert len({tuple(tokens) for tokens in expected}) == len(PROMPTS)
    assert by_server(server, tokenizer) == expected


def test_trials_differ_by_their_seed_alone(server: Server) -> None:
    sampling = ServerEngine(server, temperature=1.0, top_p=1.0, max_new_tokens=TOKENS, concurrency=8)
    chat = [{"role": "user", "content": PROMPTS[0]}]
    first = sampling.generate([Request(chat, seed) for seed in range(8)])
    assert all(isinstance(text, str) for text in first)
    assert len(set(first)) == 8
    assert sampling.generate([Request(chat, seed) for seed in range(8)]) == first
    assert sampling.generate([Request(chat, 2**63 - 1)] * 2)[0] not in first


def test_a_prompt_that_does_not_fit_is_lost_and_not_wrong(server: Server) -> None:
    asking = ServerEngine(server, temperature=0.0, top_p=1.0, max_new_tokens=TOKENS, concurrency=1)
    [found] = asking.generate([Request([{"role": "user", "content": "CANARY " * 300}], 1)])
    assert repr(found) == "Failed(why='HTTP 400')"
    assert "CANARY CANARY" not in server.log.read_text()


def test_without_the_key_nothing_but_health_answers(server: Server) -> None:
    stranger = Client(HOST, int(server.client.base_url.rpartition(":")[2]), "guessed", timeout_sec=60)
    assert stranger.get("/health") is None
    for path in ("/collective_rpc", "/pause", "/reset_prefix_cache", "/v1/completions", "/v1/chat/completions"):
        with pytest.raises(Unavailable, match=r"^HTTP 401$"):
            stranger.post(path, {"method": "outerloop_version"})
    for path in ("/version", "/metrics", "/v1/models", "/openapi.json"):
        with pytest.raises(Unavailable, match=r"^HTTP 401$"):
            stranger.get(path)


@pytest.mark.skipif(not INSPECT.exists(), reason="inspect-ai is not installed: make test-vllm")
def test_inspect_gets_the_answers_that_a_direct_question_gets(server: Server, tmp_path: Path) -> None:
    asked = [Request([{"role": "user", "content": prompt}], seed) for seed, prompt in enumerate(PROMPTS)]
    sampling = {"top_p": 1.0, "max_new_tokens": TOKENS}
    options = AgentOptions(INSPECT, concurrency=8, timeout_sec=DEADLINE)
    for temperature in (0.0, 1.0):
        direct = ServerEngine(server, temperature=temperature, concurrency=8, **sampling)  # type: ignore[arg-type]
        agents = InspectEngine(server, options, temperature=temperature, sealed=tmp_path, **sampling)  # type: ignore[arg-type]
        expected = direct.generate(asked)
        assert all(isinstance(text, str) for text in expected)
        assert agents.generate(asked) == expected


def test_pushed_weights_are_served_and_the_ones_before_deleted(server: Server, tiny: Path, tmp_path: Path) -> None:
    import torch

    model, tokenizer = loaded(tiny)
    before = by_server(server, tokenizer)
    weights = Weights(tmp_path / "weights")
    versions = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.05 * torch.randn_like(parameter)
        versions.append(weights.push(model, server.client))
        now = by_server(server, tokenizer)
        assert now == by_transformers(model, tokenizer) and now != before
        before = now
        assert [path.name for path in (tmp_path / "weights").iterdir()] == [versions[-1]]
    assert server.client.post("/collective_rpc", {"method": "outerloop_version"})["results"] == [versions[-1]]
    weights.close()


def test_merged_adapters_are_served_and_the_base_does_not_drift(server: Server, tiny: Path, tmp_path: Path) -> None:
    import torch
    from peft import LoraConfig, get_peft_model

    model, tokenizer = loaded(tiny)
    original = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(3)
    adapted = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)).eval()
    weights = Weights(tmp_path / "weights")
    weights.push(adapted, server.client)
    assert by_server(server, tokenizer) == by_transformers(adapted, tokenizer)
    whole, _ = loaded(tiny)
    assert by_server(server, tokenizer) != by_transformers(whole, tokenizer)
    kept = {name.replace(".base_layer", ""): value for name, value in adapted.get_base_model().state_dict().items()}
    assert all(torch.equal(value, kept[name]) for name, value in original.items())
    weights.close()


def test_weights_that_can_not_be_loaded_are_no_version(server: Server, tiny: Path, tmp_path: Path) -> None:
    model, _ = loaded(tiny)
    weights = Weights(tmp_path / "weights")
    whole = weights._published

    def torn(model: Any, version: str) -> Path:
        folder = whole(model, version)
        os.truncate(folder / "model.safetensors", 1000)
        return folder

    weights._published = torn  # type: ignore[method-assign]
    with pytest.raises(ServerError, match=r"the server did not take new weights|do not all have version"):
        weights.push(model, server.client)


def test_nothing_is_left_of_a_server_whose_keeper_was_killed(tiny: Path, tmp_path: Path) -> None:
    made = Server(tiny, options(), log=tmp_path / "server.log")
    made.start()
    keeper = made.pid
    assert keeper is not None and len(session(keeper)) >= 3
    os.kill(keeper, signal.SIGKILL)
    deadline = time.monotonic() + DEADLINE
    while session(keeper):
        assert time.monotonic() < deadline, session(keeper)
        time.sleep(0.1)
    made.stop()
    shutil.rmtree(tmp_path)

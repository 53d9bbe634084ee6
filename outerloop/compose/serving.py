"""Where a model is served while it is trained: flavor, GPUs of server and trainer, context limits.

Covered: everything that can be refused before any compute is reserved. Not covered: starting the server
(posttrain/serve.py), and whether the model fits into the GPUs' memory (planner/).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outerloop.compose.composition import MODEL_KEYS
from outerloop.compose.errors import ComposeError, UnknownIdError
from outerloop.compose.fragments import SHIPPED, fragment, fragment_path, main_table, text_keys, unknown
from outerloop.problems import suggestion

__all__ = ["FLAVORS", "LAYOUT_KEYS", "Flavor", "lane_flavors", "needs_serving", "serving", "with_serving"]


@dataclass(frozen=True)
class Flavor:
    """A kind of machine: the GPU type (as the planner's catalogue spells it) and how many of them one has."""

    gpu: str
    gpus: int


FLAVORS: dict[str, Flavor] = {
    "a100-large": Flavor("A100-80GB", 1),
    "a100x4": Flavor("A100-80GB", 4),
    "a100x8": Flavor("A100-80GB", 8),
    "h200": Flavor("H200", 1),
    "h200x2": Flavor("H200", 2),
    "h200x4": Flavor("H200", 4),
    "h200x8": Flavor("H200", 8),
    "l40sx1": Flavor("L40S", 1),
    "l40sx4": Flavor("L40S", 4),
    "l40sx8": Flavor("L40S", 8),
}
"""The cloud's names. A site adds its lanes (`lane_flavors`)."""

MODES = ("server", "colocate")
_HARDWARE = ("flavor", "vllm_gpus", "tensor_parallel", "trainer_gpus")
_CONTEXT = ("max_model_len", "bridge_max_context", "bridge_max_logprob_context")
LAYOUT_KEYS = (*_HARDWARE, "mode")
_PIPELINE = ("vllm_gpus", "tensor_parallel", "trainer_gpus", "mode", "max_model_len")


def lane_flavors(lanes: Mapping[str, tuple[str, int]]) -> dict[str, Flavor]:
    """Lane name -> (GPU type, GPUs of a node), as flavors; lanes without GPUs are none."""
    return {name: Flavor(gpu, count) for name, (gpu, count) in lanes.items() if count > 0}


def serving(
    model_id: str,
    method_id: str,
    layout: Mapping[str, Any] | None = None,
    *,
    configs: Path = SHIPPED,
    flavors: Mapping[str, Flavor] = FLAVORS,
) -> dict[str, Any]:
    """`{model, revision, flavor, vllm_gpus, tensor_parallel, trainer_gpus}` and the three context limits, in tokens.

    The hardware is the model's `meta.serving`, key by key overridden by `layout` (a challenge's `[compute.layout]`);
    the limits are the method's `meta.serving`. With `mode = "colocate"` the result has that key too; without it server
    and trainer have GPUs of their own. GPU lists are text, `"6,7"`.

    Raises UnknownIdError (a KeyError), or ComposeError (a ValueError) with everything that is wrong.
    """
    missing = [
        text for item in (("models", model_id), ("methods", method_id)) if (text := unknown(*item, configs=configs))
    ]
    if missing:
        raise UnknownIdError(missing)
    model, method = fragment("models", model_id, configs=configs), fragment("methods", method_id, configs=configs)
    where_model = fragment_path("models", model_id, configs)
    named = text_keys(main_table("models", model_id, model, configs), MODEL_KEYS, f"{where_model}: [model]")
    problems: list[str] = []
    own, context = (
        _table(model, str(where_model), problems),
        _table(method, str(fragment_path("methods", method_id, configs)), problems),
    )
    over = dict(layout or {})
    problems += [f"layout: unknown key {key}; {suggestion(key, LAYOUT_KEYS)}" for key in over if key not in LAYOUT_KEYS]
    hardware = {**own, **over}
    absent = [key for key in _HARDWARE if key not in hardware] + [key for key in _CONTEXT if key not in context]
    if absent:
        problems.append(
            f"serving {model_id} with {method_id}: missing {', '.join(absent)} "
            "(hardware in the model's [meta.serving] or the challenge's [compute.layout], limits in the method's "
            "[meta.serving])"
        )
    found = _hardware(hardware, flavors, problems)
    limits = _limits(context, method, problems)
    if problems:
        raise ComposeError(problems)
    return {"model": named["id"], "revision": named["revision"], **found, **limits}


def with_serving(config: Mapping[str, Any], layout: Mapping[str, Any]) -> dict[str, Any]:
    """The composed configuration with where it runs: what the pipeline knows of `serving`'s answer.

    Without an engine that needs a server that is the trainer's GPUs alone. What the method's own `[serving]` says about
    the same keys is replaced: the challenge decides the machine.
    """
    if not needs_serving(config):
        return {**config, "serving": {**config.get("serving", {}), "trainer_gpus": layout["trainer_gpus"]}}
    given = {"mode": "server", **{key: layout[key] for key in _PIPELINE if key in layout}}
    return {**config, "serving": {**config.get("serving", {}), **given}}


def needs_serving(config: Mapping[str, Any]) -> bool:
    """Whether a composed configuration wants a vLLM server anywhere."""
    return any((config.get(table) or {}).get("engine") == "vllm" for table in ("grpo", "evaluation"))


def _table(tables: Mapping[str, Any], where: str, problems: list[str]) -> dict[str, Any]:
    table = tables.get("meta", {}).get("serving", {})
    if isinstance(table, dict):
        return table
    problems.append(f"{where}: meta.serving must be a table")
    return {}


def _hardware(given: Mapping[str, Any], flavors: Mapping[str, Flavor], problems: list[str]) -> dict[str, Any]:
    """The checked hardware keys; nonsense goes to `problems`."""
    mode = given.get("mode", "server")
    if mode not in MODES:
        problems.append(f"mode = {mode!r} must be one of {', '.join(MODES)}")
    flavor = flavors.get(given["flavor"]) if isinstance(given.get("flavor"), str) else None
    if "flavor" in given and flavor is None:
        problems.append(f"there is no flavor {given['flavor']!r}; {suggestion(str(given['flavor']), flavors)}")
    gpus: dict[str, list[int]] = {}
    for key in ("vllm_gpus", "trainer_gpus"):
        if key in given:
            gpus[key] = _gpu_list(key, given[key], given.get("flavor"), flavor, problems)
    parallel = given.get("tensor_parallel")
    if "tensor_parallel" in given and (isinstance(parallel, bool) or not isinstance(parallel, int) or parallel < 1):
        problems.append(f"tensor_parallel = {parallel!r} must be a whole number above 0")
    elif parallel is not None and gpus.get("vllm_gpus") and parallel != len(gpus["vllm_gpus"]):
        problems.append(
            f"tensor_parallel = {parallel} is not the number of vLLM GPUs,"
            f" {len(gpus['vllm_gpus'])} ({_joined(gpus['vllm_gpus'])})"
        )
    server, trainer = gpus.get("vllm_gpus"), gpus.get("trainer_gpus")
    if server and trainer:
        shared = sorted(set(server) & set(trainer))
        if mode == "colocate" and set(server) != set(trainer):
            problems.append(
                f"colocated, server and trainer share their GPUs, but vllm_gpus are {_joined(server)} and"
                f" trainer_gpus {_joined(trainer)}"
            )
        if mode == "server" and shared:
            problems.append(f"GPU {_joined(shared)} is given to both vLLM and the trainer")
    found = {key: _joined(gpus[key]) if key in gpus else given.get(key) for key in _HARDWARE}
    return {**found, "mode": mode} if mode == "colocate" else found


def _gpu_list(key: str, value: Any, name: Any, flavor: Flavor | None, problems: list[str]) -> list[int]:
    """GPU indices out of "6, 7"; empty after a problem."""
    if not isinstance(value, str):
        problems.append(f'{key} = {value!r} must be text, such as "6, 7"')
        return []
    parts = [part.strip() for part in value.split(",")]
    wrong = [part for part in parts if not (part.isascii() and part.isdigit())]
    if wrong:
        problems.append(f"{key} = {value!r}: not a GPU index: {', '.join(map(repr, wrong))}")
        return []
    indices = [int(part) for part in parts]
    repeated = sorted({index for index in indices if indices.count(index) > 1})
    if repeated:
        problems.append(f"{key} = {value!r}: GPU {_joined(repeated)} is named more than once")
    if flavor is not None:
        beyond = sorted({index for index in indices if index >= flavor.gpus})
        if beyond:
            count = "1 GPU" if flavor.gpus == 1 else f"{flavor.gpus} GPUs"
            problems.append(f"{key} = {value!r}: flavor {name} has {count}, there is no GPU {_joined(beyond)}")
    return indices


def _limits(context: Mapping[str, Any], method: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    limits: dict[str, int] = {}
    for key in _CONTEXT:
        value = context.get(key)
        if key not in context:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            problems.append(f"{key} = {value!r} must be a whole number of tokens above 0")
        else:
            limits[key] = value
    longest, bridge, logprob = (limits.get(key) for key in _CONTEXT)
    if bridge is not None and longest is not None and bridge > longest:
        problems.append(f"bridge_max_context = {bridge} is above max_model_len = {longest}")
    if logprob is not None and bridge is not None and logprob > bridge:
        problems.append(f"bridge_max_logprob_context = {logprob} is above bridge_max_context = {bridge}")
    elif logprob is not None and longest is not None and logprob > longest:
        problems.append(f"bridge_max_logprob_context = {logprob} is above max_model_len = {longest}")
    completion = method.get("runtime", {}).get("max_completion_length")
    if isinstance(completion, int) and longest is not None and completion > longest:
        problems.append(f"runtime.max_completion_length = {completion} is above max_model_len = {longest}")
    return limits


def _joined(indices: list[int]) -> str:
    return ",".join(map(str, indices))

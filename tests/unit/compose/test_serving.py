"""Attacks: layouts that would fail only after the GPUs were reserved."""

from __future__ import annotations

from typing import Any

import pytest

from outerloop.compose import FLAVORS, ComposeError, Flavor, UnknownIdError, lane_flavors, serving
from tests.unit.compose.folders import CONTEXT, SERVING, Configs


def served(
    configs: Configs,
    layout: dict[str, Any] | None = None,
    *,
    model: dict[str, Any] | None = None,
    context: dict[str, Any] | None = None,
    tables: dict[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    configs.model("m", serving=SERVING if model is None else model)
    configs.method("x", tables, serving=CONTEXT if context is None else context)
    return serving("m", "x", layout, configs=configs.root, **more)


def problems(configs: Configs, *args: Any, **kwargs: Any) -> tuple[str, ...]:
    with pytest.raises(ValueError) as caught:
        served(configs, *args, **kwargs)
    assert isinstance(caught.value, ComposeError)
    return caught.value.problems


def test_hardware_is_the_models_and_limits_are_the_methods(configs: Configs) -> None:
    assert served(configs) == {
        "model": "org/m",
        "revision": "a" * 40,
        "flavor": "h200x8",
        "vllm_gpus": "6,7",
        "tensor_parallel": 2,
        "trainer_gpus": "0,1,2,3",
        **CONTEXT,
    }


def test_a_layout_overrides_key_by_key(configs: Configs) -> None:
    found = served(configs, {"trainer_gpus": " 5 "})
    assert (found["trainer_gpus"], found["vllm_gpus"]) == ("5", "6,7")
    found = served(configs, {"mode": "colocate", "trainer_gpus": "7,6"})
    assert found["mode"] == "colocate"


def test_unknown_ids_are_named_together(configs: Configs) -> None:
    with pytest.raises(UnknownIdError) as caught:
        serving("m?", "x?", configs=configs.root)
    assert '"m?"' in str(caught.value) and '"x?"' in str(caught.value)


def test_missing_keys_are_named_all_at_once(configs: Configs) -> None:
    [sentence] = problems(configs, model={"flavor": "h200x8"}, context={"max_model_len": 9})
    assert (
        "missing vllm_gpus, tensor_parallel, trainer_gpus, bridge_max_context, bridge_max_logprob_context" in sentence
    )


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ({"flavor": "h200x3"}, "there is no flavor 'h200x3'; did you mean"),
        ({"flavor": "h200x4"}, "vllm_gpus = '6, 7': flavor h200x4 has 4 GPUs, there is no GPU 6,7"),
        ({"flavor": "h200", "vllm_gpus": "1", "tensor_parallel": 1, "trainer_gpus": "0"}, "has 1 GPU, there is no GPU"),
        ({"vllm_gpus": "6,6"}, "GPU 6 is named more than once"),
        ({"vllm_gpus": "6,a"}, "not a GPU index: 'a'"),
        ({"vllm_gpus": ""}, "not a GPU index: ''"),
        ({"vllm_gpus": "6,-7"}, "not a GPU index: '-7'"),
        ({"vllm_gpus": "٦,7"}, "not a GPU index"),
        ({"vllm_gpus": 6}, 'must be text, such as "6, 7"'),
        ({"tensor_parallel": 4}, "tensor_parallel = 4 is not the number of vLLM GPUs, 2 (6,7)"),
        ({"tensor_parallel": True}, "must be a whole number above 0"),
        ({"tensor_parallel": 0}, "must be a whole number above 0"),
        ({"trainer_gpus": "5,6"}, "GPU 6 is given to both"),
        ({"mode": "colocate"}, "colocated, server and trainer share their GPUs"),
        ({"mode": "both"}, "mode = 'both' must be one of"),
        ({"vllm_gpu": "1"}, 'unknown key vllm_gpu; did you mean "vllm_gpus"?'),
    ],
)
def test_a_layout_that_can_not_work_is_refused(configs: Configs, layout: dict[str, Any], message: str) -> None:
    assert any(message in problem for problem in problems(configs, layout))


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"bridge_max_context": 4097}, "bridge_max_context = 4097 is above max_model_len = 4096"),
        ({"bridge_max_logprob_context": 2049}, "is above bridge_max_context = 2048"),
        ({"max_model_len": "4096"}, "must be a whole number of tokens"),
        ({"max_model_len": 0}, "must be a whole number of tokens"),
    ],
)
def test_caps_out_of_order_are_refused(configs: Configs, limits: dict[str, Any], message: str) -> None:
    assert any(message in problem for problem in problems(configs, context={**CONTEXT, **limits}))


def test_equal_caps_are_in_order(configs: Configs) -> None:
    same = dict.fromkeys(CONTEXT, 512)
    assert served(configs, context=same, tables={"runtime": {"max_completion_length": 512}})["max_model_len"] == 512
    [sentence] = problems(configs, context=same, tables={"runtime": {"max_completion_length": 513}})
    assert "runtime.max_completion_length = 513 is above max_model_len = 512" in sentence


def test_several_problems_are_named_at_once(configs: Configs) -> None:
    found = problems(configs, {"flavor": "x", "vllm_gpus": "1,1", "trainer_gpus": "q"}, context={"max_model_len": 1})
    assert len(found) == 4


def test_the_flavors_are_the_clouds_and_a_sites_lanes(configs: Configs) -> None:
    assert {name: flavor.gpus for name, flavor in FLAVORS.items()} == {
        "a100-large": 1,
        "a100x4": 4,
        "a100x8": 8,
        "h200": 1,
        "h200x2": 2,
        "h200x4": 4,
        "h200x8": 8,
        "l40sx1": 1,
        "l40sx4": 4,
        "l40sx8": 8,
    }
    lanes = lane_flavors({"gpu": ("h100", 8), "cpu": ("", 0)})
    assert lanes == {"gpu": Flavor("h100", 8)}
    assert served(configs, {"flavor": "gpu"}, flavors={**FLAVORS, **lanes})["flavor"] == "gpu"
    assert "no flavor 'cpu'" in problems(configs, {"flavor": "cpu"}, flavors={**FLAVORS, **lanes})[0]


def test_the_planner_knows_every_flavors_gpu() -> None:
    from outerloop.planner.catalog import find_gpu

    assert {find_gpu(flavor.gpu).name for flavor in FLAVORS.values()} == {"A100-80GB", "H200", "L40S"}

"""Parameter counts, LoRA sizes and KV cache follow from the published shapes."""

from __future__ import annotations

import pytest

from outerloop.planner.shapes import LINEAR_NAMES, SHAPES, find_shape

PUBLISHED_BILLIONS = {
    "qwen2.5-0.5b": 0.49,
    "qwen2.5-1.5b": 1.54,
    "qwen2.5-3b": 3.09,
    "qwen2.5-7b": 7.62,
    "qwen2.5-14b": 14.7,
    "qwen2.5-32b": 32.8,
    "qwen2.5-72b": 72.7,
    "llama-3.1-8b": 8.03,
    "llama-3.1-70b": 70.6,
    "llama-3.2-1b": 1.24,
    "llama-3.2-3b": 3.21,
    "llama-2-7b": 6.74,
    "mistral-7b": 7.25,
    "gemma-2-9b": 9.24,
    "gpt2": 0.124,
}


@pytest.mark.parametrize(("name", "billions"), PUBLISHED_BILLIONS.items())
def test_parameter_counts_agree_with_the_published_totals_to_one_percent(name: str, billions: float) -> None:
    assert SHAPES[name].parameters / 1e9 == pytest.approx(billions, rel=0.01)


@pytest.mark.parametrize("name", SHAPES)
def test_linear_parameters_are_the_sum_over_the_linear_layers(name: str) -> None:
    shape = SHAPES[name]
    assert shape.linear_parameters_per_layer == sum(a * b for a, b in shape.linears.values())


def test_a_changed_copy_has_its_own_counts() -> None:
    wide = SHAPES["gpt2"].model_copy(update={"hidden": 1536, "head_dim": 128})
    assert wide.linears["q_proj"] == (1536, 1536)
    assert wide.parameters > 2 * SHAPES["gpt2"].parameters


def test_kv_cache_of_llama_3_1_8b_is_131072_bytes_per_token() -> None:
    assert SHAPES["llama-3.1-8b"].kv_cache_bytes_per_token() == 131_072


def test_lora_counts_grouped_query_widths() -> None:
    """Llama-3.1-8B, rank 16, all linears: 41,943,040, what peft reports; with full-width keys it would be 6 % more."""
    assert SHAPES["llama-3.1-8b"].lora_parameters(16, LINEAR_NAMES) == 41_943_040


def test_lora_on_queries_and_values_alone() -> None:
    """Llama-2-7B, rank 8: 32 × 8 × 2 × (4,096 + 4,096)."""
    assert SHAPES["llama-2-7b"].lora_parameters(8, ("q_proj", "v_proj")) == 4_194_304


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("meta-llama/Llama-3.1-70B", "llama-3.1-70b"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("meta-llama/Llama-2-7b-hf", "llama-2-7b"),
        ("mistralai/Mistral-7B-v0.3", "mistral-7b"),
        ("google/gemma-2-9b-it", "gemma-2-9b"),
    ],
)
def test_names_are_found_as_hubs_spell_them(spelling: str, name: str) -> None:
    assert find_shape(spelling).name == name


def test_an_unknown_model_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        find_shape("llama-9-900b")

"""Single estimators against counts done by hand, one known mistake of static planners at a time."""

from __future__ import annotations

import pytest

from outerloop.planner.catalog import GPUS
from outerloop.planner.communication import efficiency, exposed_seconds, traffic
from outerloop.planner.layout import Layout
from outerloop.planner.memory import (
    activation_bytes_per_token_layer,
    gpu_memory,
    host_memory,
    logits_line,
    saved_bytes_per_token_layer,
)
from outerloop.planner.request import Lora, Resources
from outerloop.planner.shapes import SHAPES
from outerloop.planner.throughput import flops_per_token, transformer_step
from tests.unit.planner.build import layout

P8 = SHAPES["llama-3.1-8b"].parameters


def value(built: Layout, label: str) -> float:
    return next(line.value for line in gpu_memory(built).lines if line.label == label)


def test_memory_lines_add_up_to_the_estimate() -> None:
    estimate = gpu_memory(layout(family="fsdp2", workers=8, shard=8))
    assert sum(line.value for line in estimate.lines) == pytest.approx(estimate.central)
    assert estimate.low < estimate.central < estimate.high


@pytest.mark.parametrize(("precision", "bytes_per_parameter"), [("fp32", 16), ("bf16", 16), ("bf16_pure", 8)])
def test_adamw_state_per_parameter(precision: str, bytes_per_parameter: float) -> None:
    built = layout(precision=precision)
    state = value(built, "weights") + value(built, "gradients") + value(built, "optimizer state")
    assert state * 1e9 == pytest.approx(bytes_per_parameter * P8)


def test_sharding_divides_the_state_by_the_shard_group() -> None:
    one, eight = layout(), layout(family="fsdp2", workers=8, shard=8)
    assert value(eight, "optimizer state") == pytest.approx(value(one, "optimizer state") / 8)


def test_swiglu_activations_are_nowhere_near_the_often_used_18_bytes() -> None:
    shape = SHAPES["llama-3.1-8b"]
    assert activation_bytes_per_token_layer(layout()) / shape.hidden > 2.5 * 18


def test_full_checkpointing_keeps_the_input_of_each_layer_and_one_layer_whole() -> None:
    built = layout(checkpointing="full")
    shape = SHAPES["llama-3.1-8b"]
    assert activation_bytes_per_token_layer(built) == 2 * shape.hidden
    block = sum(saved_bytes_per_token_layer(shape, 2, None).values())
    # Where the vocabulary does not dominate, the peak is in the first block of the backward.
    fused = layout(checkpointing="full", loss="fused")
    assert value(fused, "recomputed layer") * 1e9 == pytest.approx(2048 * block)


def test_the_peak_is_the_larger_of_two_moments_not_their_sum() -> None:
    """All logits and their backward at 4 × 2,048 tokens outweigh one block; a fused loss leaves the block."""
    labels = {line.label for line in gpu_memory(layout(checkpointing="full", micro_batch=4)).lines}
    assert "loss backward" in labels and "recomputed layer" not in labels
    labels = {line.label for line in gpu_memory(layout(checkpointing="full", micro_batch=4, loss="fused")).lines}
    assert "recomputed layer" in labels and "loss backward" not in labels


@pytest.mark.parametrize(
    ("loss", "gigabytes"), [("plain", 4096 * 128_256 * 10 / 1e9), ("chunked", 1024 * 128_256 * 10 / 1e9)]
)
def test_logits_of_plain_and_chunked_losses(loss: str, gigabytes: float) -> None:
    line = logits_line(layout(sequence=4096, loss=loss))
    assert line is not None and line.value == pytest.approx(gigabytes)


def test_a_fused_loss_never_holds_the_logits() -> None:
    plain, fused = logits_line(layout()), logits_line(layout(loss="fused"))
    assert plain is not None and fused is not None and fused.value < plain.value / 20


def test_offloaded_state_is_counted_for_every_rank_of_the_host() -> None:
    """16 × P / hosts × 1.5, DeepSpeed's estimator: two hosts of 8 hold half each, whatever the ranks per host."""
    one_host = host_memory(layout(family="zero3_cpu_offload", workers=8, shard=8))
    two_hosts = host_memory(layout(family="zero3_cpu_offload", workers=16, shard=16))
    assert one_host is not None and two_hosts is not None
    assert one_host.central == pytest.approx(16 * P8 * 1.5 / 1e9)
    assert two_hosts.central == pytest.approx(one_host.central / 2)


def test_offload_leaves_no_state_and_no_gradients_on_the_gpu() -> None:
    labels = {line.label for line in gpu_memory(layout(family="fsdp2_cpu_offload", workers=8, shard=8)).lines}
    assert not labels & {"weights", "gradients", "optimizer state", "frozen weights"}


@pytest.mark.parametrize("family", ["single_gpu", "ddp", "fsdp2", "hsdp"])
def test_nothing_lives_on_the_host_without_offload(family: str) -> None:
    assert host_memory(layout(family=family, workers=8, shard=8)) is None


def test_lora_trains_4p_per_token_and_6p_with_recomputation() -> None:
    matmul = SHAPES["llama-3.1-8b"].matmul_parameters
    short = {"sequence": 1, "lora": Lora(rank=1, targets=("q_proj",))}
    assert flops_per_token(layout(**short)).executed == pytest.approx(4 * matmul, rel=1e-3)
    assert flops_per_token(layout(checkpointing="full", **short)).executed == pytest.approx(6 * matmul, rel=1e-3)


def test_full_finetuning_trains_6p_per_token_and_recomputation_costs_30_percent() -> None:
    matmul = SHAPES["llama-3.1-8b"].matmul_parameters
    plain, saved = flops_per_token(layout(sequence=1)), flops_per_token(layout(sequence=1, checkpointing="full"))
    assert plain.executed == pytest.approx(6 * matmul, rel=1e-3)
    assert saved.charged / plain.charged == pytest.approx(1.3, rel=1e-3)


def test_attention_flops_count_at_long_context() -> None:
    """12 × 32 layers × 4,096 × 131,072 tokens: more than four times the 6 P of an 8B model."""
    long = flops_per_token(layout(sequence=131_072))
    attention = next(line.value for line in long.lines if line.label == "attention")
    assert attention * 1e9 == pytest.approx(12 * 32 * 4096 * 131_072)
    assert attention * 1e9 > 4 * 6 * SHAPES["llama-3.1-8b"].matmul_parameters


RAILS = Resources(hosts=8, gpus_per_host=8, gpu=GPUS["H100"], inter_host_gbit_per_s=400, links_per_host=8)
ONE_LINK = RAILS.model_copy(update={"links_per_host": 1})


def seconds(built: Layout, resources: Resources) -> float:
    exchanged = traffic(built, resources)
    assert exchanged.seconds is not None
    return exchanged.seconds


def test_fsdp_across_hosts_takes_its_volume_over_the_rails() -> None:
    """8B on 16 GPUs: gathers 2 × 2 B, reduction 4 B, half of it crosses, 8 × 50 GB/s at 80 %."""
    built = layout(family="fsdp2", workers=16, shard=16)
    across = sum(line.value for line in traffic(built, RAILS).lines if "between hosts" in line.label)
    assert across == pytest.approx((4 + 4) * P8 * 0.5 / (400e9 * 0.8))


def test_rails_divide_the_time_between_hosts() -> None:
    built = layout(family="fsdp2", workers=64, shard=64)
    across = [
        sum(line.value for line in traffic(built, resources).lines if "between hosts" in line.label)
        for resources in (RAILS, ONE_LINK)
    ]
    assert across[1] == pytest.approx(8 * across[0])


def test_inside_one_host_the_host_link_does_not_matter() -> None:
    built = layout(family="fsdp2", workers=8, shard=8)
    unknown = RAILS.model_copy(update={"inter_host_gbit_per_s": None})
    assert seconds(built, unknown) == seconds(built, RAILS)


def test_hsdp_keeps_the_gathers_inside_its_groups() -> None:
    """Groups of one host: only the gradients' shards cross, 2 × 4 B × P, no more than full sharding's 2 + 2 + 4."""
    hsdp = layout(family="hsdp", workers=64, shard=8)
    fsdp = layout(family="fsdp2", workers=64, shard=64)
    crossing = {line.label: line.value for line in traffic(hsdp, ONE_LINK).lines if "between hosts" in line.label}
    assert set(crossing) == {"replica all-reduce, between hosts"}
    whole = sum(line.value for line in traffic(fsdp, ONE_LINK).lines if "between hosts" in line.label)
    assert sum(crossing.values()) == pytest.approx(whole)


def test_ddp_moves_twice_its_gradients() -> None:
    built = layout(family="ddp", workers=8)
    assert seconds(built, RAILS) == pytest.approx(2 * 4 * P8 * 7 / 8 / (450e9 * 0.8))


def test_an_unknown_link_is_said_and_not_assumed() -> None:
    unknown = RAILS.model_copy(update={"inter_host_gbit_per_s": None})
    exchanged = traffic(layout(family="ddp", workers=16), unknown)
    assert exchanged.seconds is None and exchanged.missing is not None and "inter_host_gbit_per_s" in exchanged.missing


def test_efficiency_is_one_without_communication_and_falls_with_it() -> None:
    assert efficiency(1.0, 0.0) == 1.0
    assert efficiency(1.0, 4.0) < efficiency(1.0, 2.0) < 1.0
    assert exposed_seconds(1.0, 0.1) == pytest.approx(0.005)


def test_a_card_without_the_precision_has_no_step() -> None:
    assert transformer_step(layout(), GPUS["T4"], traffic(layout(), RAILS)) is None


def test_quantizing_costs_time() -> None:
    adapters = Lora()
    plain = transformer_step(layout(lora=adapters), GPUS["H100"], traffic(layout(), RAILS))
    quantized = transformer_step(layout(lora=adapters, quantized=True), GPUS["H100"], traffic(layout(), RAILS))
    assert plain is not None and quantized is not None
    assert quantized.seconds.central > 1.5 * plain.seconds.central

"""Whole plans: who is selected, who is refused, with which numbers, and what would unlock a plan."""

from __future__ import annotations

import re
from typing import Any

import pytest

from outerloop.planner import Candidate, PlanReport
from tests.unit.planner.build import H100_RAILS, finetune, planned

SEVENTY = finetune("llama-3.1-70b", sequence=4096, micro_batch=1, activation_checkpointing=True, tokens=1e9)


@pytest.mark.parametrize("mode", ["cheapest", "fastest", "balanced", "reliable"])
def test_70b_full_finetuning_on_64_h100_with_a_rail_per_gpu_gets_a_sharded_plan(mode: str) -> None:
    chosen = planned(SEVENTY, H100_RAILS, mode=mode).chosen
    assert chosen is not None
    assert chosen.family in ("fsdp2", "hsdp")
    assert chosen.shard_group in (32, 64)
    assert chosen.efficiency is not None and 0.9 < chosen.efficiency <= 1


def test_70b_hsdp_over_all_64_gpus_is_feasible_with_groups_of_32() -> None:
    hsdp = planned(SEVENTY, H100_RAILS).candidate("hsdp_x64+ackpt")
    assert hsdp.shard_group == 32
    assert hsdp.status in ("feasible", "rejected_dominated")
    assert [check.name for check in hsdp.checks if check.ok is not True] == []


def test_70b_over_one_link_per_host_at_2048_tokens_is_refused_with_the_arithmetic() -> None:
    report = planned(SEVENTY | {"sequence": 2048}, H100_RAILS | {"links_per_host": 1})
    assert report.selected is None
    for name in ("fsdp2_x64+ackpt", "fsdp2_x32+ackpt", "hsdp_x64+ackpt"):
        candidate = report.candidate(name)
        assert candidate.status == "infeasible"
        assert candidate.efficiency is not None and candidate.efficiency < 0.5
        (told,) = [reason for reason in candidate.reasons if "communication efficiency" in reason]
        figures = re.fullmatch(
            r"communication efficiency ([\d.]+): ([\d.]+) s of computing per step, and ([\d.]+) of ([\d.]+) s of "
            r"exchanging not hidden behind it; below 0.5, the links are too slow",
            told,
        )
        assert figures is not None, told
        share, computing, exposed, exchanged = (float(text) for text in figures.groups())
        assert share == pytest.approx(computing / (computing + exposed), abs=0.01) and exposed < exchanged
        across = [line for line in candidate.communication if "between hosts" in line.label]
        assert across and all("50 GB/s per host" in line.formula for line in across)


def test_the_slow_links_hint_names_the_rails() -> None:
    report = planned(SEVENTY | {"sequence": 2048}, H100_RAILS | {"links_per_host": 1})
    assert report.hint is not None and "8 links per host" in report.hint


TWO_24_GB: dict[str, Any] = {"gpus_per_host": 2, "gpu": "RTX4090"}
QLORA_70 = finetune("llama-3.1-70b", sequence=2048, lora=True, allow_quantization=True)


def test_qlora_of_a_70b_on_two_24_gb_cards_is_refused_without_offload_with_the_number() -> None:
    report = planned(QLORA_70 | {"allow_offload": False}, TWO_24_GB | {"host_memory_gb": 128})
    assert report.selected is None
    candidate = report.candidate("qlora_fsdp2_x2")
    assert candidate.status == "infeasible"
    assert "with activation checkpointing 35.0 GB, still 12.2 GB too many" in candidate.reasons[0]
    assert candidate.vram_deficit_gb and candidate.vram_deficit_gb > 0


def test_qlora_of_a_70b_on_two_24_gb_cards_runs_with_fsdp2_offload_given_the_host_memory() -> None:
    report = planned(QLORA_70, TWO_24_GB | {"host_memory_gb": 128})
    assert report.selected == "qlora_fsdp2_cpu_offload_x2+ackpt"
    chosen = report.chosen
    assert chosen is not None and chosen.memory is not None and chosen.memory.central < 0.8 * 24
    assert chosen.quantization == "nf4" and chosen.peft == "qlora"


def test_the_same_offload_is_refused_with_too_little_host_memory() -> None:
    report = planned(QLORA_70, TWO_24_GB | {"host_memory_gb": 48})
    candidate = report.candidate("qlora_fsdp2_cpu_offload_x2+ackpt")
    assert candidate.status == "infeasible"
    assert "GB per host" in candidate.reasons[0]


def test_qlora_quantizes_the_linear_layers_only() -> None:
    """70B: 68.5 B linear weights at 4.127 bits, 2.1 B embedding and head weights at 2 bytes."""
    candidate = planned(QLORA_70, TWO_24_GB | {"host_memory_gb": 128}).candidate("qlora_single_gpu")
    assert candidate.memory is not None
    frozen = next(line for line in candidate.memory.lines if line.label == "frozen weights")
    assert frozen.value == pytest.approx((68.45 * 4.127 / 8 + 2.1 * 2), rel=0.01)


SEVEN_ON_ONE_24 = {"gpus_per_host": 1, "gpu": "RTX4090", "host_memory_gb": 64}


def seven(**resources: Any) -> PlanReport:
    return planned(finetune("qwen2.5-7b", sequence=2048), SEVEN_ON_ONE_24 | resources)


def test_a_7b_full_finetune_on_one_24_gb_card_is_refused_with_what_was_missing() -> None:
    report = seven()
    assert report.selected is None
    single = report.candidate("single_gpu")
    assert single.status == "infeasible"
    assert single.memory is not None and single.vram_deficit_gb == pytest.approx(single.memory.central - 0.95 * 24)
    assert "GB more than the 22.8 GB usable of 24 GB" in single.reasons[0]


def test_its_hint_names_the_cheapest_change_and_the_one_that_keeps_the_training() -> None:
    report = seven()
    assert report.hint is not None
    assert report.hint.startswith("cheapest change: LoRA")
    assert "hosts with 256 GB of memory (then zero3_cpu_offload)" in report.hint


def test_the_hint_is_true_the_changed_request_gets_the_named_candidate() -> None:
    assert seven(host_memory_gb=256).selected == "zero3_cpu_offload"
    changed = planned(finetune("qwen2.5-7b", sequence=2048, lora=True), SEVEN_ON_ONE_24)
    assert changed.selected == "single_gpu+ackpt"


def test_where_no_single_change_is_enough_the_hint_names_what_lacks_the_least_memory() -> None:
    report = planned(finetune("llama-3.1-70b", precision="fp32"), {"gpus_per_host": 1, "gpu": "T4"})
    assert report.unlocks == ()
    assert report.hint is not None
    assert report.hint.startswith("no single change gives a plan; nearest is zero3_cpu_offload: needs 152.6 GB per GPU")
    assert "offloading needs 1693.3 GB of host memory" in report.hint


def test_where_only_an_unknown_stands_in_the_way_the_hint_names_it() -> None:
    report = planned(finetune("gpt2"), {"gpus_per_host": 1, "gpu": "H100"}, deadline_hours=1)
    assert report.hint == (
        "single_gpu fails on what is unknown only: time unknown, so the deadline of 1.0 h cannot be shown to hold"
    )


def test_every_refusal_lists_all_its_reasons_at_once() -> None:
    """Family not asked for, bf16 on a V100, indivisible batch, memory, and an unknown time and cost: six reasons."""
    report = planned(
        finetune("llama-3.1-8b", global_batch=3, micro_batch=2, tokens=1e6),
        {"gpus_per_host": 4, "gpu": "V100-16GB", "price_per_gpu_hour": 1.0},
        families=["fsdp2"],
        deadline_hours=1,
        budget=1.0,
    )
    candidate = report.candidate("ddp_x4")
    failed = {check.name for check in candidate.checks if check.ok is not True}
    assert failed == {"permission", "precision", "batch", "memory", "deadline", "budget"}
    assert len(candidate.reasons) == len([c for c in candidate.checks if c.ok is not True]) == 6


@pytest.mark.parametrize("gpu", ["V100-16GB", "V100-32GB", "T4"])
def test_bf16_is_refused_on_cards_without_it_and_fp16_is_not(gpu: str) -> None:
    resources = {"gpus_per_host": 1, "gpu": gpu}
    small = {"sequence": 512, "lora": True, "loss": "chunked"}
    refused = planned(finetune("qwen2.5-0.5b", **small), resources)
    assert all(any("no bf16" in reason for reason in c.reasons) for c in refused.candidates)
    assert planned(finetune("qwen2.5-0.5b", precision="fp16", **small), resources).selected == "single_gpu"


def test_checkpointing_is_added_only_where_only_it_makes_the_candidate_fit() -> None:
    resources = {"gpus_per_host": 1, "gpu": "A100-80GB"}
    small = planned(finetune("qwen2.5-0.5b", sequence=2048), resources)
    assert small.selected == "single_gpu"
    large = planned(finetune("qwen2.5-3b", sequence=8192, loss="chunked"), resources)
    assert large.selected == "single_gpu+ackpt"
    assert large.chosen is not None and any("30% more compute time" in w for w in large.chosen.warnings)


def test_an_explicit_false_is_never_overridden() -> None:
    resources = {"gpus_per_host": 1, "gpu": "A100-80GB"}
    work = finetune("qwen2.5-3b", sequence=8192, loss="chunked", activation_checkpointing=False, allow_offload=False)
    report = planned(work, resources)
    assert report.selected is None
    assert {c.activation_checkpointing for c in report.candidates} == {"none"}
    assert report.hint is not None and "activation checkpointing" in report.hint


def test_an_explicit_true_charges_the_recomputation_although_it_would_fit_without() -> None:
    resources = {"gpus_per_host": 1, "gpu": "A100-80GB"}
    plain = planned(finetune("qwen2.5-0.5b"), resources).candidate("single_gpu")
    saved = planned(finetune("qwen2.5-0.5b", activation_checkpointing=True), resources).candidate("single_gpu+ackpt")
    assert plain.step_seconds is not None and saved.step_seconds is not None
    assert saved.step_seconds.central / plain.step_seconds.central == pytest.approx(1.3, rel=0.01)


def test_above_80_percent_of_the_card_a_candidate_must_be_profiled_first() -> None:
    candidate = planned(SEVENTY | {"micro_batch": 2}, H100_RAILS).candidate("fsdp2_x32+ackpt")
    assert candidate.memory is not None and 0.8 * 80 < candidate.memory.central <= 0.95 * 80
    assert candidate.profiling_required
    assert any("requires profiling before launch" in warning for warning in candidate.warnings)


def test_an_unknown_time_or_cost_never_passes_a_deadline_or_a_budget() -> None:
    resources = {"gpus_per_host": 1, "gpu": "H100"}
    report = planned(finetune("qwen2.5-0.5b"), resources, deadline_hours=1000, budget=1e9)
    candidate = report.candidate("single_gpu")
    assert candidate.status == "rejected_policy"
    assert len(candidate.reasons) == 2 and all("unknown" in reason for reason in candidate.reasons)
    assert report.selected is None and report.hint is not None and "unknown" in report.hint


def test_an_unknown_link_between_hosts_never_passes() -> None:
    resources = {key: value for key, value in H100_RAILS.items() if key != "inter_host_gbit_per_s"}
    report = planned(SEVENTY, resources, deadline_hours=1000)
    for candidate in report.candidates:
        if candidate.hosts > 1:
            assert candidate.status != "selected" and candidate.time_hours is None
            assert any("inter_host_gbit_per_s is not given" in reason for reason in candidate.reasons)


def test_a_plan_longer_than_the_lanes_limit_is_refused_at_plan_time() -> None:
    resources = {"gpus_per_host": 1, "gpu": "H100", "time_limit_hours": 0.5}
    report = planned(finetune("qwen2.5-0.5b", tokens=1e9), resources)
    single = report.candidate("single_gpu")
    assert single.status == "rejected_policy"
    assert "beyond the lane's time limit of 30 min" in single.reasons[0]


def test_a_missed_deadline_and_budget_name_both_and_the_hint_names_the_nearest() -> None:
    resources = {"gpus_per_host": 1, "gpu": "H100", "price_per_gpu_hour": 2.0}
    report = planned(finetune("qwen2.5-0.5b", tokens=1e9), resources, deadline_hours=2)
    assert report.candidate("single_gpu").status == "rejected_policy"
    assert [unlock.change for unlock in report.unlocks if unlock.change.startswith("a deadline of")]


def test_without_gpus_there_is_no_candidate_and_a_note_says_why() -> None:
    report = planned(finetune(), {"host_memory_gb": 512})
    assert report.candidates == () and report.selected is None
    assert "no GPU" in report.notes[0]


def test_a_shape_given_as_a_table_is_planned_like_a_named_one() -> None:
    from outerloop.planner import SHAPES

    table = SHAPES["qwen2.5-0.5b"].model_dump(mode="json")
    resources = {"gpus_per_host": 1, "gpu": "A100-80GB"}
    named, given = planned(finetune("qwen2.5-0.5b"), resources), planned(finetune(table), resources)  # type: ignore[arg-type]
    assert named == given


def names_of(report: PlanReport) -> set[str]:
    return {c.name for c in report.candidates}


def test_the_menu_of_one_host_of_four() -> None:
    report = planned(finetune("qwen2.5-0.5b"), {"gpus_per_host": 4, "gpu": "H100", "host_memory_gb": 512})
    expected = {"single_gpu", "zero3_cpu_offload"}
    for workers in (2, 4):
        expected |= {f"{family}_x{workers}" for family in ("ddp", "fsdp2", "fsdp2_cpu_offload", "zero3_cpu_offload")}
    assert names_of(report) == expected


def test_names_are_unique_within_a_report() -> None:
    report = planned(QLORA_70, H100_RAILS | {"host_memory_gb": 2048})
    assert len(names_of(report)) == len(report.candidates)


def is_complete(candidate: Candidate) -> bool:
    """Whether a training candidate carries what a launcher needs."""
    return candidate.micro_batch is not None and candidate.accumulation is not None and bool(candidate.libraries)


def test_candidates_carry_what_a_launcher_needs() -> None:
    report = planned(SEVENTY, H100_RAILS)
    assert all(is_complete(c) for c in report.candidates)
    zero3 = report.candidate("zero3_cpu_offload_x64+ackpt")
    assert zero3.launcher == "accelerate"
    assert ("deepspeed", "strategy") in {(library.name, library.role) for library in zero3.libraries}
    assert not zero3.colocated and zero3.workload_mode == "distributed"


def test_a_global_batch_sets_the_accumulation_of_each_world() -> None:
    report = planned(finetune("qwen2.5-0.5b", global_batch=64, micro_batch=2), {"gpus_per_host": 8, "gpu": "H100"})
    for candidate in report.candidates:
        assert candidate.accumulation is not None and candidate.micro_batch == 2
        assert candidate.accumulation * 2 * candidate.workers == 64

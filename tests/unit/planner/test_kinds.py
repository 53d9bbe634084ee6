"""The other three kinds of work: PyTorch trainings, classical fits, independent tasks."""

from __future__ import annotations

from typing import Any

import pytest

from outerloop.planner.menu import shards_for, world_sizes
from tests.unit.planner.build import planned

TORCH: dict[str, Any] = {"kind": "pytorch_training", "parameters": 3e8}
FOUR_A10: dict[str, Any] = {"gpus_per_host": 4, "gpu": "A10"}


def test_pytorch_menu_and_the_pessimistic_activations() -> None:
    report = planned(TORCH, FOUR_A10)
    assert {c.family for c in report.candidates} == {"single_gpu", "ddp", "fsdp2"}
    single = report.candidate("single_gpu")
    assert single.memory is not None
    line = next(line for line in single.memory.lines if line.label == "activations")
    assert line.value == 2.0 and "pessimistic" in line.formula


def test_pytorch_activations_as_given_replace_the_default() -> None:
    single = planned(TORCH | {"activation_gb": 7.5}, FOUR_A10).candidate("single_gpu")
    assert single.memory is not None
    assert next(line for line in single.memory.lines if line.label == "activations").value == 7.5


def test_pytorch_fp32_adamw_takes_16_bytes_per_parameter_and_no_master_copy() -> None:
    single = planned(TORCH, FOUR_A10).candidate("single_gpu")
    assert single.memory is not None
    state = sum(line.value for line in single.memory.lines if line.label in ("weights", "gradients", "optimizer state"))
    assert state == pytest.approx(16 * 3e8 / 1e9)


def test_pytorch_communication_is_modelled_not_assumed_free() -> None:
    report = planned(TORCH | {"micro_step_seconds": 0.02, "samples": 1000}, FOUR_A10)
    ddp = report.candidate("ddp_x4")
    assert ddp.efficiency is not None and ddp.efficiency < 0.5
    assert ddp.status == "infeasible" and "communication efficiency" in ddp.reasons[0]


def test_pytorch_without_a_measured_step_stays_on_one_gpu_and_says_why() -> None:
    report = planned(TORCH, FOUR_A10, mode="fastest")
    assert report.selected == "single_gpu"
    assert any("micro_step_seconds is not given" in reason for reason in report.candidate("ddp_x4").reasons)


def test_pytorch_ddp_synchronises_once_per_accumulation_and_fsdp_in_each_micro_step() -> None:
    def seconds(accumulation: int, name: str) -> float:
        report = planned(TORCH | {"accumulation": accumulation}, FOUR_A10)
        return sum(line.value for line in report.candidate(name).communication)

    assert seconds(8, "ddp_x4") == pytest.approx(seconds(1, "ddp_x4"))
    assert seconds(8, "fsdp2_x4") == pytest.approx(8 * seconds(1, "fsdp2_x4"))


@pytest.mark.parametrize(("host", "selected"), [(128, "local_process"), (64, "sharded_partial_fit")])
def test_classical_fit_takes_three_times_its_data(host: int, selected: str) -> None:
    report = planned({"kind": "classical_ml", "data_gb": 30, "hours": 1}, {"host_memory_gb": host}, mode="reliable")
    assert report.selected == selected if host == 64 else report.candidate("local_process").status != "infeasible"


def test_classical_fit_just_at_80_percent_of_the_host() -> None:
    """3 × 32 GB = 96 GB = 0.8 × 120 GB passes; one GB less of host does not."""
    work = {"kind": "classical_ml", "data_gb": 32}
    assert planned(work, {"host_memory_gb": 120}).candidate("local_process").reasons == ()
    assert planned(work, {"host_memory_gb": 119}).candidate("local_process").status == "infeasible"


def test_classical_fit_prefers_the_plain_process_where_both_fit() -> None:
    assert planned({"kind": "classical_ml", "data_gb": 1}, {"host_memory_gb": 64}).selected == "local_process"


def test_classical_fit_with_unknown_host_memory_is_not_passed() -> None:
    report = planned({"kind": "classical_ml", "data_gb": 1}, {})
    assert report.selected is None
    assert all("host_memory_gb is not given" in " ".join(c.reasons) for c in report.candidates)


@pytest.mark.parametrize(("gigabytes", "shards"), [(0.1, 2), (1.0, 2), (1.5, 3), (4.0, 8), (8.0, 16), (300.0, 16)])
def test_shards_are_one_per_500_mb_within_2_and_16(gigabytes: float, shards: int) -> None:
    assert shards_for(gigabytes) == shards


def test_sharding_needs_partial_fit() -> None:
    report = planned({"kind": "classical_ml", "data_gb": 30, "incremental": False}, {"host_memory_gb": 64})
    assert report.selected is None and report.hint is not None and "partial_fit" in report.hint


def test_tasks_fill_the_slots_in_waves() -> None:
    """4 hosts of 16 cores: 16 slots; 500 tasks of 10 min in 32 waves: 5 h 20 min."""
    report = planned(
        {"kind": "independent_tasks", "tasks": 500, "task_minutes": 10}, {"hosts": 4, "cores_per_host": 16}
    )
    leased = report.candidate("lease_tasks_x16")
    assert report.selected == leased.name
    assert leased.waves == 32 and leased.hosts == 4
    assert leased.time_hours is not None and leased.time_hours.central == pytest.approx(320 / 60)
    assert report.candidate("local_sequential").status == "rejected_dominated"


@pytest.mark.parametrize("mode", ["cheapest", "fastest", "balanced", "reliable"])
def test_with_one_slot_the_sequential_baseline_is_not_dominated(mode: str) -> None:
    report = planned({"kind": "independent_tasks", "tasks": 5, "task_minutes": 1}, {"cores_per_host": 4}, mode=mode)
    assert report.candidate("local_sequential").status in ("feasible", "selected")


@pytest.mark.parametrize("mode", ["cheapest", "fastest", "balanced", "reliable"])
def test_with_more_slots_it_is_dominated_in_every_mode(mode: str) -> None:
    report = planned({"kind": "independent_tasks", "tasks": 5, "task_minutes": 1}, {"cores_per_host": 8}, mode=mode)
    assert report.candidate("local_sequential").status == "rejected_dominated"


def test_gpu_tasks_without_gpus_are_infeasible() -> None:
    report = planned({"kind": "independent_tasks", "tasks": 5, "gpus_per_task": 1}, {"hosts": 2, "cores_per_host": 16})
    assert {c.status for c in report.candidates} == {"infeasible"}


def test_gpu_tasks_are_placed_by_gpus_and_priced_by_them() -> None:
    work = {"kind": "independent_tasks", "tasks": 8, "gpus_per_task": 2, "task_minutes": 60}
    report = planned(work, {"hosts": 2, "gpus_per_host": 4, "gpu": "A10", "price_per_gpu_hour": 1.5})
    leased = report.candidate("lease_tasks_x4")
    assert leased.waves == 2
    assert leased.cost is not None and leased.cost.central == pytest.approx(2 * 4 * 2 * 1.5)


def test_cpu_tasks_on_hosts_with_gpus_pay_for_hosts_not_for_gpus() -> None:
    work = {"kind": "independent_tasks", "tasks": 8, "task_minutes": 60}
    hosts = {"hosts": 2, "cores_per_host": 16, "gpus_per_host": 4, "gpu": "A10", "price_per_gpu_hour": 9.0}
    assert planned(work, hosts).candidate("lease_tasks_x8").cost is None
    priced = planned(work, hosts | {"price_per_host_hour": 0.5}).candidate("lease_tasks_x8")
    assert priced.cost is not None and priced.cost.central == pytest.approx(2 * 0.5)


@pytest.mark.parametrize(
    ("gpus", "per_host", "expected"),
    [
        (1, 1, [1]),
        (4, 4, [1, 2, 4]),
        (6, 6, [1, 2, 4, 6]),
        (64, 8, [1, 2, 4, 8, 16, 32, 64]),
        (12, 4, [1, 2, 4, 8, 12]),
    ],
)
def test_world_sizes_are_powers_of_two_and_the_whole(gpus: int, per_host: int, expected: list[int]) -> None:
    assert world_sizes(gpus, per_host) == expected


def test_world_sizes_never_fill_hosts_unevenly() -> None:
    """3 GPUs a host, 2 hosts: 4 workers would be 3 + 1, which torchrun cannot start."""
    assert world_sizes(6, 3) == [1, 2, 6]

"""What comes in: requests as people write them, lanes as sites describe them, GPU names as both spell them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outerloop.planner import PlanRequestError, find_gpu, parse_request, resources_from_lane
from outerloop.planner.handover import strategy_fields
from outerloop.planner.lanes import parse_gres
from outerloop.planner.request import TransformerFinetune
from tests.unit.planner.build import H100_RAILS, finetune, planned


def problems(data: dict[str, Any]) -> list[str]:
    with pytest.raises(PlanRequestError) as caught:
        parse_request(data)
    return caught.value.problems


def test_a_misspelt_key_is_refused_with_the_nearest_one() -> None:
    assert problems({"workload": finetune(sequnce=2048)}) == ["workload.sequnce: unknown key; did you mean 'sequence'?"]


def test_all_problems_are_listed_at_once() -> None:
    found = problems({"workload": finetune(micro_batch=0, sequnce=1), "resources": {"hosts": -1}, "dedline": 2})
    assert len(found) == 4
    assert any(text.startswith("dedline: unknown key; did you mean 'deadline_hours'") for text in found)
    assert any(text.startswith("resources.hosts") and "(got -1)" in text for text in found)


def test_an_unknown_model_names_the_nearest_one() -> None:
    (found,) = problems({"workload": finetune("llama-3.1-8")})
    assert "unknown model 'llama-3.1-8'; did you mean 'llama-3.1-8b'?" in found


def test_an_unknown_gpu_names_the_nearest_one() -> None:
    (found,) = problems({"workload": finetune(), "resources": {"gpus_per_host": 1, "gpu": "H10"}})
    assert "unknown GPU 'H10'; did you mean 'H100'?" in found


def test_gpus_without_a_type_are_refused() -> None:
    (found,) = problems({"workload": finetune(), "resources": {"gpus_per_host": 1}})
    assert "name the GPU type" in found


@pytest.mark.parametrize("kind", [{}, {"kind": "knitting"}])
def test_a_missing_or_unknown_kind_lists_the_four(kind: dict[str, str]) -> None:
    (found,) = problems({"workload": {**kind, "model": "gpt2"}})
    assert found.startswith("workload.kind: must be one of transformer_finetune, pytorch_training")


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"accumulation": 2, "global_batch": 8}, "accumulation or global_batch"),
        ({"tokens": 1e6, "samples": 10}, "tokens or samples"),
        ({"allow_quantization": True}, "needs lora"),
    ],
)
def test_contradictions_are_refused(fields: dict[str, Any], word: str) -> None:
    (found,) = problems({"workload": finetune(**fields)})
    assert word in found


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), 1e300, 10**400, -1, 0])
@pytest.mark.parametrize("key", ["workload.tokens", "workload.sequence", "resources.hosts", "deadline_hours", "budget"])
def test_figures_that_are_none_are_refused_by_name(key: str, value: float) -> None:
    table, _, name = key.rpartition(".")
    data: dict[str, Any] = {"workload": finetune("gpt2"), "resources": {"gpus_per_host": 1, "gpu": "H100"}}
    (data[table] if table else data)[name] = value
    (found,) = problems(data)
    assert found.startswith(key)


def test_the_largest_figures_that_are_accepted_are_planned_without_overflow() -> None:
    work = finetune("gpt2", tokens=1e15, epochs=1e15, sequence=10**15, micro_batch=10**15)
    report = planned(work, {"hosts": 1000, "gpus_per_host": 1024, "gpu": "H100", "price_per_gpu_hour": 1e15})
    assert report.selected is None and report.candidates


@pytest.mark.parametrize(("given", "meaning"), [(True, "full"), (False, "none"), ("selective", "selective")])
def test_checkpointing_is_written_as_a_boolean_or_a_name(given: Any, meaning: str) -> None:
    work = parse_request({"workload": finetune(activation_checkpointing=given)}).workload
    assert isinstance(work, TransformerFinetune) and work.activation_checkpointing == meaning


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("h100", "H100"),
        ("NVIDIA-A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("nvidia_h200", "H200"),
        ("rtx_4090", "RTX4090"),
        ("NVIDIA GeForce RTX 3090", "RTX3090"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("v100", "V100-32GB"),
        ("tesla_t4", "T4"),
        ("Tesla V100-SXM2-16GB", "V100-16GB"),
        ("NVIDIA H100", "H100"),
        ("H100-96GB", "H100-96GB"),
    ],
)
def test_gpus_are_found_as_slurm_and_drivers_spell_them(spelling: str, name: str) -> None:
    assert find_gpu(spelling).name == name


@pytest.mark.parametrize("spelling", ["NVIDIA H100 PCIe", "A100-PCIE-40GB", "h100_40gb", "A1", ""])
def test_a_card_that_is_not_in_the_catalogue_is_not_taken_for_its_namesake(spelling: str) -> None:
    with pytest.raises(KeyError):
        find_gpu(spelling)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu:a100:4(S:0-1)", ("a100", 4)),
        ("gpu:2", (None, 2)),
        ("gres/gpu:h100=8", ("h100", 8)),
        ("gpu:a100:2(S:0),gpu:a100:2(S:1)", ("a100", 4)),
        ("gpu:a100:4,gpu:t4:2", ("a100", 4)),
        ("craynetwork:4", (None, 0)),
        ("(null)", (None, 0)),
    ],
)
def test_gres_strings(text: str, expected: tuple[str | None, int]) -> None:
    assert parse_gres(text) == expected


def test_a_lane_in_slurms_words_becomes_resources() -> None:
    lane = {
        "name": "gpu",
        "account": "lab",
        "partition": "a100",
        "nodes": 4,
        "gres": "gpu:a100:4(S:0-1)",
        "memory_mb": 515_000,
        "cpus_per_node": 64,
        "max_minutes": 1440,
    }
    resources = resources_from_lane(lane)
    assert (resources.hosts, resources.gpus_per_host, resources.cores_per_host) == (4, 4, 64)
    assert resources.gpu is not None and resources.gpu.name == "A100-80GB"
    assert resources.host_memory_gb == pytest.approx(540, rel=0.01)
    assert resources.time_limit_hours == 24
    assert resources.source == "lane gpu"


def test_a_lanes_resources_table_wins_and_what_is_left_out_stays_unknown() -> None:
    resources = resources_from_lane({"nodes": 1, "resources": {"hosts": 2, "gpus_per_host": 8, "gpu": "h100"}})
    assert (resources.hosts, resources.gpus_per_host) == (2, 8)
    assert resources.host_memory_gb is None and resources.inter_host_gbit_per_s is None


PARTITION = {
    "PartitionName": "a100",
    "TotalNodes": "4",
    "TotalCPUs": "256",
    "TRES": "cpu=256,mem=2060000M,node=4,billing=256,gres/gpu=16,gres/gpu:a100=16",
}


def test_a_partition_as_scontrol_shows_it_fills_what_the_lane_leaves_out() -> None:
    resources = resources_from_lane({"name": "gpu", "partition": "a100", "gpu_type": "", "max_minutes": 90}, PARTITION)
    assert (resources.hosts, resources.gpus_per_host, resources.cores_per_host) == (4, 4, 64)
    assert resources.gpu is not None and resources.gpu.name == "A100-80GB"
    assert resources.host_memory_gb == pytest.approx(540, rel=0.01)
    assert resources.time_limit_hours == 1.5


def test_the_lanes_own_gpu_type_wins_over_the_partitions() -> None:
    resources = resources_from_lane({"gpu_type": "a100_40gb"}, PARTITION)
    assert resources.gpu is not None and resources.gpu.name == "A100-40GB"


def test_a_partition_of_several_cards_needs_the_lane_to_name_one() -> None:
    mixed = PARTITION | {"TRES": "cpu=256,mem=2060000M,node=4,gres/gpu=16,gres/gpu:a100=8,gres/gpu:t4=8"}
    left_out = resources_from_lane({"name": "gpu"}, mixed)
    assert left_out.gpus == 0 and "set the lane's gpu_type" in left_out.source
    assert resources_from_lane({"gpu_type": "t4"}, mixed).gpus == 16


def test_cards_that_the_catalogue_lacks_are_left_out_by_name() -> None:
    slices = PARTITION | {"TRES": "cpu=256,node=4,gres/gpu=16,gres/gpu:a100_1g.5gb=16"}
    left_out = resources_from_lane({"name": "gpu"}, slices)
    assert left_out.gpus == 0 and "'a100_1g.5gb' are not in the catalogue" in left_out.source
    assert left_out.cores_per_host == 64


CAPTURED = sorted((Path(__file__).parents[2] / "fixtures" / "slurm").glob("*/scontrol-partition.txt"))


@pytest.mark.parametrize("path", CAPTURED, ids=lambda path: path.parent.name)
def test_partitions_as_real_clusters_printed_them(path: Path) -> None:
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("PartitionName=")]
    fields = [dict(word.partition("=")[::2] for word in line.split()) for line in lines]
    gpu = next(each for each in fields if each["PartitionName"] == "gpu")
    resources = resources_from_lane({"name": "gpu", "gpu_type": "a100"}, gpu)
    assert (resources.hosts, resources.gpus_per_host, resources.cores_per_host) == (2, 4, 16)
    assert resources.host_memory_gb == pytest.approx(67.1, abs=0.1)
    assert all(resources_from_lane({"name": "any"}, each).hosts >= 1 for each in fields)


@pytest.mark.parametrize("fields", [{}, {"TotalNodes": "0"}, {"TRES": "(null)"}, {"TotalNodes": "x", "TRES": ","}])
def test_a_partition_that_says_nothing_adds_nothing(fields: dict[str, str]) -> None:
    assert resources_from_lane({"name": "cpu"}, fields).model_dump(exclude={"source"}) == resources_from_lane(
        {}
    ).model_dump(exclude={"source"})


def test_a_lane_with_gpus_of_no_known_type_is_refused() -> None:
    with pytest.raises(ValueError, match="name the GPU type"):
        resources_from_lane({"gres": "gpu:4"})


def test_the_handover_carries_what_the_compilers_need() -> None:
    report = planned(
        finetune("llama-3.1-70b", sequence=4096, activation_checkpointing=True), H100_RAILS, families=["hsdp"]
    )
    chosen = report.chosen
    assert chosen is not None
    fields = strategy_fields(chosen, report.request)
    assert (fields["family"], fields["nodes"], fields["processes_per_node"]) == ("hsdp", 8, 8)
    assert fields["shard_group"] == 32 and fields["activation_checkpointing"] is True


def test_every_candidate_of_every_kind_is_accepted_by_its_compiler() -> None:
    from outerloop.strategies import StrategyPlan, compiler_for

    reports = [
        planned(finetune("llama-3.1-70b", lora=True, allow_quantization=True), H100_RAILS | {"host_memory_gb": 2048}),
        planned(finetune("qwen2.5-0.5b"), {"gpus_per_host": 4, "gpu": "H100", "host_memory_gb": 512}),
        planned({"kind": "pytorch_training", "parameters": 1e8}, {"gpus_per_host": 4, "gpu": "A10"}),
        planned({"kind": "classical_ml", "data_gb": 9}, {"host_memory_gb": 64}),
        planned({"kind": "independent_tasks", "tasks": 3}, {"hosts": 2, "cores_per_host": 16}),
    ]
    seen = set()
    for report in reports:
        for candidate in report.candidates:
            fields = strategy_fields(candidate, report.request)
            command = ("python", "train.py", "--seed", "{seed}")
            tasks = ({"seed": 1},) if candidate.family in ("lease_tasks", "local_sequential") else ()
            made = StrategyPlan.model_validate({**fields, "command": command, "tasks": tasks})
            assert compiler_for(made.family).validate(made) == (), candidate.name
            seen.add(candidate.family)
    assert len(seen) == 10

"""Attacks: a launch that differs between machines, a refusal that hides a second reason, a family without compiler."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from outerloop.strategies import (
    FAMILIES,
    FILES_TOKEN,
    CompileError,
    LaunchSpec,
    StrategyPlan,
    compile_plan,
    compiler_for,
    register_compiler,
    registered_families,
)
from outerloop.strategies.accelerate import DEEPSPEED_FILE
from outerloop.strategies.families import STRATEGY_FILE, TASKS_FILE


def plan_of(family: str, **changes: object) -> StrategyPlan:
    """A plan of the family that compiles."""
    base = family.removeprefix("qlora_")
    fields: dict[str, object] = {"family": family, "command": ("python", "-u", "train.py", "--lr", "0.1")}
    if base in ("ddp", "fsdp2", "hsdp", "zero3_cpu_offload", "fsdp2_cpu_offload", "single_gpu"):
        fields |= {
            "nodes": 1 if base == "single_gpu" else 2,
            "processes_per_node": 1 if base == "single_gpu" else 4,
            "gpus_per_process": 1,
            "cpus_per_process": 6,
            "precision": "bf16",
            "micro_batch": 2,
            "accumulation": 4,
        }
    if base == "hsdp":
        fields["shard_group"] = 4
    if family.startswith("qlora_"):
        fields |= {"quantization": "nf4", "peft": "lora"}
    if base == "sharded_partial_fit":
        fields["shards"] = 3
    if base in ("lease_tasks", "local_sequential"):
        fields |= {"command": ("python", "fit.py", "--seed={seed}"), "tasks": ({"seed": 1},)}
    return StrategyPlan(**(fields | changes))  # type: ignore[arg-type]


@pytest.fixture
def poisoned_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    class Poison(dict[str, str]):
        def _refuse(self, *args: object, **kwargs: object) -> object:
            raise AssertionError("a compiler read the environment")

        __getitem__ = get = __iter__ = __contains__ = items = keys = values = copy = _refuse  # type: ignore[assignment]

    monkeypatch.setattr(os, "environ", Poison())
    monkeypatch.setattr(os, "getenv", Poison().get)


@pytest.mark.usefixtures("poisoned_environment")
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_compiles_without_reading_the_environment(family: str) -> None:
    plan = plan_of(family)
    (spec,) = compile_plan(plan)
    assert spec.canonical_json() == compile_plan(plan)[0].canonical_json()
    assert spec.world_size == plan.world_size
    assert spec.env["OUTERLOOP_STRATEGY"] == family
    told = json.loads(spec.files[STRATEGY_FILE])
    assert told["family"] == family
    assert told["world_size"] == plan.world_size


def test_the_menu_is_what_is_registered() -> None:
    assert set(FAMILIES) <= set(registered_families())
    for base in ("single_gpu", "ddp", "fsdp2", "hsdp", "fsdp2_cpu_offload", "zero3_cpu_offload"):
        assert base in FAMILIES
        assert f"qlora_{base}" in FAMILIES
    assert {"lease_tasks", "local_process", "sharded_partial_fit", "local_sequential"} <= set(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_spec_is_the_same_in_another_process_with_another_environment(family: str, tmp_path: Path) -> None:
    plan = plan_of(family)
    program = (
        "import sys; from outerloop.strategies import StrategyPlan, compile_plan;"
        "print(compile_plan(StrategyPlan.model_validate_json(sys.argv[1]))[0].canonical_json());"
        "assert not {'torch', 'accelerate', 'deepspeed', 'transformers'} & set(sys.modules)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program, plan.model_dump_json()],
        env={"PYTHONHASHSEED": "7", "LC_ALL": "C", "WORLD_SIZE": "99", "MASTER_ADDR": "elsewhere", "PET_NNODES": "9"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert answer.stderr == ""
    assert answer.stdout.strip() == compile_plan(plan)[0].canonical_json()


@pytest.mark.parametrize("family", FAMILIES)
def test_no_spec_names_an_address_or_a_port(family: str) -> None:
    (spec,) = compile_plan(plan_of(family))
    text = " ".join([*spec.argv, *spec.env.values(), *spec.env])
    assert not re.search(r"\d+\.\d+\.\d+\.\d+|localhost|MASTER_|:\d{2,5}\b|--master|--node-rank", text)


def test_one_node_meets_with_itself_and_keeps_the_command_whole() -> None:
    (spec,) = compile_plan(plan_of("ddp", nodes=1))
    assert spec.argv == (
        "torchrun",
        "--nnodes=1",
        "--nproc-per-node=4",
        "--standalone",
        "--max-restarts=0",
        "--signals-to-handle=SIGTERM,SIGINT,SIGUSR1",
        "--no-python",
        *("python", "-u", "train.py", "--lr", "0.1"),
    )
    assert spec.rendezvous is None
    assert spec.env["OMP_NUM_THREADS"] == "6"


def test_several_nodes_multiply_the_world_size_and_leave_the_meeting_to_the_node() -> None:
    (spec,) = compile_plan(plan_of("fsdp2", nodes=3))
    assert spec.world_size == 12
    assert spec.rendezvous is not None
    assert (spec.rendezvous.nodes, spec.rendezvous.processes_per_node) == (3, 4)
    argv, env = spec.resolve(
        {"@OUTERLOOP_RDZV_ID@": "ab12-1", "@OUTERLOOP_RDZV_ENDPOINT@": "n7:4711", FILES_TOKEN: "/slot/out"}
    )
    assert "--rdzv-id=ab12-1" in argv
    assert "--rdzv-endpoint=n7:4711" in argv
    assert env["OUTERLOOP_STRATEGY_FILE"] == "/slot/out/strategy.json"
    assert "@OUTERLOOP" not in " ".join([*argv, *env.values()])


def test_a_missing_token_is_named() -> None:
    (spec,) = compile_plan(plan_of("fsdp2"))
    with pytest.raises(KeyError, match="RDZV"):
        spec.resolve({FILES_TOKEN: "/slot/out"})


def test_the_deepspeed_file_lands_where_the_variable_points() -> None:
    (spec,) = compile_plan(plan_of("zero3_cpu_offload"))
    _, env = spec.resolve({FILES_TOKEN: "/o", "@OUTERLOOP_RDZV_ID@": "i", "@OUTERLOOP_RDZV_ENDPOINT@": "e"})
    assert env["ACCELERATE_DEEPSPEED_CONFIG_FILE"] == f"/o/{DEEPSPEED_FILE}"
    config = json.loads(spec.files[DEEPSPEED_FILE])
    assert config["zero_optimization"]["stage"] == 3
    assert config["zero_optimization"]["offload_optimizer"]["device"] == "cpu"
    assert config["train_micro_batch_size_per_gpu"] == 2
    assert config["gradient_accumulation_steps"] == 4
    assert config["bf16"] == {"enabled": True}


def test_an_accelerate_script_is_told_fsdp2_and_the_hsdp_groups() -> None:
    (spec,) = compile_plan(plan_of("hsdp", framework="accelerate", activation_checkpointing=True))
    assert spec.env["FSDP_VERSION"] == "2"
    assert spec.env["FSDP_ACTIVATION_CHECKPOINTING"] == "true"
    assert spec.env["PARALLELISM_CONFIG_DP_REPLICATE_SIZE"] == "2"
    assert spec.env["PARALLELISM_CONFIG_DP_SHARD_SIZE"] == "4"
    (offload,) = compile_plan(plan_of("fsdp2_cpu_offload", framework="accelerate"))
    assert offload.env["FSDP_OFFLOAD_PARAMS"] == "true"
    (plain,) = compile_plan(plan_of("ddp", framework="accelerate"))
    assert not any(name.startswith("FSDP_") for name in plain.env)


def test_every_reason_is_listed_at_once() -> None:
    plan = plan_of(
        "qlora_hsdp",
        command=("torchrun", "train.py"),
        nodes=0,
        micro_batch=0,
        quantization=None,
        peft=None,
        shard_group=None,
        env={"LD_PRELOAD": "x", "MASTER_PORT": "1", "PET_NNODES": "2"},
        files={"../escape": "x", "/etc/passwd": "x"},
        parameters={"lr": 0.1},
    )
    with pytest.raises(CompileError) as caught:
        compile_plan(plan)
    reasons = "\n".join(caught.value.reasons)
    for part in (
        "its own launcher",
        "nodes is 0",
        "micro_batch is 0",
        "quantization = nf4",
        "peft = lora",
        "shard_group",
        "LD_PRELOAD",
        "MASTER_PORT",
        "PET_NNODES",
        "'../escape' leaves",
        "'/etc/passwd' leaves",
        "'lr' is used nowhere",
    ):
        assert part in reasons
    assert str(caught.value).count("\n  - ") == len(caught.value.reasons)
    assert caught.value.reasons == compiler_for("qlora_hsdp").validate(plan)


@pytest.mark.parametrize(
    ("family", "changes", "part"),
    [
        ("single_gpu", {"processes_per_node": 2}, "runs 1 process"),
        ("ddp", {"nodes": 1, "processes_per_node": 1}, "at least 2"),
        ("hsdp", {"shard_group": 3}, "divide"),
        ("hsdp", {"shard_group": 8}, "below the 8"),
        ("fsdp2", {"shard_group": 4}, "belongs to hsdp"),
        ("fsdp2", {"gpus_per_process": 2}, "a rank drives one GPU"),
        ("ddp", {"quantization": "nf4"}, "qlora_ddp"),
        ("ddp", {"tasks": ({"a": 1},)}, "takes no tasks"),
        ("zero3_cpu_offload", {"gpus_per_process": 0}, "needs GPUs"),
        ("qlora_ddp", {"gpus_per_process": 0}, "needs GPUs"),
        ("local_process", {"nodes": 2}, "starts one process"),
        ("local_process", {"shards": 2}, "belongs to sharded_partial_fit"),
        ("sharded_partial_fit", {"shards": 17}, "2 to 16"),
        ("sharded_partial_fit", {"shards": None}, "needs shards"),
        ("lease_tasks", {"tasks": ()}, "has no tasks"),
        ("lease_tasks", {"tasks": ({"sed": 1},)}, "'sed' is used nowhere"),
        ("local_process", {"command": ()}, "empty"),
        ("local_process", {"command": ("LR=1", "python")}, "assignment"),
        ("local_process", {"files": {STRATEGY_FILE: ""}}, "written by the compiler"),
        ("local_process", {"command": ("echo", FILES_TOKEN)}, "reserved"),
    ],
)
def test_what_a_family_refuses(family: str, changes: dict[str, object], part: str) -> None:
    with pytest.raises(CompileError, match=re.escape(part)):
        compile_plan(plan_of(family, **changes))


def test_an_unknown_family_is_named_with_the_known_ones() -> None:
    with pytest.raises(LookupError) as caught:
        compiler_for("megatron")
    assert "'megatron'" in str(caught.value)
    assert "hsdp" in str(caught.value)


@pytest.fixture
def restored_registry() -> Iterator[None]:
    before = compiler_for("ddp")
    yield
    register_compiler(before)


@pytest.mark.usefixtures("restored_registry")
def test_registering_a_family_again_replaces_it() -> None:
    class Site:
        family = "ddp"

        def supports(self, plan: StrategyPlan) -> bool:
            return plan.family == "ddp"

        def validate(self, plan: StrategyPlan) -> tuple[str, ...]:
            return ()

        def compile(self, plan: StrategyPlan) -> LaunchSpec:
            return LaunchSpec(argv=("site-run",), env={}, files={}, world_size=2, gpus_per_process=1)

    before = registered_families()
    register_compiler(Site())
    assert compile_plan(plan_of("ddp"))[0].argv == ("site-run",)
    assert registered_families() == before


def test_lease_tasks_gives_each_task_a_launch_that_ignores_its_siblings() -> None:
    tasks = tuple({"seed": n} for n in range(500))
    specs = compile_plan(plan_of("lease_tasks", tasks=tasks, cpus_per_process=4))
    assert len({spec.canonical_json() for spec in specs}) == 500
    assert specs[7].argv == ("python", "fit.py", "--seed=7")
    assert specs[7] == compile_plan(plan_of("lease_tasks", tasks=({"seed": 7},), cpus_per_process=4))[0]


def test_the_reasons_of_all_tasks_come_at_once() -> None:
    with pytest.raises(CompileError) as caught:
        compile_plan(plan_of("lease_tasks", tasks=({"seed": 1}, {"sed": 1}, {"seed": float("nan")})))
    assert [reason[:6] for reason in caught.value.reasons] == ["task 1", "task 2"]


def test_local_sequential_runs_every_task_and_names_the_failed_ones(tmp_path: Path) -> None:
    plan = StrategyPlan(
        family="local_sequential",
        command=("/bin/sh", "-c", "echo {what}; exit {code}"),
        tasks=({"what": "it's", "code": 0}, {"what": "$HOME", "code": 3}, {"what": "last", "code": 0}),
    )
    with pytest.raises(CompileError, match="can vary the command only"):
        compile_plan(plan.model_copy(update={"env": {"X": "{what}"}}))
    quoted = plan.model_copy(update={"command": ("/bin/sh", "-c", 'echo "$0"; exit {code}', "{what}")})
    (spec,) = compile_plan(quoted)
    (tmp_path / TASKS_FILE).write_text(spec.files[TASKS_FILE])
    argv, _ = spec.resolve({FILES_TOKEN: str(tmp_path)})
    answer = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert answer.stdout.splitlines() == ["it's", "$HOME", "last"]
    assert (answer.returncode, answer.stderr) == (1, "failed tasks: 1\n")


def test_sharded_partial_fit_is_told_its_shards_and_the_plan_wins_over_a_default() -> None:
    (spec,) = compile_plan(plan_of("sharded_partial_fit", cpus_per_process=2, env={"OMP_NUM_THREADS": "1"}))
    assert spec.env["OUTERLOOP_SHARDS"] == "3"
    assert spec.env["OMP_NUM_THREADS"] == "1"
    assert any("OMP_NUM_THREADS" in note for note in spec.notes)

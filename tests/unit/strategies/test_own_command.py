"""Attacks: a launch line of one's own whose job would be given another shape, or whose strategy nobody follows."""

from __future__ import annotations

import pytest

from outerloop.strategies import OWN_COMMAND, CompileError, StrategyPlan, compile_command, compile_plan

TORCHRUN = ("torchrun", "--nnodes=2", "--nproc-per-node=4", "train.py", "--lr={lr}")


def plan(command: tuple[str, ...] = TORCHRUN, **fields: object) -> StrategyPlan:
    shape = {"nodes": 2, "processes_per_node": 4, "gpus_per_process": 1, "parameters": {"lr": 0.1}}
    values = {"family": OWN_COMMAND, "command": command, **(shape if command is TORCHRUN else {}), **fields}
    return StrategyPlan.model_validate(values)


def reasons(asked: StrategyPlan) -> tuple[str, ...]:
    with pytest.raises(CompileError) as caught:
        compile_plan(asked)
    return tuple(caught.value.reasons)


def test_it_is_the_launch_of_the_command_itself() -> None:
    asked = plan(env={"A": "{lr}"}, files={"f.json": "{}"})
    (spec,) = compile_plan(asked)
    assert spec == compile_command(
        TORCHRUN, parameters={"lr": 0.1}, env={"A": "{lr}"}, files={"f.json": "{}"}, gpus_per_process=1
    )
    assert spec.world_size == 8 and spec.rendezvous is not None and spec.env == {"A": "0.1"}


def test_a_plain_command_and_other_launchers_are_kept_word_for_word() -> None:
    for command in (("python", "train.py"), ("accelerate", "launch", "train.py")):
        (spec,) = compile_plan(plan(command))
        assert (spec.argv, spec.world_size) == (command, 1)


def test_a_symbolic_count_leaves_the_processes_to_the_node() -> None:
    (spec,) = compile_plan(plan(("torchrun", "--nproc-per-node=gpu", "train.py"), gpus_per_process=8))
    assert spec.world_size is None and spec.gpus_per_process == 8


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"nodes": 1}, "torchrun is told --nnodes=2, and nodes is 1"),
        ({"processes_per_node": 8}, "torchrun is told --nproc-per-node=4, and processes_per_node is 8"),
        ({"command": ("python", "t.py"), "nodes": 2}, "nodes is 2, and only torchrun's own options"),
        ({"cpus_per_process": 0}, "cpus_per_process is 0"),
        ({"precision": "bf16"}, "precision is the command's own affair"),
        ({"shard_group": 2}, "shard_group is the command's own affair"),
        ({"tasks": ({"n": 1},)}, "tasks is the command's own affair"),
        ({"parameters": {}, "command": ()}, "the command is empty"),
        ({"env": {"RANK": "0"}}, "variable RANK"),
    ],
)
def test_what_is_refused(changes: dict[str, object], part: str) -> None:
    assert any(part in reason for reason in reasons(plan(**changes)))


def test_every_reason_comes_at_once() -> None:
    asked = plan(nodes=0, processes_per_node=3, peft="lora", files={"../x": ""})
    told = reasons(asked)
    parts = ("nodes is 0; it must", "peft is", "'../x' leaves", "and nodes is 0; write", "processes_per_node is 3")
    assert len(told) == len(parts)
    for part in parts:
        assert any(part in reason for reason in told), told

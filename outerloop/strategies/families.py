"""The compilers of the planner's menu, registered at import.

Covered: torchrun families with FSDP2, HSDP and CPU offload, ZeRO-3 offload, their QLoRA variants, job
arrays, local processes.
Not covered: what the training script does with the strategy. It is told in `strategy.json` (and, for
Accelerate scripts, in Accelerate's own variables); wrapping the model stays the framework's and the script's.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, replace
from typing import Literal

from outerloop.strategies.accelerate import DEEPSPEED_FILE, accelerate_env, deepspeed_config, deepspeed_env
from outerloop.strategies.command import command_reasons
from outerloop.strategies.errors import CompileError
from outerloop.strategies.plan import Scalar, StrategyPlan
from outerloop.strategies.registry import Compiler, register_compiler
from outerloop.strategies.spec import FILES_TOKEN, LaunchSpec, env_reasons, file_name_reasons, token_reasons
from outerloop.strategies.template import filled, template_reasons, unfilled_fields
from outerloop.strategies.torchrun import rendezvous, torchrun_argv

STRATEGY_FILE = "strategy.json"
TASKS_FILE = "tasks.sh"
# Commands that start processes of their own: a launcher inside a launcher multiplies the world size.
_LAUNCHERS = frozenset({"torchrun", "accelerate", "deepspeed", "srun", "mpirun", "mpiexec"})
# A data set read in one piece is local_process; above 16 pieces partial_fit sees too little of it at a time.
MIN_SHARDS, MAX_SHARDS = 2, 16


def _common_reasons(plan: StrategyPlan) -> list[str]:
    texts = [*plan.command, *plan.env.values(), *plan.files.values()]
    reasons = command_reasons(plan.command)
    if plan.command:
        launcher = plan.command[0].rpartition("/")[2]
        if launcher in _LAUNCHERS:
            reasons.append(
                f"the command starts with {launcher}, and the strategy adds its own launcher; "
                "give the command that each process runs, or keep yours with family own_command"
            )
    for name in ("nodes", "processes_per_node"):
        if getattr(plan, name) < 1:
            reasons.append(f"{name} is {getattr(plan, name)}; it must be at least 1")
    if plan.gpus_per_process < 0:
        reasons.append(f"gpus_per_process is {plan.gpus_per_process}; it must be 0 or more")
    for name in ("cpus_per_process", "micro_batch", "accumulation", "shard_group", "shards"):
        value = getattr(plan, name)
        if value is not None and value < 1:
            reasons.append(f"{name} is {value}; it must be at least 1")
    reasons += env_reasons(plan.env) + file_name_reasons(plan.files)
    reasons += [f"the file {n} is written by the compiler" for n in (STRATEGY_FILE, DEEPSPEED_FILE) if n in plan.files]
    values = [*plan.parameters.values(), *(v for task in plan.tasks for v in task.values())]
    return reasons + token_reasons([*texts, *map(str, values)])


def _own_parameters(plan: StrategyPlan) -> list[str]:
    return template_reasons([*plan.command, *plan.env.values(), *plan.files.values()], plan.parameters)


def _strategy_json(plan: StrategyPlan) -> str:
    """What the training script may want to know, numbers only: the command and its parameters are not repeated."""
    told = plan.model_dump(mode="json", exclude={"command", "parameters", "tasks", "env", "files"})
    return json.dumps(told | {"world_size": plan.world_size}, indent=2, sort_keys=True) + "\n"


def _filled_spec(
    plan: StrategyPlan,
    argv: tuple[str, ...],
    env: dict[str, str],
    files: dict[str, str],
    notes: list[str],
    *,
    parameters: dict[str, Scalar],
    world_size: int,
) -> LaunchSpec:
    texts = [*plan.command, *plan.env.values(), *plan.files.values()]
    notes = notes + [f"{{{n}}} is no declared parameter and stays as it is" for n in unfilled_fields(texts, parameters)]
    declared = {name: filled(value, parameters) for name, value in plan.env.items()}
    own = {"OUTERLOOP_STRATEGY": plan.family, "OUTERLOOP_STRATEGY_FILE": f"{FILES_TOKEN}/{STRATEGY_FILE}"}
    all_env = env | declared | own
    all_files = (
        {n: filled(t, parameters) for n, t in plan.files.items()} | files | {STRATEGY_FILE: _strategy_json(plan)}
    )
    overridden = sorted(name for name in env if name in declared and declared[name] != env[name])
    notes = notes + [f"the plan's own {name} replaces the strategy's value {env[name]}" for name in overridden]
    return LaunchSpec(
        argv=argv,
        env=dict(sorted(all_env.items())),
        files=dict(sorted(all_files.items())),
        world_size=world_size,
        gpus_per_process=plan.gpus_per_process,
        rendezvous=rendezvous(plan.nodes, plan.processes_per_node) if world_size > 1 else None,
        notes=tuple(notes),
    )


@dataclass(frozen=True)
class TorchrunCompiler:
    """single_gpu, ddp, fsdp2, hsdp, the two offload families, and their QLoRA variants."""

    family: str
    smallest_world: int = 1
    largest_world: int | None = None
    sharding: Literal["none", "fsdp2", "hsdp", "zero3"] = "none"
    offloaded: bool = False
    quantized: bool = False

    def supports(self, plan: StrategyPlan) -> bool:
        return plan.family == self.family

    def validate(self, plan: StrategyPlan) -> tuple[str, ...]:
        reasons = _common_reasons(plan) + _own_parameters(plan)
        world = plan.world_size
        if not self.supports(plan):
            reasons.append(f"the plan is of family {plan.family!r}, this compiler serves {self.family!r}")
        if min(plan.nodes, plan.processes_per_node) >= 1:
            if world < self.smallest_world:
                reasons.append(f"{self.family} needs at least {self.smallest_world} processes, the plan has {world}")
            if self.largest_world is not None and world > self.largest_world:
                reasons.append(f"{self.family} runs {self.largest_world} process, the plan has {world}")
        if plan.gpus_per_process > 1:
            reasons.append(f"a rank drives one GPU; gpus_per_process is {plan.gpus_per_process}")
        reasons += self._shard_group_reasons(plan)
        if self.quantized and plan.quantization is None:
            reasons.append(f"{self.family} needs quantization = nf4")
        if self.quantized and plan.peft is None:
            reasons.append(f"{self.family} needs peft = lora: quantized weights are not trained")
        if not self.quantized and plan.quantization is not None:
            reasons.append(f"quantization = {plan.quantization} belongs to the family qlora_{self.family}")
        if plan.tasks:
            reasons.append(f"{self.family} is one launch and takes no tasks; lease_tasks runs many")
        if plan.shards is not None:
            reasons.append("shards belongs to sharded_partial_fit")
        if self.sharding == "zero3" and plan.gpus_per_process == 0:
            reasons.append(f"{self.family} needs GPUs")
        if self.quantized and plan.gpus_per_process == 0:
            reasons.append(f"{self.family} needs GPUs: nf4 has no CPU kernel")
        return tuple(dict.fromkeys(reasons))

    def _shard_group_reasons(self, plan: StrategyPlan) -> list[str]:
        if self.sharding != "hsdp":
            return [] if plan.shard_group is None else [f"shard_group belongs to hsdp, not to {self.family}"]
        group, world = plan.shard_group, plan.world_size
        if group is None:
            return ["hsdp needs shard_group, the number of ranks that share one copy of the parameters"]
        if group < 2 or group >= world or world % group:
            return [f"shard_group is {group}; it must be at least 2, below the {world} processes, and divide them"]
        return []

    def compile(self, plan: StrategyPlan) -> LaunchSpec:
        reasons = self.validate(plan)
        if reasons:
            raise CompileError(f"strategy {plan.family}", reasons)
        # torchrun sets 1 by itself with a warning; naming it keeps the thread count part of the spec.
        env = {"OMP_NUM_THREADS": str(plan.cpus_per_process or 1)}
        files: dict[str, str] = {}
        notes: list[str] = []
        if self.sharding == "zero3":
            env |= deepspeed_env(plan)
            files[DEEPSPEED_FILE] = deepspeed_config(plan)
            notes.append("the script must use Hugging Face Accelerate or its Trainer, which read the DeepSpeed file")
            if plan.activation_checkpointing:
                notes.append(
                    "activation checkpointing is the model's own switch under DeepSpeed: enable it in the script"
                )
        elif plan.framework == "accelerate":
            env |= accelerate_env(
                plan,
                sharded=self.sharding in ("fsdp2", "hsdp"),
                offloaded=self.offloaded,
                replicated=self.sharding == "hsdp",
            )
        elif self.sharding in ("fsdp2", "hsdp"):
            notes.append("the script applies fully_shard itself; strategy.json carries the planned shape")
        argv = tuple(filled(word, plan.parameters) for word in plan.command)
        return _filled_spec(
            plan,
            torchrun_argv(argv, plan.nodes, plan.processes_per_node),
            env,
            files,
            notes,
            parameters=plan.parameters,
            world_size=plan.world_size,
        )


def _plain_reasons(plan: StrategyPlan, family: str) -> list[str]:
    """What holds for every family that starts one plain process."""
    reasons = _common_reasons(plan)
    if plan.family != family:
        reasons.append(f"the plan is of family {plan.family!r}, this compiler serves {family!r}")
    if plan.world_size != 1 and min(plan.nodes, plan.processes_per_node) >= 1:
        reasons.append(f"{family} starts one process, the plan has {plan.world_size}")
    if plan.shard_group is not None:
        reasons.append(f"shard_group belongs to hsdp, not to {family}")
    if plan.quantization is not None:
        reasons.append(f"quantization belongs to the qlora_ families, not to {family}")
    if plan.shards is not None and family != "sharded_partial_fit":
        reasons.append("shards belongs to sharded_partial_fit")
    if plan.tasks and family not in ("lease_tasks", "local_sequential"):
        reasons.append(f"{family} is one launch and takes no tasks; lease_tasks runs many")
    return reasons


def _threads(plan: StrategyPlan) -> dict[str, str]:
    return {} if plan.cpus_per_process is None else {"OMP_NUM_THREADS": str(plan.cpus_per_process)}


@dataclass(frozen=True)
class ProcessCompiler:
    """local_process and sharded_partial_fit: the command as it is."""

    family: str
    sharded: bool = False

    def supports(self, plan: StrategyPlan) -> bool:
        return plan.family == self.family

    def validate(self, plan: StrategyPlan) -> tuple[str, ...]:
        reasons = _plain_reasons(plan, self.family) + _own_parameters(plan)
        if self.sharded and plan.shards is None:
            reasons.append("sharded_partial_fit needs shards, the number of pieces that the data is read in")
        elif self.sharded and plan.shards is not None and not MIN_SHARDS <= plan.shards <= MAX_SHARDS:
            reasons.append(f"shards is {plan.shards}; it must be {MIN_SHARDS} to {MAX_SHARDS}")
        return tuple(dict.fromkeys(reasons))

    def compile(self, plan: StrategyPlan) -> LaunchSpec:
        reasons = self.validate(plan)
        if reasons:
            raise CompileError(f"strategy {plan.family}", reasons)
        env = _threads(plan)
        if self.sharded:
            env["OUTERLOOP_SHARDS"] = str(plan.shards)
        argv = tuple(filled(word, plan.parameters) for word in plan.command)
        return _filled_spec(plan, argv, env, {}, [], parameters=plan.parameters, world_size=1)


@dataclass(frozen=True)
class TaskCompiler:
    """lease_tasks (one launch per task, sent as a job array) and local_sequential (all tasks in one launch)."""

    family: str
    sequential: bool = False

    def supports(self, plan: StrategyPlan) -> bool:
        return plan.family == self.family

    def validate(self, plan: StrategyPlan) -> tuple[str, ...]:
        reasons = _plain_reasons(plan, self.family)
        if not plan.tasks:
            reasons.append(f"{self.family} has no tasks")
        elif not self.sequential and len(plan.tasks) > 1:
            reasons.append(f"a job array has one launch per task, and the plan has {len(plan.tasks)}: use compile_plan")
        texts = [*plan.command, *plan.env.values(), *plan.files.values()]
        for index, task in enumerate(plan.tasks):
            both = sorted(set(task) & set(plan.parameters))
            reasons += [f"task {index}: {name!r} is also a parameter of the whole plan" for name in both]
            reasons += [f"task {index}: {reason}" for reason in template_reasons(texts, plan.parameters | task)]
        if self.sequential and TASKS_FILE in plan.files:
            reasons.append(f"the file {TASKS_FILE} is written by the compiler")
        varying = {name for task in plan.tasks for name in task}
        if self.sequential and varying.intersection(unfilled_fields([*plan.env.values(), *plan.files.values()], {})):
            reasons.append(
                "a task's parameters can vary the command only, not env or files, when tasks share a process"
            )
        return tuple(dict.fromkeys(reasons))

    def compile(self, plan: StrategyPlan) -> LaunchSpec:
        reasons = self.validate(plan)
        if reasons:
            raise CompileError(f"strategy {plan.family}", reasons)
        env = _threads(plan)
        if not self.sequential:
            values = plan.parameters | plan.tasks[0]
            argv = tuple(filled(word, values) for word in plan.command)
            # The strategy file speaks of one task, so that a task's slot does not depend on its siblings.
            return _filled_spec(plan, argv, env, {}, [], parameters=values, world_size=1)
        files = {TASKS_FILE: _tasks_script(plan)}
        argv = ("/bin/sh", f"{FILES_TOKEN}/{TASKS_FILE}")
        varying: dict[str, Scalar] = {name: f"{{{name}}}" for task in plan.tasks for name in task}
        return _filled_spec(plan, argv, env, files, [], parameters=varying | plan.parameters, world_size=1)


def _tasks_script(plan: StrategyPlan) -> str:
    """Every task in turn; a failed one is named and does not stop the others. Exits 1 when any failed."""
    lines = ["# one task a line; written by outerloop", "failed="]
    for index, task in enumerate(plan.tasks):
        words = shlex.join(filled(word, plan.parameters | task) for word in plan.command)
        lines.append(f'{words} || failed="$failed {index}"')
    lines += ['if [ -n "$failed" ]; then echo "failed tasks:$failed" >&2; exit 1; fi']
    return "\n".join(lines) + "\n"


_TORCHRUN = (
    TorchrunCompiler("single_gpu", largest_world=1),
    TorchrunCompiler("ddp", smallest_world=2),
    TorchrunCompiler("fsdp2", smallest_world=2, sharding="fsdp2"),
    TorchrunCompiler("hsdp", smallest_world=4, sharding="hsdp"),
    TorchrunCompiler("fsdp2_cpu_offload", sharding="fsdp2", offloaded=True),
    TorchrunCompiler("zero3_cpu_offload", sharding="zero3", offloaded=True),
)
_QLORA = tuple(replace(compiler, family=f"qlora_{compiler.family}", quantized=True) for compiler in _TORCHRUN)
_OTHERS = (
    ProcessCompiler("local_process"),
    ProcessCompiler("sharded_partial_fit", sharded=True),
    TaskCompiler("lease_tasks"),
    TaskCompiler("local_sequential", sequential=True),
)
_ALL: tuple[Compiler, ...] = (*_TORCHRUN, *_QLORA, *_OTHERS)
FAMILIES = tuple(compiler.family for compiler in _ALL)
"""Every family of the planner's menu, in its order."""

for _compiler in _ALL:
    register_compiler(_compiler)

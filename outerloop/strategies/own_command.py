"""The family `own_command`: a researcher's own launch line as a plan, so that it runs as a slot like every other.

Covered: torchrun lines and plain commands of one process, and the agreement of the plan's shape, which is what the job
is given, with the line's. Not covered: what a strategy would settle (precision, sharding, batch), which is the
command's own affair; other launchers over several nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

from outerloop.strategies.command import compile_command
from outerloop.strategies.errors import CompileError
from outerloop.strategies.plan import StrategyPlan
from outerloop.strategies.registry import register_compiler
from outerloop.strategies.spec import LaunchSpec
from outerloop.strategies.template import filled
from outerloop.strategies.torchrun import read_torchrun

OWN_COMMAND = "own_command"
_SETTLED_BY_THE_COMMAND = (
    "precision", "quantization", "peft", "micro_batch", "accumulation", "activation_checkpointing", "shard_group",
    "shards", "tasks",
)  # fmt: skip


@dataclass(frozen=True)
class OwnCommandCompiler:
    """`compile_command` for a plan. The plan's nodes and processes say what the job is given."""

    family: str = OWN_COMMAND

    def supports(self, plan: StrategyPlan) -> bool:
        return plan.family == self.family

    def validate(self, plan: StrategyPlan) -> tuple[str, ...]:
        reasons: list[str] = []
        if not self.supports(plan):
            reasons.append(f"the plan is of family {plan.family!r}, this compiler serves {self.family!r}")
        for name in ("nodes", "processes_per_node"):
            if getattr(plan, name) < 1:
                reasons.append(f"{name} is {getattr(plan, name)}; it must be at least 1")
        if plan.cpus_per_process is not None and plan.cpus_per_process < 1:
            reasons.append(f"cpus_per_process is {plan.cpus_per_process}; it must be at least 1")
        reasons += [
            f"{name} is the command's own affair; leave it out"
            for name in _SETTLED_BY_THE_COMMAND
            if self._says(plan, name)
        ]
        try:
            self._spec(plan)
        except CompileError as error:
            reasons += error.reasons
        reasons += self._shape_reasons(plan)
        return tuple(dict.fromkeys(reasons))

    @staticmethod
    def _says(plan: StrategyPlan, name: str) -> bool:
        return bool(getattr(plan, name) != StrategyPlan.model_fields[name].default)

    @staticmethod
    def _spec(plan: StrategyPlan) -> LaunchSpec:
        return compile_command(
            plan.command,
            parameters=plan.parameters,
            env=plan.env,
            files=plan.files,
            gpus_per_process=plan.gpus_per_process,
        )

    @staticmethod
    def _shape_reasons(plan: StrategyPlan) -> list[str]:
        line = read_torchrun([filled(word, plan.parameters) for word in plan.command])
        if line is None:
            if plan.nodes > 1:
                return [f"nodes is {plan.nodes}, and only torchrun's own options start a command on several nodes"]
            return []
        reasons = []
        if line.nodes != plan.nodes:
            reasons.append(f"torchrun is told --nnodes={line.nodes}, and nodes is {plan.nodes}; write the same")
        count = line.processes_per_node
        if count is not None and count != plan.processes_per_node:
            reasons.append(
                f"torchrun is told --nproc-per-node={count}, and processes_per_node is {plan.processes_per_node};"
                " write the same"
            )
        return reasons

    def compile(self, plan: StrategyPlan) -> LaunchSpec:
        reasons = self.validate(plan)
        if reasons:
            raise CompileError(f"strategy {plan.family}", reasons)
        return self._spec(plan)


register_compiler(OwnCommandCompiler())

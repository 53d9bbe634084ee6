"""What a plan says: every candidate with its verdict, its reasons and its working.

Covers the report's shapes only. Times are hours, memory is decimal GB per GPU, costs are in the request's currency.
"""

from __future__ import annotations

from typing import Literal

from outerloop.planner.arithmetic import Estimate, Frozen, Line
from outerloop.planner.catalog import Precision
from outerloop.planner.request import Checkpointing, Family, Mode, PlanRequest

Status = Literal["selected", "feasible", "infeasible", "rejected_policy", "rejected_dominated"]
"""selected: run this. feasible: would also do, better in another respect. infeasible: cannot run, or cannot run
sensibly. rejected_policy: would run, but breaks the request's deadline, budget or permissions, or cannot be shown not
to. rejected_dominated: would do, but another candidate is at least as good in time and cost and better in one."""

CheckName = Literal[
    "precision", "permission", "batch", "memory", "host_memory", "communication", "time_limit", "deadline", "budget"
]


class Library(Frozen):
    """A library that the candidate needs, the part it plays, and what for."""

    name: str
    role: Literal["framework", "strategy", "launcher", "adapter", "quantization", "model"]
    purpose: str


class Check(Frozen):
    """One check's outcome. `ok` None: unknown, which never counts as passed. `warning`: passed, with a remark."""

    name: CheckName
    ok: bool | None
    text: str
    warning: bool = False
    policy: bool = False


class Candidate(Frozen):
    """One layout of the work, judged."""

    name: str
    family: Family
    workers: int
    status: Status = "feasible"
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    hosts: int = 1
    shard_group: int = 1
    memory: Estimate | None = None
    host_memory: Estimate | None = None
    step_seconds: Estimate | None = None
    tokens_per_second_per_gpu: Estimate | None = None
    time_hours: Estimate | None = None
    cost: Estimate | None = None
    gpu_seconds_per_token: float | None = None
    efficiency: float | None = None
    communication: tuple[Line, ...] = ()
    profiling_required: bool = False
    launcher: Literal["none", "torchrun", "accelerate", "slurm_array"] = "none"
    workload_mode: Literal["single_process", "distributed", "task_array"] = "single_process"
    colocated: bool = True
    precision: Precision | None = None
    quantization: Literal["nf4"] | None = None
    peft: Literal["lora", "qlora"] | None = None
    activation_checkpointing: Checkpointing | None = None
    micro_batch: int | None = None
    accumulation: int | None = None
    shards: int | None = None
    waves: int | None = None
    headroom_gb: float | None = None
    vram_deficit_gb: float | None = None
    libraries: tuple[Library, ...] = ()


class Unlock(Frozen):
    """One change of the request that would give a plan, and the candidate it would select."""

    change: str
    candidate: str
    keeps_the_training: bool
    needs_hardware: bool = False
    relative_cost: float | None = None


class PlanReport(Frozen):
    """The planner's answer. `digest` names it: request, planner version, catalogue and ledger figures."""

    digest: str
    planner_version: str
    request: PlanRequest
    mode: Mode
    selected: str | None
    candidates: tuple[Candidate, ...]
    notes: tuple[str, ...] = ()
    hint: str | None = None
    unlocks: tuple[Unlock, ...] = ()

    def candidate(self, name: str) -> Candidate:
        """The candidate of that name.

        Raises:
            KeyError: no such candidate.
        """
        for candidate in self.candidates:
            if candidate.name == name:
                return candidate
        raise KeyError(name)

    @property
    def chosen(self) -> Candidate | None:
        """The selected candidate, if there is one."""
        return None if self.selected is None else self.candidate(self.selected)

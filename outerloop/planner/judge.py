"""From a request to judged candidates: estimates, checks, and the status before ranking.

Covers all four kinds. Ranking, dominance and hints are in rank.py and hint.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from outerloop.planner.arithmetic import Estimate, Line
from outerloop.planner.checks import (
    VRAM_HARD,
    VRAM_PROFILE,
    check_communication,
    check_family,
    check_host_memory,
    check_limits,
    check_memory,
    check_precision,
)
from outerloop.planner.communication import traffic
from outerloop.planner.figures import matching, measured_memory, measured_throughput
from outerloop.planner.layout import Layout
from outerloop.planner.libraries import libraries_for
from outerloop.planner.memory import gpu_memory, host_memory
from outerloop.planner.menu import (
    NO_GPU_NOTE,
    pytorch_menu,
    shards_for,
    task_slots,
    transformer_menu,
)
from outerloop.planner.report import Candidate, Check, Library, Status
from outerloop.planner.request import (
    ClassicalML,
    Family,
    IndependentTasks,
    MeasuredFigure,
    PlanRequest,
    PytorchTraining,
    TransformerFinetune,
)
from outerloop.planner.throughput import Step, flops_per_token, pytorch_step, transformer_step

CLASSICAL_COPIES = 3
"""Copies of the data that a fit holds: the input, its converted array, and the estimator's own work."""


def status_of(checks: Sequence[Check]) -> Status:
    """infeasible before rejected_policy before feasible; unknown counts as not passed."""
    failed = [check for check in checks if check.ok is not True]
    if not failed:
        return "feasible"
    return "rejected_policy" if all(check.policy for check in failed) else "infeasible"


def _verdict(checks: Sequence[Check]) -> dict[str, object]:
    return {
        "status": status_of(checks),
        "checks": tuple(checks),
        "reasons": tuple(check.text for check in checks if check.ok is not True),
        "warnings": tuple(check.text for check in checks if check.ok and check.warning),
    }


def _time(step: Step | None, steps: float | None) -> Estimate | None:
    if step is None or steps is None:
        return None
    line = Line(
        label="time",
        formula=f"{steps:,.0f} steps × {step.seconds.central:.4g} s / 3600",
        value=steps * step.seconds.central / 3600,
        unit="h",
        basis=step.seconds.basis,
    )
    return Estimate(
        central=line.value,
        low=steps * step.seconds.low / 3600,
        high=steps * step.seconds.high / 3600,
        unit="h",
        basis=step.seconds.basis,
        lines=(line,),
    )


def cost_of(time: Estimate | None, gpus: int, hosts: int, request: PlanRequest) -> Estimate | None:
    """Price of the GPU hours, or of the hosts' hours where no GPU is used; None where time or price is unknown."""
    resources = request.resources
    if time is None:
        return None
    if gpus and resources.price_per_gpu_hour is not None:
        rate, formula = gpus * resources.price_per_gpu_hour, f"{gpus} GPUs × {resources.price_per_gpu_hour:g}"
    elif resources.price_per_host_hour is not None:
        rate, formula = hosts * resources.price_per_host_hour, f"{hosts} hosts × {resources.price_per_host_hour:g}"
    else:
        return None
    line = Line(
        label="cost",
        formula=f"{formula} per hour × {time.central:.4g} h",
        value=rate * time.central,
        unit="money",
        basis=time.basis,
    )
    return Estimate(
        central=line.value, low=rate * time.low, high=rate * time.high, unit="money", basis=time.basis, lines=(line,)
    )


def _with_measured_throughput(step: Step, layout: Layout, figures: Sequence[MeasuredFigure]) -> Step:
    rate = measured_throughput(figures)
    if rate is None:
        return step
    tokens = layout.tokens * layout.accumulation
    seconds = Estimate(
        central=tokens / rate.central,
        low=tokens / rate.high,
        high=tokens / rate.low,
        unit="s",
        basis=rate.basis,
        lines=rate.lines,
    )
    return Step(seconds, rate, step.efficiency, step.compute_seconds)


def _judge_layout(
    layout: Layout,
    request: PlanRequest,
    step_of: TransformerFinetune | PytorchTraining,
    complaint: str | None,
    figures: Sequence[MeasuredFigure],
) -> Candidate:
    resources, gpu = request.resources, request.resources.gpu
    assert gpu is not None  # the menus are empty without GPUs, and GPUs have a type
    memory, held = gpu_memory(layout), host_memory(layout)
    exchanged = traffic(layout, resources)
    step: Step | None
    if isinstance(step_of, TransformerFinetune):
        step = transformer_step(layout, gpu, exchanged)
        wanted, per_step = step_of.total_tokens, float(layout.tokens * layout.accumulation * layout.workers)
    else:
        step = pytorch_step(layout, step_of.micro_step_seconds, exchanged)
        wanted = None if step_of.samples is None else step_of.samples * step_of.epochs
        per_step = float(step_of.micro_batch * layout.accumulation * layout.workers)
    share, computing = (step.efficiency, step.compute_seconds) if step else (None, None)
    measured = matching(figures, layout, gpu)
    if measured:
        memory = measured_memory(measured) or memory
        step = _with_measured_throughput(step, layout, measured) if step else None
    if exchanged.seconds is None and (step is None or step.seconds.basis == "static"):
        step = None
    steps = None if wanted is None else float(math.ceil(wanted / per_step))
    time = _time(step, steps)
    cost = cost_of(time, layout.workers, layout.hosts, request)
    checks = check_family(layout.family, request)
    checks.append(check_precision(layout, gpu))
    if complaint:
        checks.append(Check(name="batch", ok=False, text=complaint))
    memory_check = check_memory(memory, gpu, _checkpointed_gb(layout, step_of, memory))
    checks.append(memory_check)
    if held is not None:
        checks.append(check_host_memory(held.central, resources.host_memory_gb, "offloading"))
    communication = check_communication(layout, exchanged, share, computing)
    # A card that cannot compute in the precision has no computing time to compare with; that reason is given already.
    if communication is not None and gpu.peak_tflops(layout.precision) is not None:
        checks.append(communication)
    checks += check_limits(request, time, cost)
    verdict = _verdict(checks)
    if layout.checkpointing == "full" and isinstance(step_of, TransformerFinetune):
        verdict["warnings"] = (*_strings(verdict["warnings"]), _checkpointing_remark(layout, step_of))
    limit = VRAM_HARD * gpu.memory_gb
    return Candidate.model_validate(
        {
            "name": layout.name,
            "family": layout.family,
            "workers": layout.workers,
            "hosts": layout.hosts,
            "shard_group": layout.shard,
            "memory": memory,
            "host_memory": held,
            "step_seconds": step.seconds if step else None,
            "tokens_per_second_per_gpu": step.tokens_per_second_per_gpu if step else None,
            "time_hours": time,
            "cost": cost,
            "gpu_seconds_per_token": layout.workers * step.seconds.central / per_step if step else None,
            "efficiency": share,
            "communication": exchanged.lines,
            "profiling_required": bool(memory_check.ok) and memory_check.warning,
            "launcher": _launcher(layout),
            "workload_mode": "single_process" if layout.workers == 1 else "distributed",
            "colocated": layout.hosts == 1,
            "precision": layout.precision,
            "quantization": "nf4" if layout.quantized else None,
            "peft": ("qlora" if layout.quantized else "lora") if layout.lora else None,
            "activation_checkpointing": layout.checkpointing if layout.shape else None,
            "micro_batch": layout.micro_batch,
            "accumulation": layout.accumulation,
            "headroom_gb": gpu.memory_gb - memory.central,
            "vram_deficit_gb": max(0.0, memory.central - limit),
            "libraries": libraries_for(layout),
            **verdict,
        }
    )


def _checkpointed_gb(layout: Layout, work: TransformerFinetune | PytorchTraining, memory: Estimate) -> float | None:
    """Memory with activation checkpointing, where the request leaves that open and the layout goes without."""
    if not isinstance(work, TransformerFinetune) or work.activation_checkpointing is not None:
        return None
    if layout.checkpointing != "none" or memory.basis != "static":
        return None
    return gpu_memory(layout.with_checkpointing("full")).central


def _checkpointing_remark(layout: Layout, work: TransformerFinetune) -> str:
    why = "as asked" if work.activation_checkpointing == "full" else "because it does not fit without"
    without = flops_per_token(layout.with_checkpointing("none")).charged
    more = flops_per_token(layout).charged / without - 1
    return f"activation checkpointing {why}: computing the forward twice is charged with {more:.0%} more compute time"


def _strings(value: object) -> tuple[str, ...]:
    return tuple(str(item) for item in value) if isinstance(value, tuple) else ()


def _launcher(layout: Layout) -> str:
    if layout.family == "zero3_cpu_offload":
        return "accelerate"
    return "torchrun"


def _judge_transformer(
    work: TransformerFinetune, request: PlanRequest, figures: Sequence[MeasuredFigure]
) -> list[Candidate]:
    gpu = request.resources.gpu
    assert gpu is not None
    usable = VRAM_HARD * gpu.memory_gb
    may_checkpoint = work.activation_checkpointing is None

    def used(layout: Layout) -> float:
        measured = measured_memory(matching(figures, layout, gpu))
        return (measured or gpu_memory(layout)).central

    def settled(layout: Layout) -> Layout:
        """The layout, with checkpointing where that is unset and is what makes it fit."""
        if may_checkpoint and used(layout) > usable:
            saved = layout.with_checkpointing("full")
            if used(saved) <= usable:
                return saved
        return layout

    def fits(layout: Layout) -> bool:
        """Comfortably: a shard group that would have to be profiled first gives way to a larger one."""
        return used(settled(layout)) <= VRAM_PROFILE * gpu.memory_gb

    menu = transformer_menu(work, request.resources, fits)
    return [_judge_layout(settled(layout), request, work, complaint, figures) for layout, complaint in menu]


def _plain_candidate(
    family: Family,
    workers: int,
    request: PlanRequest,
    checks: list[Check],
    time: Estimate | None,
    *,
    gpus: int = 0,
    hosts: int = 1,
    **fields: object,
) -> Candidate:
    cost = cost_of(time, gpus, hosts, request)
    checks = [*check_family(family, request), *checks, *check_limits(request, time, cost)]
    return Candidate.model_validate(
        {
            "name": family if workers <= 1 else f"{family}_x{workers}",
            "family": family,
            "workers": workers,
            "hosts": hosts,
            "time_hours": time,
            "cost": cost,
            **fields,
            **_verdict(checks),
        }
    )


def _given_hours(value: float | None, formula: str) -> Estimate | None:
    if value is None:
        return None
    line = Line(label="time", formula=formula, value=value, unit="h", basis="given")
    return Estimate(central=value, low=value, high=value, unit="h", basis="given", lines=(line,))


def _judge_classical(work: ClassicalML, request: PlanRequest) -> list[Candidate]:
    host = request.resources.host_memory_gb
    whole = CLASSICAL_COPIES * work.data_gb
    shards = shards_for(work.data_gb)
    part = whole / shards
    time = _given_hours(work.hours, f"{work.hours:g} h as given" if work.hours else "")
    sklearn = (Library(name="scikit-learn", role="framework", purpose="the estimator"),)

    def memory(size: float, formula: str) -> Estimate:
        line = Line(label="host memory", formula=formula, value=size, unit="GB")
        return Estimate(central=size, low=size, high=size, unit="GB", lines=(line,))

    local = _plain_candidate(
        "local_process",
        1,
        request,
        [check_host_memory(whole, host, f"{CLASSICAL_COPIES} × {work.data_gb:g} GB of data")],
        time,
        host_memory=memory(whole, f"{CLASSICAL_COPIES} copies × {work.data_gb:g} GB"),
        libraries=sklearn,
    )
    checks = [check_host_memory(part, host, f"{CLASSICAL_COPIES} × a shard of {work.data_gb / shards:.3g} GB")]
    if not work.incremental:
        checks.append(Check(name="permission", ok=False, text="the estimator has no partial_fit (incremental = false)"))
    sharded = _plain_candidate(
        "sharded_partial_fit",
        1,
        request,
        checks,
        time,
        host_memory=memory(part, f"{CLASSICAL_COPIES} copies × {work.data_gb:g} GB / {shards} shards"),
        shards=shards,
        libraries=sklearn,
    )
    return [local, sharded]


def _judge_tasks(work: IndependentTasks, request: PlanRequest) -> list[Candidate]:
    resources = request.resources
    slots = task_slots(resources, work.gpus_per_task)
    checks: list[Check] = []
    if work.gpus_per_task and not slots:
        text = f"tasks need {work.gpus_per_task} GPU{'s' if work.gpus_per_task > 1 else ''} each and a host has "
        checks.append(Check(name="permission", ok=False, text=f"{text}{resources.gpus_per_host}"))
    if slots is None:
        text = "slots unknown: cores_per_host is not given"
        checks.append(Check(name="permission", ok=None, text=text))

    def duration(waves: int | None) -> Estimate | None:
        if waves is None or work.task_minutes is None:
            return None
        return _given_hours(waves * work.task_minutes / 60, f"{waves} waves × {work.task_minutes:g} min / 60")

    count = min(slots or 1, work.tasks)
    waves = math.ceil(work.tasks / slots) if slots else None
    hosts = _hosts_for(count, resources.hosts, slots)
    leased = _plain_candidate(
        "lease_tasks",
        count,
        request,
        list(checks),
        duration(waves),
        gpus=count * work.gpus_per_task,
        hosts=hosts,
        waves=waves,
        launcher="slurm_array",
        workload_mode="task_array",
        colocated=hosts == 1,
    )
    one = _plain_candidate(
        "local_sequential",
        1,
        request,
        [check for check in checks if check.ok is False],
        duration(work.tasks),
        gpus=work.gpus_per_task,
        waves=work.tasks,
    )
    return [leased, one]


def _hosts_for(count: int, hosts: int, slots: int | None) -> int:
    per_host = max(1, (slots or 1) // hosts)
    return min(hosts, math.ceil(count / per_host))


def judge_all(request: PlanRequest, ledger: Sequence[MeasuredFigure] = ()) -> tuple[list[Candidate], list[str]]:
    """All candidates of the request's menu, judged but not ranked, and notes about the whole."""
    work = request.workload
    figures = (*request.figures, *ledger)
    if isinstance(work, TransformerFinetune | PytorchTraining) and not request.resources.gpus:
        return [], [f"{NO_GPU_NOTE} (resources: {request.resources.source})"]
    if isinstance(work, TransformerFinetune):
        return _judge_transformer(work, request, figures), []
    if isinstance(work, PytorchTraining):
        layouts = pytorch_menu(work, request.resources)
        return [_judge_layout(layout, request, work, None, figures) for layout in layouts], []
    if isinstance(work, ClassicalML):
        return _judge_classical(work, request), []
    return _judge_tasks(work, request), []

"""What to change when nothing can be run: single changes of the request, each tried by planning again.

Covers one change at a time, from a fixed list; combinations are the user's to find. The hint names the change that
unlocks the cheapest candidate, and where that one alters the training (LoRA, a shorter sequence), also the cheapest
change that keeps the training as it is. Cheap is measured in FLOP/s-seconds per token (GPU seconds × the card's peak),
since the price of a card that the request does not have is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from outerloop.planner.catalog import GPUS
from outerloop.planner.checks import HOST_LIMIT
from outerloop.planner.judge import judge_all
from outerloop.planner.rank import cost_of, ranked
from outerloop.planner.report import Candidate, Unlock
from outerloop.planner.request import (
    ClassicalML,
    IndependentTasks,
    Lora,
    MeasuredFigure,
    PlanRequest,
    PytorchTraining,
    TransformerFinetune,
)

HOST_SIZES_GB = (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144)
"""Host memories that machines are sold with."""

GROWTH = (2, 4, 8)


@dataclass(frozen=True)
class Change:
    """One change of a request: what to say, the parts to replace, and whether the training stays the same."""

    text: str
    part: str
    values: dict[str, Any]
    keeps_the_training: bool = True
    series: str = ""

    @property
    def needs_hardware(self) -> bool:
        """Whether other machines are needed; a lane's own limits count as such."""
        return self.part == "resources"


def _apply(request: PlanRequest, change: Change) -> PlanRequest | None:
    try:
        if change.part == "request":
            target: PlanRequest = request.model_copy(update=change.values)
        else:
            old = getattr(request, change.part)
            data = {name: getattr(old, name) for name in type(old).model_fields} | change.values
            target = request.model_copy(update={change.part: type(old).model_validate(data)})
    except ValidationError:
        return None
    return target


def _resource_changes(request: PlanRequest, candidates: Sequence[Candidate]) -> Iterator[Change]:
    resources = request.resources
    needs = sorted(
        {
            c.host_memory.central / HOST_LIMIT
            for c in candidates
            if c.host_memory is not None and any(k.name == "host_memory" and k.ok is not True for k in c.checks)
        }
    )
    offered = []
    for need in needs:
        size = next((s for s in HOST_SIZES_GB if s >= need), None)
        if size is not None and size not in offered and size > (resources.host_memory_gb or 0):
            offered.append(size)
            yield Change(
                f"hosts with {size} GB of memory", "resources", {"host_memory_gb": float(size)}, series="memory"
            )
    if resources.gpus_per_host:
        for factor in GROWTH:
            count = resources.gpus_per_host * factor
            if count <= 8:
                yield Change(f"{count} GPUs per host", "resources", {"gpus_per_host": count}, series="gpus")
    for factor in GROWTH:
        yield Change(
            f"{resources.hosts * factor} hosts", "resources", {"hosts": resources.hosts * factor}, series="hosts"
        )
    if resources.inter_host_gbit_per_s and resources.links_per_host < resources.gpus_per_host:
        count = resources.gpus_per_host
        yield Change(f"{count} links per host, one per GPU", "resources", {"links_per_host": count})
    if resources.gpu is not None:
        sizes = set()
        for gpu in sorted(GPUS.values(), key=lambda g: g.memory_gb):
            if gpu.memory_gb > resources.gpu.memory_gb and gpu.memory_gb not in sizes and gpu.bf16_tflops:
                sizes.add(gpu.memory_gb)
                yield Change(
                    f"a GPU with {gpu.memory_gb:g} GB, such as {gpu.name}", "resources", {"gpu": gpu}, series="card"
                )


def _limit_changes(request: PlanRequest, candidates: Sequence[Candidate]) -> Iterator[Change]:
    for field, name in (("deadline_hours", "deadline"), ("budget", "budget")):
        blocked = [c for c in candidates if [k.name for k in c.checks if k.ok is not True] == [name]]
        figures = [c.time_hours if name == "deadline" else c.cost for c in blocked]
        needed = [f.central for f in figures if f is not None]
        if needed:
            value = math.ceil(min(needed) * 10) / 10
            unit = " h" if name == "deadline" else ""
            yield Change(f"a {name} of {value:,.1f}{unit}", "request", {field: value})
    blocked = [c for c in candidates if [k.name for k in c.checks if k.ok is not True] == ["time_limit"]]
    times = [c.time_hours.central for c in blocked if c.time_hours is not None]
    if times:
        value = math.ceil(min(times) * 10) / 10
        yield Change(f"a lane whose time limit is {value:,.1f} h", "resources", {"time_limit_hours": value})
    if request.families is not None:
        yield Change("all families of the menu", "request", {"families": None})


def _transformer_changes(request: PlanRequest, work: TransformerFinetune) -> Iterator[Change]:
    if work.activation_checkpointing in ("none", "selective"):
        yield Change("activation checkpointing", "workload", {"activation_checkpointing": "full"})
    if work.loss == "plain":
        yield Change("a chunked loss", "workload", {"loss": "chunked"})
    if work.micro_batch > 1:
        accumulation = None if work.global_batch else (work.accumulation or 1) * work.micro_batch
        values = {"micro_batch": 1, "accumulation": accumulation}
        yield Change("micro_batch 1 with the same batch through accumulation", "workload", values)
    if not work.allow_offload:
        yield Change("allow_offload", "workload", {"allow_offload": True})
    if not work.gradient_as_bucket_view:
        yield Change("gradient_as_bucket_view", "workload", {"gradient_as_bucket_view": True})
    if work.precision == "bf16" and request.resources.gpu and request.resources.gpu.bf16_tflops is None:
        yield Change("fp16 precision", "workload", {"precision": "fp16"}, keeps_the_training=False)
    if work.lora is None:
        yield Change("LoRA instead of training all weights", "workload", {"lora": Lora()}, keeps_the_training=False)
        yield Change(
            "QLoRA instead of training all weights",
            "workload",
            {"lora": Lora(), "allow_quantization": True},
            keeps_the_training=False,
        )
        if work.optimizer == "adamw":
            change = {"optimizer": "adamw_8bit"}
            yield Change("8-bit AdamW", "workload", change, keeps_the_training=False)
        if work.precision == "bf16":
            change = {"precision": "bf16_pure"}
            yield Change("weights and optimizer in bf16", "workload", change, keeps_the_training=False)
    elif not work.allow_quantization:
        yield Change("QLoRA (allow_quantization)", "workload", {"allow_quantization": True}, keeps_the_training=False)
    if work.sequence >= 1024:
        half = work.sequence // 2
        yield Change(f"sequences of {half} tokens", "workload", {"sequence": half}, keeps_the_training=False)
    if work.sequence * work.micro_batch <= 8192:
        more = work.micro_batch * 2
        yield Change(f"micro_batch {more}", "workload", {"micro_batch": more}, keeps_the_training=False)


def changes(request: PlanRequest, candidates: Sequence[Candidate]) -> Iterator[Change]:
    """Every single change that the hint considers for this request."""
    yield from _limit_changes(request, candidates)
    work = request.workload
    if isinstance(work, TransformerFinetune):
        yield from _transformer_changes(request, work)
    if isinstance(work, PytorchTraining) and not work.gradient_as_bucket_view:
        yield Change("gradient_as_bucket_view", "workload", {"gradient_as_bucket_view": True})
    if isinstance(work, ClassicalML) and not work.incremental:
        text = "an estimator with partial_fit"
        yield Change(text, "workload", {"incremental": True}, keeps_the_training=False)
    if isinstance(work, IndependentTasks) and work.gpus_per_task:
        count = max(work.gpus_per_task, request.resources.gpus_per_host)
        if request.resources.gpu is not None and count != request.resources.gpus_per_host:
            yield Change(f"{count} GPUs per host", "resources", {"gpus_per_host": count})
    yield from _resource_changes(request, candidates)


def _relative_cost(request: PlanRequest, candidate: Candidate) -> float | None:
    cost = candidate.gpu_seconds_per_token
    gpu = request.resources.gpu
    if cost is None or gpu is None or candidate.precision is None:
        return cost_of(candidate)
    return cost * (gpu.peak_tflops(candidate.precision) or 0.0)


def unlocks(request: PlanRequest, candidates: Sequence[Candidate], ledger: Sequence[MeasuredFigure]) -> list[Unlock]:
    """The single changes that give a plan, cheapest first; unknown costs last."""
    found: list[Unlock] = []
    enough: set[str] = set()
    for change in changes(request, candidates):
        # Of a series of growing sizes, the smallest that does is enough.
        if change.series in enough:
            continue
        changed = _apply(request, change)
        if changed is None:
            continue
        judged, _ = judge_all(changed, ledger)
        order, selected = ranked(judged, "cheapest")
        if selected is None:
            continue
        if change.series:
            enough.add(change.series)
        winner = next(c for c in order if c.name == selected)
        found.append(
            Unlock(
                change=change.text,
                candidate=selected,
                keeps_the_training=change.keeps_the_training,
                needs_hardware=change.needs_hardware,
                relative_cost=_relative_cost(changed, winner),
            )
        )
    found.sort(key=lambda u: (u.relative_cost is None, u.relative_cost or 0.0))
    return found


def hinted(found: Sequence[Unlock]) -> list[Unlock]:
    """The changes that the hint names: the cheapest, and where that alters the training one that keeps it."""
    if not found or found[0].keeps_the_training:
        return list(found[:1])
    # Among the changes that keep the training, one that needs no other machines comes first.
    same = min((u for u in found if u.keeps_the_training), key=lambda u: u.needs_hardware, default=None)
    return [found[0]] if same is None else [found[0], same]


def _said(unlock: Unlock) -> str:
    return f"{unlock.change} (then {unlock.candidate})"


def hint(request: PlanRequest, candidates: Sequence[Candidate], found: Sequence[Unlock]) -> str | None:
    """One sentence: the cheapest change, or the figure that is missing."""
    named = hinted(found)
    if named:
        text = f"cheapest change: {_said(named[0])}"
        return text + (f"; keeping the training as it is: {_said(named[1])}" if len(named) > 1 else "")
    unknown = [c for c in candidates if c.reasons and all(k.ok is not False for k in c.checks)]
    if unknown:
        missing = next(k.text for k in unknown[0].checks if k.ok is None)
        return f"{unknown[0].name} fails on what is unknown only: {missing}"
    if candidates:
        nearest = min(candidates, key=lambda c: (c.vram_deficit_gb or 0.0, len(c.reasons)))
        return f"no single change gives a plan; nearest is {nearest.name}: {'; '.join(nearest.reasons)}"
    return None

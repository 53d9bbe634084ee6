"""Properties of the planner that hold for every request: monotone memory, honest limits, stable digests."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from outerloop.planner import GPUS, SHAPES, PlanReport, PlanRequest, parse_request, plan, plan_digest, render_report
from outerloop.planner.communication import traffic
from outerloop.planner.layout import Layout
from outerloop.planner.memory import gpu_memory, host_memory
from outerloop.planner.request import Lora, Resources
from outerloop.planner.throughput import transformer_step

MODELS = sorted(SHAPES)
PRECISIONS = ("fp32", "bf16", "fp16", "bf16_pure")
CHECKPOINTING = ("none", "selective", "full")
LOSSES = ("plain", "chunked", "fused")

loras = st.none() | st.builds(
    Lora,
    rank=st.sampled_from([1, 8, 64]),
    targets=st.sampled_from([("q_proj", "v_proj"), ("q_proj", "k_proj", "v_proj", "o_proj"), ("up_proj", "down_proj")]),
)


@st.composite
def layouts(draw: st.DrawFn, family: str = "fsdp2", workers: int = 8) -> Layout:
    lora = draw(loras)
    return Layout(
        family=family,  # type: ignore[arg-type]
        workers=workers,
        gpus_per_host=8,
        shard=workers,
        precision=draw(st.sampled_from(PRECISIONS)),  # type: ignore[arg-type]
        optimizer=draw(st.sampled_from(("adamw", "adamw_8bit", "sgd_momentum"))),  # type: ignore[arg-type]
        micro_batch=draw(st.integers(1, 16)),
        accumulation=draw(st.integers(1, 16)),
        shape=SHAPES[draw(st.sampled_from(MODELS))],
        sequence=draw(st.sampled_from([128, 1000, 2048, 8192])),
        lora=lora,
        quantized=lora is not None and draw(st.booleans()),
        checkpointing=draw(st.sampled_from(CHECKPOINTING)),  # type: ignore[arg-type]
        loss=draw(st.sampled_from(LOSSES)),  # type: ignore[arg-type]
    )


def changed(layout: Layout, **fields: Any) -> Layout:
    return Layout(**({**layout.__dict__} | fields))


@given(layouts(), st.sampled_from([2, 4, 8]))
def test_memory_falls_with_sharding(layout: Layout, factor: int) -> None:
    wider = changed(layout, workers=8 * factor, shard=8 * factor)
    assert gpu_memory(wider).central < gpu_memory(layout).central


@given(layouts(), st.integers(2, 5))
def test_memory_grows_with_the_batch_and_with_the_sequence(layout: Layout, factor: int) -> None:
    base = gpu_memory(layout).central
    assert gpu_memory(changed(layout, micro_batch=layout.micro_batch * factor)).central > base
    assert gpu_memory(changed(layout, sequence=layout.sequence * factor)).central > base


@given(layouts())
def test_checkpointing_everything_takes_less_than_some_and_some_less_than_nothing_at_depth(layout: Layout) -> None:
    """Beyond a few layers: the one recomputed layer must not outweigh what is saved. Frozen bases keep less anyway."""
    if layout.lora is not None or layout.shape is None or layout.shape.feed_forward_kind == "plain":
        return
    none, some, full = (
        gpu_memory(changed(layout, checkpointing=kind)).central for kind in ("none", "selective", "full")
    )
    assert full < some < none


@given(layouts())
def test_the_losses_are_ordered_and_quantizing_saves_memory(layout: Layout) -> None:
    plain, chunked = (gpu_memory(changed(layout, loss=loss)).central for loss in ("plain", "chunked"))
    assert chunked <= plain
    if layout.lora is not None and layout.precision != "fp32":
        light = gpu_memory(changed(layout, quantized=True, family="single_gpu", workers=1, shard=1)).central
        heavy = gpu_memory(changed(layout, quantized=False, family="single_gpu", workers=1, shard=1)).central
        assert light < heavy


@given(layouts(family="fsdp2_cpu_offload"))
def test_offloading_moves_state_from_the_gpu_to_the_host(layout: Layout) -> None:
    on_gpu = changed(layout, family="fsdp2")
    assert gpu_memory(layout).central < gpu_memory(on_gpu).central
    host = host_memory(layout)
    assert host is not None and host.central > 0 and host_memory(on_gpu) is None


@given(layouts(), st.sampled_from(sorted(GPUS)))
def test_a_world_of_one_equals_the_single_gpu(layout: Layout, name: str) -> None:
    """DDP over one worker: the same step, no communication, and its memory but for the buckets it would not have."""
    resources = Resources(gpus_per_host=1, gpu=GPUS[name])
    single = changed(layout, family="single_gpu", workers=1, shard=1, gpus_per_host=1)
    lone = changed(single, family="ddp", gradient_as_bucket_view=True)
    assert gpu_memory(single).central == gpu_memory(lone).central
    steps = [transformer_step(each, GPUS[name], traffic(each, resources)) for each in (single, lone)]
    assert steps[0] == steps[1]
    assert traffic(lone, resources).seconds == 0


@given(layouts(), st.sampled_from(sorted(GPUS)), st.floats(10, 1000), st.floats(1.01, 8))
def test_faster_links_never_slow_a_step_and_efficiency_is_a_share(
    layout: Layout, name: str, gbit: float, factor: float
) -> None:
    wide = changed(layout, workers=32, shard=32)
    steps = []
    for rate in (gbit, gbit * factor):
        resources = Resources(hosts=4, gpus_per_host=8, gpu=GPUS[name], inter_host_gbit_per_s=rate)
        steps.append(transformer_step(wide, GPUS[name], traffic(wide, resources)))
    slow, fast = steps
    if slow is None or fast is None:
        assert GPUS[name].peak_tflops(layout.precision) is None
        return
    assert fast.seconds.central <= slow.seconds.central
    assert slow.efficiency is not None and fast.efficiency is not None
    assert 0 < slow.efficiency <= fast.efficiency <= 1
    assert slow.seconds.low <= slow.seconds.central <= slow.seconds.high


numbers = st.floats(0.01, 1e5, allow_nan=False)


@st.composite
def requests(draw: st.DrawFn) -> PlanRequest:
    lora = draw(st.booleans())
    work: dict[str, Any] = {
        "kind": "transformer_finetune",
        "model": draw(st.sampled_from(MODELS)),
        "sequence": draw(st.sampled_from([256, 2048, 8192])),
        "micro_batch": draw(st.integers(1, 4)),
        "precision": draw(st.sampled_from(PRECISIONS)),
        "lora": lora,
        "allow_quantization": lora and draw(st.booleans()),
        "tokens": draw(st.none() | st.floats(1e5, 1e10)),
        "activation_checkpointing": draw(st.sampled_from([None, True, False, "selective"])),
        "global_batch": draw(st.none() | st.integers(1, 64)),
    }
    resources: dict[str, Any] = {
        "hosts": draw(st.integers(1, 4)),
        "gpus_per_host": draw(st.sampled_from([1, 2, 3, 4, 8])),
        "gpu": draw(st.sampled_from(sorted(GPUS))),
        "host_memory_gb": draw(st.none() | st.floats(16, 4000)),
        "inter_host_gbit_per_s": draw(st.none() | st.floats(10, 3200)),
        "price_per_gpu_hour": draw(st.none() | st.floats(0, 10)),
        "time_limit_hours": draw(st.none() | numbers),
    }
    return parse_request(
        {
            "workload": work,
            "resources": resources,
            "mode": draw(st.sampled_from(["cheapest", "fastest", "balanced", "reliable"])),
            "deadline_hours": draw(st.none() | numbers),
            "budget": draw(st.none() | numbers),
        }
    )


def passes(report: PlanReport) -> list[str]:
    return [c.name for c in report.candidates if c.status in ("selected", "feasible", "rejected_dominated")]


@settings(max_examples=25, deadline=None)
@given(requests())
def test_nothing_unknown_and_nothing_beyond_a_limit_ever_passes(request: PlanRequest) -> None:
    report = plan(request)
    gpu = request.resources.gpu
    assert gpu is not None
    for candidate in report.candidates:
        if candidate.name not in passes(report):
            assert candidate.reasons
            assert len(candidate.reasons) == len([c for c in candidate.checks if c.ok is not True])
            continue
        assert all(check.ok is True for check in candidate.checks)
        assert candidate.memory is not None and candidate.memory.central <= 0.95 * gpu.memory_gb
        if candidate.host_memory is not None:
            assert request.resources.host_memory_gb is not None
            assert candidate.host_memory.central <= 0.8 * request.resources.host_memory_gb
        if candidate.workers > 1:
            assert candidate.efficiency is not None and candidate.efficiency >= 0.5
        for limit in (request.deadline_hours, request.resources.time_limit_hours):
            if limit is not None:
                assert candidate.time_hours is not None and candidate.time_hours.central <= limit
        if request.budget is not None:
            assert candidate.cost is not None and candidate.cost.central <= request.budget


@settings(max_examples=12, deadline=None)
@given(requests())
def test_a_plan_is_a_pure_function_and_selects_one_or_hints(request: PlanRequest) -> None:
    report = plan(request)
    again = plan(PlanRequest.model_validate_json(request.model_dump_json()))
    assert report == again and report.digest == plan_digest(request)
    selected = [c.name for c in report.candidates if c.status == "selected"]
    assert selected == ([] if report.selected is None else [report.selected])
    assert (report.selected is None) == (report.hint is not None)
    assert len({c.name for c in report.candidates}) == len(report.candidates)
    assert max(len(line) for line in render_report(report, explain=True).splitlines()) <= 80

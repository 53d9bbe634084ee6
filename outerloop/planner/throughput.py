"""Time of a training step: FLOPs over what the GPU sustains, plus what offloading and communication add.

Covers dense transformers by counting FLOPs, and other PyTorch trainings by the measured micro-step that the request
gives. Not covered: data loading that starves the GPU, evaluation, checkpoint writing.

FLOPs per token: 6 × P for training all parameters, 4 × P through a frozen base under LoRA, 2 × P more when the forward
is recomputed; attention 12 × layers × width × sequence (PaLM, appendix B). Checked, not fitted: LoRA against full
fine-tuning of GPT-3 175B, 43.1 to 32.5 tokens/s per V100 (LoRA paper, section 4.2).
"""

from __future__ import annotations

from dataclasses import dataclass

from outerloop.planner.arithmetic import GB, Estimate, Line, short
from outerloop.planner.catalog import Gpu
from outerloop.planner.communication import Traffic, efficiency, exposed_seconds
from outerloop.planner.layout import Layout
from outerloop.planner.memory import frozen_bytes, weight_bytes

RECOMPUTE_TIME = 0.9
"""Time of recomputing, relative to the forward that it repeats: 6 × 1.3 = 6 + 2 × 0.9, the 30 % of Korthikanti et al.
2022 (section 5)."""

COMPILE_SPEEDUP = 1.157
"""torch.compile on Llama: 6,667 over 5,762 tokens/s/GPU, torchtitan table 1 (fitted). Held out: 6,514 over 5,605 on 128
GPUs, 68 over 57 % in PyTorch/IBM's second post."""

NF4_SLOWDOWN = 1.66
"""LoRA over QLoRA speed: dequantizing before every product (Google Cloud's LoRA and QLoRA recommendations: LoRA is
about 66 % faster)."""

CPU_ADAM_PARAMETERS_PER_S = {"zero3_cpu_offload": 3.9e9, "fsdp2_cpu_offload": 0.68e9}
"""Optimizer steps on the host, parameters/s: DeepSpeed's CPU-Adam 10 B in 2.57 s, PyTorch's own in 14.76 s
(ZeRO-Offload, Ren et al. 2021, table 4)."""


@dataclass(frozen=True)
class Step:
    """One optimizer step: seconds (central, low and high utilisation), tokens/s/GPU, communication efficiency.

    `compute_seconds` is the estimated computing alone, without exposed communication and offloading.
    """

    seconds: Estimate
    tokens_per_second_per_gpu: Estimate | None
    efficiency: float | None
    compute_seconds: float


@dataclass(frozen=True)
class Flops:
    """FLOPs per token, as executed (`executed`) and as charged in time (`charged`)."""

    executed: float
    charged: float
    lines: tuple[Line, ...]


def recomputed_share(layout: Layout) -> float:
    """Share of the forward's matrix products that the backward repeats."""
    if layout.checkpointing == "none" or layout.shape is None:
        return 0.0
    if layout.checkpointing == "full":
        return 1.0
    # The selective policy keeps every second product: keys, attention output and one feed-forward one are redone.
    shape = layout.shape
    redone = [name for name in ("k_proj", "o_proj", "up_proj") if name in shape.linears]
    if shape.feed_forward_kind == "plain":
        redone = ["k_proj", "o_proj"]
    weights = sum(shape.linears[name][0] * shape.linears[name][1] for name in redone)
    return weights / shape.linear_parameters_per_layer


def flops_per_token(layout: Layout) -> Flops:
    """FLOPs that one token costs in training; `charged` weighs recomputation by the time it takes.

    Raises:
        ValueError: the layout has no transformer shape.
    """
    shape = layout.shape
    if shape is None:
        raise ValueError("FLOPs are counted for transformers only")
    matmul = float(shape.matmul_parameters)
    per_parameter = 4 if layout.lora else 6
    attention = 12.0 * shape.layers * shape.query_width * layout.sequence
    share = recomputed_share(layout)
    again = 2.0 * matmul * share + (attention / 3 if share == 1 else 0.0)
    lines = [
        Line(
            label="FLOPs per token",
            formula=f"{per_parameter} × {short(matmul)}" + (" (frozen base)" if layout.lora else ""),
            value=per_parameter * matmul / GB,
            unit="GFLOP",
        )
    ]
    base = per_parameter * matmul
    if layout.lora:
        adapters = 6.0 * layout.adapter_parameters
        base += adapters
        lines.append(
            Line(
                label="adapters",
                formula=f"6 × {short(layout.adapter_parameters)}",
                value=adapters / GB,
                unit="GFLOP",
            )
        )
    lines.append(
        Line(
            label="attention",
            formula=f"12 × {shape.layers} layers × {shape.query_width} × {short(layout.sequence)} tokens",
            value=attention / GB,
            unit="GFLOP",
        )
    )
    if share:
        lines.append(
            Line(
                label="recomputation",
                formula=f"{share:.0%} of the forward, charged at {RECOMPUTE_TIME} of its time",
                value=RECOMPUTE_TIME * again / GB,
                unit="GFLOP",
            )
        )
    return Flops(base + attention + again, base + attention + RECOMPUTE_TIME * again, tuple(lines))


def _offload_lines(layout: Layout, gpu: Gpu) -> list[Line]:
    """Copies over PCIe in each micro-step and the optimizer's step on the host."""
    if not layout.offload:
        return []
    travel = frozen_bytes(layout) if layout.lora else weight_bytes(layout) * layout.total_parameters
    down = weight_bytes(layout) * layout.trainable_parameters
    copied = (2 * travel + down) / layout.workers * layout.accumulation
    rate = CPU_ADAM_PARAMETERS_PER_S[layout.family]
    on_host = layout.trainable_parameters * layout.workers_per_host / layout.workers
    return [
        Line(
            label="PCIe copies",
            formula=f"{copied / GB:.3g} GB / {short(gpu.pcie_gb_per_s)} GB/s",
            value=copied / (gpu.pcie_gb_per_s * GB),
            unit="s",
        ),
        Line(
            label="optimizer on the host",
            formula=f"{short(on_host)} / {short(rate)} per s",
            value=on_host / rate,
            unit="s",
        ),
    ]


def transformer_step(layout: Layout, gpu: Gpu, exchanged: Traffic) -> Step | None:
    """Step time of a transformer; None when the GPU cannot compute in the layout's precision.

    With an unknown link the times leave communication out, and the efficiency is None.
    """
    peak = gpu.peak_tflops(layout.precision)
    if peak is None or layout.shape is None:
        return None
    flops = flops_per_token(layout)
    work = flops.charged * layout.tokens * layout.accumulation
    slower = NF4_SLOWDOWN if layout.quantized else 1.0
    faster = COMPILE_SPEEDUP if layout.compile else 1.0
    extra = _offload_lines(layout, gpu)
    added = sum(line.value for line in extra)
    communication = exchanged.seconds or 0.0

    def seconds(utilisation: float) -> tuple[float, float]:
        compute = work * slower / faster / (peak * 1e12 * utilisation)
        return compute, compute + exposed_seconds(compute, communication) + added

    compute, step = seconds(gpu.utilisation.central)
    factors = (f" × {NF4_SLOWDOWN} (NF4)" if layout.quantized else "") + (
        f" / {COMPILE_SPEEDUP} (compile)" if layout.compile else ""
    )
    lines = (
        *flops.lines,
        Line(
            label="compute",
            formula=f"{short(flops.charged / GB)} GFLOP × {short(layout.tokens * layout.accumulation)} tokens / "
            f"({peak:g} TFLOP/s × {gpu.utilisation.central:.2f}){factors}",
            value=compute,
            unit="s",
        ),
        *exchanged.lines,
        Line(
            label="exposed communication",
            formula=f"of {communication:.3g} s, hidden behind computing as far as it goes",
            value=exposed_seconds(compute, communication),
            unit="s",
        ),
        *extra,
    )
    fast, slow = seconds(gpu.utilisation.high)[1], seconds(gpu.utilisation.low)[1]
    tokens = layout.tokens * layout.accumulation
    return Step(
        Estimate(central=step, low=fast, high=slow, unit="s", lines=lines),
        Estimate(central=tokens / step, low=tokens / slow, high=tokens / fast, unit="tokens/s/GPU"),
        None if exchanged.seconds is None else efficiency(compute, communication),
        compute,
    )


def pytorch_step(layout: Layout, micro_step_seconds: float | None, exchanged: Traffic) -> Step | None:
    """Step time of another PyTorch training from its measured micro-step; None without one."""
    if micro_step_seconds is None:
        return None
    compute = micro_step_seconds * layout.accumulation
    communication = exchanged.seconds or 0.0
    step = compute + exposed_seconds(compute, communication)
    lines = (
        Line(
            label="compute",
            formula=f"{micro_step_seconds:g} s × {layout.accumulation} micro-steps",
            value=compute,
            unit="s",
            basis="given",
        ),
        *exchanged.lines,
        Line(
            label="exposed communication",
            formula=f"of {communication:.3g} s, hidden behind computing as far as it goes",
            value=exposed_seconds(compute, communication),
            unit="s",
        ),
    )
    return Step(
        Estimate(central=step, low=step, high=compute + communication, unit="s", lines=lines),
        None,
        None if exchanged.seconds is None else efficiency(compute, communication),
        compute,
    )

"""What the workers of a layout exchange, over which links, and how much of it computing cannot hide.

Covers data parallelism, full and hybrid sharding over two levels of links: GPU to GPU inside a host, host to host over
one or more rails. Not covered: congestion from other jobs, latency of small messages, tensor and pipeline parallelism.

Volumes: DDP moves 2Ψ, ZeRO stage 3 and FSDP move 3Ψ (Rajbhandari et al. 2019): a gather in the forward, one in the
backward, and a reduction of the gradients, in fp32 unless everything is bf16. DDP synchronises once per optimizer step,
the sharded families in each micro-step.
"""

from __future__ import annotations

from dataclasses import dataclass

from outerloop.planner.arithmetic import GB, Line, short
from outerloop.planner.layout import Layout
from outerloop.planner.memory import frozen_bytes, weight_bytes
from outerloop.planner.request import Resources

LINK_EFFICIENCY = 0.8
"""Share of a link's rate that NCCL's large collectives reach; nccl-tests report 75 to 90 % of the bus."""

OVERLAP = 0.9
"""Share of computing behind which communication hides: prefetching leaves the first and last layer exposed."""

EXPOSED_FLOOR = 0.05
"""Share of communication that never hides, whatever the computing: the step's first gather and last reduction."""

EFFICIENCY_HARD, EFFICIENCY_WARN = 0.5, 0.7
"""Below the first a layout is refused, below the second it is remarked upon."""


@dataclass(frozen=True)
class Traffic:
    """Seconds of communication in one optimizer step, with the working; None: a needed link is unknown."""

    seconds: float | None
    lines: tuple[Line, ...]
    missing: str | None = None


@dataclass(frozen=True)
class _Links:
    intra: float
    inter_per_host: float | None


def _links(resources: Resources) -> _Links:
    gpu = resources.gpu
    intra = resources.intra_host_gb_per_s or (gpu.link_gb_per_s if gpu else 0.0)
    rate = resources.inter_host_gbit_per_s
    return _Links(intra, None if rate is None else rate / 8 * resources.links_per_host)


def _collective(
    label: str, size: float, workers: int, per_host: int, links: _Links, passes: float, groups_per_host: int = 1
) -> tuple[float | None, list[Line]]:
    """Time of gathers or reductions of `size` bytes among `workers`, `passes` times; None without a host link.

    Both levels are pipelined, so the slower one counts. `groups_per_host` groups share the host's rails.
    """
    if workers <= 1 or passes == 0:
        return 0.0, []
    inside = min(workers, per_host)
    hosts = -(-workers // per_host)
    ring_intra = (inside - 1) / inside if inside > 1 else 0.0
    seconds = passes * size * ring_intra / (links.intra * GB * LINK_EFFICIENCY) if ring_intra else 0.0
    level = f"{short(links.intra)} GB/s inside a host"
    lines = []
    volume = f"{passes:g} × {size / GB:.3g} GB"
    if ring_intra:
        lines.append(
            Line(
                label=f"{label}, in host",
                formula=f"{volume} × {inside - 1}/{inside} / ({level} × {LINK_EFFICIENCY})",
                value=seconds,
                unit="s",
            )
        )
    if hosts > 1:
        if links.inter_per_host is None:
            return None, lines
        across = passes * size * groups_per_host * (hosts - 1) / hosts / (links.inter_per_host * GB * LINK_EFFICIENCY)
        shared = f" × {groups_per_host} groups" if groups_per_host > 1 else ""
        lines.append(
            Line(
                label=f"{label}, between hosts",
                formula=f"{volume}{shared} × {hosts - 1}/{hosts} / ({short(links.inter_per_host)} GB/s per host × "
                f"{LINK_EFFICIENCY})",
                value=across,
                unit="s",
            )
        )
        seconds = max(seconds, across)
    return seconds, lines


def _gather_bytes(layout: Layout) -> float:
    """Bytes of one whole set of parameters as they travel."""
    travel = 4.0 if layout.precision == "fp32" else 2.0
    if layout.lora:
        return frozen_bytes(layout) + travel * layout.adapter_parameters
    return travel * layout.total_parameters


def _reduce_bytes(layout: Layout) -> float:
    """Bytes of one whole set of gradients as they are reduced."""
    return weight_bytes(layout) * layout.trainable_parameters


def traffic(layout: Layout, resources: Resources) -> Traffic:
    """Communication of one optimizer step of `layout` on `resources`."""
    if layout.workers <= 1:
        return Traffic(0.0, ())
    links = _links(resources)
    micro_steps = layout.accumulation
    parts: list[tuple[float | None, list[Line]]] = []
    if layout.family == "ddp":
        parts.append(_collective("all-reduce", _reduce_bytes(layout), layout.workers, layout.gpus_per_host, links, 2))
    else:
        group = layout.shard
        # Groups smaller than a host stand side by side on it; only their replicas meet across hosts.
        parts.append(_collective("gathers", _gather_bytes(layout), group, layout.gpus_per_host, links, 2 * micro_steps))
        parts.append(
            _collective("reduction", _reduce_bytes(layout), group, layout.gpus_per_host, links, 1 * micro_steps)
        )
        replicas = layout.workers // group
        if replicas > 1:
            share = _reduce_bytes(layout) / group
            # Each GPU's shard is reduced with its peers of the other groups: one GPU per host in each such ring.
            on_host = min(group, layout.gpus_per_host)
            parts.append(
                _collective("replica all-reduce", share, replicas, 1, links, 2 * micro_steps, groups_per_host=on_host)
                if group >= layout.gpus_per_host
                else _collective(
                    "replica all-reduce",
                    share,
                    replicas,
                    layout.gpus_per_host // group,
                    links,
                    2 * micro_steps,
                    groups_per_host=on_host,
                )
            )
    lines = tuple(line for _, part in parts for line in part)
    times = [seconds for seconds, _ in parts]
    if any(seconds is None for seconds in times):
        return Traffic(None, lines, "inter_host_gbit_per_s is not given, so the link between hosts is unknown")
    return Traffic(sum(seconds for seconds in times if seconds is not None), lines)


def exposed_seconds(compute: float, communication: float) -> float:
    """Communication that computing does not hide, in seconds."""
    return max(communication - OVERLAP * compute, EXPOSED_FLOOR * communication)


def efficiency(compute: float, communication: float) -> float:
    """Share of the step that is spent computing, between 0 and 1."""
    step = compute + exposed_seconds(compute, communication)
    return 1.0 if step <= 0 else compute / step

"""Resources from a lane: what a Slurm site's partition offers, read from the lane's own settings.

Covers a mapping with the lane's keys (TOML table or settings object dumped to one). Keys that say nothing about
hardware (account, qos, prologue) are passed over; a key that is misspelt is not this module's to find, since the
settings already refuse it. Whatever the lane leaves out stays unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from outerloop.planner.catalog import find_gpu
from outerloop.planner.request import Resources

_KEYS: dict[str, tuple[str, ...]] = {
    "hosts": ("hosts", "nodes", "max_nodes"),
    "gpus_per_host": ("gpus_per_host", "gpus_per_node"),
    "gpu": ("gpu", "gpu_type", "gpu_model"),
    "host_memory_gb": ("host_memory_gb", "memory_gb", "memory_gb_per_node"),
    "cores_per_host": ("cores_per_host", "cpus_per_node", "cores_per_node", "cpus"),
    "intra_host_gb_per_s": ("intra_host_gb_per_s",),
    "inter_host_gbit_per_s": ("inter_host_gbit_per_s",),
    "links_per_host": ("links_per_host",),
    "price_per_gpu_hour": ("price_per_gpu_hour",),
    "price_per_host_hour": ("price_per_host_hour", "price_per_node_hour"),
    "time_limit_hours": ("time_limit_hours", "max_hours"),
}
_MEMORY_MB = ("memory_mb", "memory_mb_per_node", "real_memory")
_MINUTES = ("max_minutes", "time_limit_minutes", "minutes")
_GRES = re.compile(r"(?:gres/)?gpu(?::(?P<type>[A-Za-z][\w.-]*))?[:=](?P<count>\d+)")


def parse_gres(text: str) -> tuple[str | None, int]:
    """GPU type and count of one node's gres string: `gpu:a100:4(S:0-1)` -> ('a100', 4); ('gpu' alone counts 0).

    Several GPU entries of one type are added up; of several types the first one's count is taken.
    """
    kind: str | None = None
    count = 0
    for match in _GRES.finditer(text):
        if count and match["type"] != kind:
            continue
        kind, count = match["type"], count + int(match["count"])
    return kind, count


def _tres(text: str) -> dict[str, str]:
    pairs = (item.partition("=") for item in text.split(","))
    return {key.strip(): value.strip() for key, _, value in pairs if value}


_MEMORY_SUFFIX = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def _bytes(text: str) -> float | None:
    """Slurm's memory figure in bytes (`2063624M`; no suffix means megabytes); None for what is none."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)", text)
    return None if match is None else float(match[1]) * _MEMORY_SUFFIX[match[2] or "M"]


def partition_figures(fields: Mapping[str, str]) -> dict[str, Any]:
    """What one partition offers per host, from the fields of `scontrol show partition`.

    Per-host figures are the partition's totals over its nodes: right where its nodes are alike. Cards of several types
    count under none, so that the request has to name one.
    """
    figures: dict[str, Any] = {}
    tres = _tres(fields.get("TRES", ""))
    nodes_text = fields.get("TotalNodes") or tres.get("node", "")
    nodes = int(nodes_text) if nodes_text.isdigit() else 0
    if nodes <= 0:
        return figures
    figures["nodes"] = nodes
    cpus = fields.get("TotalCPUs") or tres.get("cpu", "")
    if cpus.isdigit() and int(cpus) >= nodes:
        figures["cpus_per_node"] = int(cpus) // nodes
    memory = _bytes(tres.get("mem", ""))
    if memory:
        figures["memory_gb"] = memory / nodes / 1e9
    typed = {key.removeprefix("gres/gpu:"): value for key, value in tres.items() if key.startswith("gres/gpu:")}
    count = tres.get("gres/gpu") or (next(iter(typed.values())) if len(typed) == 1 else "")
    if count.isdigit() and int(count) >= nodes:
        figures["gpus_per_node"] = int(count) // nodes
        if len(typed) == 1:
            figures["gpu_type"] = next(iter(typed))
    return figures


def resources_from_lane(lane: Mapping[str, Any], partition: Mapping[str, str] | None = None) -> Resources:
    """The resources that a lane's settings, and what Slurm says of its partition, describe.

    Accepts the request's own names and Slurm's (`nodes`, `gpus_per_node`, `gres`, `memory_mb`, `cpus_per_node`,
    `max_minutes`). A nested `resources` table wins over the lane's own keys, and those over the partition's. GPUs of a
    partition that names no type, or one that the catalogue lacks, are left out, and `source` says so: work without GPUs
    can still be planned there.

    Raises:
        ValueError: a figure of the lane that makes no sense, or GPUs of the lane itself without a type.
    """
    nested = lane.get("resources")
    sources = [lane, partition_figures(partition or {})]
    if isinstance(nested, Mapping):
        sources.insert(0, nested)
    values: dict[str, Any] = {}
    for source in sources:
        for field, value in _known(source).items():
            values.setdefault(field, value)
    name = lane.get("name")
    values["source"] = f"lane {name}" if name else "lane"
    offered = partition_figures(partition or {})
    if values.get("gpu") is None and "gpus_per_node" in offered:
        values.pop("gpus_per_host", None)
        values["source"] += ", whose partition does not name its GPUs: set the lane's gpu_type"
    elif "gpu_type" in offered and values.get("gpu") == offered["gpu_type"] and not _is_known(values["gpu"]):
        values.pop("gpus_per_host", None)
        unknown = values.pop("gpu")
        values["source"] += f", whose GPUs {unknown!r} are not in the catalogue: set the lane's gpu_type"
    return Resources.model_validate(values)


def _is_known(gpu: object) -> bool:
    if not isinstance(gpu, str):
        return gpu is not None
    try:
        find_gpu(gpu)
    except KeyError:
        return False
    return True


def _known(source: Mapping[str, Any]) -> dict[str, Any]:
    """What one source says, in the request's own names. Empty text says nothing."""
    values: dict[str, Any] = {}
    for field, spellings in _KEYS.items():
        given = [source[key] for key in spellings if source.get(key) not in (None, "")]
        if given:
            values[field] = given[0]
    if "host_memory_gb" not in values:
        megabytes = [source[key] for key in _MEMORY_MB if source.get(key) is not None]
        if megabytes:
            # Slurm's megabyte is 2**20 bytes.
            values["host_memory_gb"] = float(megabytes[0]) * 2**20 / 1e9
    if "time_limit_hours" not in values:
        minutes = [source[key] for key in _MINUTES if source.get(key) is not None]
        if minutes:
            values["time_limit_hours"] = float(minutes[0]) / 60
    gres = source.get("gres")
    if isinstance(gres, str):
        kind, count = parse_gres(gres)
        if count:
            values.setdefault("gpus_per_host", count)
            if kind is not None:
                values.setdefault("gpu", kind)
    return values

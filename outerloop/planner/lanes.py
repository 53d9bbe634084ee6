"""Resources from a lane: what a Slurm site's partition offers, read from the lane's own settings.

Covers a mapping with the lane's keys (TOML table or settings object dumped to one). Keys that say nothing about
hardware (account, qos, prologue) are passed over; a key that is misspelt is not this module's to find, since the
settings already refuse it. Whatever the lane leaves out stays unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

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


def resources_from_lane(lane: Mapping[str, Any]) -> Resources:
    """The resources that a lane's settings describe.

    Accepts the request's own names and Slurm's (`nodes`, `gpus_per_node`, `gres`, `memory_mb`, `cpus_per_node`,
    `max_minutes`); a nested `resources` table wins over the lane's own keys.

    Raises:
        ValueError: a figure of the lane that makes no sense, or GPUs without a type; pydantic's ValidationError is one.
    """
    merged: dict[str, Any] = {**lane}
    nested = lane.get("resources")
    if isinstance(nested, Mapping):
        merged.update(nested)
    values: dict[str, Any] = {}
    for field, spellings in _KEYS.items():
        for spelling in spellings:
            if merged.get(spelling) is not None:
                values[field] = merged[spelling]
                break
    if "host_memory_gb" not in values:
        for key in _MEMORY_MB:
            if merged.get(key) is not None:
                # Slurm's megabyte is 2**20 bytes.
                values["host_memory_gb"] = float(merged[key]) * 2**20 / 1e9
                break
    if "time_limit_hours" not in values:
        for key in _MINUTES:
            if merged.get(key) is not None:
                values["time_limit_hours"] = float(merged[key]) / 60
                break
    gres = merged.get("gres")
    if isinstance(gres, str):
        kind, count = parse_gres(gres)
        if count:
            values.setdefault("gpus_per_host", count)
            if kind is not None:
                values.setdefault("gpu", kind)
    name = merged.get("name")
    values["source"] = f"lane {name}" if name else "lane"
    return Resources.model_validate(values)

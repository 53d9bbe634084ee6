"""Requests and layouts that several tests start from."""

from __future__ import annotations

from typing import Any

from outerloop.planner import PlanReport, parse_request, plan
from outerloop.planner.layout import Layout
from outerloop.planner.shapes import SHAPES

H100_RAILS: dict[str, Any] = {
    "hosts": 8,
    "gpus_per_host": 8,
    "gpu": "H100",
    "inter_host_gbit_per_s": 400,
    "links_per_host": 8,
}


def finetune(model: str = "llama-3.1-8b", **fields: Any) -> dict[str, Any]:
    """The workload table of a transformer fine-tuning."""
    return {"kind": "transformer_finetune", "model": model, **fields}


def planned(workload: dict[str, Any], resources: dict[str, Any], **fields: Any) -> PlanReport:
    """The report for a request given as tables."""
    return plan(parse_request({"workload": workload, "resources": resources, **fields}))


def layout(model: str | None = "llama-3.1-8b", **fields: Any) -> Layout:
    """A layout on one host of 8 GPUs; one GPU and no sharding by default."""
    values: dict[str, Any] = {
        "family": "single_gpu",
        "workers": 1,
        "gpus_per_host": 8,
        "shard": 1,
        "precision": "bf16",
        "optimizer": "adamw",
        "shape": SHAPES[model] if model else None,
        "sequence": 2048,
    }
    return Layout(**(values | fields))

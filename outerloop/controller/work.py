"""From a measure to its work: determinants, facts for the job, and the order that an attempt is given.

Covered: measures of a climb and environment slots. Pure apart from the subset tree that the mirror hashes.
Not covered: which measures are needed (climb), rows and files (plan.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from outerloop.climb import MeasureRequest
from outerloop.compute.protocol import Lane
from outerloop.contract import Benchmark, Contract
from outerloop.controller.request import ClimbRequest, Execution
from outerloop.slots import Determinants

__all__ = [
    "Work",
    "environment_work",
    "execution_order",
    "lane_mapping",
    "launch_order",
    "measure_work",
    "prologue_digest",
]

OUTPUT_CAP_BYTES = 1 << 20
"""Kept of each of stdout and stderr: head and tail."""
ARTIFACT_CAP_BYTES = 256 << 20
"""Kept of declared outputs together."""


@dataclass(frozen=True)
class Work:
    """A slot to be: what determines it, what its job needs to know, what an attempt of it is given."""

    determinants: Determinants
    facts: Mapping[str, Any]
    order: Mapping[str, Any]
    label: str
    kind: str

    @property
    def digest(self) -> str:
        return self.determinants.digest


def lane_mapping(lane: Lane) -> dict[str, Any]:
    """A lane as JSON, for freezing it into a request."""
    return {**asdict(lane), "extra": list(lane.extra)}


def prologue_digest(execution: Execution) -> str:
    """The prologue as a determinant has it, "" for none."""
    return hashlib.sha256(execution.prologue.encode()).hexdigest() if execution.prologue else ""


def execution_order(execution: Execution) -> dict[str, Any]:
    """What of an attempt's order an execution decides, whatever the run's kind."""
    return {
        "lane": execution.lane,
        "prologue": execution.prologue,
        "cache_seed": execution.cache_seed,
        "isolation": execution.isolation,
        "image_path": execution.image_path,
        "image_digest": execution.image_digest,
    }


def launch_order(
    execution: Execution,
    *,
    minutes: float,
    cpus: int,
    memory_mb: int | None,
    gpus: int,
    nodes: int,
    resumable: bool,
    grace_seconds: float,
) -> dict[str, Any]:
    """The order of a launch that says its figures itself; `grace_seconds`: from the signal that stops it to the end."""
    return {
        **execution_order(execution),
        "minutes": minutes,
        "cpus": cpus,
        "memory_mb": memory_mb,
        "gpus": gpus,
        "nodes": nodes,
        "resumable": resumable,
        "score": False,
        "term_grace_seconds": grace_seconds,
    }


def _order(benchmark: Benchmark, execution: Execution) -> dict[str, Any]:
    return {
        **execution_order(execution),
        "minutes": float(benchmark.minutes),
        "cpus": benchmark.cpus,
        "memory_mb": benchmark.memory_mb,
        "gpus": benchmark.gpus,
        "nodes": benchmark.nodes,
        "resumable": benchmark.resumable,
        "score": bool(benchmark.score),
        "pack": 1 if benchmark.resumable else benchmark.pack,
        "colocate": benchmark.colocate,
    }


def measure_work(
    request: ClimbRequest,
    contract: Contract,
    measure: MeasureRequest,
    *,
    base_tree: str,
    mirror: str,
    environment: Work | None,
    environment_slot: str,
) -> Work:
    """The work of one measure. `seed` 0 injects nothing; a seeded benchmark without a seed is our own error."""
    benchmark = contract.benchmark(measure.benchmark)
    execution = request.execution[measure.benchmark]
    env = dict(benchmark.env)
    if benchmark.seed_env:
        if measure.seed < 1:
            raise ValueError(f"{measure.role}: {benchmark.seed_env} is declared, but no seed was drawn")
        env[benchmark.seed_env] = str(measure.seed)
    tree = base_tree if measure.side == "base" else request.candidate_tree
    determinants = Determinants(
        tree=tree,
        command=benchmark.command,
        metric=benchmark.metric,
        guards=tuple(guard.metric for guard in benchmark.guards),
        score=benchmark.score,
        score_tree=base_tree if benchmark.score else "",
        outputs=tuple(benchmark.outputs),
        env=env,
        image=execution.image_digest,
        environment=environment.digest if environment else "",
        prologue=prologue_digest(execution),
        network=benchmark.network,
        cpus=benchmark.cpus,
        memory_mb=benchmark.memory_mb or 0,
        gpus=benchmark.gpus,
        gpu_type=benchmark.gpu_type or execution.gpu_type,
        nodes=benchmark.nodes,
        inputs=tuple((item.path, item.digest) for item in execution.inputs),
        replicate=measure.replicate,
        items=benchmark.parsed_rule().ladder,
    )
    facts = {
        "kind": "measure",
        "mirror": mirror,
        "base_tree": base_tree,
        "label": measure.benchmark,
        "resumable": benchmark.resumable,
        "network": benchmark.network,
        "input_files": [item.model_dump() for item in execution.inputs],
        "environment_slot": environment_slot,
        "output_cap_bytes": OUTPUT_CAP_BYTES,
        "artifact_cap_bytes": ARTIFACT_CAP_BYTES,
    }
    return Work(determinants, facts, _order(benchmark, execution), measure.benchmark, "measure")


def environment_work(
    request: ClimbRequest, contract: Contract, benchmark_name: str, *, files_tree: str, mirror: str
) -> Work:
    """The slot that builds the environment for trees whose declared files have this content."""
    spec = contract.environment
    assert spec is not None, "only called for contracts with an environment"
    benchmark = contract.benchmark(benchmark_name)
    execution = request.execution[benchmark_name]
    determinants = Determinants(
        tree=files_tree,
        command=spec.setup,
        kind="environment",
        image=execution.image_digest,
        platform=request.platform,
        prologue=prologue_digest(execution),
        network=True,
    )
    facts = {
        "kind": "environment",
        "mirror": mirror,
        "base_tree": files_tree,
        "label": "environment",
        "resumable": False,
        "network": True,
        "input_files": [],
        "environment_slot": "",
        "output_cap_bytes": OUTPUT_CAP_BYTES,
        "artifact_cap_bytes": ARTIFACT_CAP_BYTES,
    }
    order = _order(benchmark, execution) | {
        "minutes": ENVIRONMENT_MINUTES,
        "cpus": 1,
        "gpus": 0,
        "nodes": 1,
        "score": False,
        "resumable": False,
        "pack": 1,
        "colocate": False,
    }
    return Work(determinants, facts, order, "environment", "environment")


ENVIRONMENT_MINUTES = 60.0
"""Limit of a setup command; the contract has no key for it."""

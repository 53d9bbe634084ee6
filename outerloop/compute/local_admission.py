"""May a local job start now, and on which GPUs? What Slurm decides on a cluster, for one machine.

Covered: the decision, from values alone: what this machine never has, memory free on each GPU, reservations per GPU,
processes against the limit of the control group. Not covered: reading them (local_machine.py), waiting and holding
tokens (local_job.py, local_spool.py), and host memory, which is stated and not enforced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outerloop.compute.reasons import LOCAL_WAIT

__all__ = ["FREE_LANE", "Asked", "Gpu", "Machine", "Start", "Wait", "admit", "beyond"]

FREE_LANE = "wake"
"""Jobs of this lane take no CPU of the others: a wake must not wait behind measures."""
MIB_PER_GIB = 1024.0


def beyond(*, cpus: int, gpus: int, nodes: int, have_cpus: int | None, have_gpus: int) -> str:
    """Why a job can never run on one machine whose jobs may use so many CPUs and GPUs together, or "". `have_cpus` is
    None for a job that takes no CPU of theirs."""
    problems = [
        f"the job wants {wanted} {kind}, local jobs may use {there} together"
        for kind, wanted, there in (("CPUs", cpus, have_cpus), ("GPUs", gpus, have_gpus))
        if there is not None and wanted > there
    ]
    problems += [f"the job wants {nodes} nodes, this is one machine"] if nodes > 1 else []
    return "; ".join(problems)


@dataclass(frozen=True)
class Gpu:
    """One GPU as nvidia-smi shows it, memory in MiB. `foreign` is held by processes of no local job."""

    total: float
    free: float
    foreign: float = 0.0


@dataclass(frozen=True)
class Machine:
    """What was read of the machine. None: nobody could tell, and nothing is asked of it then.

    `gpus` maps the index of a GPU to its figures; one without figures (MIG) is missing. `trouble` says why GPUs that
    should answer do not. `processes` and `limit` are those of the tightest control group; `unborn` is how many
    processes the running local jobs may still start.
    """

    gpus: dict[int, Gpu] | None = None
    trouble: str = ""
    processes: int | None = None
    limit: int | None = None
    unborn: int = 0


@dataclass(frozen=True)
class Asked:
    """What one job asks for: GPUs, memory in GiB that must be free on each of them, and processes."""

    gpus: int = 0
    gpu_memory_gb: float = 0.0
    processes: int = 0


@dataclass(frozen=True)
class Start:
    """It may start, on these GPUs."""

    devices: tuple[int, ...] = ()


@dataclass(frozen=True)
class Wait:
    """It waits. `reason` is for people; one word of Slurm's where a token is all that is missing."""

    reason: str


def admit(asked: Asked, machine: Machine, held: Sequence[int], share: int, running: int) -> Start | Wait:
    """Whether a job may start, and on which GPUs: those with most memory left, the lower index first among equals.

    `held` is how many local jobs hold each GPU, `share` how many may; `running` is the number of running local jobs.
    A GPU's memory is enough when both what is free, and what its reservations and strangers leave, are: a job
    that began a moment ago has reserved what it will use and uses none yet. The first job of all starts whatever
    the number of processes, since nothing of ours would end to make room.
    """
    if asked.processes and running and machine.limit is not None and machine.processes is not None:
        will_be = machine.processes + machine.unborn + asked.processes
        if will_be > machine.limit:
            return Wait(
                f"{LOCAL_WAIT}{machine.processes} of {machine.limit} processes run"
                + (f", {machine.unborn} more are reserved" if machine.unborn else "")
                + f", {asked.processes} asked"
            )
    if not asked.gpus:
        return Start()
    open_devices = [device for device, jobs in enumerate(held) if jobs < share]
    if len(open_devices) < asked.gpus:
        return Wait("Resources")
    if not asked.gpu_memory_gb or (machine.gpus is None and not machine.trouble):
        return Start(tuple(sorted(open_devices, key=lambda device: (held[device], device))[: asked.gpus]))
    if machine.gpus is None:
        return Wait(f"{LOCAL_WAIT}{machine.trouble}")
    left = {device: _left(machine.gpus.get(device), held[device], asked.gpu_memory_gb) for device in open_devices}
    best = sorted(open_devices, key=lambda device: (-left[device], device))
    chosen = best[: asked.gpus]
    short = chosen[-1]
    if left[short] < asked.gpu_memory_gb:
        return Wait(f"{LOCAL_WAIT}{max(0.0, left[short]):.1f} GiB free on GPU {short}, {asked.gpu_memory_gb:g} asked")
    return Start(tuple(sorted(chosen)))


def _left(gpu: Gpu | None, jobs: int, each: float) -> float:
    """GiB that a GPU has for one more job; infinite for one that has no figures."""
    if gpu is None:
        return float("inf")
    unreserved = (gpu.total - gpu.foreign) / MIB_PER_GIB - jobs * each
    return min(gpu.free / MIB_PER_GIB, unreserved)

"""How this site wants to be asked: GPUs and memory; tried with sbatch --test-only.

Covered: every lane as it is set, the other spellings where it is refused. Submits nothing. Not covered: account, QOS
and reservation (access.py), what a node sees (job.py), writing what was found (profile.py).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from outerloop.compute.argv import gpu_options
from outerloop.compute.names import job_name
from outerloop.compute.protocol import JobSpec, Lane, Unknown
from outerloop.compute.slurm import SlurmCli
from outerloop.compute.slurm_api import SlurmApi
from outerloop.controller.doctor.access import access, admitted, said
from outerloop.controller.doctor.cluster import has_gpus
from outerloop.controller.doctor.finding import FAIL, OK, WARN, Finding, Site

__all__ = ["command_line", "spellings", "submit_caps"]

TRIED_MINUTES = 1.0
TRIED_MEMORY_MB = 64
GPU_FLAGS: tuple[Literal["gpus-per-node", "gres", "gpus", "none"], ...] = ("gpus-per-node", "gres", "gpus", "none")
MEMORY_FLAGS: tuple[Literal["mem", "mem-per-cpu", "none"], ...] = ("mem", "mem-per-cpu", "none")


def command_line(site: Site) -> SlurmCli | None:
    """The command line behind the site's backend; None where there is none."""
    if isinstance(site.compute, SlurmApi):
        return site.compute.command_line
    return site.compute if isinstance(site.compute, SlurmCli) else None


def spellings(site: Site) -> Iterator[Finding]:
    """A finding for each lane whose spelling is refused, with the one that is taken; one for all the others."""
    cli = command_line(site)
    if cli is None or site.limits is None:
        return
    with tempfile.TemporaryDirectory(prefix="outerloop-doctor-") as folder:
        script = Path(folder) / "true.sh"
        script.write_text("#!/bin/sh\ntrue\n")
        well = []
        for name, lane in site.settings.lanes.items():
            if lane.partition and not set(lane.partition.split(",")) & set(site.limits.partitions):
                continue  # `lanes` has said so
            found = list(_lane(site, cli, name, _job(site, script, site.settings.lane(name))))
            if not found:
                well.append(name)
            yield from found
    if well:
        yield Finding("spelling", OK, f"sbatch takes a job, memory and GPUs as lanes {', '.join(well)} spell them")


def _job(site: Site, script: Path, lane: Lane) -> JobSpec:
    return JobSpec(
        name=job_name(site.settings.deployment, "doctor", "spelling", 1, template=site.settings.slurm.job_name),
        script=script,
        log=script.with_suffix(".log"),
        workdir=script.parent,
        lane=lane,
        minutes=TRIED_MINUTES if lane.max_minutes is None else min(TRIED_MINUTES, lane.max_minutes),
    )


def _lane(site: Site, cli: SlurmCli, name: str, job: JobSpec) -> Iterator[Finding]:
    partition = job.lane.partition or _default_partition(site)
    facts = site.limits.partitions.get(partition, {}) if site.limits else {}
    taken, found = admitted(site, cli, name, job, facts)
    yield from found
    if taken is None:
        return
    job = taken
    with_memory = replace(job, memory_mb=TRIED_MEMORY_MB)
    yield from _choose(
        site,
        cli,
        name,
        "memory_flag",
        [(flag, replace(with_memory, lane=replace(job.lane, memory_flag=flag))) for flag in MEMORY_FLAGS],
    )
    if name == "gpu" or has_gpus(site, partition, facts):
        yield from _choose(
            site,
            cli,
            name,
            "gpu_flag",
            [(flag, replace(job, gpus=1, lane=replace(job.lane, gpu_flag=flag))) for flag in GPU_FLAGS],
        )


def _choose(
    site: Site, cli: SlurmCli, name: str, setting: str, candidates: Sequence[tuple[str, JobSpec]]
) -> Iterator[Finding]:
    """Try what is set, and then the others, until one is taken. Nothing to say when that is the first."""
    now = getattr(site.settings.lanes[name], setting)
    tried: list[str] = []
    for flag, job in sorted(candidates, key=lambda candidate: candidate[0] != now):
        outcome = cli.try_out(job)
        tried.append(f"{_spelled(setting, job)}: {'taken' if outcome is None else said(outcome)}")
        if isinstance(outcome, Unknown):
            yield Finding(f"lane {name}", WARN, f"{setting} could not be tried: {outcome.why}", cluster=True)
            return
        if outcome is None:
            site.propose(("lanes", name, setting), flag, "\n".join(tried))
            if flag != now:
                yield Finding(
                    f"lane {name}",
                    FAIL,
                    f'{setting} = "{now}" is refused, "{flag}" is taken ({"; ".join(tried)})',
                    f'set lanes.{name}.{setting} = "{flag}", or let `outerloop doctor --write` do it',
                )
            return
    yield Finding(f"lane {name}", FAIL, f"no {setting} is taken: {'; '.join(tried)}", f"set lanes.{name}.partition")


def _spelled(setting: str, job: JobSpec) -> str:
    if setting == "gpu_flag":
        return " ".join(gpu_options(job.lane, job.gpus, job.nodes)) or "no GPU option"
    flag = job.lane.memory_flag
    return "no memory option" if flag == "none" else f"--{flag}={job.memory_mb}M"


def _default_partition(site: Site) -> str:
    partitions = site.limits.partitions if site.limits is not None else {}
    return next((name for name, facts in partitions.items() if facts.get("Default") == "YES"), "")


def submit_caps(site: Site) -> Iterator[Finding]:
    """This user's accounts, QOS and reservations, and how many jobs may be in the queue, where the site says so."""
    cli = command_line(site)
    if cli is not None and site.limits is not None:
        yield from access(site, cli)

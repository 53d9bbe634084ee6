"""How this site wants to be asked: GPUs, memory, accounts, and how much at once; tried with sbatch --test-only.

Covered: every lane as it is set, the other spellings where it is refused, the account's limits. Submits nothing. Not
covered: what a node sees (job.py), writing what was found (profile.py).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from outerloop.compute.argv import gpu_options
from outerloop.compute.names import job_name
from outerloop.compute.protocol import JobSpec, Lane, Refused, Unknown
from outerloop.compute.slurm import SlurmCli
from outerloop.compute.slurm_api import SlurmApi
from outerloop.compute.tools import clean_environment, run_tool
from outerloop.controller.deployment import account
from outerloop.controller.doctor.cluster import has_gpus
from outerloop.controller.doctor.finding import FAIL, OK, TOOL_SECONDS, WARN, Finding, Site

__all__ = ["command_line", "spellings", "submit_caps"]

TRIED_MINUTES = 1.0
TRIED_MEMORY_MB = 64
GPU_FLAGS: tuple[Literal["gpus-per-node", "gres", "gpus", "none"], ...] = ("gpus-per-node", "gres", "gpus", "none")
MEMORY_FLAGS: tuple[Literal["mem", "mem-per-cpu", "none"], ...] = ("mem", "mem-per-cpu", "none")
_WHERE = {
    "InvalidAccount": "account",
    "InvalidQOS": "qos",
    "InvalidPartition": "partition",
    "PartitionAccess": "partition",
    "InvalidReservation": "reservation",
    "ReservationNotYet": "reservation",
}
"""The lane's setting behind a refusal."""


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
    label = f"lane {name}"
    plain = cli.try_out(job)
    if isinstance(plain, Unknown):
        yield Finding(label, WARN, f"could not be tried: {plain.why}", cluster=True)
        return
    if plain is not None:
        setting = _WHERE.get(plain.reason, "")
        if setting == "account":
            taken, tried = _account_that_is_taken(cli, job)
            if taken:
                site.propose(("lanes", name, "account"), taken, f"without or with another: {_said(plain)}\n{tried}")
                yield Finding(
                    label,
                    FAIL,
                    f"account {job.lane.account or '(none)'} is refused, {taken} is taken",
                    f'set lanes.{name}.account = "{taken}", or let `outerloop doctor --write` do it',
                )
                return
        fix = f"set lanes.{name}.{setting}" if setting else "change the lane as the message says"
        level = WARN if plain.when.value == "later" else FAIL
        yield Finding(label, level, f"a job of one CPU is refused ({plain.reason}): {_said(plain)}", fix)
        return
    with_memory = replace(job, memory_mb=TRIED_MEMORY_MB)
    yield from _choose(
        site,
        cli,
        name,
        "memory_flag",
        [(flag, replace(with_memory, lane=replace(job.lane, memory_flag=flag))) for flag in MEMORY_FLAGS],
    )
    partition = job.lane.partition or _default_partition(site)
    facts = site.limits.partitions.get(partition, {}) if site.limits else {}
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
        tried.append(f"{_spelled(setting, job)}: {'taken' if outcome is None else _said(outcome)}")
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


def _said(outcome: Refused | Unknown) -> str:
    text = outcome.why if isinstance(outcome, Unknown) else outcome.detail or outcome.reason
    lines = [line for line in text.splitlines() if line.strip()]
    # allocation failure: Requested node configuration is not available
    return lines[-1].removeprefix("sbatch: error: ").removeprefix("allocation failure: ") if lines else "refused"


def _default_partition(site: Site) -> str:
    partitions = site.limits.partitions if site.limits is not None else {}
    return next((name for name, facts in partitions.items() if facts.get("Default") == "YES"), "")


def _account_that_is_taken(cli: SlurmCli, job: JobSpec) -> tuple[str, str]:
    """(the first of the user's accounts that a job may run under, how that was found out)."""
    for name in sorted({row[0] for row in _associations(cli) or []}):
        if cli.try_out(replace(job, lane=replace(job.lane, account=name))) is None:
            return name, f"--account={name}: taken"
    return "", ""


def _associations(cli: SlurmCli) -> list[list[str]] | None:
    """Rows (account, most submitted jobs) of this user in accounting; None when it does not say."""
    sacctmgr = cli.tool_beside("sacctmgr")
    if sacctmgr is None:
        return None
    conf = {"SLURM_CONF": str(cli.slurm_conf)} if cli.slurm_conf else {}
    done = run_tool(
        [
            *(str(sacctmgr), "-n", "-P", "show", "associations"),
            *(f"user={account()}", "format=Account,MaxSubmitJobs"),
        ],
        timeout=TOOL_SECONDS,
        env=clean_environment(os.environ, conf),
    )
    return [line.split("|") for line in done.stdout.splitlines() if line.count("|") == 1] if done.succeeded else None


def submit_caps(site: Site) -> Iterator[Finding]:
    """The account's accounts and how many jobs they may have in the queue, where accounting says so."""
    cli = command_line(site)
    if cli is None or site.limits is None or not site.limits.accounting:
        return
    rows = _associations(cli)
    if rows is None:
        yield Finding("accounts", WARN, "sacctmgr does not say which accounts are yours")
        return
    known = sorted({row[0] for row in rows})
    caps = [int(row[1]) for row in rows if row[1].isdecimal()]
    site.propose(("site", "max_submit_jobs"), min(caps) if caps else None, "sacctmgr show associations: MaxSubmitJobs")
    if not known:
        yield Finding("accounts", OK, "accounting knows no account of yours, and jobs are taken without one")
        return
    most = f"at most {min(caps)} jobs in the queue" if caps else "no limit on jobs in the queue"
    yield Finding("accounts", OK, f"{', '.join(known)}: {most}")
    for name, lane in site.settings.lanes.items():
        if lane.account and lane.account not in known:
            yield Finding(
                f"lane {name}",
                WARN,
                f"account {lane.account} is none of yours; there are {', '.join(known)}",
                f"set lanes.{name}.account",
            )

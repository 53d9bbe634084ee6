"""The cluster: its tools, what it limits, whether the lanes fit it, and the sandbox.

Covered: questions to the controller. Not covered: running anything there (job.py).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping

from outerloop.compute.protocol import NoAnswer, SiteLimits
from outerloop.compute.tools import clean_environment, run_tool
from outerloop.compute.walltime import parse_walltime
from outerloop.controller.deployment import open_compute
from outerloop.controller.doctor.finding import FAIL, OK, TOOL_SECONDS, WARN, Finding, Site
from outerloop.controller.doctor.probe import BWRAP_PROBE
from outerloop.controller.site import gpu_partitions

__all__ = ["backend", "has_gpus", "isolation", "lanes"]

OLDEST_SLURM = (22, 5)
SHORT_JOB_AGE_SECONDS = 60
"""Without accounting an ended job must stay listed for longer than a file system lags."""


def backend(site: Site) -> Iterator[Finding]:
    site.compute = open_compute(site.settings, site.root)
    if site.backend == "local":
        local = site.settings.local
        yield Finding(
            "backend", OK, f"local: jobs are processes of this machine ({local.cpus} CPUs, {local.gpus} GPUs)"
        )
        return
    from outerloop.compute.slurm import TOOLS, find_tools

    folder = site.settings.slurm.bin_dir
    found = find_tools(None if folder is None else str(folder))
    missing = [tool for tool in TOOLS if tool not in found]
    where = str(folder) if folder is not None else "PATH"
    if "sbatch" in missing or "squeue" in missing:
        yield Finding(
            "tools", FAIL, f"{', '.join(missing)} not found in {where}", "set slurm.bin_dir in the config", cluster=True
        )
        return
    if folder is None:
        places = sorted({str(path.parent) for path in found.values()})
        level = OK if places == ["/usr/bin"] else WARN
        yield Finding(
            "tools",
            level,
            f"slurm.bin_dir is not set; found in {', '.join(places)}",
            "" if level == OK else f'set slurm.bin_dir = "{places[0]}": cron\'s PATH is another one',
        )
    if missing:
        yield Finding("tools", WARN, f"{', '.join(missing)} not found in {where}")
    elif folder is not None:
        yield Finding("tools", OK, f"{', '.join(TOOLS)} in {folder}")
    limits = site.compute.limits()
    if isinstance(limits, NoAnswer):
        yield Finding(
            "backend",
            FAIL,
            f"the controller gives no answer: {limits.why}",
            "try `scontrol ping`; check slurm.conf in the config",
            cluster=True,
        )
        return
    site.limits = limits
    numbers = tuple(int(part) for part in limits.version.split(".")[:2] if part.isdecimal())
    level = WARN if numbers and numbers < OLDEST_SLURM else OK
    yield Finding(
        "backend",
        level,
        f"Slurm {limits.version} ({limits.cluster}), MaxArraySize {limits.max_array_size},"
        f" MinJobAge {limits.min_job_age_seconds} s, PreemptMode {limits.preempt_mode or 'unknown'}",
        "" if level == OK else "outerloop is tested with 22.05 and newer",
    )
    yield from _timeouts(site, limits)
    if limits.accounting is False:
        short = (limits.min_job_age_seconds or 0) < SHORT_JOB_AGE_SECONDS
        yield Finding(
            "accounting",
            WARN if short else OK,
            "there is no accounting: queue and files have to do",
            f"MinJobAge is short: ask for {SHORT_JOB_AGE_SECONDS} s or more, so that ends are seen" if short else "",
        )
    else:
        yield Finding("accounting", OK, "sacct is asked about jobs that the queue no longer shows")


def _timeouts(site: Site, limits: SiteLimits) -> Iterator[Finding]:
    theirs = limits.message_timeout_seconds or 0
    for name in ("sbatch_timeout_seconds", "query_timeout_seconds"):
        ours = getattr(site.settings.slurm, name)
        if ours <= theirs:
            yield Finding(
                "timeouts",
                WARN,
                f"slurm.{name} = {ours:g} is not above MessageTimeout, {theirs} s: slow answers are cut off",
                f"set slurm.{name} = {theirs * 1.5:g}",
            )


def lanes(site: Site) -> Iterator[Finding]:
    settings = site.settings
    if site.backend != "slurm":
        return
    if "default" not in settings.lanes:
        known = f" (there are {', '.join(settings.lanes)})" if settings.lanes else ""
        yield Finding("lanes", FAIL, f'there is no lane "default"{known}', "add a section [lanes.default]")
    if site.limits is None:
        return
    partitions = site.limits.partitions
    standard = next((name for name, facts in partitions.items() if facts.get("Default") == "YES"), "")
    for name, lane in settings.lanes.items():
        label = f"lane {name}"
        partition = lane.partition or standard
        if not partition:
            yield Finding(
                label, FAIL, "it names no partition and the cluster has no default one", f"set lanes.{name}.partition"
            )
            continue
        facts = partitions.get(partition)
        if facts is None:
            yield Finding(
                label,
                FAIL,
                f"there is no partition {partition}; there are {', '.join(partitions)}",
                f"set lanes.{name}.partition",
            )
            continue
        yield _lane(site, name, label, partition, facts)
    wake_name, _ = settings.wake_lane() if "default" in settings.lanes else ("", None)
    wake = settings.lanes.get(wake_name)
    if wake is not None and wake.max_minutes is not None and settings.wake.minutes > wake.max_minutes:
        yield Finding(
            "wake",
            FAIL,
            f"wake.minutes = {settings.wake.minutes:g} is above the lane's {wake.max_minutes:g}",
            "lower wake.minutes",
        )


def _lane(site: Site, name: str, label: str, partition: str, facts: Mapping[str, str]) -> Finding:
    lane = site.settings.lanes[name]
    try:
        seconds = parse_walltime(facts.get("MaxTime", "UNLIMITED"))
    except ValueError:
        seconds = None
    most = None if seconds is None else seconds / 60
    if facts.get("State", "UP") != "UP":
        return Finding(label, WARN, f"partition {partition} is {facts['State']}", "jobs will pend until it is UP")
    if most is not None and lane.max_minutes is not None and lane.max_minutes > most:
        return Finding(
            label,
            FAIL,
            f"max_minutes = {lane.max_minutes:g}, but {partition} grants {most:g}",
            f"set lanes.{name}.max_minutes = {most:g}",
        )
    if most is not None:
        site.propose(("lanes", name, "max_minutes"), min(most, lane.max_minutes or most), f"MaxTime of {partition}")
    if most is not None and lane.max_minutes is None:
        return Finding(
            label,
            WARN,
            f"{partition} grants at most {most:g} minutes, which the lane does not say",
            f"set lanes.{name}.max_minutes = {most:g}: longer work is then refused when it is submitted",
        )
    if name == "gpu" and lane.gpu_flag != "none" and not has_gpus(site, partition, facts):
        return Finding(
            label, WARN, f"partition {partition} shows no GPUs (TRES {facts['TRES']})", f"set lanes.{name}.partition"
        )
    limit = "no limit" if most is None else f"at most {most:g} minutes"
    return Finding(label, OK, f"partition {partition}, {limit}")


def has_gpus(site: Site, partition: str, facts: Mapping[str, str]) -> bool:
    """Whether a partition has nodes with GPUs, by what the controller or sinfo says."""
    if "gres/gpu" in facts.get("TRES", ""):
        return True
    slurm = site.settings.slurm
    return partition in gpu_partitions(str(slurm.bin_dir or ""), str(slurm.conf or ""))


def isolation(site: Site) -> Iterator[Finding]:
    wanted = {site.settings.isolation, *(lane.isolation for lane in site.settings.lanes.values() if lane.isolation)}
    if "bwrap" in wanted:
        program = shutil.which("bwrap")
        if program is None:
            yield Finding(
                "sandbox",
                FAIL if site.backend == "local" else WARN,
                "bwrap is not installed here",
                "install bubblewrap on every node, or set isolation",
            )
        else:
            done = run_tool([program, *BWRAP_PROBE[1:]], timeout=TOOL_SECONDS, env=clean_environment(os.environ))
            if done.succeeded:
                yield Finding("sandbox", OK, "bwrap makes its namespaces on this host")
            else:
                yield Finding(
                    "sandbox",
                    FAIL if site.backend == "local" else WARN,
                    f"bwrap fails on this host: {done.what_happened()}",
                    "the kernel must allow unprivileged user namespaces; jobs never fall back to none",
                )
    if "apptainer" in wanted:
        program = shutil.which("apptainer")
        yield Finding(
            "sandbox",
            OK if program else WARN,
            f"apptainer {'is ' + program if program else 'is not in PATH here'}",
            "" if program else "it must be on every node of the lanes that use it",
        )

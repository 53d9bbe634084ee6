"""What `outerloop init` can know of this machine: a config's values from Slurm's own answers.

Covered: tools by absolute path, the default and the GPU partition as lanes with their limits. Not covered: accounts,
QOS and prologues, which only people know.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from outerloop.compute.protocol import NoAnswer, SiteLimits
from outerloop.compute.slurm import SlurmCli, find_tools
from outerloop.compute.tools import clean_environment, run_tool
from outerloop.compute.walltime import parse_walltime

__all__ = ["gpu_partitions", "lanes_of", "slurm_values"]

_GPU = re.compile(r"(?:^|,)gpu(?::|$|,)")
"""A GRES named gpu in sinfo's list, such as gpu:a100:4(S:0-1),shard:8."""


def slurm_values(*, conf: str = "", query_timeout: float = 30.0) -> tuple[dict[str, Any], list[str]]:
    """(values for default_config, remarks for people); ({}, []) where sbatch is not in PATH.

    `conf` is a slurm.conf that the tools need to be told (SLURM_CONF).
    """
    tools = find_tools()
    if "sbatch" not in tools or "squeue" not in tools:
        return {}, []
    remarks = []
    slurm: dict[str, Any] = {}
    folders = {path.parent for name, path in tools.items() if name in {"sbatch", "squeue"}}
    if len(folders) == 1:
        slurm["bin_dir"] = str(folders.pop())
    else:
        remarks.append(
            f"Slurm's tools are in several folders ({', '.join(map(str, sorted(folders)))}): set slurm.bin_dir"
        )
    if conf:
        slurm["conf"] = str(Path(conf).absolute())
    answer = SlurmCli(
        tools=tools, slurm_conf=Path(slurm["conf"]) if conf else None, query_timeout=query_timeout, environ=os.environ
    ).limits()
    values: dict[str, Any] = {"slurm": slurm}
    if isinstance(answer, NoAnswer):
        remarks.append(
            f"Slurm gave no answer ({answer.why}), so the lanes are still to be written;"
            " `--backend local --force` uses this machine instead"
        )
        values["lanes"] = {"default": {}}
        return values, remarks
    values["lanes"] = lanes_of(answer, gpu_partitions(slurm.get("bin_dir", ""), slurm.get("conf", "")))
    if not values["lanes"]:
        remarks.append("Slurm shows no partition that is up: write [lanes.default] yourself")
        values["lanes"] = {"default": {}}
    return values, remarks


def gpu_partitions(bin_dir: str, conf: str, *, timeout: float = 30.0) -> set[str]:
    """Partitions with nodes that have GPUs, by sinfo: `scontrol show partition` counts GPUs only where the site
    accounts for them (AccountingStorageTRES). Empty when sinfo is missing or does not answer."""
    sinfo = shutil.which("sinfo", path=bin_dir or None)
    if sinfo is None:
        return set()
    environment = clean_environment(os.environ, {"SLURM_CONF": conf} if conf else {})
    done = run_tool([str(Path(sinfo).absolute()), "-h", "-a", "-o", "%R|%G"], timeout=timeout, env=environment)
    if not done.succeeded:
        return set()
    rows = (line.partition("|") for line in done.stdout.splitlines())
    return {partition.strip() for partition, _, gres in rows if _GPU.search(gres)}


def lanes_of(limits: SiteLimits, with_gpus: Collection[str] = ()) -> dict[str, dict[str, Any]]:
    """`default` from the cluster's default partition (else the first that is up), `gpu` from one with GPUs: the default
    one if it has some, else the first. `with_gpus` adds to what the partitions' TRES say."""
    up = {name: facts for name, facts in limits.partitions.items() if facts.get("State", "UP") == "UP"}
    lanes: dict[str, dict[str, Any]] = {}
    standard = next((name for name, facts in up.items() if facts.get("Default") == "YES"), next(iter(up), None))
    if standard is not None:
        lanes["default"] = _lane(standard, up[standard])
    gpus = [name for name, facts in up.items() if name in with_gpus or "gres/gpu" in facts.get("TRES", "")]
    if gpus:
        chosen = standard if standard in gpus else gpus[0]
        assert chosen is not None
        lanes["gpu"] = _lane(chosen, up[chosen])
    return lanes


def _lane(partition: str, facts: Mapping[str, str]) -> dict[str, Any]:
    lane: dict[str, Any] = {"partition": partition}
    try:
        seconds = parse_walltime(facts.get("MaxTime", "UNLIMITED"))
    except ValueError:
        seconds = None
    if seconds:
        lane["max_minutes"] = seconds / 60
    return lane

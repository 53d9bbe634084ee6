"""What doctor found of the site, as a profile: proposed, and written only when asked.

Covered: the facts that the controller says, comparing with the settings, the file's text. Not covered: finding out the
rest (spelling.py, job.py), the schema (outerloop.site_profile), writing the file (cli.setup).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from outerloop import __version__
from outerloop.compute.slurm_api import SlurmApi
from outerloop.controller.doctor.finding import OK, WARN, Finding, Site
from outerloop.settings import Settings
from outerloop.site_profile import PROFILE_FILE, profile_text

__all__ = ["differences", "facts", "proposal", "pyslurm", "site_file"]


def facts(site: Site) -> Iterator[Finding]:
    """What the controller itself says, for the profile; `backend` prints most of it."""
    limits = site.limits
    if limits is None:
        return
    shown = "scontrol show config"
    for key, value, source in (
        ("cluster", limits.cluster, "ClusterName"),
        ("slurm", limits.version, "SLURM_VERSION"),
        ("max_array_size", limits.max_array_size, "MaxArraySize"),
        ("min_job_age_seconds", limits.min_job_age_seconds, "MinJobAge"),
        ("preempt_mode", limits.preempt_mode, "PreemptMode"),
        ("accounting", limits.accounting, "AccountingStorageType"),
    ):
        site.propose(("site", key), value, f"{shown}: {source}")
    site.propose(
        ("slurm", "max_script_bytes"), limits.max_script_bytes, f"{shown}: SchedulerParameters max_script_size"
    )
    if limits.max_script_bytes is not None and limits.max_script_bytes < site.settings.slurm.max_script_bytes:
        yield Finding(
            "scripts",
            WARN,
            f"the site takes job scripts of {limits.max_script_bytes} bytes, slurm.max_script_bytes is"
            f" {site.settings.slurm.max_script_bytes}",
            f"set slurm.max_script_bytes = {limits.max_script_bytes}, or let `outerloop doctor --write` do it",
        )
    if limits.accounting is False:
        site.propose(("slurm", "accounting"), "off", f"{shown}: AccountingStorageType is none")


def pyslurm(site: Site) -> Iterator[Finding]:
    """Whether pyslurm is used, and why not."""
    wanted = site.settings.slurm.api
    if not isinstance(site.compute, SlurmApi):
        return
    why_not = site.compute.why_not()
    site.compute.close()
    if not why_not:
        yield Finding("pyslurm", OK, "pyslurm loads and fits the cluster")
    else:
        yield Finding(
            "pyslurm",
            WARN,
            f"pyslurm is not used: {why_not}",
            'set slurm.api = "cli", or build pyslurm for this Slurm' if wanted == "pyslurm" else "",
        )


def proposal(site: Site) -> dict[str, Any]:
    """The profile as nested tables, without what was not found out."""
    whole: dict[str, Any] = {}
    for path, value in site.proposed.items():
        if value is None or value == "" or value == ():
            continue
        here = whole
        for part in path[:-1]:
            here = here.setdefault(part, {})
        here[path[-1]] = value
    return whole


def differences(site: Site, settings: Settings | None = None) -> dict[str, tuple[Any, Any]]:
    """Dotted setting -> (what is set, what the site takes), for settings that the profile would change. `settings` are
    others than those that were examined."""
    found: dict[str, tuple[Any, Any]] = {}
    for path, value in site.proposed.items():
        if path[0] == "site" or value is None:
            continue
        here: Any = settings or site.settings
        for part in path:
            here = here.get(part) if isinstance(here, Mapping) else getattr(here, part, None)
        # "auto" finds out by itself; the profile only saves the question
        if here not in (value, "auto"):
            found[".".join(path)] = (here, value)
    return found


def site_file(site: Site) -> tuple[Path, str]:
    """Where the profile belongs, beside the config, and its text."""
    head = (
        f"Site profile, written by `outerloop doctor --write` (outerloop {__version__}) on {os.uname().nodename}.\n"
        "It lies below config.toml, which wins; above each line stands what was tried."
    )
    return site.config.parent / PROFILE_FILE, profile_text(proposal(site), site.tried, head)

"""The crontab line, whether cron would succeed with it, and what a personal deployment can promise.

Covered: the line itself, the crontab of this host, a tick under cron"s environment. Not covered: changing a crontab.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from outerloop.compute.tools import clean_environment, run_tool
from outerloop.controller.deployment import account
from outerloop.controller.doctor.finding import FAIL, OK, TOOL_SECONDS, WARN, Finding, Site
from outerloop.settings import Settings, effective_backend

if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = ["cron_environment", "crontab_line", "promise", "tick_command", "tick_line", "what_counts"]


def crontab_line(settings: Settings, config: Path | None) -> str:
    """The line of a crontab that runs the tick: absolute, quiet, with the config named. `%` is cron's newline."""
    import shlex

    minutes = max(1, round(settings.wake.cadence_seconds / 60))
    when = f"*/{minutes} * * * *" if minutes < 60 else f"0 */{min(23, minutes // 60)} * * *"
    return f"{when} {tick_command(settings, config, shlex.quote)}".replace("%", "\\%")


def tick_command(settings: Settings, config: Path | None, quote: Callable[[str], str]) -> str:
    """What the line runs."""
    named = f"OUTERLOOP_CONFIG={quote(str(config))} " if config is not None else ""
    return f"{named}{quote(settings.python)} -I -m outerloop.cli tick --quiet"


def tick_line(site: Site) -> Iterator[Finding]:
    """Whether the crontab of this host has a tick; other ways to run it are as good."""
    program = shutil.which("crontab")
    if program is None:
        yield Finding(
            "cron", WARN, "there is no crontab here", "run `outerloop tick --loop 300` on a login node instead"
        )
        return
    done = run_tool([program, "-l"], timeout=TOOL_SECONDS, env=clean_environment(os.environ))
    lines = [line for line in done.stdout.splitlines() if not line.lstrip().startswith("#")]
    if any("outerloop" in line and "tick" in line for line in lines):
        yield Finding("cron", OK, "the crontab of this host runs the tick; --cron tries it as cron would")
    else:
        yield Finding("cron", WARN, "the crontab of this host has no tick", "`outerloop cron` prints the line to add")


def what_counts(settings: Settings) -> dict[str, str]:
    """The settings that must be the same for a person and for cron; the database without its password."""
    from sqlalchemy import make_url

    url = settings.database_url.get_secret_value()
    return {
        "state": str(settings.state),
        "backend": effective_backend(settings),
        "deployment": settings.deployment,
        "python": settings.python,
        "database": make_url(url).render_as_string(hide_password=True) if url else "embedded",
        "slurm.bin_dir": str(settings.slurm.bin_dir or ""),
        "slurm.conf": str(settings.slurm.conf or ""),
    }


def cron_environment(site: Site) -> Iterator[Finding]:
    """Let doctor look again as cron would start it: nothing in the environment but what cron sets (crontab(5))."""
    import pwd
    import shlex

    config = site.config if site.config.is_file() else None
    try:
        home = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        home = os.environ.get("HOME", "/")
    command = tick_command(site.settings, config, shlex.quote).replace("tick --quiet", "doctor --no-job --json")
    done = run_tool(
        ["/bin/sh", "-c", command],
        timeout=TOOL_SECONDS * 4,
        env={"HOME": home, "LOGNAME": account(), "USER": account(), "SHELL": "/bin/sh", "PATH": "/usr/bin:/bin"},
        cwd=Path(home) if Path(home).is_dir() else Path("/"),
    )
    try:
        told = json.loads(done.stdout)
        findings, theirs = told["findings"], told["settings"]
    except (ValueError, KeyError, TypeError):
        said = done.stderr.strip().splitlines()
        why = said[-1] if said else done.what_happened()
        yield Finding(
            "cron", FAIL, f"outerloop does not run with cron's environment: {why}", "set `python` in the config"
        )
        return
    ours = what_counts(site.settings)
    differing = [name for name in ours if theirs is not None and theirs.get(name) != ours[name]]
    for name in differing:
        yield Finding(
            "cron",
            FAIL,
            f"{name} is {ours[name] or 'unset'} here and {theirs.get(name) or 'unset'} under cron: this shell's"
            " environment says so, which cron does not have",
            f"write {name} into {site.config}",
        )
    failed = [finding for finding in findings if finding["level"] == FAIL]
    for finding in failed:
        yield Finding(
            "cron",
            FAIL,
            f"under cron, {finding['name']}: {finding['sentence']}",
            finding["fix"],
            cluster=bool(finding["cluster"]),
        )
    if not differing and not failed:
        yield Finding(
            "cron", OK, f"cron's environment finds the same settings, record and tools ({done.seconds:.1f} s)"
        )


def promise(site: Site) -> Iterator[Finding]:
    """What a personal deployment can't seal."""
    wanted = site.settings.isolation
    if wanted == "none":
        yield Finding(
            "sealing",
            WARN,
            "isolation is none: a candidate runs as your account and could change slots and"
            " record; verdicts are marked unsandboxed",
            'set isolation = "bwrap" for code that is not your own',
        )
    else:
        yield Finding(
            "sealing",
            OK,
            f"{wanted}: candidates see their tree and scratch only; what your own account does to"
            " slots and record is not sealed (`outerloop verify` compares them)",
        )
    yield from _held_out(site.root.path / "sealed")


def _held_out(folder: Path) -> Iterator[Finding]:
    """Rows of evaluations on held-out suites, once an entry was submitted."""
    try:
        mode = stat.S_IMODE(folder.stat().st_mode)
    except OSError:
        return
    if mode & 0o077:
        yield Finding(
            "sealing",
            FAIL,
            f"others may enter {folder} (mode {mode:04o}), which holds what models answered to held-out tasks",
            f"chmod 700 {folder}",
        )
    else:
        yield Finding(
            "sealing",
            OK,
            f"no other account enters {folder}; for your own, that held-out tasks are sealed is a convention",
        )

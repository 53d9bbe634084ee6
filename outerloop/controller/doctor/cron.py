"""The crontab line, whether cron would succeed with it, and what a personal deployment can promise.

Covered: the line itself, the crontab of this host, a tick under cron"s environment. Not covered: changing a crontab.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from outerloop.compute.tools import clean_environment, run_tool
from outerloop.controller.deployment import account
from outerloop.controller.doctor.finding import FAIL, OK, TOOL_SECONDS, WARN, Finding, Site

if TYPE_CHECKING:
    from collections.abc import Callable

    from outerloop.settings import Settings


__all__ = ["cron_environment", "crontab_line", "promise", "tick_command", "tick_line"]


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


def cron_environment(site: Site) -> Iterator[Finding]:
    """Run a tick that changes nothing as cron would: nothing in the environment but what cron sets (crontab(5))."""
    import pwd
    import shlex

    config = site.config if site.config.is_file() else None
    try:
        home = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        home = os.environ.get("HOME", "/")
    command = tick_command(site.settings, config, shlex.quote).replace("--quiet", "--dry-run --json")
    done = run_tool(
        ["/bin/sh", "-c", command],
        timeout=TOOL_SECONDS * 4,
        env={"HOME": home, "LOGNAME": account(), "USER": account(), "SHELL": "/bin/sh", "PATH": "/usr/bin:/bin"},
        cwd=Path(home) if Path(home).is_dir() else Path("/"),
    )
    if done.succeeded:
        yield Finding(
            "cron", OK, f"a tick with cron's environment finds settings, record and queue ({done.seconds:.1f} s)"
        )
    else:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        yield Finding(
            "cron",
            FAIL,
            f"a tick with cron's environment fails: {said[-1] if said else done.what_happened()}",
            "set absolute paths in the config: slurm.bin_dir, slurm.conf, python",
            cluster=done.rc == 5,
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

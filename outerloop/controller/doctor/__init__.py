"""Does this site fit the settings? One finding a line, each with what to change.

Covered: settings, interpreter, state folder, record, tools and limits of the cluster, lanes, sandbox, a real job, what
cron finds, what a personal deployment can promise, and the site's profile. Changes nothing but the profile, and that
only when asked: the files it tries itself with are removed again.
`examine` may be imported from here; each check is in the file of its subject. Not covered: wording for terminals
(cli.setup), repairing anything.
"""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from outerloop.controller.doctor.cluster import backend, isolation, lanes
from outerloop.controller.doctor.cron import cron_environment, crontab_line, promise, tick_line, what_counts
from outerloop.controller.doctor.database import record
from outerloop.controller.doctor.finding import FAIL, OK, WARN, Check, Finding, Site
from outerloop.controller.doctor.host import git, python, state
from outerloop.controller.doctor.job import node_job
from outerloop.controller.doctor.profile import differences, facts, proposal, pyslurm, site_file
from outerloop.controller.doctor.service import service
from outerloop.controller.doctor.spelling import spellings, submit_caps
from outerloop.settings import Settings, SettingsError, effective_backend
from outerloop.slots import StateRoot

__all__ = [
    "FAIL",
    "OK",
    "WARN",
    "Finding",
    "Site",
    "crontab_line",
    "differences",
    "examine",
    "proposal",
    "site_file",
    "what_counts",
]


def examine(
    config: Path, *, job: bool, cron: bool, probe_seconds: float, keep: list[Site] | None = None
) -> Iterator[Finding]:
    """Every finding, as it is made. `config` is the file that the settings are read from. `keep` gets what was found
    of the site, for `proposal`, `differences` and `site_file`."""
    try:
        settings = Settings.load()
    except SettingsError as error:
        yield Finding("config", FAIL, str(error), f"edit {config}")
        return
    if config.is_file():
        yield Finding("config", OK, f"{config}")
    else:
        yield Finding("config", WARN, f"{config} does not exist, so the defaults hold", "run `outerloop init`")
    site = Site(settings, config, StateRoot(settings.state), effective_backend(settings), probe_seconds=probe_seconds)
    if keep is not None:
        keep.append(site)
    checks: list[Check] = [
        *(python, git, state, record, backend, facts, pyslurm, lanes, spellings, submit_caps, isolation)
    ]
    if job:
        checks.append(node_job)
    checks.append(cron_environment if cron else tick_line)
    checks.append(promise)
    checks.append(service)
    for check in checks:
        try:
            yield from check(site)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            yield Finding(check.__name__.replace("_", " "), FAIL, *_told(error, settings))


def _told(error: Exception, settings: Settings) -> tuple[str, str]:
    """What kept a check from its end, and what to do about it."""
    if not isinstance(error, OSError) or error.strerror is None:
        return f"{type(error).__name__}: {error}", ""
    sentence = f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror
    if error.errno in _NO_ACCESS and error.filename is not None:
        inside = Path(os.fsdecode(error.filename)).is_relative_to(settings.state)
        who = "let this account write to the state folder, or set `state` to one of its own" if inside else ""
        return sentence, who or "let this account read and write there"
    return sentence, ""


_NO_ACCESS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})

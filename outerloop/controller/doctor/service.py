"""A service deployment: who may submit, and whether what is promised to submitters can be kept."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

from outerloop.controller.doctor.finding import FAIL, OK, WARN, Finding, Site

__all__ = ["service"]


def service(site: Site) -> Iterator[Finding]:
    """Nothing in a personal deployment."""
    settings = site.settings
    if settings.mode == "personal":
        return
    from outerloop.controller.service.client import NoService, client_of
    from outerloop.controller.service.intake import spool_of

    try:
        client = client_of(settings)
    except NoService as error:
        yield Finding("service", FAIL, str(error), "ask the service's operator, or set service.spool")
        return
    if client is not None:
        yield from _submitter(client)
        return
    spool = spool_of(settings)
    problems = spool.problems()
    for problem in problems:
        yield Finding("spool", FAIL, problem, "as the service's account: outerloop init --service makes it")
    if not problems:
        yield Finding("spool", OK, f"{spool.path}: others may leave submissions and see no one else's")
    yield from _sealed(site.root.path)
    if settings.isolation == "none":
        yield Finding(
            "service",
            FAIL,
            "isolation is none: what others submit would run as the service's account, and is refused",
            'set isolation = "bwrap" or "apptainer"',
        )
    yield from _accounts(settings.service.submitters)
    yield from _targets(site)


def _submitter(client: object) -> Iterator[Finding]:
    from outerloop.controller.service.client import Client, NoService

    assert isinstance(client, Client)
    try:
        public = client.public()
    except NoService as error:
        yield Finding("service", FAIL, str(error), "wait for its tick, or ask its operator")
        return
    names = ", ".join(sorted(public.get("targets") or {})) or "no target yet"
    if not os.access(client.spool.incoming, os.W_OK | os.X_OK):
        yield Finding("service", FAIL, f"{client.spool.incoming} can't be written", "ask the service's operator")
    else:
        yield Finding("service", OK, f"submitting to the account {client.service}: {names}")


def _sealed(state: Path) -> Iterator[Finding]:
    try:
        mode = stat.S_IMODE(state.stat().st_mode)
    except OSError:
        return
    if mode & 0o077:
        yield Finding(
            "sealing",
            FAIL,
            f"other accounts may enter {state} (mode {mode:04o}): nothing can be withheld from submitters",
            f"chmod 700 {state}",
        )
    else:
        yield Finding("sealing", OK, f"no other account enters {state}: submitters know what the spool tells them")


def _accounts(names: tuple[str, ...]) -> Iterator[Finding]:
    if not names:
        yield Finding("submitters", WARN, "nobody may submit yet", "set service.submitters")
        return
    unknown = []
    for name in names:
        if name == "*" or name.startswith("uid-"):
            continue
        try:
            pwd.getpwnam(name)
        except KeyError:
            unknown.append(name)
    if unknown:
        yield Finding("submitters", WARN, f"no such account here: {', '.join(unknown)}", "correct service.submitters")
    else:
        yield Finding("submitters", OK, f"may submit: {', '.join(names)}")


def _targets(site: Site) -> Iterator[Finding]:
    from outerloop.controller.git import GitError, Repository

    targets = site.settings.service.targets
    if not targets:
        yield Finding("targets", WARN, "no target is registered, so nothing can be asked", "set [service.targets.NAME]")
    for name, target in sorted(targets.items()):
        try:
            repo = Repository.open(target.repository)
            for ref in target.refs:
                repo.commit(ref)
        except GitError as error:
            yield Finding("targets", FAIL, f"{name}: {error}", f"correct service.targets.{name}")
            continue
        mode = target.repository.stat().st_mode
        if mode & (stat.S_IWGRP | stat.S_IWOTH):
            yield Finding(
                "targets",
                FAIL,
                f"{name}: others may write to {target.repository}, where contract and base are read",
                f"chmod -R go-w {target.repository}",
            )
        else:
            yield Finding("targets", OK, f"{name}: {target.repository}, refs {', '.join(target.refs)}")

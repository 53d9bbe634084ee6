"""Materialising a git tree from the bare mirror without touching the mirror.

Covered: a private index, a scrubbed git environment, refusal of whatever git would fetch or run on the side.
Not covered: submodules and LFS pointers, which are refused when a candidate is submitted.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from outerloop.job import process

TRIES = 2
TRY_AGAIN_SECONDS = 1.0
"""Objects that were pushed just before the job started may be invisible to this node for a moment (NFS)."""


class CheckoutError(Exception):
    """The tree could not be materialised; the message is git's."""


def find_program(name: str, path: str) -> str:
    """The absolute path of a program on `path`, or an empty text."""
    for folder in path.split(os.pathsep):
        candidate = os.path.join(folder, name)
        if os.path.isabs(folder) and os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    return ""


def git_environment(env: Mapping[str, str], home: str, index: str) -> dict[str, str]:
    """Variables for git: none of the caller's, except what the dynamic linker and the search for programs need."""
    kept = {name: env[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in env}
    return {
        **kept,
        "HOME": home,
        "XDG_CONFIG_HOME": home,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_INDEX_FILE": index,
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C.UTF-8",
    }


def prepare_home(home: str, mirror: str) -> None:
    """Write the only git configuration that is read: the mirror may belong to another account."""
    # safe.directory counts only in the system's and the user's file, in git versions before 2.38 not even with -c.
    quoted = mirror.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    with open(os.path.join(home, ".gitconfig"), "w", encoding="utf-8") as file:
        file.write(f'[safe]\n\tdirectory = "{quoted}"\n')


def commands(git: str, mirror: str, tree: str, destination: str) -> list[list[str]]:
    """The two git commands, to be run in `destination`. Attributes and line ends are honoured as in any checkout."""
    base = [git, f"--git-dir={mirror}", f"--work-tree={destination}", "-c", "core.bare=false", "-c", "core.fsmonitor="]
    return [[*base, "read-tree", tree], [*base, "checkout-index", "--all", "--force", "--quiet"]]


def checkout(
    mirror: str,
    tree: str,
    destination: str,
    home: str,
    env: Mapping[str, str],
    signals: process.Signals,
) -> None:
    """Fill the empty folder `destination` with `tree`. Raises CheckoutError, or OSError (git cannot be started)."""
    git = find_program("git", env.get("PATH", os.defpath))
    if not git:
        raise CheckoutError("there is no git on this node's PATH; add it in the lane's prologue")
    prepare_home(home, mirror)
    scrubbed = git_environment(env, home, os.path.join(home, "index"))
    for command in commands(git, mirror, tree, destination):
        said = b""
        for attempt in range(TRIES):
            ended, said = _run(command, scrubbed, destination, signals)
            if ended.exit_code == 0 or signals.stop is not None:
                break
            if attempt + 1 < TRIES:
                process.wait(TRY_AGAIN_SECONDS, signals)
        if ended.exit_code != 0:
            words = said.decode("utf-8", "replace").strip().splitlines()
            raise CheckoutError(words[-1] if words else f"git {command[-1]} ended with {ended.exit_code}")


def _run(
    command: Sequence[str], env: Mapping[str, str], cwd: str, signals: process.Signals
) -> tuple[process.Ended, bytes]:
    said = bytearray()

    def keep(data: bytes) -> None:
        said.extend(data[: max(0, 65536 - len(said))])

    ended = process.run(
        command, env=env, cwd=cwd, signals=signals, stdout=[keep], stderr=[keep], limit_seconds=None, grace_seconds=5.0
    )
    return ended, bytes(said)

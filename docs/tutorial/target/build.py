#!/usr/bin/env python3
"""Build the tutorial's target, a git repository with one branch per candidate.

    python3 docs/tutorial/target/build.py DESTINATION

Covered: `base/` becomes the branch `main`; each folder of `commits/` is laid over it and becomes a branch of its own,
with the folder's `message.txt` as the commit message. The same sources give the same commit ids everywhere: authors,
dates and modes are fixed, and neither the user's git configuration nor HOME is read. Not covered: deleting a file of
`base/` in a candidate, executable files and symlinks. Standard library and git only.
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent

BASE = "base"
COMMITS = "commits"
MESSAGE = "message.txt"
BASE_MESSAGE = "The target as it is"
MAIN = "main"
LEFTOVERS = {"__pycache__", "out", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".DS_Store"}
"""What running a benchmark or a tool in place leaves behind."""

OVERLAY_NAME = re.compile(r"(?P<order>[0-9]+)-(?P<branch>[a-z0-9][a-z0-9-]*)")

IDENTITY = "Ada Tutor <ada@example.org>"
FIRST_COMMIT = 1_767_225_600
"""2026-01-01 00:00 UTC. Each later commit is dated a minute after the one before."""
MINUTE = 60


class BuildError(Exception):
    """The repository could not be built; the message says why."""


def build(destination: Path | str, source: Path | str = HERE) -> dict[str, str]:
    """Create the repository in `destination` and return {branch: commit id}, `main` first.

    `source` holds `base/` and `commits/<order>-<branch>/`. Raises BuildError when `destination` exists and is not an
    empty folder, when a source is malformed, and when git is missing or refuses.
    """
    destination, source = Path(destination), Path(source)
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise BuildError(f"{destination} exists and is not an empty folder")
    stream, branches = import_stream(source)
    destination.mkdir(parents=True, exist_ok=True)
    _git(destination, "init", "--quiet", "--template=", f"--initial-branch={MAIN}", "--object-format=sha1")
    _git(destination, "fast-import", "--quiet", standard_input=stream)
    _git(destination, "reset", "--quiet", "--hard", MAIN)
    return {branch: _git(destination, "rev-parse", f"refs/heads/{branch}").strip() for branch in branches}


def import_stream(source: Path) -> tuple[bytes, list[str]]:
    """What `git fast-import` reads, and the branches in it. Raises BuildError when there is no base or no message."""
    base = _files(source / BASE)
    if not base:
        raise BuildError(f"{source / BASE} holds no file")
    parts = [_commit(MAIN, BASE_MESSAGE, FIRST_COMMIT, base, parent=None)]
    branches = [MAIN]
    for order, (branch, overlay) in enumerate(_overlays(source / COMMITS), 1):
        files = _files(overlay)
        message = files.pop(MESSAGE, None)
        if message is None:
            raise BuildError(f"{overlay} has no {MESSAGE}")
        when = FIRST_COMMIT + order * MINUTE
        parts.append(_commit(branch, message.decode().strip(), when, files, parent=MAIN))
        branches.append(branch)
    return b"".join(parts), branches


def _overlays(folder: Path) -> list[tuple[str, Path]]:
    """(branch, its folder) in the declared order."""
    found: list[tuple[int, str, Path]] = []
    for overlay in folder.iterdir() if folder.is_dir() else ():
        if overlay.name in LEFTOVERS:
            continue
        name = OVERLAY_NAME.fullmatch(overlay.name)
        if name is None or not overlay.is_dir():
            raise BuildError(f"{overlay} is not a folder named ORDER-BRANCH, such as 1-improve")
        found.append((int(name["order"]), name["branch"], overlay))
    return [(branch, overlay) for _, branch, overlay in sorted(found)]


def _files(folder: Path) -> dict[str, bytes]:
    """{path below `folder`, with slashes: content}, sorted, without leftovers."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    relative = [path.relative_to(folder) for path in paths]
    return {
        path.as_posix(): (folder / path).read_bytes() for path in relative if not LEFTOVERS.intersection(path.parts)
    }


def _commit(branch: str, message: str, when: int, files: dict[str, bytes], parent: str | None) -> bytes:
    """One commit in the syntax of git-fast-import(1)."""
    text = f"{message}\n".encode()
    parts = [
        f"commit refs/heads/{branch}\nauthor {IDENTITY} {when} +0000\ncommitter {IDENTITY} {when} +0000\n".encode(),
        b"data %d\n%s\n" % (len(text), text),
    ]
    if parent is not None:
        parts.append(f"from refs/heads/{parent}\n".encode())
    for path, content in files.items():
        parts.append(b"M 100644 inline %s\ndata %d\n%s\n" % (path.encode(), len(content), content))
    return b"".join(parts)


def _git(directory: Path, *arguments: str, standard_input: bytes = b"") -> str:
    """The output of a git command that sees no configuration but the repository's own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "LC_ALL": "C"}
    command = ["git", "-C", str(directory), *arguments]
    try:
        done = subprocess.run(command, input=standard_input, capture_output=True, env=environment, check=False)
    except FileNotFoundError:
        raise BuildError("git is not installed, or not on PATH") from None
    if done.returncode != 0:
        raise BuildError(f"git {arguments[0]} failed: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout.decode()


def main(description: str = "Build the tutorial's target.", source: Path = HERE) -> int:
    """Build where the command line says, print a branch and its commit a line. Returns the exit code."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("destination", type=Path, help="a folder that is empty or does not exist yet")
    try:
        commits = build(parser.parse_args().destination, source)
    except BuildError as error:
        print(f"build: {error}", file=sys.stderr)
        return 1
    for branch, commit in commits.items():
        print(f"{commit} {branch}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

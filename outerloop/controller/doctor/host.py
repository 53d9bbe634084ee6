"""This machine: interpreter, git, and the state folder with its disk.

Covered: what can be seen from here. Not covered: what a node sees (job.py).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from outerloop.compute.tools import clean_environment, run_tool
from outerloop.controller.doctor.finding import FAIL, OK, TOOL_SECONDS, WARN, Finding, Site

__all__ = ["git", "python", "state"]

LOW_DISK_BYTES = 512 << 20
"""As the tick's warning: below this much free space results may be lost."""
NO_DISK_BYTES = 64 << 20
FEW_FILES = 10_000
"""A slot is about a dozen files."""
NODE_LOCAL = ("/tmp", "/var/tmp", "/dev/shm", "/run")
MEMORY_FILE_SYSTEMS = {"tmpfs", "ramfs"}
NETWORK_FILE_SYSTEMS = {"nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "panfs", "fuse.glusterfs", "cifs", "wekafs"}


def python(site: Site) -> Iterator[Finding]:
    from outerloop import __version__

    python = site.settings.python
    done = run_tool(
        [python, "-I", "-c", "import outerloop, sys; print(outerloop.__version__, sys.version.split()[0])"]
        if Path(python).is_absolute()
        else ["/usr/bin/env", python, "-I", "-c", "import outerloop; print(outerloop.__version__)"],
        timeout=TOOL_SECONDS,
        env=clean_environment(os.environ),
    )
    if not done.succeeded:
        yield Finding(
            "python", FAIL, f"{python} does not run outerloop ({done.what_happened()})", "set `python` in the config"
        )
        return
    version = done.stdout.split()[0] if done.stdout.split() else ""
    if version != __version__:
        yield Finding(
            "python",
            FAIL,
            f"{python} has outerloop {version}, this is {__version__}: results would come from another version",
            "set `python` in the config to the interpreter of this installation",
        )
        return
    if not Path(python).is_absolute():
        yield Finding("python", WARN, f"{python} is no absolute path", "nodes and cron may find another interpreter")
        return
    yield Finding("python", OK, f"{python}, outerloop {version}")


def git(site: Site) -> Iterator[Finding]:
    git = shutil.which("git")
    if git is None:
        yield Finding("git", FAIL, "git is not in PATH", "install git; nodes need it too")
        return
    done = run_tool([git, "--version"], timeout=TOOL_SECONDS, env=clean_environment(os.environ))
    if not done.succeeded:
        yield Finding("git", FAIL, f"{git}: {done.what_happened()}")
        return
    yield Finding("git", OK, f"{done.stdout.strip()} ({git})")


def state(site: Site) -> Iterator[Finding]:
    state = site.root.path
    if not state.is_dir():
        parent = next((folder for folder in state.parents if folder.is_dir()), Path("/"))
        if os.access(parent, os.W_OK | os.X_OK):
            yield Finding("state", WARN, f"{state} does not exist yet", "run `outerloop init`, or submit something")
        else:
            yield Finding(
                "state", FAIL, f"{state} does not exist and {parent} is not writable", "set `state` in the config"
            )
    else:
        trouble = _durable(state)
        if trouble:
            yield Finding("state", FAIL, f"{state}: {trouble}", "set `state` to a folder on another file system")
        else:
            yield Finding("state", OK, f"{state} takes files, hard links and fsync")
        if state.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            yield Finding("state", WARN, f"other accounts may write to {state}", f"chmod go-w {state}")
        yield from _space(state)
    yield from _shared(site, state)


def _durable(folder: Path) -> str:
    """Why files can't be published in `folder`; empty when they can. Leaves nothing behind."""
    stem = f".doctor-{os.getpid()}-{secrets.token_hex(4)}"
    first, second = folder / f"{stem}.a", folder / f"{stem}.b"
    step = "writing"
    try:
        handle = os.open(first, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(handle, b"outerloop\n")
            step = "fsync"
            os.fsync(handle)
        finally:
            os.close(handle)
        step = "a hard link"
        os.link(first, second)
        if not first.samefile(second):
            return "a hard link is another file"
        with contextlib.suppress(FileExistsError):
            os.link(first, second)
            return "a hard link replaces an existing file, so nothing can be decided by who links first"
        step = "renaming"
        first.replace(second)
        step = "fsync of the folder"
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        return f"{step} fails: {error.strerror}"
    finally:
        for path in (first, second):
            with contextlib.suppress(OSError):
                path.unlink()
    return ""


def _space(state: Path) -> Iterator[Finding]:
    usage = os.statvfs(state)
    free = usage.f_bavail * usage.f_frsize
    sentence = f"{free >> 20} MiB are free in {state}"
    if free < NO_DISK_BYTES:
        yield Finding("space", FAIL, sentence, "make room: `outerloop gc --dry-run` says what could go")
    elif free < LOW_DISK_BYTES:
        yield Finding("space", WARN, sentence, "make room: `outerloop gc --dry-run` says what could go")
    elif usage.f_files and usage.f_favail < FEW_FILES:
        yield Finding("space", WARN, f"only {usage.f_favail} more files fit into {state}", "make room, or ask for it")
    else:
        yield Finding("space", OK, sentence)


def _shared(site: Site, state: Path) -> Iterator[Finding]:
    if site.backend != "slurm":
        return
    real = state.resolve()
    local = next((place for place in NODE_LOCAL if real.is_relative_to(place)), None)
    fix = "set `state` to a folder that all nodes share"
    if local is not None:
        yield Finding("shared", FAIL, f"{state} lies in {local}, which every node has for itself", fix)
        return
    kind = _file_system(real)
    if kind in MEMORY_FILE_SYSTEMS:
        yield Finding("shared", FAIL, f"{state} is on {kind}: in this machine's memory", fix)
    elif kind in NETWORK_FILE_SYSTEMS:
        yield Finding("shared", OK, f"{state} is on {kind}")
    else:
        yield Finding("shared", OK, f"{state} is on {kind or 'an unknown file system'}; the test job shows who sees it")


def _file_system(path: Path) -> str:
    """Type of the file system that holds `path`, from the longest mount point that does (proc(5), mountinfo)."""
    best, kind = -1, ""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            before, _, after = line.partition(" - ")
            fields = before.split()
            if len(fields) < 5 or not after:
                continue
            point = fields[4].encode().decode("unicode_escape", "replace")
            if path.is_relative_to(point) and len(point) >= best:
                best, kind = len(point), after.split()[0]
    return kind

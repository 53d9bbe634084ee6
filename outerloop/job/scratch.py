"""The job's private scratch folder: made at the start, removed on every exit that can be caught, swept when stale.

Covered: where it lies, whose it is, what is left of dead jobs of the same owner on this host, the cache seed.
Not covered: what is put into it.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass

from outerloop.job import claim, files

OWNER = "owner.json"

ABANDONED_SECONDS = 3600.0
"""A folder without an owner file is one whose job died within its first instant, or is just being made."""

CACHES = {
    "XDG_CACHE_HOME": "cache",
    "HF_HOME": "cache/huggingface",
    "TRITON_CACHE_DIR": "cache/triton",
    "VLLM_CACHE_ROOT": "cache/vllm",
    "MPLCONFIGDIR": "cache/matplotlib",
}
"""Variable -> place below the scratch folder: libraries that write below HOME when they are imported."""


@dataclass(frozen=True)
class Scratch:
    """A folder of mode 0700. `home`, `tmp` and `cache` are the command's; the rest is the wrapper's."""

    path: str

    def folder(self, name: str) -> str:
        """A folder below, made if needed."""
        path = os.path.join(self.path, name)
        os.makedirs(path, mode=0o700, exist_ok=True)
        return path

    def remove(self) -> bool:
        """True when nothing is left."""
        return files.remove_tree(self.path)


def prefix() -> str:
    """Start of the name of every scratch folder of this account."""
    return f"outerloop-{os.getuid()}-"


def roots(env: Mapping[str, str]) -> list[str]:
    """Where scratch folders may lie, best first."""
    named = (env.get("SLURM_TMPDIR", ""), env.get("TMPDIR", ""), "/tmp")
    return list(dict.fromkeys(path for path in named if os.path.isabs(path)))


def adopt(env: Mapping[str, str]) -> str:
    """The scratch folder that job.sh made, or an empty text when there is none that is surely ours."""
    path = env.get("OUTERLOOP_SCRATCH", "")
    if not path or not os.path.basename(path).startswith(prefix()) or os.path.dirname(path) not in roots(env):
        return ""
    try:
        status = os.lstat(path)
    except OSError:
        return ""
    fine = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077
    return path if fine and not os.path.lexists(os.path.join(path, OWNER)) else ""


def make(env: Mapping[str, str], job_id: str) -> Scratch:
    """The scratch folder of this job, with its owner written down. Raises OSError when no place can hold it."""
    problem = OSError("no absolute SLURM_TMPDIR, TMPDIR or /tmp")
    adopted = adopt(env)
    candidates = [adopted] if adopted else []
    candidates += [os.path.join(root, prefix() + os.urandom(6).hex()) for root in roots(env)]
    for path in candidates:
        try:
            if path != adopted:
                os.mkdir(path, 0o700)
            files.replace(os.path.join(path, OWNER), files.encode(_owner(job_id)))
        except OSError as error:
            problem = error
            files.remove_tree(path)
            continue
        return Scratch(path)
    raise problem


def _owner(job_id: str) -> dict[str, object]:
    pid = os.getpid()
    return {"pid": pid, "pid_start": claim.process_start(pid), "boot": boot_id(), "job_id": job_id}


def boot_id() -> str:
    """Differs between hosts and between boots of one host."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def sweep(env: Mapping[str, str]) -> list[str]:
    """Remove scratch folders of this account whose job on this host is dead; returns those removed."""
    removed = []
    for root in roots(env):
        try:
            with os.scandir(root) as entries:
                names = [entry.path for entry in entries if entry.name.startswith(prefix())]
        except OSError:
            continue
        for path in names:
            with contextlib.suppress(OSError, ValueError):
                if _stale(path):
                    # Renamed first, so that of two sweepers one removes it and none meets a half-removed one.
                    gone = os.path.join(root, f"{prefix()}gone-{os.urandom(4).hex()}")
                    os.rename(path, gone)
                    files.remove_tree(gone)
                    removed.append(path)
    return removed


def _stale(path: str) -> bool:
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or path == os.environ.get("OUTERLOOP_SCRATCH"):
        return False
    owner_file = os.path.join(path, OWNER)
    if not os.path.lexists(owner_file):
        return time.time() - status.st_mtime > ABANDONED_SECONDS
    owner = files.read_object(owner_file)
    if owner.get("boot") != boot_id():
        # Another host's on a shared TMPDIR, or from before a reboot: only age tells them apart.
        return time.time() - status.st_mtime > 30 * 24 * ABANDONED_SECONDS
    pid = owner.get("pid")
    if not isinstance(pid, int):
        return True
    try:
        return claim.process_start(pid) != owner.get("pid_start")
    except OSError:
        return True


def seed_cache(seed: str, cache: str) -> None:
    """Copy the lane's warmed caches: files and folders; links only when they stay inside. Raises OSError."""
    top = os.path.realpath(seed)
    pending = [""]
    while pending:
        below = pending.pop()
        os.makedirs(os.path.join(cache, below), exist_ok=True)
        with os.scandir(os.path.join(top, below)) as entries:
            for entry in entries:
                name = os.path.join(below, entry.name)
                target = os.path.join(cache, name)
                if entry.is_symlink():
                    aim = os.path.realpath(entry.path)
                    if aim.startswith(top + os.sep) and not os.path.lexists(target):
                        place = os.path.dirname(os.path.join(top, name))
                        os.symlink(os.path.relpath(aim, place), target)
                elif entry.is_dir(follow_symlinks=False):
                    pending.append(name)
                elif entry.is_file(follow_symlinks=False):
                    copy_file(entry.path, target, entry.stat(follow_symlinks=False).st_mode & 0o777 | 0o600)


def copy_file(source: str, target: str, mode: int) -> int:
    """Copy one regular file, not following a link at either end; returns its bytes. Raises OSError."""
    reader = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(reader).st_mode):
            raise OSError(f"{source} is no regular file")
        writer = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        try:
            total = 0
            while block := os.read(reader, 1024 * 1024):
                files.write_all(writer, block)
                total += len(block)
            return total
        finally:
            os.close(writer)
    finally:
        os.close(reader)

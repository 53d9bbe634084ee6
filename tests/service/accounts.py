"""Unix accounts for tests: processes with uids of their own, which own files and are refused others'.

The uids have no line in the password database; the kernel does not care, and neither does what is tested here. An
interpreter that only root may reach (one in root's home) is shown to them by a bind mount in a mount namespace of the
process, which ends with it.
"""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

import outerloop

REPOSITORY = Path(outerloop.__file__).parent.parent
TIMEOUT_SECONDS = 300
FIRST_UID = 64100
nightly = pytest.mark.skipif(
    not os.environ.get("OUTERLOOP_NIGHTLY"), reason="takes a minute: OUTERLOOP_NIGHTLY runs it"
)
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("setpriv", "unshare", "mount"))),
    reason="needs root, and setpriv, unshare and mount of util-linux, to be several accounts",
)


def _paths() -> str:
    """Where modules are found: the installed packages and this repository, not the standard library."""
    base = Path(sys.base_prefix)
    outside = [p for p in sys.path if p and Path(p).is_dir() and not Path(p).is_relative_to(base)]
    return os.pathsep.join(dict.fromkeys([str(REPOSITORY), *outside]))


@functools.cache
def _reachable(path: str) -> bool:
    done = subprocess.run(
        ["setpriv", "--reuid", str(FIRST_UID), "--regid", str(FIRST_UID), "--clear-groups", "test", "-r", path],
        check=False,
    )
    return done.returncode == 0


@dataclass(frozen=True)
class Account:
    """One account with a home folder."""

    name: str
    uid: int
    home: Path
    mount_point: Path
    """An empty folder that everybody may enter, for the interpreter."""

    def make(self) -> Account:
        self.home.mkdir(mode=0o700)
        # A clone of the operator's repository crosses accounts, which git allows only on request.
        (self.home / ".gitconfig").write_text("[safe]\n\tdirectory = *\n")
        self.own(self.home)
        return self

    @property
    def unix(self) -> str:
        """What the account is called where the password database does not know it."""
        return f"uid-{self.uid}"

    def command(self, arguments: Sequence[str]) -> list[str]:
        """`arguments` as this account; a first word `python` is the interpreter."""
        shown = ""
        base = Path(sys.base_prefix)
        if not _reachable(os.path.realpath(sys.executable)):
            # The same path in this process's own mounts: the folder that is closed gives way to an empty one.
            closed = next(p for p in [*reversed(base.parents), base] if not p.stat().st_mode & 0o001)
            here, place, top = (shlex.quote(str(path)) for path in (base, self.mount_point, closed))
            shown = (
                f"mount --bind {here} {place} && mount -t tmpfs -o mode=755 none {top} && mkdir -p {here}"
                f" && mount --bind {place} {here} && umount {place} && "
            )
        words = [sys.executable if word == "python" else word for word in arguments]
        drop = ["setpriv", "--reuid", str(self.uid), "--regid", str(self.uid), "--clear-groups"]
        return ["unshare", "--mount", "sh", "-c", f"{shown}exec {shlex.join([*drop, *words])}"]

    def environment(self, **more: str) -> dict[str, str]:
        return {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.home),
            "PYTHONPATH": _paths(),
            "NO_COLOR": "1",
            "LC_ALL": "C.UTF-8",
            "TMPDIR": "/tmp",
            **more,
        }

    def run(
        self, *arguments: str, cwd: Path | None = None, codes: Sequence[int] | None = (0,), **env: str
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.command(arguments),
            cwd=cwd or self.home,
            env=self.environment(**env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        if codes is not None:
            assert done.returncode in codes, (
                f"{self.name}: {arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
            )
        return done

    def outerloop(
        self, *arguments: str, cwd: Path | None = None, codes: Sequence[int] | None = (0,)
    ) -> subprocess.CompletedProcess[str]:
        return self.run("python", "-m", "outerloop.cli", *arguments, cwd=cwd, codes=codes)

    def git(self, *arguments: str, cwd: Path) -> str:
        who = {f"GIT_{role}_{what}": "t@localhost" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        return self.run("git", *arguments, cwd=cwd, **who).stdout.strip()

    def python(
        self, program: str, *arguments: str, codes: Sequence[int] | None = (0,)
    ) -> subprocess.CompletedProcess[str]:
        """Run a few lines as this account."""
        return self.run("python", "-c", program, *arguments, codes=codes)

    def own(self, path: Path) -> None:
        """Give a tree to this account."""
        for folder, _folders, files in os.walk(path):
            os.chown(folder, self.uid, self.uid)
            for name in files:
                os.lchown(os.path.join(folder, name), self.uid, self.uid)

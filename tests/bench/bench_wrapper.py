"""What our program on the node costs around `true`: `python -m tests.bench wrapper`.

On a development cluster, in turns: a batch job that runs an attempt's job.sh (claim, private checkout of a small tree,
`true`, result) and a batch job that runs `true`; CPU seconds of everything below each batch script, as its shell's
`times` has them; medians. Asserts nothing itself; test_wrapper.py does. Not covered: sandboxes, environments, Slurm's
own part, which is the same for both.
"""

from __future__ import annotations

import re
import shutil
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from outerloop.job import layout
from outerloop.job.script import job_script
from tests.slurm.cluster import DevCluster
from tests.unit.job.rig import Rig

ROUNDS = 20
SECONDS = 120.0
_TIMES = re.compile(r"(\d+)m([\d.]+)s")


@dataclass(frozen=True)
class Measured:
    """CPU seconds, medians."""

    ours_s: float
    bare_s: float

    @property
    def overhead_s(self) -> float:
        return self.ours_s - self.bare_s


def cpu_of(cluster: DevCluster, folder: Path, script: Path) -> float:
    """User and system seconds of `script` and all that it waited for, in a job of its own."""
    timed, out = folder / "timed.sh", folder / "times"
    out.unlink(missing_ok=True)
    timed.write_text(f"#!/bin/bash\nbash {script}\ntimes > {out}.new\nmv {out}.new {out}\n")
    cluster.run("sbatch", "-p", "cpu", "-t", "5", "-o", "/dev/null", "-D", "/", str(timed))
    cluster.wait(out.exists, SECONDS, "the job to end")
    # The second line is that of the children.
    of_children = out.read_text().splitlines()[1]
    return sum(60 * int(minutes) + float(seconds) for minutes, seconds in _TIMES.findall(of_children))


def measure(rounds: int = ROUNDS) -> Measured:
    """Start a cluster, run the jobs, remove it."""
    home = Path(tempfile.mkdtemp(prefix="ol-b-", dir="/tmp"))
    home.chmod(0o755)
    try:
        with DevCluster(home / "c", nodes=1) as cluster:
            rig = Rig(home)
            bare = home / "bare.sh"
            bare.write_text("#!/bin/bash\ntrue\n")
            ours, without = [], []
            for _ in range(rounds):
                slot = rig.slot("true")
                script = slot.attempt() / layout.SCRIPT
                prologue = f"export PATH=/usr/bin:/bin TMPDIR={rig.scratch}"
                script.write_text(job_script(sys.executable, slot.path, 1, prologue, ""))
                ours.append(cpu_of(cluster, home, script))
                result = slot.result()
                assert result["exit_code"] == 0 and result["phases"]["command"], result
                without.append(cpu_of(cluster, home, bare))
            return Measured(statistics.median(ours), statistics.median(without))
    finally:
        shutil.rmtree(home, ignore_errors=True)


def main() -> None:
    found = measure()
    print(f"CPU of a job around `true`:   ours {found.ours_s:.3f} s, bare {found.bare_s:.3f} s")
    print(f"our wrapper's part:   {found.overhead_s:.3f} s")


if __name__ == "__main__":
    main()

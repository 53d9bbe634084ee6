"""What strangers' jobs cost our listing: `python -m tests.bench listing`.

On a development cluster whose nodes are drained: one squeue of ours over 1,000 pending jobs of an ordinary account,
alone and beside 50,000 pending jobs of another one, each with a record of its own in slurmctld (tasks of arrays that
were changed one by one, since a whole pending array is one record); medians of a few rounds. Beside it, for
comparison, what the same question costs that names no account. Asserts nothing itself; test_listing.py does. Not
covered: running jobs.

Needs root, who alone submits for another account. Root's own jobs are the strangers': squeue 22.05 takes the uid 0 for
"no user was asked for", loads everybody's jobs and throws away what is not root's.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from outerloop.compute.protocol import Listing
from outerloop.compute.slurm import SlurmCli
from tests.slurm.cluster import DevCluster

OURS = 1_000
FOREIGN = 50_000
ROUNDS = 7
ARRAY = 10_000
ACCOUNT = "nobody"


@dataclass(frozen=True)
class Measured:
    """Seconds of wall time, medians."""

    foreign: int
    alone_s: float
    beside_s: float
    everybody_beside_s: float
    """squeue over all accounts, there."""

    @property
    def ratio(self) -> float:
        return self.beside_s / self.alone_s


def fill(cluster: DevCluster, jobs: int, *options: str) -> None:
    """Hand over `jobs` held jobs, in arrays whose tasks are then told apart: one record each."""
    script = cluster.folder / "held.sh"
    script.write_text("#!/bin/sh\ntrue\n")
    script.chmod(0o755)
    for first in range(0, jobs, ARRAY):
        count = min(ARRAY, jobs - first)
        held = ["--parsable", "--hold", "-p", "cpu", "-t", "5", "-o", "/dev/null", "-D", "/", f"--array=0-{count - 1}"]
        array = cluster.run("sbatch", *held, *options, str(script)).strip()
        # One scontrol for all of them. A task that differs from its array gets a record of its own.
        commands = "".join(f"update jobid={array}_{task} nice={task % 7 + 1}\n" for task in range(count))
        subprocess.run(
            [str(cluster.bin / "scontrol")],
            input=commands,
            env=cluster.env,
            stdout=subprocess.DEVNULL,
            check=True,
            text=True,
        )


def _median(once: Callable[[], None], rounds: int) -> float:
    found = []
    for _ in range(rounds):
        began = time.perf_counter()
        once()
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def measure(ours: int = OURS, foreign: int = FOREIGN, rounds: int = ROUNDS) -> Measured:
    """Start a cluster, fill its queue, ask, remove it."""
    home = Path(tempfile.mkdtemp(prefix="ol-b-", dir="/tmp"))
    home.chmod(0o711)
    try:
        extra = f"MaxJobCount={2 * (ours + foreign) + 1000}"
        with DevCluster(home / "c", nodes=2, extra=extra, message_timeout=60) as cluster:
            nodes = ",".join(sorted(set(cluster.run("sinfo", "-h", "-N", "-o", "%N").split())))
            cluster.run("scontrol", "update", f"nodename={nodes}", "state=drain", "reason=bench")
            compute = SlurmCli(bin_dir=cluster.bin, slurm_conf=cluster.slurm_conf, user=ACCOUNT)

            def ask() -> None:
                listing = compute.listing()
                assert isinstance(listing, Listing) and len(listing.by_id()) == ours, listing

            everybody = [str(cluster.bin / "squeue"), "-h", "-a", "-t", "all", "-o", "row|%i|%T|%V|%S|%e|%N|%r|%j"]

            def ask_about_everybody() -> None:
                done = subprocess.run(everybody, env=cluster.env, capture_output=True, text=True, check=True)
                assert done.stdout.count("\n") == ours + foreign, done.stdout[:500]

            fill(cluster, ours, f"--uid={ACCOUNT}")
            alone = _median(ask, rounds)
            fill(cluster, foreign)
            return Measured(foreign, alone, _median(ask, rounds), _median(ask_about_everybody, rounds))
    finally:
        shutil.rmtree(home, ignore_errors=True)


def main() -> None:
    if os.getuid() != 0:
        print("needs root, who alone submits for another account")
        return
    found = measure()
    print(f"listing {OURS:,} jobs of ours:   {found.alone_s:.3f} s")
    print(f"beside {found.foreign:,} jobs of another account:   {found.beside_s:.3f} s   ({found.ratio:.2f} x)")
    print(f"squeue that asks about everybody:   {found.everybody_beside_s:.3f} s")


if __name__ == "__main__":
    main()

"""200 jobs of one shape through a workflow manager, beside ours and submitit: `python -m tests.bench snakemake`.

On a development cluster whose nodes are drained: snakemake with its Slurm executor, from the start of the process until
the queue shows 200 jobs, with a job each and with job arrays; ours as bench_submit measures it, from a process that is
up, and once more as a process of its own would: with what starting `outerloop` costs on top. Calls of sbatch, too.

Snakemake is not a dependency. It goes into a virtual environment of its own, which is named by a variable:

    python3 -m venv ~/snakemake && ~/snakemake/bin/pip install snakemake snakemake-executor-plugin-slurm
    OUTERLOOP_BENCH_SNAKEMAKE=~/snakemake/bin/snakemake python -m tests.bench snakemake

Measured with snakemake 9.27.1 and the plugin's 2.8.0. Without the variable it says so and measures nothing.
Not covered: what snakemake does with rules and files, which is what it is for.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from outerloop.record import embedded, migrate
from tests.bench.bench_submit import MEASURES, Ours, calls_of, drained, with_submitit, wrapped_tools
from tests.slurm.cluster import DevCluster

VARIABLE = "OUTERLOOP_BENCH_SNAKEMAKE"
SECONDS = 300.0
SNAKEFILE = f"""\
rule all:
    input: expand("out/{{n}}", n=range({MEASURES}))
rule measure:
    output: "out/{{n}}"
    shell: "true > {{output}}"
"""


@dataclass(frozen=True)
class Handed:
    """What handing over 200 jobs took: seconds of wall time and calls of sbatch."""

    seconds: float
    calls: int


def with_snakemake(cluster: DevCluster, folder: Path, program: str, *, arrays: bool) -> Handed:
    """From the start of snakemake until the queue shows all of its jobs."""
    folder.mkdir()
    (folder / "Snakefile").write_text(SNAKEFILE)
    tools = wrapped_tools(cluster, folder / "tools", 0.0)
    command = [program, "--executor", "slurm", "--jobs", str(MEASURES), "--slurm-no-account", "--slurm-status-command"]
    command += ["squeue", "--default-resources", "slurm_partition=cpu", "runtime=5", "mem_mb=100"]
    # Without these it counts jobs by itself for a while, or asks about each of them.
    command += ["--max-jobs-per-timespan", "100000/1s", "--latency-wait", "1"]
    command += ["--slurm-array-jobs", "all"] if arrays else []
    env = {**cluster.env, "PATH": f"{tools}:{Path(program).parent}:{cluster.env['PATH']}", "HOME": str(folder)}
    with (folder / "log").open("wb") as log:
        began = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        try:
            while cluster.run("squeue", "-h", "-r", "-o", "%i").count("\n") < MEASURES:
                said = (folder / "log").read_text()[-2000:]
                assert process.poll() is None, said
                assert time.perf_counter() - began < SECONDS, said
                time.sleep(0.05)
            took = time.perf_counter() - began
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    calls = calls_of(tools).count("sbatch")
    cluster.cancel_all()
    return Handed(took, calls)


def startup() -> float:
    """Seconds until a process of ours has imported what a submission needs."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import outerloop.controller.tick"], check=True)
    return time.perf_counter() - began


@dataclass(frozen=True)
class Measured:
    """One round."""

    each: Handed
    arrays: Handed
    ours_s: float
    startup_s: float
    submitit_s: float


def measure(program: str) -> Measured:
    """Start a cluster and a server, hand over, remove both."""
    home = Path(tempfile.mkdtemp(prefix="ol-b-", dir="/tmp"))
    home.chmod(0o711)
    ours: Ours | None = None
    try:
        url = embedded.ensure_running(home / "db")
        migrate.upgrade(url)
        with DevCluster(home / "c", nodes=2) as cluster, drained(cluster):
            ours = Ours(home / "state", url, cluster, cluster.bin)
            seconds = ours.submit(*ours.prepare())
            cluster.cancel_all()
            submitit = with_submitit(cluster, home)
            cluster.cancel_all()
            return Measured(
                each=with_snakemake(cluster, home / "each", program, arrays=False),
                arrays=with_snakemake(cluster, home / "arrays", program, arrays=True),
                ours_s=seconds,
                startup_s=startup(),
                submitit_s=submitit,
            )
    finally:
        if ours is not None:
            ours.record.close()
        embedded.remove(home / "db")
        shutil.rmtree(home, ignore_errors=True)


def main() -> None:
    program = os.environ.get(VARIABLE, "")
    if not program:
        print(f"{VARIABLE} names no snakemake; the docstring of this benchmark says how to install it")
        return
    found = measure(program)
    print(f"snakemake, a job each:   {found.each.seconds:.2f} s, {found.each.calls} calls of sbatch")
    print(f"snakemake, job arrays:   {found.arrays.seconds:.2f} s, {found.arrays.calls} calls of sbatch")
    print(f"ours:   {found.ours_s:.2f} s, and {found.startup_s:.2f} s to start a process")
    print(f"submitit's array:   {found.submitit_s:.2f} s from a process that is up")


if __name__ == "__main__":
    main()

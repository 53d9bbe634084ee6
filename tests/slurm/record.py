"""Records what a release's tools print, on a development cluster: `python -m tests.slurm.record 26.05`.

OUTERLOOP_DEV_PREFIX chooses the release, as for the tests. Covered: every file that test_fixtures.py replays. Not
covered: what only a real site prints (policies, wrappers); such outputs are saved by hand.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.slurm.cluster import DevCluster

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "slurm"
FORMAT = "row|%i|%T|%V|%S|%e|%N|%r|%j"
SACCT = "JobID,State,ExitCode,Submit,Start,End,NodeList,JobName"


class Recorder:
    """Runs a cluster's tools and writes what they print, its folders renamed."""

    def __init__(self, cluster: DevCluster, jobs: Path, into: Path) -> None:
        self.cluster, self.jobs, self.into = cluster, jobs, into
        for name, body in (("ok", ""), ("exit7", "exit 7"), ("kill", "kill -9 $$"), ("long", "sleep 600")):
            (jobs / f"{name}.sh").write_text(f"#!/bin/sh\n{body}\n")
        (jobs / "nosh.sh").write_text("echo no shebang\n")
        (jobs / "big.sh").write_bytes(b"#!/bin/sh\n" + b"#" * (5 << 20))

    def record(self, name: str, *argv: str) -> str:
        """Run, write `name`.txt, give stdout."""
        done = subprocess.run(
            [str(self.cluster.bin / argv[0]), *argv[1:]],
            env={**self.cluster.env, "TZ": "UTC0", "SLURM_BITSTR_LEN": "0", "LC_ALL": "C.UTF-8"},
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        if name:
            said = f"$ {shlex.join(argv)}\nrc={done.returncode}\n--- stdout\n{done.stdout}--- stderr\n{done.stderr}"
            for path, invented in ((self.cluster.folder, "/cluster"), (self.jobs, "/jobs"), (os.uname()[1], "host")):
                said = said.replace(str(path), invented)
            (self.into / f"{name}.txt").write_text(said)
        return done.stdout

    def submit(self, name: str, script: str, *options: str, file: str = "", path: str = "") -> str:
        """sbatch one of our scripts; its id."""
        named = ["-J", name] if name else []
        argv = ["sbatch", "--parsable", "-o", "/dev/null", *named, *options, path or str(self.jobs / f"{script}.sh")]
        return self.record(file, *argv).strip()


def record_queue(take: Recorder) -> None:
    """Jobs in every state, refusals, the listing and the history of it all."""
    cluster = take.cluster
    ended = [
        take.submit("completed", "ok", file="sbatch-ok"),
        take.submit("failed", "exit7"),
        take.submit("killed", "kill"),
    ]
    for name, options in {
        "gres-too-many": ["--gres=gpu:9"],
        "gres-unknown": ["--gres=gpux:1"],
        "partition": ["-p", "nowhere"],
        "reservation": ["--reservation=nothing"],
        "two-memory-forms": ["--mem=10", "--mem-per-cpu=10"],
        "memory": ["--mem=9999999"],
        "cpus": ["-c", "999"],
        "time": ["--time=banana"],
        "option": ["--bananas"],
        "dependency": ["--dependency=afterok:99999"],
        "dependency-nonsense": ["--dependency=banana"],
        "feature": ["--constraint=moon"],
        "array": ["--array=0-99999"],
    }.items():
        take.submit(f"refused-{name}", "long", *options, file=f"sbatch-{name}")
    take.submit("", "big", file="sbatch-large")
    take.submit("", "nosh", file="sbatch-no-shebang")
    take.submit("", "", file="sbatch-no-script", path="/nowhere/job.sh")
    running = take.submit("running", "long")
    take.submit("later", "long", "--begin=now+3600")
    take.submit("held", "long", "--hold")
    take.submit("after", "long", f"--dependency=afterany:{running}")
    take.submit("too-long", "long", "-p", "short", "--time=2:00:00")
    take.submit("steps", "long", "--array=0-20:2%2")
    take.submit("tasks", "long", "--array=1,3,7-9", "--hold")
    take.submit("pipe|name", "long", "--hold")
    take.submit("two\nlines", "long", "--hold")
    cancelled = take.submit("cancelled", "long")
    take.submit("never-satisfied", "long", f"--dependency=afterok:{ended[1]}")
    victim = take.submit("preempted", "long", "-p", "preempt", "-N4", "-c", "10", "--no-requeue")

    def state(job: str) -> str:
        return cluster.run("squeue", "-h", "-a", "-t", "all", "-j", job, "-o", "%T").strip()

    for job in (victim, cancelled, running):
        cluster.wait(lambda job=job: state(job) == "RUNNING", 60, f"job {job} to run")  # type: ignore[misc]
    cluster.run("scancel", cancelled)
    urgent = take.submit("urgent", "long", "-N4", "-c", "10")
    cluster.wait(lambda: state(urgent) == "RUNNING" and state(victim) == "PREEMPTED", 60, "the preemption")
    cluster.wait(lambda: state(cancelled) == "CANCELLED", 60, "the cancellation")
    asked = ["sacct", "-X", "-n", "-P", "--delimiter=|", "-S", "2020-01-01T00:00:00"]
    cluster.wait(lambda: "PREEMPTED" in cluster.run(*asked, "-u", "0", "-o", "State"), 60, "accounting")
    take.record("squeue", "squeue", "-h", "-a", "-t", "all", "--me", "-o", FORMAT)
    take.record("squeue-r-misses-the-last-task", "squeue", "-h", "-a", "-r", "-n", "steps", "--me", "-o", "%i|%T")
    take.record("sacct", *asked, "-u", "0", "-o", SACCT)
    take.record("sacct-by-id", *asked, "-j", ",".join([*ended, "99999"]), "-o", SACCT)
    take.record("scontrol-config", "scontrol", "show", "config")
    take.record("scontrol-partition", "scontrol", "-o", "show", "partition")
    take.record("scancel-unknown", "scancel", "99999")
    with cluster.paused():
        take.submit("ghost", "long", file="sbatch-timed-out")
        take.record("squeue-timed-out", "squeue", "-h", "-t", "all", "--me", "-o", FORMAT)
        take.record("scancel-timed-out", "scancel", "10")


def record_outages(take: Recorder) -> None:
    """The controller and the accounting daemon are down."""
    take.cluster.stop_controller()
    take.submit("", "long", file="sbatch-down")
    take.record("squeue-down", "squeue", "-h", "-t", "all", "--me", "-o", FORMAT)
    take.record("scancel-down", "scancel", "10")
    take.record("scontrol-down", "scontrol", "show", "config")
    daemon = int((take.cluster.folder / "run" / "slurmdbd.pid").read_text())
    os.kill(daemon, 9)
    take.cluster.wait(lambda: not Path(f"/proc/{daemon}/exe").exists(), 30, "slurmdbd to be gone")
    take.record("sacct-down", "sacct", "-X", "-n", "-P", "-S", "2020-01-01T00:00:00", "-j", "1", "-o", SACCT)


def main(release: str) -> None:
    into = FIXTURES / release
    into.mkdir(exist_ok=True)
    root = Path(tempfile.mkdtemp(prefix="ol-", dir="/tmp"))
    root.chmod(0o755)
    try:
        with DevCluster(root / "c", nodes=4, accounting=True, message_timeout=3, kill_wait=2) as cluster:
            take = Recorder(cluster, root, into)
            record_queue(take)
            record_outages(take)
        with DevCluster(root / "n", nodes=1, message_timeout=3) as plain:
            take = Recorder(plain, root, into)
            take.record("scontrol-config-without-accounting", "scontrol", "show", "config")
            take.record(
                "sacct-disabled", "sacct", "-X", "-n", "-P", "-S", "2020-01-01T00:00:00", "-j", "1", "-o", SACCT
            )
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1])

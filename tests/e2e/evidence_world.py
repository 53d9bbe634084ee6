"""A world whose benchmark varies with its seed in a known way, on a cluster of several nodes, with the command line.

Covered: a contract and cost of the test's own, values that can be computed without running anything, four nodes that
honour exclusions, jobs that keep what they asked for. Not covered: faults (the rig's cluster has those).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from outerloop.cli import app
from outerloop.compute.protocol import JobRow, JobSpec, JobState, SiteLimits, SubmitOutcome
from outerloop.controller import deployment as deployment_module
from outerloop.controller.deployment import Deployment, open_deployment
from outerloop.controller.ledger import Ledger, LedgerEvent
from outerloop.settings import Settings
from tests.controller_rig import engines
from tests.controller_rig.cluster import FileCluster
from tests.controller_rig.world import World

NODES = ("n1", "n2", "n3", "n4")

# cost = 1000 · src/cost + a noise of 0 to 999 that seed and tree decide; `bytes` is a second metric of the same line.
BENCH = """\
echo "${{BENCH_SEED:-0}} $(cat src/cost)" >> {marks}
cat src/extra 2>/dev/null | sh || exit 3
c=$(cat src/cost)
n=$(( (${{BENCH_SEED:-$(cat {counter} 2>/dev/null | wc -l)}} * 7919 + c * 104729) % {spread} ))
echo >> {counter}
printf '{{"cost": %s, "bytes": %s}}\\n' "$(( c * 1000 + n ))" "$(cat src/shared/bytes)"
"""


def contract(rule: str, *, more: str = "", siblings: str = "", seeded: bool = True) -> str:
    """One benchmark `speed` under a rule (a TOML inline table), and whatever else the test wants."""
    seed = 'seed_env = "BENCH_SEED"\n' if seeded else ""
    return (
        '[[benchmarks]]\nname = "speed"\ncommand = "sh bench.sh"\nmetric = "cost"\ndirection = "min"\n'
        f"minutes = 1\n{seed}rule = {rule}  # the rule\n{more}\n{siblings}\n"
        '[scope]\nallowed = ["src/"]\nshared = ["src/shared/"]\n'
    )


class SpreadCluster(FileCluster):
    """Four nodes; a job starts on the first one that it does not exclude, in turn."""

    def submit(self, job: JobSpec) -> SubmitOutcome:
        outcome = super().submit(job)
        job_id = getattr(outcome, "job_id", None)
        if job_id is not None:
            self.change(
                job_id, cpus=job.cpus, memory_mb=job.memory_mb, lane=job.lane.name, partition=job.lane.partition
            )
        return outcome

    def execute(self, job_id: str, *, restart: int = 0) -> int:
        body = self.jobs()[job_id]
        free = [node for node in NODES if node not in body["exclude"]]
        self.change(job_id, node=free[0])
        return super().execute(job_id, restart=restart)

    def limits(self) -> SiteLimits:
        return SiteLimits(version="files", partitions={"cpu": {"TotalNodes": str(len(NODES)), "Default": "YES"}})

    def _row(self, job_id: str, body: dict[str, Any]) -> JobRow:
        row = super()._row(job_id, body)
        return replace(row, node=body.get("node", "") if row.state is not JobState.PENDING else "")


class EvidenceWorld(World):
    """The rig's world with a contract of the test's own."""

    def __init__(self, folder: Path, database: str, text: str, *, spread: int = 1000) -> None:
        self.text, self.spread = text, spread
        super().__init__(folder, database)
        self.cluster: SpreadCluster = SpreadCluster(folder / "cluster")
        lanes = '[lanes.default]\npartition = "cpu"\n[lanes.big]\npartition = "fat"\n'
        zeros = "grace_seconds = 0\nintent_patience_seconds = 0\ngone_grace_seconds = 0\nbackoff_seconds = 0\n"
        self.config = folder / "config.toml"
        self.config.write_text(
            f'state = "{self.state.path}"\nbackend = "local"\ndeployment = "rig"\ndatabase_url = "{database}"\n'
            f"[dispatch]\n{zeros}{lanes}"
        )
        before = os.environ.get("OUTERLOOP_CONFIG")
        os.environ["OUTERLOOP_CONFIG"] = str(self.config)
        try:
            self.settings = Settings.load()
        finally:
            if before is None:
                del os.environ["OUTERLOOP_CONFIG"]
            else:
                os.environ["OUTERLOOP_CONFIG"] = before

    def _make_repository(self) -> None:
        super()._make_repository()
        self.git("checkout", "-q", "main")
        (self.repo / ".outerloop.toml").write_text(self.text)
        counter = self.folder / "counter"
        (self.repo / "bench.sh").write_text(BENCH.format(marks=self.marks, counter=counter, spread=self.spread))
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "benchmark")
        for name, cost, size in (("better", "8", "100"), ("bigger", "8", "200"), ("same", "10", "100")):
            self.branch(name, cost=cost, size=size, note=name)

    def open(self) -> Deployment:
        deployment_module.open_compute = lambda settings, root: SpreadCluster(self.folder / "cluster")  # type: ignore[assignment]
        return engines.opened(lambda: open_deployment(self.settings, config=self.config, migrate=False))

    # -- what the benchmark says, without running it

    def value(self, seed: int, cost: int) -> Decimal:
        return Decimal(cost * 1000 + (seed * 7919 + cost * 104729) % self.spread)

    # -- what is on record

    def events(self, run_id: str, kind: str) -> list[LedgerEvent]:
        return [event for event in Ledger(self.state, run_id).read() if event.kind == kind]

    def round(self, run_id: str) -> dict[str, Any]:
        return self.events(run_id, "round")[-1].body

    def pairs(self, run_id: str) -> list[dict[str, Any]]:
        evidence = self.run(run_id).evidence
        assert evidence is not None
        found: list[dict[str, Any]] = evidence["findings"]["climbed"]["pairs"]
        return found

    def measuring_jobs(self) -> dict[str, dict[str, Any]]:
        return {i: body for i, body in self.cluster.jobs().items() if "-wake-" not in body["name"]}

    # -- the command line, in this process

    def cli(self, *arguments: str, code: int = 0) -> Result:
        self.open().close()
        result = CliRunner(env={"OUTERLOOP_CONFIG": str(self.config)}).invoke(
            app, list(arguments), prog_name="outerloop"
        )
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return result

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self.cli(*arguments, "--json", code=code).stdout)


def result_file(world: EvidenceWorld, digest: str, attempt: int = 1) -> Path:
    return world.state.slot(digest) / "attempts" / str(attempt) / "result.json"


def tamper(world: EvidenceWorld, digest: str, **facts: Any) -> Path:
    """Change fields of a slot's result file, as somebody with an editor would."""
    path = result_file(world, digest)
    path.chmod(0o644)
    path.write_text(json.dumps({**json.loads(path.read_text()), **facts}))
    return path


def until(condition: Any, seconds: float, what: Sequence[str] | str) -> None:
    """Wait for a condition with a deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds} s"
        time.sleep(0.02)

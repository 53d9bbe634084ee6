"""A deployment on the real development cluster: the command line in processes of its own, everything real.

What a test types is forked from a process that has imported everything (tests/controller_rig/typed.py); what jobs type,
wakes for example, starts an interpreter, as everywhere.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from outerloop.controller import deployment as deployment_module
from outerloop.controller.deployment import Deployment, open_deployment
from outerloop.settings import Settings
from tests.controller_rig import engines
from tests.controller_rig.typed import Typed
from tests.controller_rig.world import REAL_OPEN_COMPUTE, World
from tests.slurm.cluster import DevCluster

CONFIG = """\
state = "{state}"
database_url = "{url}"
backend = "slurm"
deployment = "{deployment}"
isolation = "{isolation}"
[slurm]
bin_dir = "{bin}"
conf = "{conf}"
{api}
sbatch_timeout_seconds = 6
query_timeout_seconds = 6
[lanes.default]
partition = "cpu"
[wake]
mode = "{wakes}"
[dispatch]
grace_seconds = 2
intent_patience_seconds = 3
gone_grace_seconds = 3
backoff_seconds = 1
margin_minutes = 1
"""


def _api() -> str:
    """With `make test-pyslurm`, whatever outerloop submits here goes through the real library."""
    library = os.environ.get("OUTERLOOP_TEST_PYSLURM", "")
    path = f'\npyslurm_path = "{library}"' if Path(library).is_absolute() else ""
    return f'api = "pyslurm"{path}' if library else 'api = "auto"'


class SlurmWorld(World):
    """The rig's target and checks, on a real cluster, through the command line."""

    patience = 180.0
    """Seconds that one command may take."""

    def __init__(
        self, folder: Path, database: str, cluster: DevCluster, *, isolation: str = "none", wakes: str = "always"
    ) -> None:
        super().__init__(folder, database)
        self.slurm = cluster
        self.config = folder / "config.toml"
        self.config.write_text(
            CONFIG.format(
                state=self.state.path,
                url=database,
                deployment=f"t{abs(hash(str(folder))) % 10**6:x}",
                isolation=isolation,
                wakes=wakes,
                bin=cluster.bin,
                conf=cluster.slurm_conf,
                api=_api(),
            )
        )
        self.settings = Settings.load(self.config)

    def open(self) -> Deployment:
        deployment_module.open_compute = REAL_OPEN_COMPUTE
        return engines.opened(lambda: open_deployment(self.settings, config=self.config, migrate=False))

    def command(self, *arguments: str, **extra: str) -> Typed:
        """Start an outerloop command in the target's clone."""
        env = {**os.environ, **extra, "OUTERLOOP_CONFIG": str(self.config), "NO_COLOR": "1"}
        return Typed(arguments, cwd=self.repo, env=env)

    def cli(self, *arguments: str, codes: tuple[int, ...] = (0,), **extra: str) -> subprocess.CompletedProcess[str]:
        """Run an outerloop command to its end; fails for an exit code that was not expected."""
        process = self.command(*arguments, **extra)
        out, err = process.communicate(self.patience)
        assert process.returncode in codes, f"{arguments}: exit code {process.returncode}\n{out}\n{err}"
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def ask(self, candidate: str, **extra: str) -> str:
        done = self.cli("submit", "climb", "speed", "--base", "main", "--candidate", candidate, "--json", **extra)
        return str(json.loads(done.stdout)["run"])

    def ended(self, run_id: str) -> bool:
        return self.run(run_id).state == "ended"

    def until_ended(self, *run_ids: str, seconds: float = 120, ticks: bool = False) -> None:
        def done() -> bool:
            if ticks:
                self.cli("tick")
            return all(self.ended(run_id) for run_id in run_ids)

        # A look costs processor time that the jobs of this small machine need.
        self.slurm.wait(done, seconds, f"the verdicts of {run_ids}: {self.queue()}", every=0.5)

    def queue(self) -> list[list[str]]:
        """[id, name, state, reason] of every job that the queue shows."""
        text = self.slurm.run("squeue", "-h", "-t", "all", "-o", "%i|%j|%T|%r")
        # Names of other tests may hold anything; ours are the rows of four.
        return [row for row in (line.split("|") for line in text.splitlines()) if len(row) == 4]

    def measuring_jobs(self) -> list[str]:
        """Names of this deployment's measuring jobs that the queue has seen; tasks of arrays with their number."""
        return [
            n + i.partition("_")[2]
            for i, n, _s, _r in self.queue()
            if n.startswith(f"ol-{self.settings.deployment}-") and "-wake-" not in n
        ]

    def check_once(self) -> None:
        """One job per slot attempt, and what ran is what the record says."""
        names = self.measuring_jobs()
        assert len(names) == len(set(names)), f"an attempt was submitted twice: {sorted(names)}"
        self.check_invariants()

    def facts(self, run_id: str) -> dict[str, Any]:
        return dict(json.loads(self.cli("show", run_id, "--json").stdout))

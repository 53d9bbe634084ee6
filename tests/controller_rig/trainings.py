"""The rig for trainings: plans written as files, submitted through the command line, jobs run when the test says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from outerloop.cli import app
from outerloop.settings import Settings
from tests.controller_rig.world import World

CONFIG = """\
state = "{state}"
database_url = "{url}"
backend = "local"
deployment = "rig"
[local]
cpus = 64
gpus = 8
[lanes.default]
max_minutes = 600
[dispatch]
grace_seconds = 0
intent_patience_seconds = 0
gone_grace_seconds = 0
preempt_grace_seconds = 0
backoff_seconds = 0
margin_minutes = 1
"""

# A program that counts how often each task really ran, then does what the file of its task says.
TASK = """\
echo "{n}" >> {marks}
if [ -f {folder}/task-{n}.sh ]; then . {folder}/task-{n}.sh; fi
"""

GPU_REPORT: dict[str, Any] = {
    "schema": 1,
    "kind": "training",
    "state": "finished",
    "step": 99,
    "world_size": 8,
    "device": "cuda:0",
    "device_name": "NVIDIA H100 80GB HBM3",
    "torch": "2.13.0",
    "step_seconds": {"count": 98, "median": 0.5, "p90": 0.6, "max": 0.9},
    "tokens_per_second": 80_000.0,
    "samples_per_second": 39.0,
    "peak_memory_mb": {"device": 60_000.0, "reserved": 64_000.0, "rss": 9_000.0},
    "checkpoint": {"count": 3, "failed": 0, "last_step": 99, "seconds_median": 2.0, "seconds_max": 3.0, "bytes": 1000},
}
"""What outerloop.torch would write on GPUs."""


class TrainingWorld(World):
    """A world whose runs are trainings. `marks` has one line for every execution of a task."""

    def __init__(self, folder: Path, database: str) -> None:
        super().__init__(folder, database)
        config = folder / "config.toml"
        config.write_text(CONFIG.format(state=self.state.path, url=database))
        self.settings = Settings.load(config)

    def cli(self, *arguments: str, code: int = 0) -> str:
        """An outerloop command in this process; what it printed. A defect of ours fails the test."""
        self.open().close()  # commands of this process meet the cluster of files
        env = {"OUTERLOOP_CONFIG": str(self.folder / "config.toml"), "NO_COLOR": "1", "COLUMNS": "100"}
        result = CliRunner(env=env).invoke(app, list(arguments), prog_name="outerloop")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return result.output

    def plan(self, name: str, **fields: Any) -> str:
        """A strategy plan on disk."""
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(fields))
        return str(path)

    def tasks_plan(self, count: int) -> str:
        """`count` tasks that leave their mark."""
        script = TASK.format(n="{n}", marks=self.marks, folder=self.folder)
        return self.plan(
            f"tasks-{count}", family="lease_tasks", command=["sh", "-c", script], tasks=[{"n": n} for n in range(count)]
        )

    def task_does(self, n: int, script: str) -> None:
        """What task `n` does from now on."""
        (self.folder / f"task-{n}.sh").write_text(script)

    def train(self, plan: str, *options: str, command: tuple[str, ...] = ()) -> str:
        """Submit; the run's id."""
        arguments = ["submit", "training", plan, "--repo", str(self.repo), "--json", *options]
        told = self.cli(*arguments, *(["--", *command] if command else []))
        return str(json.loads(told[told.index("{") :])["run"])

    def script(self, body: str, **fields: Any) -> str:
        """A plan of one plain process that runs `body` in a shell."""
        return self.plan("plain", family="local_process", command=["sh", "-c", body], **fields)

    def ran(self) -> dict[str, int]:
        """How often each task really ran."""
        counts: dict[str, int] = {}
        for line in self.marks.read_text().split() if self.marks.exists() else []:
            counts[line] = counts.get(line, 0) + 1
        return counts

    def job_of(self, role: str) -> str:
        """The newest job of a task."""
        told = json.loads(self.cli("show", self.runs()[-1].id, "--json"))
        [measure] = [m for m in told["measures_detail"] if m["role"] == role]
        return str(measure["attempts"][-1]["job_id"])


def reporting(world: TrainingWorld, report: dict[str, Any]) -> str:
    """A stand-in for torchrun that writes a run.json as outerloop.torch would on GPUs, which this machine lacks."""
    tools = world.folder / "tools"
    tools.mkdir(exist_ok=True)
    (tools / "report.json").write_text(json.dumps(report))
    program = tools / "torchrun"
    program.write_text(f'#!/bin/sh\ncp {tools}/report.json "$OUTERLOOP_OUTPUT_DIR/run.json"\n')
    program.chmod(0o755)
    config = world.folder / "config.toml"
    prologue = f"export PATH={tools}:$PATH CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7"
    lane = f"[lanes.gpu]\ngpu_flag = \"none\"\nextra = ['--gpus=1']\nprologue = '{prologue}'\n"
    config.write_text(config.read_text() + lane)
    return str(tools)

"""Starts, kills and compares real training processes."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
DEADLINE = 120.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here needs PyTorch."""
    missing = importlib.util.find_spec("torch") is None
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.torch)
            if missing:
                item.add_marker(pytest.mark.skip(reason="PyTorch is not installed"))


class Zygote:
    """The process that forks training processes."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "zygote.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(request), file=self.process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(DEADLINE)
        self.process.stdout.close()


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    process = Zygote()
    yield process
    process.close()


Steps = dict[int, tuple[str, tuple[int, ...]]]
"""Step -> (exact loss, samples)."""


@dataclass
class Training:
    """One training in one folder, started as often as a test wants."""

    zygote: Zygote
    folder: Path
    config: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.env = {
            "OUTERLOOP_CKPT_DIR": str(self.checkpoints),
            "OUTERLOOP_OUTPUT_DIR": str(self.folder / "out"),
        } | self.env

    @property
    def checkpoints(self) -> Path:
        return self.folder / "ckpt"

    @property
    def log(self) -> str:
        path = self.folder / "log.txt"
        return path.read_text() if path.exists() else ""

    def start(self, ranks: int = 1, alarm: float | None = None, **config: Any) -> list[int]:
        answer = self.zygote.ask(
            start=self.config | {"out": str(self.folder)} | config,
            ranks=ranks,
            env=self.env,
            log=str(self.folder / "log.txt"),
            alarm=alarm,
        )
        return [int(pid) for pid in answer["pids"]]

    def wait(self, pids: list[int]) -> list[int | None]:
        codes: list[int | None] = self.zygote.ask(wait=pids, seconds=DEADLINE)["codes"]
        return codes

    def run(self, ranks: int = 1, alarm: float | None = None, **config: Any) -> list[int | None]:
        return self.wait(self.start(ranks, alarm, **config))

    def lines(self, rank: int = 0) -> list[dict[str, Any]]:
        path = self.folder / f"losses-{rank}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def steps(self, rank: int = 0) -> Steps:
        """Every step that was done. Fails when a repeated step did not repeat itself exactly."""
        found: Steps = {}
        for line in self.lines(rank):
            entry = (line["loss"], tuple(line["ids"]))
            assert found.setdefault(line["step"], entry) == entry, f"step {line['step']} was not repeated exactly"
        return found

    def saved(self) -> list[int]:
        """Steps of the published checkpoints, oldest first."""
        return sorted(int(path.name.removeprefix("step-")) for path in self.checkpoints.glob("step-*"))


@pytest.fixture(scope="session")
def plain(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The steps of the script without the helper and without interruption, run once for each configuration."""
    known: dict[str, Steps] = {}

    def steps(**config: Any) -> Steps:
        key = json.dumps(config, sort_keys=True)
        if key not in known:
            script = Training(zygote, tmp_path_factory.mktemp("plain"), config | {"helper": False})
            assert script.run() == [0], script.log
            known[key] = script.steps()
            assert len(known[key]) == config.get("steps", 20)
        return known[key]

    return steps


@pytest.fixture
def training(zygote: Zygote, tmp_path: Path) -> Any:
    """Makes trainings: training("name", steps=…)."""

    def make(name: str, env: dict[str, str] | None = None, **config: Any) -> Training:
        return Training(zygote, tmp_path / name, config, env or {})

    return make

"""Starts, stops, kills and reads real pipeline processes on the CPU."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from outerloop.compose import SHIPPED, compose, toml_text
from outerloop.posttrain.sums import rows

HERE = Path(__file__).parent
DEADLINE = 300.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here needs PyTorch and trl."""
    missing = any(importlib.util.find_spec(name) is None for name in ("torch", "trl"))
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.torch)
            if missing:
                item.add_marker(pytest.mark.skip(reason="trl is not installed"))


class Zygote:
    """The process that forks pipeline processes."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "zygote.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parents[1])},
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


def training_rows() -> list[dict[str, Any]]:
    return [dict(row) for row in rows("training")]


@dataclass
class Pipeline:
    """One configuration in one folder, run as often as a test wants."""

    zygote: Zygote
    folder: Path

    def write(self, data: list[dict[str, Any]], **over: Any) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        lists = f"{SHIPPED / 'task-lists'}/"
        config = compose(
            "tiny-llama", "tiny-sft-grpo", ["tiny-sums"], "train.jsonl", project="test", task_list_root=lists
        )
        for name, table in over.items():
            if table is None:
                del config[name]
            else:
                config[name] = {**config.get(name, {}), **table}
        (self.folder / "config.toml").write_text(toml_text(config))
        (self.folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in data))

    @property
    def out(self) -> Path:
        return self.folder / "out"

    @property
    def log(self) -> str:
        path = self.folder / "log.txt"
        return path.read_text() if path.exists() else ""

    def start(self, *words: str, fault: tuple[str, int, str] | None = None) -> int:
        return int(
            self.zygote.ask(
                start=[str(self.folder / "config.toml"), "--out", str(self.out), *words],
                log=str(self.folder / "log.txt"),
                fault=fault,
            )["pid"]
        )

    def wait(self, pid: int) -> int | str | None:
        code: int | str | None = self.zygote.ask(wait=pid, seconds=DEADLINE)["code"]
        return code

    def run(self, *words: str, fault: tuple[str, int, str] | None = None) -> int | str | None:
        return self.wait(self.start(*words, fault=fault))

    def record(self, *parts: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out.joinpath(*parts).read_text())
        return found

    def weights(self) -> dict[str, str]:
        """The hash of each stage's final weights."""
        return {name: stage["weights_sha256"] for name, stage in self.record("result.json")["stages"].items()}

    def metrics(self, stage: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.out / stage / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def pipeline(zygote: Zygote, tmp_path: Path) -> Any:
    """Makes pipelines: pipeline("name")."""

    def make(name: str) -> Pipeline:
        return Pipeline(zygote, tmp_path / name)

    return make

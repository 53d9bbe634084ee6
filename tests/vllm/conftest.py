"""Needs an environment with vLLM: `make test-vllm` makes one with the CPU build, `make test-gpu` with the GPU build."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
DEADLINE = 900.0
# a tiny model on one core: threads of several processes only wait for each other
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = any(importlib.util.find_spec(name) is None for name in ("vllm", "trl"))
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.vllm)
            item.add_marker(pytest.mark.timeout(2 * DEADLINE))
            if missing:
                item.add_marker(pytest.mark.skip(reason="vllm is not installed here: make test-vllm"))


def session(keeper: int) -> list[str]:
    """Names of the processes of a server's session that are still there."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                name, _, rest = entry.joinpath("stat").read_text().rpartition(")")
            except OSError:
                continue
            fields = rest.split()
            if fields[0] != "Z" and int(fields[3]) == keeper:
                found.append(name.partition("(")[2])
    return found


def gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The tiny model, untrained: its greedy tokens look random, so a difference shows."""
    from outerloop.posttrain.builtin import make_tiny_llama
    from outerloop.posttrain.offline import offline

    offline()
    folder = tmp_path_factory.mktemp("model") / "tiny"
    make_tiny_llama(folder)
    yield folder


def python() -> Path:
    return Path(sys.executable)

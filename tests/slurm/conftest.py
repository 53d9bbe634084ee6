"""A real Slurm for the tests of this folder. Each session has its own folder and its own ports."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import DevCluster, missing_programs


@pytest.fixture(scope="session")
def cluster_root() -> Iterator[Path]:
    """A short folder: pytest's own temporary folders are too deep for unix sockets."""
    root = Path(tempfile.mkdtemp(prefix="ol-", dir="/tmp"))
    root.chmod(0o755)
    yield root
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(scope="session")
def slurm_installed() -> None:
    """Skips where Slurm is not installed; CI sets OUTERLOOP_REQUIRE_SLURM, and there that is a failure."""
    missing = missing_programs()
    if missing:
        sentence = f"no Slurm on this machine ({missing}); slurm/devcluster/install.sh installs it"
        if os.environ.get("OUTERLOOP_REQUIRE_SLURM"):
            pytest.fail(sentence)
        pytest.skip(sentence)


@pytest.fixture(scope="session")
def cluster(slurm_installed: None, cluster_root: Path) -> Iterator[DevCluster]:
    """Four nodes, two of them with four GPUs, accounting on, tools that give up after three seconds."""
    with DevCluster(
        cluster_root / "c",
        nodes=4,
        accounting=os.environ.get("OUTERLOOP_DEV_ACCOUNTING") != "none",
        message_timeout=3,
        cred_expire=5,
        kill_wait=2,
    ) as running:
        yield running

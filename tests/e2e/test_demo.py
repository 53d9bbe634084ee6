"""The main job from beginning to end, as `make demo` runs it: on a real Slurm, and at night on this machine, too.

By day test_tutorial.py stands for this machine: the tutorial reaches the same five verdicts on the local backend.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.documents import difference
from tests.e2e.test_tutorial import README, TOP, environment
from tests.slurm.cluster import DevCluster
from tests.slurm.conftest import cluster_root, slurm_installed

__all__ = ["cluster_root", "slurm_installed"]

PATIENCE_SECONDS = 280
VERDICTS = {
    "improve": "accepted",
    "nothing": "rejected (no-improvement)",
    "break-sibling": "rejected (suite-regression)",
    "crash": "failed (candidate-error)",
    "out-of-scope": "failed (scope)",
}


@pytest.fixture
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ol-demo-", dir="/tmp", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        subprocess.run(
            [str(Path(sys.executable).parent / "outerloop"), "db", "stop"],
            env={**environment(folder), "OUTERLOOP_CONFIG": str(folder / "d" / "config.toml")},
            capture_output=True,
            check=False,
            timeout=60,
        )


def demo(home: Path, backend: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, str(TOP / "docs" / "tutorial" / "demo.py"), "--dir", str(home / "d"), "--backend", backend],
        env={**environment(home), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def verdicts(output: str) -> dict[str, str]:
    """{candidate: its verdict with the reason}, from what the demo printed."""
    found = re.findall(r"^([a-z-]+) \([^\n]*\), run c-[0-9a-f]{10}\n  ([a-z]+(?: \([a-z-]+\))?):", output, re.MULTILINE)
    return dict(found)


def agrees(output: str, home: Path, backend: str) -> None:
    """The five verdicts, and what the README shows of the demo, values aside."""
    assert verdicts(output) == VERDICTS
    transcript = re.search(r"<!-- the demo -->\n```text\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert transcript is not None
    shown = transcript[1].replace("backend slurm", f"backend {backend}")
    shown = shown.replace("/home/ada/src/outerloop/.demo", "DIR")
    shown = shown.replace("/home/ada/src/outerloop/.venv/bin", str(Path(sys.executable).parent))
    # how long it took, and in how many looks, is the machine's affair
    shown, printed = (re.sub(r"(?m)^ +\d+\.\d s  .*\n", "", text) for text in (shown, output))
    assert difference(shown.splitlines(), printed.replace(str(home / "d"), "DIR").splitlines()) == "", output


@pytest.mark.slow
@pytest.mark.slurm
def test_five_candidates_get_their_five_verdicts_on_slurm(
    home: Path, slurm_installed: None, cluster_root: Path
) -> None:
    with DevCluster(cluster_root / "demo", nodes=2, cpus=16) as cluster:
        variables = {name: value for name, value in cluster.env.items() if name in {"SLURM_CONF", "PATH"}}
        output = demo(home, "slurm", **variables)
    agrees(output, home, "slurm")


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("OUTERLOOP_NIGHTLY"), reason="test_tutorial.py shows it: set OUTERLOOP_NIGHTLY")
def test_five_candidates_get_their_five_verdicts_on_this_machine(home: Path) -> None:
    agrees(demo(home, "local"), home, "local")

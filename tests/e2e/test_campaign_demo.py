"""The worked campaign through outerloop itself, as `make demo-campaign` runs it.

By day one round of two candidates, one that is trained and packaged and one that has no eligible checkpoint; at night
all rounds of all candidates, which repeat the same commands.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.test_tutorial import TOP, environment
from tests.slurm.cluster import DevCluster
from tests.slurm.conftest import cluster_root, slurm_installed

__all__ = ["cluster_root", "slurm_installed"]

NIGHTLY = bool(os.environ.get("OUTERLOOP_NIGHTLY"))
PATIENCE_SECONDS = 1800 if NIGHTLY else 600

for needed in ("torch", "sklearn", "matplotlib"):
    if importlib.util.find_spec(needed) is None:
        pytest.skip(f"needs {needed}", allow_module_level=True)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(PATIENCE_SECONDS + 60)]


@pytest.fixture
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ol-camp-", dir="/tmp", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        outerloop(folder, "db", "stop")


def outerloop(home: Path, *words: str) -> str:
    done = subprocess.run(
        [str(Path(sys.executable).parent / "outerloop"), *words],
        env={**environment(home), "OUTERLOOP_CONFIG": str(home / "d" / "config.toml")},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    return done.stdout


def demo(home: Path, *options: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, str(TOP / "docs" / "tutorial" / "demo_campaign.py"), "--dir", str(home / "d"), *options],
        env={**environment(home), **variables},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


ALL = ("plain", "reader", "wide", "filters")
BY_DAY = ("plain",)


def checked(home: Path, said: str, trained: tuple[str, ...] = ALL) -> list[dict[str, object]]:
    """What holds for a campaign of any length; returns its events."""
    events = [json.loads(line) for line in outerloop(home, "campaign", "events", "digits", "--jsonl").splitlines()]
    assert outerloop(home, "campaign", "events", "digits", "--replay").startswith("The ledger holds: ")
    status = {e["run_id"].rpartition("-")[2]: e["status"] for e in events if e["kind"] == "run"}
    assert status["linear"] == "no_eligible_checkpoint"
    assert {status.get(name) for name in trained} == {"trained"} and len(status) >= len(trained) + 1
    assert [e for e in events if e["kind"] == "eval" and e.get("status") == "failed"] == []
    assert {e["exit_code"] for e in events if e["kind"] == "package" and e["status"] == "finished"} == {0}
    assert len(re.findall(r"^  item \d+: claimed \d: (?:pass|fail|rejected) \(margin ", said, re.MULTILINE)) == 4
    for suffix, begin in (("png", b"\x89PNG"), ("svg", b"<?xml")):
        assert (home / "d" / f"digits.{suffix}").read_bytes().startswith(begin)
    return events


def test_a_campaign_runs_on_this_machine(home: Path) -> None:
    by_day = ["--rounds", "1", "--only", ",".join((*BY_DAY, "linear"))]
    said = demo(home, "--backend", "local", *([] if NIGHTLY else by_day))
    events = checked(home, said, ALL if NIGHTLY else BY_DAY)
    if not NIGHTLY:
        return
    checks = [e for e in events if e["kind"] == "reserve_check" and e["status"] != "started"]
    assert checks[0]["status"] == "luck" and checks[0]["ends"] == "reserve_failed"
    assert "reserve check after 12 evaluations: the champion was luck" in said
    assert "generation 2 begins: reserve failed" in said
    assert any(e["kind"] == "eval" and str(e["run_id"]).endswith("-student") for e in events)
    assert any(e["kind"] == "eval" and str(e["run_id"]).startswith("ens-") for e in events)


@pytest.mark.slurm
@pytest.mark.skipif(not NIGHTLY, reason="takes minutes: set OUTERLOOP_NIGHTLY")
def test_a_campaign_runs_on_slurm(home: Path, slurm_installed: None, cluster_root: Path) -> None:
    with DevCluster(cluster_root / "campaign", nodes=2, cpus=16) as cluster:
        variables = {name: value for name, value in cluster.env.items() if name in {"SLURM_CONF", "PATH"}}
        said = demo(home, "--backend", "slurm", "--rounds", "2", **variables)
        assert said.startswith("backend slurm")
        checked(home, said)

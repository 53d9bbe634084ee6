"""A campaign on the development cluster, with controllers, jobs and job wrappers killed at random, wakes on.

What it was left with is compared with what its configs say must come out: the same trainings and scores, once each, and
the champion of an undisturbed campaign. Not covered: a kill at every named point (tests/e2e/test_campaign_kills.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from outerloop.champion import EvalEvent, RunEvent, events_from_jsonl
from outerloop.job.claim import process_start
from tests.controller_rig.campaigns import CampaignFiles
from tests.postgres.conftest import database, pg_url, template_database
from tests.slurm.cluster import DevCluster
from tests.slurm.world import SlurmWorld

__all__ = ["database", "pg_url", "template_database"]

pytestmark = pytest.mark.slurm

SECONDS = 150


class CampaignCluster(CampaignFiles, SlurmWorld):
    """The rig's campaign on a real cluster."""

    def __init__(self, folder: Path, database: str, cluster: DevCluster) -> None:
        SlurmWorld.__init__(self, folder, database, cluster)
        self.add_task()


@pytest.fixture
def world(tmp_path: Path, database: str, cluster: DevCluster) -> CampaignCluster:
    return CampaignCluster(tmp_path / "w", database, cluster)


def lives(claim: dict[str, Any]) -> bool:
    """Whether the very process that claimed an attempt is there; a pid may be somebody else's by now."""
    try:
        return process_start(int(claim["pid"])) == claim["pid_start"]
    except OSError:
        return False


def test_a_campaign_goes_on_through_random_kills(world: CampaignCluster) -> None:
    seed = int(os.environ.get("OUTERLOOP_SEED", random.SystemRandom().randrange(2**31)))
    print(f"OUTERLOOP_SEED={seed}")
    chance = random.Random(seed)
    world.campaign(("split", "train", "evaluate", "package"), max_rounds=2, parallel=2, compare="decided")
    world.candidates(a=[[20, 20], [15, 25]], b=[[10, 12]])
    told = world.cli("submit", "campaign", str(world.toml), "--json").stdout
    run_id = str(json.loads(told)["run"])
    deadline = time.monotonic() + SECONDS
    controllers = jobs = 0
    while world.run(run_id).state != "ended":
        assert time.monotonic() < deadline, f"{world.describe()}\n{world.queue()}"
        tick = world.command("tick")
        if controllers < 6 and chance.random() < 0.7:
            with contextlib.suppress(subprocess.TimeoutExpired):
                tick.wait(chance.uniform(0.05, 0.8))
            if tick.poll() is None:
                tick.kill()
                controllers += 1
        tick.communicate(timeout=90)
        # A wrapper dies without a word, as when a node that runs out of memory kills it.
        claims = [json.loads(path.read_text()) for path in world.state.slots.glob("*/*/attempts/1/claim.json")]
        victims = [claim for claim in claims if lives(claim)]
        if jobs < 2 and victims and chance.random() < 0.3:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(chance.choice(victims)["pid"]), signal.SIGKILL)
                jobs += 1
    assert world.run(run_id).verdict == "finished", world.describe()
    events = events_from_jsonl(world.cli("campaign", "events", run_id, "--jsonl").stdout)
    trained = {e.run_id: e.status for e in events if isinstance(e, RunEvent)}
    assert trained == {f"champ-g001-r{r:04d}-{name}": "trained" for r in (1, 2) for name in "ab"}
    scored = {e.subject: (e.status, e.row["fail_to_pass_count"]) for e in events if isinstance(e, EvalEvent)}
    assert scored == {
        f"champ-g001-r{r:04d}-{name}": ("scored", count)
        for r in (1, 2)
        for name, count in (("a/model-0001", 20), ("a/model-0002", 15), ("b/model-0001", 10))
    }
    champion = json.loads(world.cli("campaign", "status", run_id, "--json").stdout)["champion"]
    assert champion["row"]["fail_to_pass_count"] == 10
    # Only what was killed ran again.
    lines = [line for line in world.marks.read_text().splitlines() if not line.startswith("package")]
    repeated = len(lines) - len(set(lines))
    assert repeated <= jobs, sorted(lines)
    assert "The ledger holds" in world.cli("campaign", "events", run_id, "--replay").stdout
    world.check_once()

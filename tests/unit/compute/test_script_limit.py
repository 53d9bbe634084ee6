"""Attacks: a site's own limit on job scripts, as `scontrol show config` spells it, from there to the refusal."""

from __future__ import annotations

from pathlib import Path

import pytest

from outerloop.compute.protocol import SiteLimits
from outerloop.compute.slurm import SlurmCli, script_limit
from outerloop.controller.deployment import open_compute
from outerloop.controller.doctor.finding import Site
from outerloop.controller.doctor.profile import differences, facts, proposal
from outerloop.settings import Settings
from outerloop.slots import StateRoot


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("bf_interval=1,sched_interval=1,batch_sched_delay=1", None),
        ("bf_interval=1,max_script_size=65536,default_queue_depth=1000", 65536),
        ("max_script_size=1048576", 1048576),
        ("MAX_SCRIPT_SIZE=9000", 9000),
        ("no_max_script_size=1", None),
        ("max_script_size=0", None),
        ("(null)", None),
        ("", None),
    ],
)
def test_the_limit_is_found_among_the_schedulers_parameters(text: str, limit: int | None) -> None:
    assert script_limit(text) == limit


@pytest.mark.parametrize("path", sorted(Path("tests/fixtures/slurm").glob("*/scontrol-config.txt")), ids=str)
def test_what_real_releases_print_without_one_is_read_as_none(path: Path) -> None:
    [line] = [line for line in path.read_text().splitlines() if line.startswith("SchedulerParameters")]
    assert script_limit(line.partition("=")[2].strip()) is None


def test_doctor_proposes_it_and_submissions_respect_it(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    settings = Settings(backend="slurm", state=tmp_path / "s", slurm={"bin_dir": tools, "api": "cli"})  # type: ignore[arg-type]
    site = Site(settings, tmp_path / "config.toml", StateRoot(settings.state), "slurm")
    site.limits = SiteLimits(version="24.11", max_script_bytes=65536)
    [finding] = facts(site)
    assert finding.name == "scripts" and "65536" in finding.sentence
    assert proposal(site)["slurm"]["max_script_bytes"] == 65536
    assert differences(site)["slurm.max_script_bytes"] == (4 * 1024 * 1024, 65536)
    taken = settings.model_copy(update={"slurm": settings.slurm.model_copy(update={"max_script_bytes": 65536})})
    compute = open_compute(taken, StateRoot(settings.state))
    assert isinstance(compute, SlurmCli) and compute.max_script_bytes == 65536
    site.settings = taken
    assert list(facts(site)) == []

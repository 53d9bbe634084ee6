"""`tick --metrics`: a file that a monitoring system reads, whole at any moment, true, harmless to a tick."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from outerloop.controller.metrics import METRICS, samples, write_metrics
from outerloop.controller.tick import TickReport
from tests.e2e.cli.conftest import Outerloop
from tests.rows import World


def read(path: Path) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(path.read_text(encoding="utf-8"))
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def test_what_the_record_holds_is_what_the_file_says(world: World, tmp_path: Path) -> None:
    world.accepted("c-acce000001")
    world.run("c-0000000002", state="waiting")
    world.run("c-0000000003", state="blocked", state_reason="INFRASTRUCTURE")
    path = tmp_path / "outerloop.prom"
    report = TickReport(queue_answered=False, settled=3, seconds=0.25)
    now = time.time()
    write_metrics(path, samples(world.record, report, now=now))
    found = read(path)
    assert found["outerloop_runs", (("state", "waiting"),)] == 1
    assert found["outerloop_runs", (("state", "blocked"),)] == 1
    assert found["outerloop_runs", (("state", "queued"),)] == 0
    assert found["outerloop_runs_ended", (("verdict", "accepted"),)] == 1
    assert found["outerloop_queue_answered", ()] == 0
    assert found["outerloop_tick_jobs_settled", ()] == 3
    assert found["outerloop_tick_timestamp_seconds", ()] == pytest.approx(now)
    assert {name for name, _ in found} <= set(METRICS)
    assert path.stat().st_mode & 0o444 == 0o444, "the exporter is another account"
    assert [item.name for item in tmp_path.iterdir() if item.suffix != ".prom" and item.is_file()] == []


def test_a_tick_writes_it_and_a_bad_name_is_told_before_the_tick(
    world: World, outerloop: Outerloop, tmp_path: Path
) -> None:
    path = tmp_path / "outerloop.prom"
    outerloop("tick", "--metrics", str(path))
    first = read(path)["outerloop_tick_timestamp_seconds", ()]
    outerloop("tick", "--metrics", str(path), "-q")
    assert read(path)["outerloop_tick_timestamp_seconds", ()] > first
    for wrong, message in (
        (tmp_path / "outerloop.txt", "end in .prom"),
        (tmp_path / "nowhere" / "outerloop.prom", "there is no folder"),
    ):
        assert message in re.sub(r"\s+", " ", outerloop("tick", "--metrics", str(wrong), code=2).output)
    assert "no" in outerloop("tick", "--dry-run", "--metrics", str(path), code=2).output
    before = path.read_text()
    blocked = tmp_path / "folder.prom"
    blocked.mkdir()
    outerloop("tick", "--metrics", str(blocked), code=2)
    assert path.read_text() == before and list(blocked.iterdir()) == []

"""The recorded runs of `view --demo`: a whole recording, every page of it, nothing left behind.

Attacked here: a recording that a newer version can't fold, pages that need what was not packed, a torn archive, a demo
that is killed. Starting the command with a Postgres of its own takes a while and is done at night.
"""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from datetime import datetime, timedelta
from pathlib import Path
from urllib.request import urlopen

import pytest

from outerloop.champion import events_from_jsonl
from outerloop.controller.campaign_views import replay_text
from outerloop.controller.recording import BadRecording, opened_recording
from outerloop.viewer.app import record_app
from outerloop.viewer.demo import RECORDING, demo_source
from tests.viewer.serving import served
from tests.viewer.test_pages import harmless_page

MOST_BYTES = 400_000
"""Of the wheel, for a demo."""
PATIENCE_SECONDS = 300.0


def recorded_ledger() -> list[str]:
    """The lines of the recorded campaign, in order."""
    found = {}
    with tarfile.open(RECORDING) as packed:
        for entry in packed.getmembers():
            if re.fullmatch(r"runs/s-[0-9a-f]+/campaign/events/\d+/\d+\.json", entry.name):
                stream = packed.extractfile(entry)
                assert stream is not None
                found[entry.name] = stream.read().decode()
    return [found[name] for name in sorted(found)]


def test_the_recorded_campaign_holds() -> None:
    lines = recorded_ledger()
    assert len(events_from_jsonl("".join(lines))) == len(lines) > 100
    replayed = replay_text("".join(lines), "recording")
    assert replayed.problems == () and replayed.generations >= 2 and replayed.champion


def test_the_recording_is_small_and_names_no_place_of_its_makers() -> None:
    assert RECORDING.stat().st_size < MOST_BYTES
    with tarfile.open(RECORDING) as packed:
        for entry in packed.getmembers():
            assert entry.isreg() and (entry.uid, entry.gname) == (0, ""), entry.name
            assert not Path(entry.name).is_absolute() and ".." not in Path(entry.name).parts
            stream = packed.extractfile(entry)
            assert stream is not None
            text = stream.read()
            assert not re.search(rb"(/home/|/Users/|/root/|/wt/)", text), entry.name


def test_every_page_of_the_demo(database: str) -> None:
    with (
        opened_recording(RECORDING, database_url=database) as recorded,
        served(record_app(demo_source(recorded))) as asking,
    ):
        folder = recorded.deployment.root.path
        clock = f"the clock of these pages stands at {recorded.now:%Y-%m-%d %H:%M} UTC"
        runs = asking.get("/api/runs").json["runs"]
        assert {run["kind"] for run in runs} == {"climb", "training", "campaign"}
        assert {run["verdict"] for run in runs} == {"accepted", "rejected", "failed", "finished"}
        for path in ("/", "/runs", "/benchmarks", "/campaigns", "/trainings", "/queue", "/plans"):
            assert clock in harmless_page(asking, path).text, path
        ended = [datetime.fromisoformat(run["ended_at"]) for run in runs]
        assert asking.get("/api/runs").json["now"] == recorded.now.isoformat()
        assert timedelta(0) < recorded.now - max(ended) < timedelta(minutes=2)
        # However old the recording gets, its chart is full and nothing is said to be late.
        days = asking.get("/api/charts/days").json["data"]
        assert sum(sum(trace["y"]) for trace in days) == len(runs)
        champion = asking.get("/api/benchmarks").json["benchmarks"][0]
        assert champion["champion_run"] in {run["id"] for run in runs if run["verdict"] == "accepted"}
        assert champion["champion_value"] in harmless_page(asking, "/benchmarks").text
        [sweep] = asking.get("/api/plans").json["plans"]
        assert sweep["expected"]["candidate"].startswith("lease_tasks_x") and len(sweep["measured"]) == 3
        assert sweep["run_id"] in harmless_page(asking, "/plans").text
        assert "1 min ago" in harmless_page(asking, "/").text and " d ago" not in harmless_page(asking, "/").text
        for run in runs:
            page = harmless_page(asking, f"/runs/{run['id']}")
            assert run["sentence"] in " ".join(page.text.split())
            if run["kind"] == "climb" and run["verdict"] != "failed":
                assert "What would have changed it" in page.text, "an argument without its contract"
            if run["kind"] == "training":
                assert "Machines, workers, ranks" in page.text
                assert "whole" in page.text or "3 tasks" in run["sentence"], "checkpoints of the sharded training"
            if run["kind"] == "campaign":
                page = harmless_page(asking, f"/campaigns/{run['id']}?generation=1")
                for told in ("luck", "holds up", "Gate curves", "Teacher", "Ensembles"):
                    assert told in page.text, told
                for chart in ("front", "history", "curves"):
                    assert asking.get(f"/api/charts/campaigns/{run['id']}/{chart}").json["data"]
    assert not folder.exists()


def test_a_torn_recording_is_said(database: str, tmp_path: Path) -> None:
    torn = tmp_path / "torn.tar.xz"
    torn.write_bytes(RECORDING.read_bytes()[:5000])
    with pytest.raises(BadRecording, match="can't be unpacked"), opened_recording(torn, database_url=database):
        pass
    empty = tmp_path / "empty.tar"
    with tarfile.open(empty, "w") as packed:
        packed.addfile(tarfile.TarInfo("runs/x"), io.BytesIO())
    with pytest.raises(BadRecording, match="has no run"), opened_recording(empty, database_url=database):
        pass


@pytest.mark.skipif(not os.environ.get("OUTERLOOP_NIGHTLY"), reason="starts a Postgres of its own three times")
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_command_serves_and_leaves_nothing(tmp_path: Path, end: signal.Signals) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "OUTERLOOP_CONFIG": str(tmp_path / "none.toml")}

    def demo() -> tuple[subprocess.Popen[str], str]:
        started = subprocess.Popen(
            [sys.executable, "-c", "from outerloop.cli import main; main()", "view", "--demo", "--port", "0"],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert started.stdout is not None and started.stderr is not None
        url = started.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:"), started.stderr.read()
        return started, url

    process, url = demo()
    with urlopen(url, timeout=PATIENCE_SECONDS) as answer:
        assert b"recorded runs" in answer.read()
    process.send_signal(end)
    process.communicate(timeout=PATIENCE_SECONDS)
    if end is signal.SIGKILL:
        # What was killed cannot clean up; the next demo does.
        assert list(tmp_path.glob("outerloop-demo-*"))
        process, _url = demo()
        assert len(list(tmp_path.glob("outerloop-demo-*"))) == 1
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_SECONDS)
    left = list(tmp_path.glob("outerloop-demo-*"))
    deadline = time.monotonic() + PATIENCE_SECONDS
    while left and time.monotonic() < deadline:
        left = list(tmp_path.glob("outerloop-demo-*"))
    assert left == []
    assert tempfile.gettempdir() != str(tmp_path)

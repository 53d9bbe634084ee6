"""A report of `outerloop plan --json` on a page: every kind of work, with and without a plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from outerloop.cli.plan import plan
from outerloop.viewer.app import folder_app
from outerloop.viewer.folder import recognised
from tests.viewer.serving import served
from tests.viewer.test_pages import harmless_page

TOP = Path(__file__).resolve().parents[2]
ASKED = {path.stem: [str(path)] for path in sorted((TOP / "configs" / "plans").glob("*.toml"))}
NO_PLAN = {"nothing-fits": ["--model", "qwen2.5-7b", "--gpus", "1xRTX4090", "--host-memory-gb", "64"]}


@pytest.mark.parametrize("asked", (ASKED | NO_PLAN).values(), ids=[*ASKED, *NO_PLAN])
def test_every_candidate_is_there_with_its_reasons_and_arithmetic(asked: list[str], tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(CliRunner().invoke(plan, [*asked, "--json"]).output)
    report = json.loads(path.read_text())
    with served(folder_app(recognised(path))) as asking:
        told = " ".join(harmless_page(asking, "/").text.split())
        assert asking.get("/api/folder").json == report
    assert report["candidates"]
    for candidate in report["candidates"]:
        assert candidate["name"] in told
        for reason in candidate["reasons"]:
            assert " ".join(reason.split()) in told
        for estimate in (candidate["memory"], candidate["host_memory"], candidate["time_hours"]):
            for line in (estimate or {}).get("lines", ()):
                assert line["label"] in told and " ".join(line["formula"].split()) in told
    assert f"Run {report['selected']}" in told if report["selected"] else report["hint"] in told

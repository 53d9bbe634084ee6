"""Reports that survive a lost attempt: which are finished, what is moved aside, what the next attempt is asked for."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from outerloop.job import reports


def asked(count: int, file: str = "jobs.json") -> dict[str, Any]:
    return {
        "file": file,
        "jobs": [
            {"entry": {"checkpoint": f"/c/{n}"}, "report": f"{n:04d}.json", "scores": f"{n:04d}.scores.jsonl"}
            for n in range(count)
        ],
    }


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir()
    (tmp_path / "out").mkdir()
    return tmp_path / "state"


def prepare(state: Path, count: int, file: str = "jobs.json") -> bool:
    return reports.prepare(asked(count, file), str(state), str(state.parent / "out"), "/seen/as")


def jobs(state: Path) -> list[dict[str, Any]]:
    return list(json.loads((state.parent / "out" / "jobs.json").read_text()))


def test_the_first_attempt_is_asked_for_everything(state: Path) -> None:
    assert prepare(state, 2)
    assert jobs(state) == [
        {"checkpoint": f"/c/{n}", "output": f"/seen/as/000{n}.json", "scores_output": f"/seen/as/000{n}.scores.jsonl"}
        for n in range(2)
    ]


def test_finished_reports_are_kept_and_the_rest_is_asked_for(state: Path) -> None:
    (state / "0000.json").write_text("{}")
    (state / "0000.scores.jsonl").write_text("kept")
    assert prepare(state, 2)
    assert [job["checkpoint"] for job in jobs(state)] == ["/c/1"]
    assert (state / "0000.scores.jsonl").read_text() == "kept"


def test_when_all_are_finished_the_command_need_not_run(state: Path) -> None:
    (state / "0000.json").write_text('{"fail_count": 1}')
    assert not prepare(state, 1) and jobs(state) == []
    assert not prepare(state, 1, file="")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"a": 1', "\0", "[" * 100_000])
def test_a_report_that_is_not_whole_is_moved_aside_with_its_scores(state: Path, text: str) -> None:
    (state / "0000.json").write_text(text)
    (state / "0000.scores.jsonl").write_text("half")
    assert prepare(state, 1) and len(jobs(state)) == 1
    assert (state / "0000.json.aside-1").read_text() == text
    assert (state / "0000.scores.jsonl.aside-1").read_text() == "half"
    assert not (state / "0000.json").exists()


def test_scores_without_a_report_are_a_killed_evaluators(state: Path) -> None:
    for number in (1, 2):
        (state / "0000.scores.jsonl").write_text(f"half {number}")
        assert prepare(state, 1)
        assert (state / f"0000.scores.jsonl.aside-{number}").read_text() == f"half {number}"


def test_a_pipe_or_a_folder_in_a_reports_place_keeps_nobody_waiting(state: Path) -> None:
    os.mkfifo(state / "0000.json")
    (state / "0001.json").mkdir()
    assert prepare(state, 2) and len(jobs(state)) == 2
    assert (state / "0001.json.aside-1").is_dir()

"""Attacks: a metric that breaks the file or the training, a heartbeat that floods the disk or tears."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outerloop.torch import log_metrics
from outerloop.torch.facts import Reporter, jsonable


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OUTERLOOP_OUTPUT_DIR", str(tmp_path / "out"))
    return tmp_path / "out"


def lines(folder: Path) -> list[dict[str, Any]]:
    def strict(text: str) -> Any:
        raise AssertionError(f"{text} is no JSON number")

    return [json.loads(line, parse_constant=strict) for line in (folder / "metrics.jsonl").read_text().splitlines()]


class Hostile:
    def __str__(self) -> str:
        raise RuntimeError("no")


def test_every_value_becomes_valid_json(folder: Path) -> None:
    loop: dict[str, Any] = {}
    loop["self"] = loop
    log_metrics(
        {
            "nan": math.nan,
            "nested": {"inf": [1.0, -math.inf]},
            "scalar": numpy.float32(0.5),
            "array": numpy.arange(3),
            "one": numpy.array([[math.inf]]),
            "big": numpy.zeros(5000),
            "flag": numpy.bool_(True),
            "text": "\ud800",
            "path": Path("x"),
            "loop": loop,
            3: 4,
        }
    )
    (line,) = lines(folder)
    assert line["nan"] is None
    assert line["nested"] == {"inf": [1.0, None]}
    assert line["_non_finite"] == {"nan": "nan", "nested.inf[1]": "-inf", "one": "inf"}
    assert (line["scalar"], line["array"], line["one"], line["flag"], line["3"]) == (0.5, [0, 1, 2], None, True, 4)
    assert isinstance(line["big"], str)
    assert line["_time"] > 1.7e9


@pytest.mark.parametrize("metrics", [{"x": Hostile()}, None, 5, {"x": 10**5000}, [("a", 1)]])
def test_nothing_raises(folder: Path, metrics: Any, caplog: pytest.LogCaptureFixture) -> None:
    log_metrics(metrics)
    log_metrics({"step": 1})
    assert lines(folder)[-1]["step"] == 1
    assert len(caplog.records) <= 1


def test_a_folder_that_cannot_be_written_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OUTERLOOP_OUTPUT_DIR", str(tmp_path / "file"))
    for _ in range(5):
        log_metrics({"a": 1})
    assert len(caplog.records) == 1


def test_half_a_line_of_a_killed_process_is_not_glued_to_the_next(folder: Path) -> None:
    folder.mkdir()
    (folder / "metrics.jsonl").write_text('{"step": 1}\n{"st')
    log_metrics({"step": 2})
    log_metrics({"step": 3})
    text = (folder / "metrics.jsonl").read_text().splitlines()
    assert text[:2] == ['{"step": 1}', '{"st']
    assert [json.loads(line)["step"] for line in text[2:]] == [2, 3]


def test_other_ranks_write_heartbeats_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    log_metrics({"a": 1})
    assert [path.name for path in folder.iterdir()] == ["ranks"]
    assert json.loads((folder / "ranks" / "rank-3.json").read_text())["world_size"] == 4


def test_heartbeats_come_at_most_once_a_second(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("outerloop.torch.facts.time.monotonic", lambda: now)
    written = []
    monkeypatch.setattr("outerloop.torch.facts.written_atomically", lambda path, value, sync: written.append(path.name))
    reporter = Reporter(folder)
    for tenth in range(25):
        now = 100.0 + tenth / 10
        reporter.beat()
    assert written == ["rank-0.json", "run.json"] * 3


def test_step_time_leaves_out_saves_and_counts_tokens_of_all_ranks(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    now = 0.0
    monkeypatch.setattr("outerloop.torch.facts.time.monotonic", lambda: now)
    reporter = Reporter(folder)
    for step in range(4):
        reporter.saw_batch(8, 1000)
        now += 50.0 if step == 0 else 2.0
        reporter.step_ended(step)
        now += 7.0
        reporter.saved(step, 7.0, 123)
        reporter.resume_clock()
    reporter.beat(now=True)
    run = json.loads((folder / "run.json").read_text())
    assert run["step_seconds"] == {"count": 3, "median": 2.0, "p90": 2.0, "max": 2.0}
    assert (run["tokens_per_second"], run["samples_per_second"]) == (1000.0, 8.0)
    assert run["checkpoint"] == {
        "count": 4,
        "failed": 0,
        "last_step": 3,
        "seconds_median": 7.0,
        "seconds_max": 7.0,
        "bytes": 123,
    }
    assert reporter.stop_seconds == 9.0


def test_tokens_that_the_script_tells_replace_the_counted_ones(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("outerloop.torch.facts.time.monotonic", lambda: now)
    reporter = Reporter(folder)
    for step in range(3):
        reporter.saw_batch(8, 1000)
        reporter.log_metrics({"tokens": 600})
        now += 2.0
        reporter.step_ended(step)
        reporter.resume_clock()
    reporter.beat(now=True)
    assert json.loads((folder / "run.json").read_text())["tokens_per_second"] == 300.0


def test_the_largest_memory_of_any_rank_survives_a_torn_heartbeat(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    (folder / "ranks").mkdir(parents=True)
    beat = {"peak_memory_mb": {"device": 50.0, "reserved": 60.0, "rss": 1.0}}
    (folder / "ranks" / "rank-1.json").write_text(json.dumps(beat))
    (folder / "ranks" / "rank-2.json").write_text('{"peak')
    (folder / "ranks" / "rank-3.json").write_text("[]")
    reporter = Reporter(folder)
    reporter.device_memory = lambda: (40.0, 70.0)
    reporter.beat(now=True)
    memory = json.loads((folder / "run.json").read_text())["peak_memory_mb"]
    assert (memory["device"], memory["reserved"]) == (50.0, 70.0)
    assert memory["rss"] > 1.0


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@given(_values)
def test_plain_values_are_kept_and_only_non_finite_ones_are_flagged(value: Any) -> None:
    flags: dict[str, str] = {}
    plain = jsonable(value, flags)
    text = json.dumps(plain, allow_nan=False)
    if not flags and "…" not in text:
        assert json.loads(text) == plain
    if isinstance(value, float):
        assert bool(flags) == (not math.isfinite(value))

"""Capped logs: head and tail kept, all of it counted and hashed, a full disk survived."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from outerloop.job.streams import CappedLog


def test_short_output_is_kept_whole(tmp_path: Path) -> None:
    log = CappedLog(str(tmp_path / "log"), 100)
    log.feed(b"a" * 60)
    log.feed(b"b" * 40)
    assert (tmp_path / "log").read_bytes() == b"a" * 60 + b"b" * 40
    log.close()
    assert log.summary() == {"bytes": 100, "sha256": hashlib.sha256(b"a" * 60 + b"b" * 40).hexdigest(), "cut": False}


@pytest.mark.parametrize("piece", [1, 7, 30, 1000])
def test_long_output_keeps_head_and_tail_and_marks_the_cut(tmp_path: Path, piece: int) -> None:
    output = bytes(range(256)) * 8
    log = CappedLog(str(tmp_path / "log"), 100)
    for start in range(0, len(output), piece):
        log.feed(output[start : start + piece])
    log.close()
    mark = f"\n[outerloop: {len(output) - 100} bytes cut here]\n".encode()
    assert (tmp_path / "log").read_bytes() == output[:50] + mark + output[-50:]
    assert log.summary() == {"bytes": len(output), "sha256": hashlib.sha256(output).hexdigest(), "cut": True}


def test_the_tail_is_text_of_whole_lines(tmp_path: Path) -> None:
    log = CappedLog(str(tmp_path / "log"), 1000)
    log.feed(b"first line\nsecond \xff\0line\nthird\n")
    assert log.last(15) == "third\n"
    assert "second \ufffd\ufffdline" in log.last(1000)


def test_a_disk_that_cannot_be_written_does_not_stop_the_pump(tmp_path: Path) -> None:
    log = CappedLog("/dev/full", 100)
    log.feed(b"x" * 500)
    log.close()
    assert "No space left" in log.error
    assert log.summary()["bytes"] == 500
    assert log.summary()["cut"]
    missing = CappedLog(str(tmp_path / "no" / "log"), 100)
    missing.feed(b"x")
    missing.close()
    assert missing.summary()["bytes"] == 1

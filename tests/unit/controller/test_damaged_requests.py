"""Attacks: looking for torn requests, where one is no file at all."""

from __future__ import annotations

import os
from pathlib import Path

from outerloop.controller.unrecorded import damaged_requests
from outerloop.slots import StateRoot


def test_a_fifo_or_a_folder_instead_of_a_request_is_named_and_stops_nobody(tmp_path: Path) -> None:
    root = StateRoot(tmp_path)
    for run in ("c-a", "c-b", "c-c", "c-d"):
        root.request(run).parent.mkdir(parents=True)
    os.mkfifo(root.request("c-a"))
    root.request("c-b").mkdir()
    root.request("c-c").write_text("{")
    found = {each.run_id: each.why for each in damaged_requests(root, ["c-a", "c-b", "c-c", "c-d"])}
    assert found.keys() == {"c-a", "c-b", "c-c"}
    assert "no plain file" in found["c-a"] and "no plain file" in found["c-b"] and "torn" in found["c-c"]

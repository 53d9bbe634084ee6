"""A draft is nowhere under its name before it is published, and leaves nothing behind when it is taken back."""

from __future__ import annotations

from pathlib import Path

import pytest

from outerloop.slots.files import Draft, replace


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_draft_gets_its_name_when_it_is_published(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "map.json"
    draft = Draft(path, {"tasks": [1, 2]})
    assert not path.exists()
    assert draft.publish(name="array.map")
    assert path.read_text() == '{\n "tasks": [\n  1,\n  2\n ]\n}\n'
    assert names(path.parent) == ["map.json"]


def test_the_first_of_two_drafts_is_the_file(tmp_path: Path) -> None:
    path = tmp_path / "map.json"
    first, second = Draft(path, "first"), Draft(path, "second")
    assert second.publish(name="array.map")
    assert not first.publish(name="array.map")
    assert path.read_text() == "second"
    assert names(tmp_path) == ["map.json"]


def test_a_draft_that_is_taken_back_leaves_nothing(tmp_path: Path) -> None:
    Draft(tmp_path / "map.json", "text").discard()
    assert names(tmp_path) == []


def test_what_went_wrong_beside_is_raised_when_the_draft_is_published(tmp_path: Path) -> None:
    draft = Draft(tmp_path / f"{'x' * 250}.json", "the temporary name is too long for any file system")
    with pytest.raises(OSError, match="too long"):
        draft.publish(name="array.map")
    assert names(tmp_path) == []


def test_a_file_that_is_not_flushed_is_whole_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "wakes" / "0001.sh"
    replace(path, "#!/bin/sh\n", name="attempt.prepare", mode=0o700, flushed=False)
    assert path.read_text() == "#!/bin/sh\n" and path.stat().st_mode & 0o777 == 0o700
    assert names(path.parent) == ["0001.sh"]

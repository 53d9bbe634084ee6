"""Attacks: a checkpoint that looks whole and is not, a manifest that points outside, a sweep that removes too much."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outerloop.torch import store


def publish(root: Path, step: int, text: str = "x", nonce: str = "n") -> Path:
    folder = store.saving_folder(root, step, nonce)
    folder.mkdir(parents=True)
    (folder / "model.pt").write_text(text)
    parts = {"model.pt": store.hashed(folder / "model.pt", sync=True)}
    return store.publish(root, folder, store.Manifest(step, "full", 1, parts), "2.13.0")


def test_what_is_published_reads_back_and_leaves_nothing_else(tmp_path: Path) -> None:
    folder = publish(tmp_path, 7, "abc")
    manifest = store.read_manifest(folder)
    assert manifest is not None
    assert (manifest.step, manifest.format, manifest.world_size, manifest.bytes) == (7, "full", 1, 3)
    assert store.broken_parts(folder, manifest) == []
    assert [path.name for path in tmp_path.iterdir()] == ["step-0000000007"]


def test_a_step_saved_again_replaces_the_old_one(tmp_path: Path) -> None:
    publish(tmp_path, 7, "old", "a")
    folder = publish(tmp_path, 7, "new", "b")
    assert (folder / "model.pt").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["step-0000000007"]


def test_a_checkpoint_moved_aside_for_one_that_never_came_is_found_again(tmp_path: Path) -> None:
    """The process was killed between the two renames of publish."""
    folder = publish(tmp_path, 7, "old")
    folder.rename(tmp_path / ".old-step-0000000007-abc")
    store.saving_folder(tmp_path, 7, "abc").mkdir()
    store.sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step-0000000007"]
    publish(tmp_path, 7, "new", "d")
    (tmp_path / ".old-step-0000000007-d").mkdir()
    store.sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step-0000000007"]
    assert (tmp_path / "step-0000000007" / "model.pt").read_text() == "new"


def test_the_newest_two_are_kept_and_numbers_are_compared_as_numbers(tmp_path: Path) -> None:
    for step in (9, 10, 99_999_999_999, 100, 20):
        publish(tmp_path, step)
    assert [int(path.name[5:]) for path in store.published(tmp_path)] == [99_999_999_999, 100, 20, 10, 9]
    store.prune(tmp_path)
    assert [int(path.name[5:]) for path in store.published(tmp_path)] == [99_999_999_999, 100]


def test_sweep_and_prune_touch_only_their_own(tmp_path: Path) -> None:
    publish(tmp_path, 1)
    for name in ("mine", ".saving-step-0000000002-x", ".old-y", ".torn-z"):
        (tmp_path / name).mkdir()
    (tmp_path / "step-12").mkdir()
    store.sweep(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".torn-z", "mine", "step-0000000001", "step-12"]
    store.prune(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine", "step-0000000001", "step-12"]


@pytest.mark.parametrize(
    "change",
    [
        {"parts": {}},
        {"parts": {"../../etc/passwd": {"bytes": 1, "sha256": "x"}}},
        {"parts": {"a/b": {"bytes": 1, "sha256": "x"}}},
        {"parts": {"model.pt": {"bytes": "many", "sha256": "x"}}},
        {"parts": {"model.pt": 3}},
        {"parts": []},
        {"step": 8},
        {"schema": 2},
        {"step": None},
    ],
)
def test_a_manifest_that_is_not_sound_is_no_manifest(tmp_path: Path, change: dict[str, object]) -> None:
    folder = publish(tmp_path, 7)
    path = folder / store.MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert store.read_manifest(folder) is None


@pytest.mark.parametrize("text", ["", "[]", "null", '{"schema": 1', "\x00", "[" * 100_000])
def test_a_manifest_that_is_no_json_is_no_manifest(tmp_path: Path, text: str) -> None:
    folder = publish(tmp_path, 7)
    (folder / store.MANIFEST).write_text(text)
    assert store.read_manifest(folder) is None


def test_the_ranks_share_the_hashing_without_a_gap(tmp_path: Path) -> None:
    folder = tmp_path / "step-0000000003"
    folder.mkdir()
    parts = {f"part-{n}": store.Part(1, "not its hash") for n in range(7)}
    manifest = store.Manifest(3, "full", 3, parts)
    found = [store.broken_parts(folder, manifest, share=r, shares=3) for r in range(3)]
    assert sorted(name for names in found for name in names) == sorted(parts)
    assert max(map(len, found)) == 3

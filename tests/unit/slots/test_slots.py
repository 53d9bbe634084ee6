"""Slots: one name per result, files that are whole or absent, one pinned value."""

from __future__ import annotations

import builtins
import errno
import io
import json
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outerloop.job import files as job_files
from outerloop.job import layout
from outerloop.job.pack import MEMBER
from outerloop.slots import Determinants, Pin, SlotDirectory, StateRoot, canonical_json
from outerloop.slots.files import publish, read_json
from outerloop.slots.files import replace as rewrite

WORK = Determinants(tree="a" * 40, command="run", metric="m", env={"SEED": "1"}, cpus=2)

CHANGES = {
    "tree": "b" * 40,
    "command": "run ",
    "kind": "environment",
    "launch": {"argv": ["x"]},
    "metric": "n",
    "guards": ("g",),
    "score": "score",
    "score_tree": "c" * 40,
    "outputs": ("out",),
    "env": {"SEED": "2"},
    "image": "d" * 64,
    "environment": "e" * 64,
    "platform": "Linux",
    "prologue": "f" * 64,
    "network": True,
    "cpus": 3,
    "memory_mb": 1,
    "gpus": 1,
    "gpu_type": "h100",
    "nodes": 2,
    "inputs": (("data", "0" * 64),),
    "replicate": 1,
    "items": True,
}


def test_each_determinant_changes_the_name_and_none_is_forgotten_here() -> None:
    assert set(CHANGES) == set(Determinants.__dataclass_fields__)
    digests = {replace(WORK, **{key: value}).digest for key, value in CHANGES.items()}  # type: ignore[arg-type]
    assert len(digests | {WORK.digest}) == len(CHANGES) + 1


def test_the_name_is_the_same_on_every_machine() -> None:
    """A change of this constant makes every slot that exists another one: bump IDENTITY_SCHEMA on purpose."""
    assert WORK.digest == "afde7cd6f4e3f8b8de13e0e6260f6ecd53d4a47fdaf8dab025fd2845fa38343d"
    shuffled = replace(WORK, env=dict(reversed(list({"B": "2", "A": "1"}.items()))))
    assert shuffled.digest == replace(WORK, env={"A": "1", "B": "2"}).digest


def test_order_of_sets_does_not_matter() -> None:
    one = replace(WORK, guards=("a", "b"), outputs=("x", "y"), inputs=(("p", "1"), ("q", "2")))
    two = replace(WORK, guards=("b", "a"), outputs=("y", "x"), inputs=(("q", "2"), ("p", "1")))
    assert one.digest == two.digest


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda v: st.lists(v) | st.dictionaries(st.text(), v)
    )
)
def test_canonical_json_is_json_and_a_fixed_point(value: object) -> None:
    text = canonical_json(value)
    assert canonical_json(json.loads(text)) == text


def test_floats_have_no_place_in_an_identity() -> None:
    with pytest.raises(TypeError, match=r"\$\.a\[1\]"):
        canonical_json({"a": [1, 1.5]})


def test_publishing_has_one_winner_among_many(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "x.json"
    winners = []

    def race(number: int) -> None:
        if publish(path, {"n": number}, name="slot.spec"):
            winners.append(number)

    threads = [threading.Thread(target=race, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(winners) == 1 and read_json(path) == {"n": winners[0]}
    assert [entry.name for entry in path.parent.iterdir()] == ["x.json"]


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    for act in (publish, rewrite):
        with pytest.raises(OSError, match="No space"):
            act(tmp_path / "x.json", {"a": 1}, name="slot.spec")
    assert list(tmp_path.iterdir()) == []


def test_row_14_submissions_of_one_moment_have_scripts_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slots, numbers of one slot, and one intent that two processes carry out: nobody's script is ever another's."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # many small writes; a crash of the machine is not at issue
    slots = [replace(WORK, command=f"run {number}") for number in range(4)]
    asked = [(SlotDirectory(tmp_path / work.digest, work.digest), n) for work in slots for n in (1, 2)] * 2
    start = threading.Barrier(len(asked) + 1, timeout=60)
    paths: list[Path] = []
    torn: list[str] = []

    def text(slot: SlotDirectory, n: int) -> str:
        return f"#!/bin/sh\n# {slot.digest} {n}\n" + f"echo {n}\n" * 2000

    def submit(slot: SlotDirectory, n: int) -> None:
        start.wait()
        for _ in range(5):
            script = slot.prepare_attempt(n, {"attempt": n}, text(slot, n))
            if script.read_text() != text(slot, n):  # the other carrier of this intent may be writing it, too
                torn.append(str(script))
        paths.append(script)

    threads = [threading.Thread(target=submit, args=each) for each in asked]
    for thread in threads:
        thread.start()
    start.wait()
    for thread in threads:
        thread.join()
    assert len(paths) == len(asked) and len(set(paths)) == len(asked) / 2 and torn == []
    for slot, n in asked:
        assert (slot.attempt(n) / layout.SCRIPT).read_text() == text(slot, n)
        assert not [entry.name for entry in slot.attempt(n).iterdir() if entry.name.endswith(".tmp")]


class CachedAbsence:
    """A file system whose client remembers that a name was absent until the folder is listed, whatever its type."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.absent: set[str] = set()
        for name in ("stat", "lstat", "open"):
            patch.setattr(os, name, self.remembering(getattr(os, name)))
        patch.setattr(io, "open", self.remembering(io.open))
        patch.setattr(builtins, "open", self.remembering(builtins.open))
        for name in ("scandir", "listdir"):
            patch.setattr(os, name, self.listing(getattr(os, name)))
        patch.setattr(os, "statvfs", self.asked)

    def remembering(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *arguments: Any, **named: Any) -> Any:
            if str(path).startswith(("/proc/mounts", "/proc/self/mount")):
                self.asked()
            if str(path) in self.absent:
                raise FileNotFoundError(errno.ENOENT, "remembered as absent", str(path))
            return real(path, *arguments, **named)

        return call

    def listing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any = ".") -> Any:
            self.absent = {name for name in self.absent if os.path.dirname(name) != str(path)}
            return real(path)

        return call

    def asked(self, *_arguments: Any) -> None:
        raise AssertionError("a reader of slots wants to know the type of the file system")


def test_row_75_a_cached_absence_is_overcome_without_asking_for_the_file_systems_type(
    slot: SlotDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim(slot)
    result(slot)
    slot.pin(Pin(1, 0))
    slot.settle(1, {"outcome": "done"})
    slot.write_submitted(1, {"job_id": "7"})
    (slot.attempt(1) / MEMBER).write_text('{"exit": 0}')
    client = CachedAbsence(monkeypatch)

    def unlisted() -> Path:
        client.absent = {str(path) for path in (slot.path, *slot.path.rglob("*")) if path.suffix != ".tmp"}
        return slot.attempt(1)

    unlisted()
    with pytest.raises(FileNotFoundError):
        (slot.attempt(1) / layout.RESULT).read_bytes()  # what a reader that only opens would see
    readers: list[Callable[[], Any]] = [
        slot.spec,
        slot.pinned,
        slot.value,
        lambda: slot.claim(1),
        lambda: slot.result(1),
        lambda: slot.settled(1),
        lambda: slot.submitted(1),
        lambda: slot.order(1),
        lambda: slot.member(1),
        lambda: job_files.listed(str(slot.attempt(1) / layout.RESULT)),
        lambda: job_files.read_object_patiently(str(slot.attempt(1) / layout.ORDER)),
    ]
    for number, reader in enumerate(readers):
        unlisted()
        assert reader(), f"reader {number} took a cached absence for the truth"


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"null", b'{"a": 1} trailing', b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_whole_object_is_not_there_yet(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.json").write_bytes(content)
    assert read_json(tmp_path / "x.json") is None
    assert read_json(tmp_path / "nowhere" / "x.json") is None


@pytest.fixture
def slot(tmp_path: Path) -> SlotDirectory:
    made = SlotDirectory(tmp_path / WORK.digest, WORK.digest)
    made.write_spec(WORK.canonical(), {"label": "x"})
    made.prepare_attempt(1, {"attempt": 1}, "#!/bin/sh\n")
    return made


def claim(slot: SlotDirectory, n: int = 1, **changes: object) -> None:
    body = {"schema": 1, "digest": slot.digest, "attempt": n, "job_id": "7", "restart": 0, "host": "n1"}
    (slot.attempt(n) / layout.CLAIM).write_text(json.dumps({**body, **changes}))


def result(slot: SlotDirectory, n: int = 1, **changes: object) -> None:
    body = {
        "schema": 1,
        "digest": slot.digest,
        "attempt": n,
        "job_id": "7",
        "restart": 0,
        "outcome": "ok",
        "metric": {"name": "m", "text": "7542.0"},
    }
    (slot.attempt(n) / layout.RESULT).write_text(json.dumps({**body, **changes}))


def test_a_result_counts_only_with_its_claim(slot: SlotDirectory) -> None:
    result(slot)
    assert slot.result(1) is None
    claim(slot)
    found = slot.result(1)
    assert found is not None and found.value == Decimal("7542.0") and str(found.value) == "7542.0"


@pytest.mark.parametrize(
    "changes",
    [
        {"digest": "0" * 64},
        {"attempt": 2},
        {"job_id": "8"},
        {"restart": 1},
        {"outcome": "fine"},
        {"schema": 2},
        {"job_id": None},
    ],
)
def test_a_foreign_or_stale_result_is_not_there(slot: SlotDirectory, changes: dict[str, object]) -> None:
    claim(slot)
    result(slot, **changes)
    assert slot.result(1) is None


@pytest.mark.parametrize("text", ["NaN", "Infinity", "1e", "", None, 5, True])
def test_an_unusable_number_is_no_value(slot: SlotDirectory, text: object) -> None:
    claim(slot)
    result(slot, metric={"name": "m", "text": text})
    found = slot.result(1)
    assert found is not None and found.value is None


def test_the_first_pin_stays(slot: SlotDirectory) -> None:
    claim(slot)
    result(slot)
    assert slot.pin(Pin(1, 0)) == Pin(1, 0)
    assert slot.pin(Pin(2, 0)) == Pin(1, 0)
    assert slot.pinned() == Pin(1, 0)


def test_a_pin_without_a_result_binds_nobody(slot: SlotDirectory) -> None:
    assert slot.pin(Pin(1, 0)) == Pin(1, 0)
    slot.prepare_attempt(2, {"attempt": 2}, "#!/bin/sh\n")
    claim(slot, 2)
    result(slot, 2)
    assert slot.pin(Pin(2, 0)) == Pin(2, 0) == slot.pinned()


def test_the_first_settlement_stays(slot: SlotDirectory) -> None:
    first = slot.settle(1, {"outcome": "infrastructure", "reason": "LOST"})
    assert slot.settle(1, {"outcome": "done", "reason": ""})["outcome"] == first["outcome"] == "infrastructure"


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".", "..", "a\0b", "x" * 200])
def test_no_name_leaves_the_state_folder(name: str, tmp_path: Path) -> None:
    root = StateRoot(tmp_path)
    for path in (root.run, root.mirror, root.champion_folder, root.inbox_request, root.doorbell, root.slot):
        with pytest.raises(ValueError, match="cannot be a file name"):
            path(name)

"""Effects: every one has a name and two points, and none happens outside its `with effect(...)`."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import outerloop
from outerloop.effects import EFFECTS, effect

ROOMS = ("controller", "dispatch", "record", "slots")
PACKAGE = Path(outerloop.__file__).parent

# Calls that change the outside world for good. What a reader of the record or a throw-away folder does is not here.
WORLD_CHANGING = {"link", "replace", "rename", "unlink", "rmtree", "touch"}
WORLD_CHANGING_QUALIFIED = {("compute", "submit"), ("compute", "submit_array"), ("compute", "cancel")}

ALLOWED = {
    # The two primitives: the temporary file that becomes the published one, inside or right after the effect.
    ("slots/files.py", "_temporary"),
    ("slots/files.py", "_remove"),
    ("slots/files.py", "publish"),
    ("slots/files.py", "replace"),
    # The server's own folder: starting it twice is harmless, and its tests kill it at will.
    ("record/embedded.py", "*"),
    ("record/server/launch.py", "*"),
    ("record/server/place.py", "*"),
    ("record/server/processes.py", "*"),
    ("record/server/removal.py", "*"),
    # A doorbell marker that is lost rings again with the next tick's listing.
    ("controller/tick.py", "_fold"),
    # The copy of a slot that a reproduction ran in, outside of what any other reader knows.
    ("controller/reproduce.py", "copied"),
    # The temporary folder of a demo, which no other reader knows: the next demo removes what a killed one left.
    ("controller/recording.py", "_remove"),
    # Doctor tries links and renames on files of its own and removes them.
    ("controller/doctor/host.py", "_durable"),
}


def _is_effect(node: ast.With) -> bool:
    return any(
        isinstance(item.context_expr, ast.Call)
        and isinstance(item.context_expr.func, ast.Name)
        and item.context_expr.func.id == "effect"
        for item in node.items
    )


class _Finder(ast.NodeVisitor):
    def __init__(self, file: str) -> None:
        self.file = file
        self.function = ""
        self.inside = 0
        self.found: list[str] = []

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        before, self.function = self.function, node.name
        self.generic_visit(node)
        self.function = before

    def visit_With(self, node: ast.With) -> None:
        marked = _is_effect(node)
        self.inside += marked
        self.generic_visit(node)
        self.inside -= marked

    def visit_Call(self, node: ast.Call) -> None:
        called = node.func
        if isinstance(called, ast.Attribute):
            owner = called.value.attr if isinstance(called.value, ast.Attribute) else getattr(called.value, "id", "")
            # A pathlib rename or unlink has at most one argument; str.replace and dataclasses.replace look different.
            worldly = called.attr in WORLD_CHANGING and not (called.attr == "replace" and len(node.args) != 1)
            if (worldly or (owner, called.attr) in WORLD_CHANGING_QUALIFIED) and not self.inside:
                allowed = {(self.file, self.function), (self.file, "*")} & ALLOWED
                if not allowed:
                    self.found.append(f"{self.file}:{node.lineno} {called.attr} in {self.function}")
        self.generic_visit(node)


def test_no_effect_without_a_name() -> None:
    found = []
    for room in ROOMS:
        for path in sorted((PACKAGE / room).rglob("*.py")):
            finder = _Finder(path.relative_to(PACKAGE).as_posix())
            finder.visit(ast.parse(path.read_text()))
            found += finder.found
    assert not found, "effects outside `with effect(...)`:\n" + "\n".join(found)


def test_the_finder_finds(tmp_path: Path) -> None:
    finder = _Finder("x.py")
    finder.visit(ast.parse("def f(p):\n    p.unlink()\n    with effect('a'):\n        p.rename(q)\n"))
    assert finder.found == ["x.py:2 unlink in f"]


def test_every_session_is_opened_by_the_named_transaction() -> None:
    """begin() and commit() occur in record/store.py alone, where each transaction has a name."""
    offenders = []
    for room in ("controller", "dispatch"):
        for path in sorted((PACKAGE / room).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                called = node.func if isinstance(node, ast.Call) else None
                if isinstance(called, ast.Attribute) and called.attr in {"commit", "begin", "Session"}:
                    owner = getattr(called.value, "id", "")
                    offenders.append(f"{path.name}:{called.lineno} {owner}.{called.attr}")
    # Repository.commit() resolves a revision; it commits nothing to the record.
    assert [o for o in offenders if not o.endswith("repo.commit") and not o.startswith("git.py")] == []


def test_every_name_that_is_used_is_registered_and_every_registered_one_is_used() -> None:
    used: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                texts = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
                texts += [
                    k.value.value
                    for k in node.keywords
                    if k.arg in {"name", "fold"}
                    and isinstance(k.value, ast.Constant)
                    and isinstance(k.value.value, str)
                ]
                if name in {
                    "effect",
                    "transaction",
                    "fenced",
                    "publish",
                    "replace",
                    "append_marker",
                    "note",
                    "_fold",
                }:
                    used.update(t for t in texts if "." in t and " " not in t)
    from_defaults = {"tx.fold"}
    assert used - set(EFFECTS) == set()
    assert set(EFFECTS) - used - from_defaults == set()


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("nth", [1, 2])
def test_a_fault_kills_at_its_point(place: str, nth: int) -> None:
    code = (
        "from outerloop.effects import effect\n"
        "for i in range(3):\n"
        "    print('go', i, flush=True)\n"
        "    with effect('slot.pin'):\n"
        "        print('in', i, flush=True)\n"
    )
    env = {**os.environ, "OUTERLOOP_FAULT": f"{place}:slot.pin:kill:{nth}"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    lines = done.stdout.split("\n")[:-1]
    expected = [f"{word} {i}" for i in range(nth) for word in ("go", "in")]
    assert lines == (expected[:-1] if place == "before" else expected)


def test_an_unknown_effect_is_our_error() -> None:
    with pytest.raises(KeyError, match="not registered"), effect("slot.nope"):
        pass

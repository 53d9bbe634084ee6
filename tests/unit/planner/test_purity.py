"""The room is pure: what its modules import, at any depth of the code, touches no disk, process, clock or network."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import outerloop.planner

ALLOWED = {
    "__future__", "collections", "dataclasses", "difflib", "functools", "hashlib", "itertools", "json", "math",
    "pydantic", "re", "textwrap", "typing",
}  # fmt: skip
MODULES = sorted(Path(outerloop.planner.__file__).parent.glob("*.py"))


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return {name for name in names if not name.startswith("outerloop.planner")}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_module_imports_only_what_computes(path: Path) -> None:
    roots = {name.partition(".")[0] for name in imported(path)}
    assert roots <= ALLOWED | ({"torch"} if path.stem == "calibrate" else set())


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_module_opens_no_file_and_reads_no_environment(path: Path) -> None:
    called = {
        node.func.id
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not called & {"open", "exec", "eval", "__import__", "input"}

"""Attacks: that reference pages are older than the code, depend on who writes them, or leave a key unexplained."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel, Field

REPOSITORY = Path(__file__).parents[3]
DOCS = REPOSITORY / "docs"
SOURCES = ("generate_cli.py", "generate_reference.py", "model_tables.py")


def _run(folder: Path, home: Path, columns: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The generator in this folder, as somebody else would run it."""
    environment = {
        "HOME": str(home),
        "COLUMNS": columns,
        "USER": "somebody",
        "OUTERLOOP_CONFIG": str(home / "none"),
        "PYTHONPATH": str(REPOSITORY),
    }
    command = [sys.executable, str(folder / "generate_reference.py"), *arguments]
    return subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True, check=False)


def test_the_pages_are_current_whoever_writes_them_and_check_tells_an_old_one(tmp_path: Path) -> None:
    copy = tmp_path / "docs"
    copy.mkdir()
    for name in SOURCES:
        shutil.copy(DOCS / name, copy)
    written = _run(copy, tmp_path, "40")
    assert written.returncode == 0, written.stderr
    made = sorted(page.name for page in (copy / "reference").iterdir())
    assert made == sorted(page.name for page in (DOCS / "reference").iterdir())
    for name in made:
        there = (DOCS / "reference" / name).read_text(encoding="utf-8")
        assert (copy / "reference" / name).read_text(encoding="utf-8") == there, (
            "run: python docs/generate_reference.py"
        )
    page = copy / "reference" / "settings.md"
    page.write_text(page.read_text() + "x", encoding="utf-8")
    checked = _run(copy, tmp_path, "200", "--check")
    assert checked.returncode == 1
    old = [line.partition(" ")[0] for line in checked.stderr.splitlines()]
    assert old == [str(page)], "one page is old, the others are current on a wider terminal, too"


class Inner(BaseModel):
    """What it is."""

    size: int = Field(default=3, ge=1, description="How | big.")


class Outer(BaseModel):
    inner: Inner | None = Field(default=None, description="In it.")
    name: str = Field(description="Its name.")


class Silent(BaseModel):
    size: int = 3


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.syspath_prepend(str(DOCS))
    import model_tables  # type: ignore[import-not-found]

    return model_tables.model_tables


def test_a_models_tables_say_kind_default_and_meaning(tables: object) -> None:
    assert callable(tables)
    text = tables(Outer, "Top")
    assert "| `name` | text | required | Its name. |" in text
    assert "## `[inner]`\n\nWhat it is.\n" in text
    assert "| `size` | whole number (≥ 1) | `3` | How \\| big. |" in text


def test_a_key_without_a_description_is_refused(tables: object) -> None:
    assert callable(tables)
    with pytest.raises(KeyError, match=r"Silent\.size has no description"):
        tables(Silent, "Top")

"""Attacks: that the page about the command line is older than the command line, or depends on who writes it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]
GENERATOR = REPOSITORY / "docs" / "generate_cli.py"
PAGE = REPOSITORY / "docs" / "reference" / "cli.md"


def _write_as(home: Path, columns: str) -> str:
    """The page as somebody else would write it."""
    program = f"import runpy; print(runpy.run_path({str(GENERATOR)!r})['page'](), end='')"
    environment = {"HOME": str(home), "COLUMNS": columns, "USER": "somebody", "OUTERLOOP_CONFIG": str(home / "none")}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=home, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_the_page_is_current_whoever_writes_it(tmp_path: Path) -> None:
    wanted = _write_as(tmp_path, "40")
    assert PAGE.read_text(encoding="utf-8") == wanted, "run: python docs/generate_cli.py"
    assert _write_as(tmp_path, "200") == wanted


def test_check_tells_an_old_page_from_a_current_one(tmp_path: Path) -> None:
    copy = tmp_path / "docs" / "generate_cli.py"
    copy.parent.mkdir()
    copy.write_text(GENERATOR.read_text(encoding="utf-8"), encoding="utf-8")

    def run(*arguments: str) -> int:
        done = subprocess.run([sys.executable, str(copy), *arguments], capture_output=True, check=False)
        return done.returncode

    assert run("--check") == 1
    assert run() == 0
    assert run("--check") == 0
    page = tmp_path / "docs" / "reference" / "cli.md"
    page.write_text(page.read_text() + "x", encoding="utf-8")
    assert run("--check") == 1

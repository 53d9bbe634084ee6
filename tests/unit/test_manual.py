"""A manual that does not build, has a dead link, can't be searched from disk, or asks another machine for something."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
_LOADED = re.compile(r"<(?:script|img|iframe)\b[^>]*\bsrc=\"?([^\s\">]+)|<link\b[^>]*\bhref=\"?([^\s\">]+)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The manual, built."""
    if importlib.util.find_spec("material") is None:
        pytest.skip("no mkdocs: bash .ci/setup docs")
    folder = tmp_path_factory.mktemp("manual") / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)],
        cwd=TOP,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_manual_opens_without_any_other_machine(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        for found in _LOADED.findall(page.read_text(encoding="utf-8")):
            address = "".join(found)
            assert "://" not in address and not address.startswith("//"), f"{page.name} loads {address}"
            if page.name != "404.html" and not address.startswith(("data:", "#")):
                assert (page.parent / address.partition("?")[0].partition("#")[0]).exists(), f"{page.name}: {address}"
    assert (site / "search" / "search_index.js").is_file(), "search needs the index as a script on disk"


def test_the_manual_is_searched_from_disk(site: Path) -> None:
    """As a reader of the files does: no server, a word typed into the field."""
    playwright = pytest.importorskip("playwright.sync_api")
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None and not os.environ.get("OUTERLOOP_REQUIRE_BROWSER"):
        pytest.skip("no chromium in PATH")
    page = site / "index.html"
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            tab = browser.new_page(viewport={"width": 1280, "height": 800})
            tab.goto(page.as_uri())
            tab.focus("input.md-search__input")
            tab.keyboard.type("campaign")
            found = tab.wait_for_selector(".md-search-result__link", timeout=60_000)
            assert found is not None and "campaign" in str(found.get_attribute("href"))
        finally:
            browser.close()

"""`campaign plot` as it is typed: file names that say nothing, ledgers without anything to draw, no matplotlib."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

pytest.importorskip("matplotlib", reason="needs the extra `plot`")

from outerloop.champion import events_to_jsonl
from outerloop.cli import app
from tests.unit.champion.world import World, campaign


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    world = World(campaign(max_rounds=2), salt=1)
    world.run()
    path = tmp_path_factory.mktemp("ledger") / "small.jsonl"
    path.write_text(events_to_jsonl(world.ledger), encoding="utf-8")
    return path


def plot(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["campaign", "plot", *map(str, words)])


@pytest.mark.parametrize(("suffix", "begin"), [("svg", b"<?xml"), ("PNG", b"\x89PNG"), ("pdf", b"%PDF")])
def test_the_name_decides_the_format(ledger: Path, tmp_path: Path, suffix: str, begin: bytes) -> None:
    place = tmp_path / f"picture.{suffix}"
    done = plot("--file", ledger, "--output", place)
    assert done.exit_code == 0, done.output
    assert place.read_bytes().startswith(begin)
    assert [path.name for path in tmp_path.iterdir()] == [place.name]


def test_the_default_name_is_the_campaigns(ledger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert plot("--file", ledger).exit_code == 0
    assert (tmp_path / "small.svg").is_file()


def test_the_numbers_are_printed_without_drawing(ledger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.chdir(tmp_path)
    data = json.loads(plot("--file", ledger, "--json").output)
    assert data["evaluations"] and data["objectives"] == ["fail_to_pass", "pass_to_fail"]
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_it_says_what_to_install(
    ledger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("matplotlib")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = plot("--file", ledger, "--output", tmp_path / "p.svg")
    assert done.exit_code == 2
    assert "pip install 'outerloop-slurm[plot]'" in done.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 2, "name a CAMPAIGN, or a --file"),
        (["x", "--file", "LEDGER"], 2, "name a CAMPAIGN, or a --file"),
        (["--file", "LEDGER", "-o", "p.gif"], 2, "p.gif: the name must end in .svg, .png, .pdf"),
        (["--file", "LEDGER", "-o", "p"], 2, "p: the name must end in"),
        (["--file", "LEDGER", "-o", "no/such/folder/p.svg"], 2, "No such file or directory"),
        (["--file", "EMPTY"], 7, "there is no test evaluation yet"),
        (["--file", "TORN"], 2, "not an event"),
    ],
)
def test_mistakes_are_sentences(
    ledger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], code: int, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "torn.jsonl").write_bytes(ledger.read_bytes()[:-20])
    names = {"LEDGER": ledger, "EMPTY": tmp_path / "empty.jsonl", "TORN": tmp_path / "torn.jsonl"}
    done = plot(*(names.get(word, word) for word in words))
    assert done.exit_code == code, done.output
    assert said in done.output and "Traceback" not in done.output

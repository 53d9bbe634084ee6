"""Attacks on 80 columns: every command's help, and what commands print on a pipe for texts that are too long."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import click
import pytest

from outerloop.cli import COMMANDS, app
from outerloop.cli.common import notes, say
from outerloop.cli.text import WIDTH, Columns
from outerloop.climb.text import number
from tests.e2e.cli.conftest import Outerloop
from tests.rows import CONTRACT, World

LONG = "a change with a long story about swapping edges until nothing helps any more, and then again from the start"


def too_wide(printed: str) -> list[str]:
    """Lines that are wider than a terminal of 80 columns, but for paths, which stay whole."""
    return [line for line in printed.splitlines() if len(line) > WIDTH and max(map(len, line.split())) < WIDTH // 2]


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        inner = group.get_command(context, name)
        yield (*path, name)
        if isinstance(inner, click.Group):
            yield from commands(inner, (*path, name))


def test_every_help_fits(outerloop: Outerloop) -> None:
    every = list(commands(app))
    assert len(every) > len(COMMANDS)
    for words in every:
        assert too_wide(outerloop(*words, "--help").output) == [], words


def test_what_is_printed_of_runs_fits(world: World, outerloop: Outerloop) -> None:
    world.make_target()
    world.accepted()
    world.champion(1, "c-acce000001", "7542.000000000000000001", "368.00000000000000001", label=LONG)
    for number_ in range(3):
        world.run(f"c-old{number_}", label=LONG, benchmark="a-benchmark-with-a-name-of-forty-letters-x")
        world.end(f"c-old{number_}", "rejected", "no-improvement", f"rejected (no-improvement): {LONG}")
    world.run("c-wait", label=LONG, benchmark="a-benchmark-with-a-name-of-forty-letters-x", state="waiting")
    world.round("c-wait")
    slot = world.measure("c-wait", "sib-a-benchmark-with-a-name-of-forty-letters-x-base")
    world.attempt(slot, outcome="infrastructure", reason="NODE_FAIL", node="a-node-of-some-rack-17", detail=LONG)
    world.attempt(slot, 2, slurm_state="pending", slurm_reason="QOSMaxGRESPerUser", awaited_by="c-wait")
    world.run("c-bloc", state="blocked", state_reason="INFRASTRUCTURE", state_detail=LONG, label=LONG)
    world.tick(10)
    for words in (
        ("status",),
        ("status", "--all"),
        ("champions",),
        *((command, run) for command in ("show", "explain") for run in ("c-acce000001", "c-wait", "c-bloc", "c-old1")),
        ("show", "c-wait", "--all"),
        ("logs", "c-wait"),
        ("db", "current"),
    ):
        printed = outerloop(*words).output
        assert printed and too_wide(printed) == [], words
    status = outerloop("status").output
    assert "Queue by reason" in status and "QOSMaxGRESPerUser" in status
    assert "late: " in status  # three ended runs say how long such a run takes


def test_what_is_printed_of_a_contract_fits(outerloop: Outerloop, tmp_path: Path) -> None:
    folder = tmp_path / "clone"
    folder.mkdir()
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    init = ("contract", "init", "--command", "true", "--metric", "m", "--direction", "min", "--repo", str(folder))
    assert too_wide(outerloop(*init).output) == []
    (folder / ".outerloop.toml").write_text(CONTRACT)
    assert too_wide(outerloop("contract", "check", str(folder)).output) == []
    shutil.rmtree(folder)


def test_a_sentence_is_folded_below_its_beginning(capsys: pytest.CaptureFixture[str]) -> None:
    say(LONG, prefix="recorded    ")
    notes([LONG])
    said = capsys.readouterr()
    first, second = said.out.splitlines()
    assert first.startswith("recorded    a change") and second.startswith(" " * 12 + "any more") and len(first) <= WIDTH
    assert [line[:6] for line in said.err.splitlines()] == ["note: ", " " * 6]
    path = "/a/path/of/more/than/eighty/letters" * 3
    say(f"wrote {path}")
    assert path in capsys.readouterr().out


def test_no_column_falls_off_the_edge_unseen() -> None:
    rows = [["x" * 40, "y" * 40, "z" * 40, "last"]]
    lines = Columns(["A", "B", "C", "D"], rows, give="C").lines(WIDTH)
    assert all(len(line) <= WIDTH for line in lines)
    assert lines[1].endswith("last") and lines[1].count("…") >= 2


def test_rounding_noise_of_floats_is_left_away() -> None:
    assert number(Decimal("9.000000000000001")) == "9"
    assert number(Decimal("0.30000000000000004")) == "0.3"
    assert number(Decimal("1234567.1234567")) == "1234567.1234567"
    assert number(Decimal("0.123456789012345")) == "0.123456789012345"
    assert number(Decimal("1234567890123456")) == "1234567890123456"  # a count, whole

"""Attacks: that every command says what it does, says the same in the list of commands, and that help is cheap."""

from __future__ import annotations

import importlib
import importlib.util
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from outerloop.cli import COMMANDS, app

HEAVY = ("sqlalchemy", "pydantic", "rich", "psycopg", "numpy", "alembic", "submitit")


def _walk(
    command: click.Command, words: tuple[str, ...], context: click.Context
) -> Iterator[tuple[str, click.Command]]:
    yield " ".join(words), command
    if isinstance(command, click.Group):
        inner = click.Context(command, info_name=words[-1], parent=context)
        for name in command.list_commands(inner):
            found = command.get_command(inner, name)
            assert found is not None, f"{' '.join(words)} lists {name} and does not have it"
            yield from _walk(found, (*words, name), inner)


def everything() -> list[tuple[str, click.Command]]:
    """Every command of the tree, with the words that call it."""
    return list(_walk(app, ("outerloop",), click.Context(app, info_name="outerloop")))


@pytest.mark.parametrize(("words", "command"), everything(), ids=lambda value: value if isinstance(value, str) else "")
def test_every_command_and_every_option_has_help(words: str, command: click.Command) -> None:
    if command.hidden:
        return
    assert command.help, f"{words} has no help"
    assert command.help.strip().splitlines()[0].rstrip().endswith((".", "…", ":", "?")), (
        f"{words}: its help is no sentence"
    )
    bare = [
        parameter.name
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.hidden and not parameter.help
    ]
    assert not bare, f"{words}: options without help: {bare}"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_the_command_says(name: str) -> None:
    place, line = COMMANDS[name]
    module, _, attribute = place.partition(":")
    command = getattr(importlib.import_module(module), attribute)
    assert isinstance(command, click.Command)
    assert command.name == name
    own = " ".join((command.help or "").split())
    assert _essence(line) == _essence(own)[: len(_essence(line))], (
        f"{name}: {line!r} is not how its help begins: {own!r}"
    )


def _essence(text: str) -> str:
    """The sentence with what a list may leave out: arguments in capitals name what the list calls a, one or its."""
    words = text.replace("RUN's", "a run's").replace("RUN", "a run").lower().rstrip(".").split()
    return " ".join(words)


def test_there_is_a_help_page_within_80_columns_for_every_command() -> None:
    for words, command in everything():
        with click.Context(command, info_name=words, max_content_width=80, terminal_width=80) as context:
            page = command.get_help(context)
        long = [line for line in page.splitlines() if len(line) > 80]
        assert not long, f"{words} --help: {long}"


def test_an_unknown_command_names_the_nearest() -> None:
    from click.testing import CliRunner

    told = CliRunner().invoke(app, ["statsu"])
    assert told.exit_code == 2
    assert "Did you mean status?" in told.output


def imported(names: tuple[str, ...], program: str) -> str:
    """Which of these modules a process has after a program, as a list's text."""
    program = f"import sys; {program}; print([name for name in {names!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_help_imports_nothing_heavy() -> None:
    program = (
        "from click.testing import CliRunner; from outerloop.cli import app;"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0"
    )
    assert imported(tuple(HEAVY), program) == "[]"


NOT_IN_A_WAKE = (
    *("alembic", "numpy", "scipy", "rich", "submitit", "yaml", "jinja2", "pydantic_settings"),
    *("http.client", "urllib.request", "multiprocessing", "tarfile", "outerloop.planner", "outerloop.viewer"),
    *("outerloop.strategies", "outerloop.champion", "outerloop.posttrain", "outerloop.controller.campaigns"),
    *("outerloop.controller.trainings", "outerloop.controller.entries", "outerloop.controller.submit"),
    *("outerloop.record.embedded", "outerloop.record.migrate", "outerloop.schemas"),
)
"""What a climb's wake has no use for: its process lives for a second, nearly all of which is importing."""


def test_a_climbs_wake_imports_nothing_that_it_does_not_use() -> None:
    program = (
        "import outerloop.cli.operate, outerloop.controller.tick, outerloop.controller.climbs;"
        "from sqlalchemy import create_engine; create_engine('postgresql+psycopg://nobody@/none?host=/nowhere')"
    )
    assert imported(NOT_IN_A_WAKE, program) == "[]"


def test_no_list_of_commands_is_cut_at_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """click ends what does not fit with "...", and what a command does is then left to guess."""
    monkeypatch.setenv("COLUMNS", "80")
    groups = [(words.split()[1:], group) for words, group in everything() if isinstance(group, click.Group)]
    assert len(groups) > 5
    for words, group in groups:
        text = CliRunner().invoke(app, [*words, "--help"]).output
        assert max(map(len, text.splitlines())) <= 80, words
        listed = " ".join(text.partition("Commands:")[2].split())
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            whole = command.get_short_help_str(limit=1000) if words else COMMANDS[name][1]
            assert f"{name} {whole}" in listed, f"{' '.join(words)}: {name} is cut: {whole}"


def test_help_costs_less_than_three_imports_of_click() -> None:
    """Median of several, in turns: the machine may be busy with other things."""

    def seconds(*arguments: str) -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, "-I", *arguments], check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - began

    clicks, helps = [], []
    for _ in range(7):
        clicks.append(seconds("-c", "import click"))
        helps.append(seconds("-m", "outerloop.cli", "--help"))
    assert statistics.median(helps) < 3 * statistics.median(clicks)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_of_the_reference_has_a_completion_script(shell: str) -> None:
    import os

    environment = {**os.environ, "_OUTERLOOP_COMPLETE": f"{shell}_source"}
    done = subprocess.run(
        [sys.executable, "-c", "from outerloop.cli import main; main()"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "_OUTERLOOP_COMPLETE" in done.stdout


def test_completion_knows_commands_and_options() -> None:
    from click.shell_completion import BashComplete

    complete = BashComplete(app, {}, "outerloop", "_OUTERLOOP_COMPLETE")
    assert [item.value for item in complete.get_completions([], "sta")] == ["status"]
    assert "--watch" in [item.value for item in complete.get_completions(["status"], "--w")]
    assert [item.value for item in complete.get_completions(["db"], "up")] == ["upgrade"]

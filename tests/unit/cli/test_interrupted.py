"""Attacks: Ctrl-C anywhere in the command line ends with 130 and one sentence, never with a traceback or "Aborted!".

Covered: every command, while it is imported, parsed and at work; a real signal to a real process that waits for a
database; the first imports. Not covered: Python's own start, before our first line.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from outerloop import start
from outerloop.cli import COMMANDS, READING, app
from outerloop.cli.errors import ExitCode

DEADLINE_SECONDS = 120


def leaves(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command that is no group, with its words."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from leaves(command, (*path, name))
        else:
            yield (*path, name), command


def interrupt(*_arguments: object, **_named: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("moment", ["make_context", "invoke"])
def test_every_command_ends_with_a_sentence_and_130(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    monkeypatch.setenv("OUTERLOOP_CONFIG", str(tmp_path / "config.toml"))
    (tmp_path / "config.toml").write_text(f'state = "{tmp_path / "state"}"\n')
    commands = list(leaves(app))
    assert len(commands) > len(COMMANDS)
    for words, command in commands:
        with monkeypatch.context() as patch:
            if moment == "invoke":
                patch.setattr(command, "parse_args", lambda _context, _arguments: [])
            patch.setattr(command, moment, interrupt)
            done = CliRunner().invoke(app, words)
        assert done.exit_code == ExitCode.INTERRUPTED, (words, done.output)
        [told] = done.stderr.splitlines()
        assert told.startswith("Error: interrupted: ") and not done.stdout, (words, done.output)
        assert ("nothing was changed" in told) == (words[0] in READING), (words, told)
    assert set(COMMANDS) >= READING


def test_while_a_command_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.import_module", interrupt)
    done = CliRunner().invoke(app, ["status"])
    assert (done.exit_code, done.stderr) == (ExitCode.INTERRUPTED, "Error: interrupted: nothing was changed\n")


def test_before_there_is_a_command_line_at_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = types.ModuleType("outerloop.cli")
    monkeypatch.setattr(module, "__getattr__", interrupt, raising=False)
    monkeypatch.setitem(sys.modules, "outerloop.cli", module)
    with pytest.raises(SystemExit) as ended:
        start.main()
    assert ended.value.code == start.INTERRUPTED == ExitCode.INTERRUPTED
    assert capsys.readouterr().err.strip() == "Error: interrupted before anything was done"


def test_a_real_signal_while_the_database_lets_a_command_wait(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:  # takes the connection and says nothing
        listener.settimeout(DEADLINE_SECONDS)
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "OUTERLOOP_STATE": str(tmp_path / "state"),
            "OUTERLOOP_DATABASE_URL": f"postgresql://nobody@127.0.0.1:{listener.getsockname()[1]}/none",
        }
        with subprocess.Popen(
            [sys.executable, "-c", "from outerloop.start import main; main()", "tick"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        ) as process:
            connection, _ = listener.accept()
            with connection:
                process.send_signal(signal.SIGINT)
                out, err = process.communicate(timeout=DEADLINE_SECONDS)
    assert (process.returncode, out) == (ExitCode.INTERRUPTED, "")
    [told] = err.splitlines()
    assert "nothing is lost" in told and "the same command can be given again" in told

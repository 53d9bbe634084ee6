"""Attacks: that each kind of trouble has its documented exit code, and a defect of ours stays a defect."""

from __future__ import annotations

import errno
import importlib
from pathlib import Path

import click
import psycopg
import pytest
from click.testing import CliRunner
from sqlalchemy.exc import OperationalError

from outerloop.cli import errors
from outerloop.cli.errors import CliError, ExitCode, explained, translate
from outerloop.contract import ContractError, UnknownBenchmarkError
from outerloop.problems import Problem
from outerloop.record.embedded import DiskFullError, OtherHostError
from outerloop.record.store import RecordUnavailable
from outerloop.settings import LaneError, SettingsError

PROBLEM = [Problem(3, ("a", 0, "b"), "is wrong")]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SettingsError("f", PROBLEM), ExitCode.BAD_INPUT),
        (LaneError("f", PROBLEM), ExitCode.REFUSED),
        (ContractError(PROBLEM), ExitCode.BAD_INPUT),
        (UnknownBenchmarkError(PROBLEM), ExitCode.NOT_FOUND),
        (OtherHostError("x"), ExitCode.RECORD_UNAVAILABLE),
        (DiskFullError("x"), ExitCode.NO_SPACE),
        (RecordUnavailable("x"), ExitCode.RECORD_UNAVAILABLE),
        (psycopg.errors.AdminShutdown("x"), ExitCode.RECORD_UNAVAILABLE),
        (OperationalError("select secret", {"p": "secret"}, Exception("down")), ExitCode.RECORD_UNAVAILABLE),
        (OSError(errno.ENOSPC, "No space left on device", "/x"), ExitCode.NO_SPACE),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), ExitCode.NO_ACCESS),
        (CliError("x", ExitCode.NO_CLUSTER), ExitCode.NO_CLUSTER),
    ],
)
def test_each_trouble_has_its_code_and_no_traceback(error: Exception, code: ExitCode) -> None:
    @click.command()
    def command() -> None:
        with explained():
            raise error

    answer = CliRunner().invoke(command)
    assert answer.exit_code == code
    assert answer.output.startswith("Error: ")
    assert "secret" not in answer.output


def test_a_defect_of_ours_is_not_hidden() -> None:
    assert translate(KeyError("x")) is None
    with pytest.raises(ZeroDivisionError), explained():
        raise ZeroDivisionError


def test_a_full_disk_behind_another_error_is_still_a_full_disk() -> None:
    error = RecordUnavailable("cannot write")
    error.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    found = translate(error)
    assert found is not None
    assert found.exit_code == ExitCode.NO_SPACE


def test_every_class_in_the_table_exists() -> None:
    for module, name in errors._CODES:
        assert isinstance(getattr(importlib.import_module(module), name), type), (module, name)


def test_the_documented_codes_are_the_ones_in_use() -> None:
    assert errors.__doc__ is not None
    for code in ExitCode:
        assert f"| {int(code)} |" in errors.__doc__


def test_abort_exit_and_usage_errors_of_click_pass_through() -> None:
    for error in (click.Abort(), click.exceptions.Exit(5), click.UsageError("x")):
        with pytest.raises(type(error)), explained():
            raise error


def test_an_argument_that_is_no_utf_8_is_the_users_to_change() -> None:
    given = b"caf\xe9".decode("utf-8", "surrogateescape")  # as Python takes it from the command line
    try:
        given.encode()
    except UnicodeEncodeError as error:
        told = translate(error)
    assert told is not None and told.exit_code == ExitCode.BAD_INPUT
    assert told.message == r"an argument or a file's name is not UTF-8 text: 'caf\udce9'"


def test_a_full_disk_that_is_told_in_words_has_its_code_too() -> None:
    """git and Postgres say ENOSPC in their messages; the exceptions carry no errno."""
    from outerloop.controller.git import GitError
    from outerloop.record.store import RecordUnavailable

    for error in (
        GitError("git init in /x: fatal: copy-fd: No space left on device"),
        RecordUnavailable('could not extend file "base/1/2": No space left on device'),
    ):
        told = translate(error)
        assert told is not None and told.exit_code == ExitCode.NO_SPACE


def test_on_a_terminal_a_long_error_is_folded_and_no_path_is_cut() -> None:
    path = "/a/path/that-is-longer/than-the/whole/terminal/is/wide/and-has-to-stay/whole.toml"
    error = CliError(f"{path}:3: a key: {'many words ' * 12}\n  - {'a reason ' * 12}\nshort", ExitCode.REFUSED)
    errors.fold(error, 60)
    lines = f"Error: {error.format_message()}".splitlines()
    assert path in lines[0] or path in lines[1]
    assert [line for line in lines if len(line) > 60] == [line for line in lines if path in line]
    assert lines[-1] == "short" and lines[2].startswith("  ") and error.exit_code == ExitCode.REFUSED
    assert any(line.startswith("    ") and line.split()[0] in {"a", "reason"} for line in lines), "below its own line"
    assert " ".join(" ".join(lines).split()) == "Error: " + " ".join(error.message.split())


@pytest.mark.parametrize("terminal", [True, False])
def test_errors_of_click_are_folded_too_and_in_a_pipe_each_is_one_line(
    terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    from outerloop.cli import app

    monkeypatch.setenv("COLUMNS", "60")

    class Standing(click.testing._NamedTextIOWrapper):
        def isatty(self) -> bool:
            return terminal

    monkeypatch.setattr(click.testing, "_NamedTextIOWrapper", Standing)
    told = CliRunner().invoke(app, ["simulate", "--minutes", "n" * 30])
    assert told.exit_code == 2 and sys.stderr is not None
    lines = told.stderr.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("Error: "))
    assert (max(map(len, lines[first:])) <= 60) is terminal
    assert (len(lines) - first > 1) is terminal


def test_doctor_says_in_words_what_kept_a_check_from_its_end() -> None:
    from outerloop.controller.doctor import _told
    from outerloop.settings import Settings

    settings = Settings(backend="local", state=Path("/s"))
    inside = PermissionError(errno.EROFS, "Read-only file system", "/s/doctor")
    assert _told(inside, settings) == (
        "/s/doctor: Read-only file system",
        "let this account write to the state folder, or set `state` to one of its own",
    )
    elsewhere = PermissionError(errno.EACCES, "Permission denied", "/etc/slurm/slurm.conf")
    assert _told(elsewhere, settings)[1] == "let this account read and write there"
    assert _told(ValueError("odd"), settings) == ("ValueError: odd", "")

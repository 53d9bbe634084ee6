"""Exit codes, and how an exception becomes a sentence with one of them.

Covered: the table of codes, `CliError`, and `explained`, which every command's body runs in. A user's mistake and a
site's trouble show a message without a traceback; only a defect of ours shows one. Not covered: rendering of data.

| code | meaning |
|---|---|
| 0 | done |
| 1 | unexpected: a defect of outerloop; a verdict or a ledger that does not hold, or that is torn on disk |
| 2 | usage or bad input: options, settings, contract |
| 3 | refused: scope, budget, lane, what a service does not take; a run that is blocked at once; what an operator's
      command can't do to a run as it stands |
| 4 | the record (database) is unavailable |
| 5 | the cluster gave no answer |
| 6 | no disk space |
| 7 | not found: run, slot, benchmark; `db rebuild` left something out |
| 8 | no access: the state folder is read-only or another account's |
| 130 | interrupted (Ctrl-C): nothing was cancelled or lost; `submit` and `--wait` say what was submitted |
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import stat
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path

import click

__all__ = ["CliError", "ExitCode", "access_sentence", "explained", "interrupted", "require_writable", "translate"]


class ExitCode(IntEnum):
    """What the shell (or cron, or a script) learns from a command."""

    OK = 0
    UNEXPECTED = 1
    BAD_INPUT = 2
    REFUSED = 3
    RECORD_UNAVAILABLE = 4
    NO_CLUSTER = 5
    NO_SPACE = 6
    NOT_FOUND = 7
    NO_ACCESS = 8
    INTERRUPTED = 130


class CliError(click.ClickException):
    """A message for the person at the terminal and the exit code that goes with it."""

    exit_code: int  # type: ignore[misc]  # click declares one code for the class

    def __init__(self, message: str, code: ExitCode = ExitCode.BAD_INPUT) -> None:
        super().__init__(message)
        self.exit_code = int(code)


def interrupted(*, reads: bool = False) -> CliError:
    """What Ctrl-C in a command leaves as, where the command has nothing to say of its own. `reads`: it only reads."""
    if reads:
        return CliError("interrupted: nothing was changed", ExitCode.INTERRUPTED)
    return CliError(
        "interrupted: nothing is lost. Each change was made whole or not at all, runs go on with the next tick, and the"
        " same command can be given again",
        ExitCode.INTERRUPTED,
    )


_CODES: dict[tuple[str, str], ExitCode] = {
    ("outerloop.settings", "LaneError"): ExitCode.REFUSED,
    ("outerloop.settings", "SettingsError"): ExitCode.BAD_INPUT,
    ("outerloop.contract", "UnknownBenchmarkError"): ExitCode.NOT_FOUND,
    ("outerloop.contract", "ContractError"): ExitCode.BAD_INPUT,
    ("outerloop.compose.errors", "ComposeError"): ExitCode.BAD_INPUT,
    ("outerloop.compose.errors", "UnknownIdError"): ExitCode.NOT_FOUND,
    ("outerloop.controller.git", "GitError"): ExitCode.BAD_INPUT,
    ("outerloop.climb.model", "RuleError"): ExitCode.BAD_INPUT,
    ("outerloop.record.server.errors", "DiskFullError"): ExitCode.NO_SPACE,
    ("outerloop.record.server.errors", "EmbeddedError"): ExitCode.RECORD_UNAVAILABLE,
    ("outerloop.record.migrate", "MigrationError"): ExitCode.RECORD_UNAVAILABLE,
    ("outerloop.record.store", "RecordUnavailable"): ExitCode.RECORD_UNAVAILABLE,
    ("sqlalchemy.exc", "OperationalError"): ExitCode.RECORD_UNAVAILABLE,
    ("sqlalchemy.exc", "InterfaceError"): ExitCode.RECORD_UNAVAILABLE,
    ("psycopg", "OperationalError"): ExitCode.RECORD_UNAVAILABLE,
}
"""Module and name of each exception class that has a code. Names, so that nothing is imported to print a help text."""

_NARROWEST = 40
"""Columns below which folding makes a message harder to read, not easier."""

_FIRST_LINE_ONLY = ("sqlalchemy.exc", "psycopg")
"""Their messages go on with the statement and its parameters, which are no help to a person."""

_TELL_OF_DISKS = ("outerloop.", "sqlalchemy.exc", "psycopg")
"""git and Postgres say it in words, which their exceptions carry."""

_OUT_OF_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})

_NO_ACCESS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


def fold(error: click.ClickException, width: int) -> None:
    """Make an error show itself in lines of at most `width` columns; paths and other long words stay whole.

    Each line of a message is a problem of its own; what does not fit goes on below it, indented.
    """
    import textwrap

    prefix = len("Error: ")
    lines = []
    for number, line in enumerate(error.format_message().splitlines()):
        indent = " " * (len(line) - len(line.lstrip()))
        wrapped = textwrap.wrap(
            line.strip(),
            max(width, _NARROWEST),
            initial_indent=" " * prefix if number == 0 else indent,
            subsequent_indent=f"{indent}  ",
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]
        lines += [wrapped[0][prefix:] if number == 0 else wrapped[0], *wrapped[1:]]
    text = "\n".join(lines)
    setattr(error, "format_message", lambda: text)  # noqa: B010 - of this error alone, not of its class


def translate(error: BaseException) -> CliError | None:
    """The CliError for an exception that is no defect of ours, or None for one that is."""
    if isinstance(error, CliError):
        return error
    chained: BaseException | None = error
    while chained is not None:  # a full disk is a full disk, whatever was made of it on the way
        if isinstance(chained, OSError) and chained.errno in _OUT_OF_SPACE:
            where = "" if chained.filename is None else f"{chained.filename}: "
            return CliError(f"{where}{chained.strerror}" if chained is error else str(error), ExitCode.NO_SPACE)
        if isinstance(chained, OSError) and chained.errno in _NO_ACCESS and chained.filename is not None:
            return CliError(access_sentence(str(chained.filename), chained.errno), ExitCode.NO_ACCESS)
        chained = chained.__cause__
    if isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed":
        given = ascii(str(error.object)[max(0, error.start - 20) : error.end + 20])
        return CliError(f"an argument or a file's name is not UTF-8 text: {given}")
    if "No space left on device" in str(error) and type(error).__module__.startswith(_TELL_OF_DISKS):
        return CliError(str(error).strip().split("\n", 1)[0], ExitCode.NO_SPACE)
    for kind in type(error).__mro__:
        code = _CODES.get((kind.__module__, kind.__name__))
        if code is not None:
            text = str(error)
            if kind.__module__.startswith(_FIRST_LINE_ONLY):
                text = text.strip().split("\n", 1)[0].removeprefix("(psycopg.OperationalError) ")
                text = f"the record is unavailable: {text}"
            return CliError(text, code)
    if isinstance(error, OSError) and error.filename is not None:
        return CliError(f"{error.filename}: {error.strerror}", ExitCode.BAD_INPUT)
    return None


def access_sentence(path: str, number: int | None) -> str:
    """Why a path can't be used: whose it is, who asks, and what is read-only."""
    place = Path(path)
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    if number == errno.EROFS:
        return f"{path}: the file system of {place} is read-only"
    try:
        facts = place.stat()
    except OSError as error:
        return f"{path}: {error.strerror}"
    whose = f"{place} belongs to {_account_of(facts.st_uid)} (mode {stat.S_IMODE(facts.st_mode):04o})"
    return f"{path}: {os.strerror(number or errno.EACCES)}: {whose}, and this is {_account_of(os.geteuid())}"


def _account_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def require_writable(state: Path) -> None:
    """Raise CliError (NO_ACCESS) where a state folder that exists can't be written by this account."""
    if not state.is_dir():
        return
    try:
        probe = state / f".access-{os.getpid()}"
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        probe.unlink()
    except OSError as error:
        if error.errno not in _NO_ACCESS:
            return
        told = access_sentence(str(state), error.errno)
        raise CliError(
            f"the state folder can't be written, so nothing can be submitted, advanced or changed: {told}",
            ExitCode.NO_ACCESS,
        ) from error


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Run a command's body; what `translate` knows leaves as a CliError, everything else as it is."""
    try:
        yield
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except Exception as error:
        known = translate(error)
        if known is None:
            raise
        raise known from error

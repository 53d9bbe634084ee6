"""What commands share: opening the deployment, printing JSON, writing to people.

Covered: one way to do each. Not covered: what a command shows.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outerloop.cli.errors import CliError, ExitCode, explained, require_writable

if TYPE_CHECKING:
    from rich.console import Console

    from outerloop.controller.deployment import Deployment
    from outerloop.settings import Settings

__all__ = [
    "console",
    "emit_json",
    "explained",
    "json_option",
    "json_text",
    "notes",
    "opened",
    "say",
    "the_config",
    "the_settings",
]

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


def the_settings() -> Settings:
    """The settings in force. Raises SettingsError with every problem."""
    from outerloop.settings import Settings

    return Settings.load()


def the_config() -> Path | None:
    """The configuration file that wake jobs are to use; None when there is none."""
    from outerloop.settings import config_path

    path = config_path()
    return path.absolute() if path.is_file() else None


@contextlib.contextmanager
def opened(settings: Settings | None = None) -> Iterator[Deployment]:
    """The deployment, closed afterwards; problems leave as CliErrors."""
    with explained():
        from outerloop.controller.deployment import open_deployment

        settings = settings or the_settings()
        if settings.mode == "service":
            from outerloop.cli.service_client import refuse_submitters

            refuse_submitters(settings)
        require_writable(settings.state)
        try:
            deployment = open_deployment(settings, config=the_config())
            try:
                yield deployment
            finally:
                deployment.close()
        except LookupError as error:
            raise CliError(str(error.args[0] if error.args else error), ExitCode.NOT_FOUND) from error


def emit_json(value: Any) -> None:
    """Print a value as JSON; decimals and times as text."""
    click.echo(json.dumps(value, indent=2, default=str, ensure_ascii=False))


def json_text(path: Path) -> Any:
    """The JSON document that a person's file holds. Raises CliError that says where and what is wrong, OSError."""
    from outerloop.json_text import JsonError, parse_json

    try:
        return parse_json(path.read_bytes())
    except JsonError as error:
        raise CliError(error.text(path)) from None


def console(*, error: bool = False) -> Console:
    """A rich console that honours NO_COLOR and pipes, and never is wider than a person wants to read."""
    from rich.console import Console

    stream = sys.stderr if error else sys.stdout
    width = None if stream.isatty() else 80
    return Console(stderr=error, highlight=False, soft_wrap=False, width=width)


def say(text: str, *, prefix: str = "", err: bool = False) -> None:
    """Print a sentence in lines of at most 80 columns, further ones indented below where it began.

    A path or a command that is longer stays whole, so that it can be copied.
    """
    import textwrap

    from outerloop.cli.text import WIDTH, one_line

    lines = textwrap.wrap(
        one_line(text),
        WIDTH,
        initial_indent=prefix,
        subsequent_indent=" " * (len(prefix) or 2),
        break_long_words=False,
        break_on_hyphens=False,
    )
    click.echo("\n".join(lines) or prefix.rstrip(), err=err)


def notes(lines: Sequence[str]) -> None:
    """Print remarks for people to stderr, where they disturb no pipe."""
    for line in dict.fromkeys(lines):
        say(line, prefix="note: ", err=True)

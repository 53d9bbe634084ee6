"""`outerloop db`: the record's server and tables.

`start`, `stop` and `dump` concern the embedded server or any other; the password is printed by `url --show-password`
alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from outerloop.cli.common import say
from outerloop.cli.errors import CliError, ExitCode, explained

if TYPE_CHECKING:
    from outerloop.record.roles import Profile
    from outerloop.settings import Settings

__all__ = ["db"]


@click.group(help="The record: its Postgres server and its tables.")
def db() -> None:
    pass


def _settings() -> Settings:
    from outerloop.settings import Settings

    settings = Settings.load()
    if settings.mode == "service":
        from outerloop.cli.service_client import refuse_submitters

        refuse_submitters(settings)
    return settings


def _folder(settings: Settings) -> Path:
    return settings.state / "db"


def _embedded_folder() -> Path:
    settings = _settings()
    if settings.database_url.get_secret_value():
        raise CliError("database_url is set, so there is no embedded server to start or stop", ExitCode.REFUSED)
    return _folder(settings)


def _url(*, start: bool = True) -> str:
    """The record's URL, password included."""
    settings = _settings()
    given = settings.database_url.get_secret_value()
    if given:
        return given
    from outerloop.record import embedded

    return embedded.ensure_running(_folder(settings)) if start else embedded.url_of(_folder(settings))


def _for_libpq(url: str, *, password: bool) -> str:
    """The URL as psql and pg_dump take it: without SQLAlchemy's driver, blanks as %20, the password as wanted."""
    from sqlalchemy import make_url

    parsed = make_url(url)
    # URL.set(password=None) would leave it as it is
    parsed = parsed._replace(drivername="postgresql", password=parsed.password if password else None)
    base, separator, query = parsed.render_as_string(hide_password=False).partition("?")
    return base + separator + query.replace("+", "%20")


@db.command("start", help="Start the embedded server, unless it runs. Commands that need it start it by themselves.")
@click.option("--here", is_flag=True, help="Take the folder over from another host, on which it was stopped.")
def start(here: bool) -> None:
    with explained():
        from outerloop.record import embedded

        folder = _embedded_folder()
        embedded.ensure_running(folder, adopt_host=here)
        known = embedded.status(folder)
        say(f"running: process {known.pid}, PostgreSQL {known.version}, as {known.account}, in {known.data}")


@db.command("stop", help="Stop the embedded server. Nothing is lost; the next command that needs it starts it again.")
def stop() -> None:
    with explained():
        from outerloop.record import embedded

        click.echo("stopped" if embedded.stop(_embedded_folder()) else "it was not running")


@db.command("status", help="Say whether the embedded server runs, where, and as whom.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def status(as_json: bool) -> None:
    with explained():
        from dataclasses import asdict

        from outerloop.record import embedded

        known = embedded.status(_embedded_folder())
        if as_json:
            click.echo(json.dumps(asdict(known), indent=2))
        elif not known.exists:
            click.echo("there is none yet; `outerloop db start` makes it")
        elif known.running:
            say(f"running: process {known.pid}, PostgreSQL {known.version}, as {known.account}, in {known.data}")
        else:
            say(f"not running; its data is in {known.data} (host {known.host})")


@db.command("url", help="Print the URL of the record. Starts nothing.")
@click.option("--show-password", is_flag=True, help="With the password, so that psql can use it.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def url(show_password: bool, as_json: bool) -> None:
    with explained():
        found = _url(start=False)
        shown = _for_libpq(found, password=show_password)
        click.echo(json.dumps({"url": shown}) if as_json else shown)


@db.command("upgrade", help="Bring the tables to the newest revision. Safe to repeat, and to run twice at once.")
@click.option("--json", "as_json", is_flag=True, help="Print the revisions before and after as JSON.")
def upgrade(as_json: bool) -> None:
    with explained():
        from outerloop.record import migrate

        before, after = migrate.upgrade(_url())
        if as_json:
            click.echo(json.dumps({"before": before, "after": after}))
        elif before == after:
            click.echo(f"up to date (revision {after or 'none'})")
        else:
            click.echo(f"upgraded from {before or 'an empty database'} to {after}")


@db.command("current", help="Print the tables' revision and the newest one known here.")
@click.option("--json", "as_json", is_flag=True, help="Print both as JSON.")
def current(as_json: bool) -> None:
    with explained():
        from outerloop.record import migrate

        found, newest = migrate.current(_url()), migrate.head()
        if as_json:
            click.echo(json.dumps({"current": found, "head": newest}))
        elif found == newest:
            click.echo(f"{found or 'none'} (newest)")
        else:
            click.echo(f"{found or 'none'}; the newest is {newest}: run `outerloop db upgrade`")


@db.command("dump", help="Write the record with pg_dump (custom format, for pg_restore).")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--force", is_flag=True, help="Replace a file that is there.")
def dump(file: Path, force: bool) -> None:
    with explained():
        if file.exists() and not force:
            raise CliError(f"{file} exists; --force replaces it")
        found = _url()
        program = _pg_dump(_server_major(found))
        fresh = file.with_name(f".{file.name}.{os.getpid()}")
        try:
            with _password_file(found) as environment, fresh.open("xb") as stream:
                answer = subprocess.run(
                    [program, "--format=custom", "--no-password", f"--dbname={_for_libpq(found, password=False)}"],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=subprocess.PIPE,
                    text=True,
                    errors="replace",
                    check=False,
                )
                os.fsync(stream.fileno())
            if answer.returncode != 0:
                code = ExitCode.NO_SPACE if "No space left" in answer.stderr else ExitCode.RECORD_UNAVAILABLE
                raise CliError(f"pg_dump failed: {answer.stderr.strip()}", code)
            fresh.replace(file)
        finally:
            fresh.unlink(missing_ok=True)
        click.echo(f"wrote {file} ({file.stat().st_size} bytes)")


def _server_major(url: str) -> int:
    from outerloop.record.migrate import connect

    with connect(url) as connection:
        number = connection.exec_driver_sql("show server_version_num").scalar_one()
    return int(number) // 10000


def _pg_dump(major: int) -> str:
    from outerloop.record.server.binaries import find_binaries

    # pg_dump reads servers of its own version and older ones
    for binaries in sorted(find_binaries(), key=lambda found: found.major):
        if binaries.major >= major and Path(binaries.program("pg_dump")).exists():
            return binaries.program("pg_dump")
    raise CliError(f"there is no pg_dump of version {major} or newer here; install your system's PostgreSQL client")


@contextlib.contextmanager
def _password_file(url: str) -> Iterator[dict[str, str]]:
    """An environment with PGPASSFILE: unlike PGPASSWORD it isn't shown by /proc, and unlike an argument not by ps."""
    from sqlalchemy import make_url

    password = make_url(url).password or ""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    with tempfile.NamedTemporaryFile("w", prefix="outerloop-", encoding="utf-8") as stream:  # mode 0600
        escaped = str(password).replace("\\", "\\\\").replace(":", "\\:")
        stream.write(f"*:*:*:*:{escaped}\n")
        stream.flush()
        yield {**environment, "PGPASSFILE": stream.name}


@db.command("grant", help="Give ROLE the rights that its profile has, and no others.")
@click.argument("role")
@click.option(
    "--as",
    "profile",
    required=True,
    type=click.Choice(["service", "viewer", "submitter", "researcher"]),
    help="service: all rows. viewer: reads. submitter: reads its own runs. researcher: rows of its own deployments.",
)
def grant(role: str, profile: Profile) -> None:
    with explained():
        from outerloop.record.roles import RoleError
        from outerloop.record.roles import grant as give

        try:
            give(_url(), role, profile)
        except RoleError as error:
            raise CliError(str(error), ExitCode.REFUSED) from error
        click.echo(f"{role} now has the rights of a {profile}, and no others on this record")


@db.command("rebuild", help="Make the record anew from requests, ledgers and slots. Files stay.")
@click.option("--json", "as_json", is_flag=True, help="Print the counts as JSON.")
def rebuild(as_json: bool) -> None:
    from dataclasses import asdict

    from outerloop.cli.common import opened
    from outerloop.controller.rebuild import rebuild as remake

    with opened() as deployment, deployment.record.tick_lock() as mine:
        if not mine:
            raise CliError("a tick is running; try again when it has ended", ExitCode.REFUSED)
        done = remake(deployment.context)
    if as_json:
        click.echo(json.dumps(asdict(done), indent=2))
    else:
        say(
            f"{done.runs} runs with {done.verdicts} verdicts, {done.champions} champions,"
            f" {done.slots} slots with {done.attempts} attempts"
        )
    for problem in done.problems:
        say(problem, prefix="left out: ", err=True)
    if done.problems:
        click.get_current_context().exit(int(ExitCode.NOT_FOUND))

"""Commands that set a deployment up and check it: init, doctor, cron.

Covered: options, the config file, and what is printed. Not covered: what is looked at (controller.doctor), what a site
says of itself (controller.site), the settings' own text (settings.default_config).
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outerloop.cli.common import emit_json, explained, json_option, notes, the_config, the_settings
from outerloop.cli.errors import CliError, ExitCode
from outerloop.cli.numbers import Number
from outerloop.cli.text import harmless, plain

if TYPE_CHECKING:
    from outerloop.settings import Settings

__all__ = ["cron", "doctor", "init"]

JOB_SECONDS = 120.0
_COLOURS = {"OK": "green", "WARN": "yellow", "FAIL": "red"}


@click.command("init", help="Write a commented config, migrate, print the crontab line.")
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    help="State folder; nodes must share it.  [default: ~/outerloop]",
)
@click.option(
    "--backend",
    type=click.Choice(["auto", "slurm", "local"]),
    default="auto",
    show_default=True,
    help="Where jobs run. auto: Slurm where there is one.",
)
@click.option("--deployment", default="", help="Short id in job names: 1 to 8 of [a-z0-9].  [default: derived]")
@click.option(
    "--service",
    "spool",
    type=click.Path(path_type=Path, file_okay=False),
    help="Serve other accounts through this spool folder; this account dispatches.",
)
@click.option("--force", is_flag=True, help="Replace a config that is there.")
def init(state: Path | None, backend: str, deployment: str, spool: Path | None, force: bool) -> None:
    with explained():
        from outerloop.settings import Settings, config_path, default_config

        config = config_path().absolute()
        if config.exists() and not force:
            raise CliError(
                f"{config} exists; --force replaces it. `outerloop doctor` checks it, `outerloop db upgrade` migrates"
            )
        values, remarks = _values(state, backend, deployment)
        if spool is not None:
            from outerloop.controller.deployment import account

            service = {"account": account(), "spool": str(spool.absolute())}
            values |= {"mode": "service", "isolation": "bwrap", "service": service}
        _write(config, default_config(values))
        click.echo(f"wrote {config}")
        notes(remarks)
        settings = Settings.load(config)
        _say_site(settings)
        if spool is not None:
            _make_service(settings, spool.absolute())
        _start_record(settings)
        click.echo()
        _say_next(settings, config)


def _values(state: Path | None, backend: str, deployment: str) -> tuple[dict[str, Any], list[str]]:
    """What goes into the file, and remarks for people."""
    from outerloop.settings import Settings

    values: dict[str, Any] = {"backend": backend}
    remarks: list[str] = []
    if backend != "local":
        from outerloop.controller.site import slurm_values

        found, remarks = slurm_values(conf=os.environ.get("SLURM_CONF", ""))
        if backend == "slurm" and not found:
            raise CliError("sbatch and squeue are not in PATH here; load Slurm's module first, or use --backend local")
        values.update(found)
        values["backend"] = "slurm" if found else "local" if backend == "auto" else backend
        if backend == "auto" and not found:
            remarks.append("there is no Slurm in PATH, so jobs run on this machine; --backend slurm insists on one")
    folder = state.absolute() if state is not None else None
    if folder is None:
        given = os.environ.get("OUTERLOOP_STATE", "")
        folder = (
            Path(given).absolute() if given else Settings.model_fields["state"].get_default(call_default_factory=True)
        )
    if (folder / ".git").exists():
        # `git clone` into a home folder makes exactly the default state folder
        raise CliError(f"{folder} is a git clone; name another folder for the state, such as --state {folder}-state")
    values["state"] = str(folder)
    if deployment:
        values["deployment"] = deployment
    return values, remarks


def _make_service(settings: Settings, spool: Path) -> None:
    """The spool with its modes, and a state folder that nobody else may enter."""
    from outerloop.controller.service.intake import write_public
    from outerloop.controller.service.spool import Spool

    settings.state.mkdir(parents=True, exist_ok=True)
    settings.state.chmod(0o700)
    made = Spool(spool)
    made.make()
    write_public(settings, made)
    click.echo(f'spool    {spool}; submitters\' configs say  mode = "service"  and  [service] spool = "{spool}"')
    notes(["nobody may submit yet: set service.submitters and [service.targets.NAME] in the config"])


def _write(config: Path, text: str) -> None:
    """Put the file in place whole, readable by its owner alone: it may come to hold a password."""
    config.parent.mkdir(parents=True, exist_ok=True)
    fresh = config.with_name(f".{config.name}.{secrets.token_hex(4)}")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        fresh.replace(config)
    finally:
        fresh.unlink(missing_ok=True)


def _say_site(settings: Settings) -> None:
    from outerloop.settings import effective_backend

    click.echo(f"state    {settings.state}")
    backend = effective_backend(settings)
    if backend == "local":
        click.echo(f"backend  local: {settings.local.cpus} CPUs of this machine")
        return
    lanes = ", ".join(f"{name} ({lane.partition or 'default partition'})" for name, lane in settings.lanes.items())
    click.echo(f"backend  slurm, lanes {lanes or 'none yet'}")


def _start_record(settings: Settings) -> None:
    """Start the record and bring its tables up to date; a failure leaves the config, and says how to go on."""
    from outerloop.controller.deployment import database_url
    from outerloop.record import migrate
    from outerloop.slots import StateRoot

    try:
        with explained():
            settings.state.mkdir(parents=True, exist_ok=True)
            _before, after = migrate.upgrade(database_url(settings, StateRoot(settings.state)))
    except CliError as error:
        raise CliError(
            f"{error.message}\nThe config is written; when this is repaired, `outerloop db upgrade` goes on.",
            ExitCode(error.exit_code),
        ) from error
    what = "the database of database_url" if settings.database_url.get_secret_value() else "embedded PostgreSQL"
    click.echo(f"record   {what}, revision {after}")


def _say_next(settings: Settings, config: Path) -> None:
    from outerloop.controller.doctor import crontab_line

    click.echo("So that runs go on by themselves, add this line with `crontab -e`:")
    click.echo()
    click.echo(crontab_line(settings, config))
    click.echo()
    click.echo("Next:")
    for command, what in (
        ("outerloop doctor", "check this site, with a small job"),
        ("outerloop contract init --help", "in a target's clone: declare a benchmark"),
        ("outerloop submit climb BENCHMARK", "ask for a first verdict"),
    ):
        click.echo(f"  {command:<34} {what}")


@click.command("cron", help="Print the crontab line that keeps runs going.")
@json_option
def cron(as_json: bool) -> None:
    with explained():
        from outerloop.controller.doctor import crontab_line

        config = the_config()
        line = crontab_line(the_settings(), config)
        if as_json:
            emit_json({"line": line, "config": str(config) if config is not None else None})
            return
        click.echo(line)
        if config is None:
            notes(["there is no config file yet; `outerloop init` writes one, and the line then names it"])


@click.command("doctor", help="Check this site, and say what to change. Changes nothing without --write.")
@click.option("--no-job", is_flag=True, help="Do not run the small test job.")
@click.option(
    "--job-seconds",
    type=Number(1, 86_400),
    default=JOB_SECONDS,
    show_default=True,
    help="Patience with the test job; one that is late is cancelled.",
)
@click.option("--cron", "as_cron", is_flag=True, help="Look again with the environment that cron gives, and compare.")
@click.option("--write", is_flag=True, help="Write what the site takes to site.toml, beside the config.")
@json_option
def doctor(no_job: bool, job_seconds: float, as_cron: bool, write: bool, as_json: bool) -> None:
    with explained():
        from outerloop.controller.doctor import FAIL, OK, WARN, Finding, Site, examine, what_counts
        from outerloop.settings import Settings, SettingsError, config_path

        found: list[Finding] = []
        kept: list[Site] = []
        for finding in examine(
            config_path().absolute(), job=not no_job, cron=as_cron, probe_seconds=job_seconds, keep=kept
        ):
            found.append(finding)
            if not as_json:
                _print_finding(finding.level, finding.name, finding.sentence, finding.fix)
        failed = [finding for finding in found if finding.level == FAIL]
        code = ExitCode.OK
        if failed:
            code = ExitCode.NO_CLUSTER if all(finding.cluster for finding in failed) else ExitCode.BAD_INPUT
        if as_json:
            try:
                counts = what_counts(Settings.load())
            except SettingsError:
                counts = None
            profile = _profile(kept, write)
            emit_json(
                {
                    "ok": not failed,
                    "exit_code": int(code),
                    "settings": counts,
                    "findings": plain(found),
                    "profile": profile,
                }
            )
        else:
            warned = sum(1 for finding in found if finding.level == WARN)
            well = sum(1 for finding in found if finding.level == OK)
            _print_profile(_profile(kept, write))
            click.echo(f"{well} well, {warned} to know, {len(failed)} to repair")
        click.get_current_context().exit(int(code))


def _profile(kept: list[Any], write: bool) -> dict[str, Any] | None:
    """What doctor found of the site: its profile, what that rests on, what it would change, where it was written and
    which settings say otherwise all the same."""
    from outerloop.controller.doctor import differences, proposal, site_file
    from outerloop.settings import Settings

    if not kept or kept[0].backend != "slurm" or not kept[0].proposed:
        return None
    site = kept[0]
    changes = differences(site)
    told: dict[str, Any] = {
        "proposed": proposal(site),
        "tried": {".".join(path): how for path, how in site.tried.items()},
        "changes": {name: {"set": now, "taken": taken} for name, (now, taken) in changes.items()},
        "written": None,
        "outranked": [],
    }
    if write:
        path, text = site_file(site)
        _write(path, text)
        told |= {"written": str(path), "outranked": list(differences(site, Settings.load()))}
    return told


def _print_profile(profile: dict[str, Any] | None) -> None:
    if profile is None:
        return
    if profile["written"]:
        click.echo(f"wrote {profile['written']}")
    for name, change in profile["changes"].items():
        wins = "; the config or the environment says so, and wins" if name in profile["outranked"] else ""
        now = "unset" if change["set"] in (None, "") else f'"{change["set"]}"'
        click.echo(f"  {name} {'was' if profile['written'] else 'is'} {now}{wins}")
        click.echo(f'    this site takes "{change["taken"]}"')
    if profile["changes"] and not profile["written"]:
        click.echo("`outerloop doctor --write` writes that to site.toml; nothing was changed")


def _print_finding(level: str, name: str, sentence: str, fix: str) -> None:
    """`WARN  cron      the crontab of this host has no tick` and, below it, what to change."""
    import shutil
    import sys
    import textwrap

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 80
    word = f"{level:<4}" if os.environ.get("NO_COLOR") else click.style(f"{level:<4}", fg=_COLOURS[level])
    first = f"  {name:<11} "
    blank = " " * (len(level.ljust(4)) + len(first))
    for position, line in enumerate(harmless(sentence).splitlines() or [""]):
        wrapped = textwrap.wrap(line, max(40, width - len(blank)), break_on_hyphens=False, break_long_words=False) or [
            ""
        ]
        for number, part in enumerate(wrapped):
            click.echo(f"{word}{first}{part}" if position == number == 0 else f"{blank}{part}")
    for number, part in enumerate(
        textwrap.wrap(harmless(fix), max(40, width - len(blank) - 3), break_on_hyphens=False, break_long_words=False)
    ):
        click.echo(f"{blank}{'-> ' if number == 0 else '   '}{part}")

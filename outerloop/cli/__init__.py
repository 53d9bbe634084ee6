"""Click commands: parse, call one function, render. No decisions are taken here.

Commands are imported when they are called, so `outerloop --help` costs little more than importing click: the table
below has each command's place and one line of help, and a test compares it with the command's own.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import Any

import click

__all__ = ["COMMANDS", "READING", "LazyGroup", "app", "main", "run"]

COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("outerloop.cli.setup:init", "Write a commented config, migrate, print the crontab line."),
    "doctor": ("outerloop.cli.setup:doctor", "Check this site, and say what to change."),
    "contract": (
        "outerloop.cli.contract:contract",
        "The target's own statement of its benchmarks and scope, .outerloop.toml.",
    ),
    "submit": ("outerloop.cli.submit:submit", "Ask for a verdict."),
    "status": ("outerloop.cli.runs:status", "Runs, what each waits for, and the last verdicts."),
    "show": ("outerloop.cli.runs:show", "One run: its measures, jobs and timeline."),
    "explain": ("outerloop.cli.runs:explain", "Every number behind a run's verdict."),
    "logs": ("outerloop.cli.runs:logs", "What a measure of a run printed."),
    "reproduce": ("outerloop.cli.reproduce:reproduce", "Do a measure of RUN again, exactly as it was ordered."),
    "verify": ("outerloop.cli.operate:verify", "Recompute a run's verdict from its slots alone and compare."),
    "archive": ("outerloop.cli.archive:archive", "Pack what RUN's verdict rests on into one file."),
    "campaign": ("outerloop.cli.campaign:campaign", "Look at a campaign and say something to it."),
    "champions": ("outerloop.cli.runs:champions", "The best accepted candidates and how they came about."),
    "view": ("outerloop.cli.view:view", "Show runs, benchmarks, trainings and the queue in a browser."),
    "cancel": ("outerloop.cli.operate:cancel", "End a run; its jobs go too unless another run wants them."),
    "pause": ("outerloop.cli.operate:pause", "Submit nothing new for each RUN; jobs that are out go on."),
    "resume": ("outerloop.cli.operate:resume", "Go on with each paused RUN."),
    "retry": (
        "outerloop.cli.operate:retry",
        "Give a blocked run, or an exhausted slot (by digest), its attempts again.",
    ),
    "tick": ("outerloop.cli.operate:tick", "One sweep: read the queue, advance what is due."),
    "wake": ("outerloop.cli.operate:wake", "What a wake job runs: advance a run, then what else is due."),
    "cron": ("outerloop.cli.setup:cron", "Print the crontab line that keeps runs going."),
    "db": ("outerloop.cli.db:db", "The record: its Postgres server and its tables."),
    "gc": ("outerloop.cli.operate:gc", "Move slots that no open run, champion or kept verdict needs to the trash."),
    "plan": ("outerloop.cli.plan:plan", "Which training strategy to run, and why every other one lost."),
    "compose": ("outerloop.cli.compose:compose", "Models, methods, suites and challenges, and how they combine."),
    "challenge": (
        "outerloop.cli.challenge:challenge",
        "Post-training challenges: the verdict over an entry, and the board.",
    ),
    "noise": (
        "outerloop.cli.noise:noise",
        "Measure the base of BENCHMARK many times; recommend a floor, a rule and pairs.",
    ),
    "schema": ("outerloop.cli.schema:schema", "Print the JSON Schema of a KIND of file."),
    "simulate": ("outerloop.cli.simulate:simulate", "How long would so many climbs take here, and which limit binds?"),
    "simulate-verdicts": (
        "outerloop.cli.simulate_verdicts:simulate_verdicts",
        "Show how often a decision rule accepts noise and finds a real gain.",
    ),
}
"""Name -> (module:attribute, one line of help), in the order in which help lists them."""

READING = frozenset({"status", "show", "explain", "logs", "verify", "champions", "view", "compose", "schema", "cron"})
"""Commands that change nothing: what Ctrl-C says of one is simpler then."""


class LazyGroup(click.Group):
    """A group whose commands are imported when they are needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = COMMANDS.get(cmd_name)
        if place is None:
            return None
        from importlib import import_module

        module, _, attribute = place[0].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        try:
            return super().make_context(info_name, args, parent, **extra)
        except KeyboardInterrupt:
            from outerloop.cli.errors import interrupted

            raise interrupted() from None

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; trouble that has a sentence and a code leaves as one, wherever in the command it began."""
        try:
            try:
                from outerloop.cli.errors import explained

                with explained():
                    return super().invoke(ctx)
            except KeyboardInterrupt:
                from outerloop.cli.errors import interrupted

                raise interrupted(reads=ctx.invoked_subcommand in READING) from None
        except click.ClickException as error:
            if sys.stderr.isatty():
                import shutil

                from outerloop.cli.errors import ExitCode, fold

                if error.exit_code == ExitCode.INTERRUPTED:
                    click.echo(err=True)  # below the ^C that the terminal shows
                fold(error, shutil.get_terminal_size().columns)
            raise

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] in COMMANDS:
            ctx.invoked_subcommand = args[0]  # click sets it when the command has been imported, which takes a while
        elif args and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f" Did you mean {near[0]}?" if near else " `outerloop --help` lists the commands."
            raise click.UsageError(f"There is no command {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_place, text) in COMMANDS.items()])


def _version(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from outerloop import __version__

        click.echo(f"outerloop {__version__}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
    epilog="Exit codes: 0 done, 1 a defect of ours, 2 bad input, 3 refused, 4 the record is unavailable, "
    "5 the cluster gave no answer, 6 no disk space, 7 not found, 8 no access, 130 interrupted (Ctrl-C).",
)
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Show the version.")
def app() -> None:
    """From a candidate to a verdict on a Slurm cluster.

    Candidates are measured against their base as jobs, runs park without a process of their own, and every verdict
    can be explained and recomputed.
    """


ALLOCATIONS_BETWEEN_COLLECTIONS = 50_000
"""Python's default is 700. Nearly all that importing makes stays until the end, and looking through it again and again
takes a tenth of a short command's time."""


def run() -> None:
    """Do what the command line says; ends the process. Called by outerloop.start, which answers Ctrl-C before it."""
    gc.set_threshold(ALLOCATIONS_BETWEEN_COLLECTIONS)
    # Else pydantic reads the metadata of everything that is installed, on a shared disk a file at a time, for plugins
    # which must not change what our files mean anyway.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "true")
    app(prog_name="outerloop", windows_expand_args=False)


def main() -> None:
    """As the console script, for who has imported this already."""
    from outerloop.start import main as start

    start()

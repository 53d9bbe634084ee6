"""Commands that change runs or keep them going: tick, wake, cancel, pause, resume, retry, verify, gc.

Covered: options and rendering. Not covered: what they do (controller).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from outerloop.cli.common import emit_json, explained, json_option, notes, opened, say, the_settings
from outerloop.cli.errors import CliError, ExitCode
from outerloop.cli.numbers import MOST_DAYS, MOST_SECONDS, Number, Whole

if TYPE_CHECKING:
    from outerloop.controller.deployment import Deployment
    from outerloop.controller.evidence import Verified

NO_ANSWER_TEXT = "the queue did not answer; nothing was concluded from that, the next tick looks again"


@click.command("tick", help="One sweep: read the queue, advance what is due. Cron runs it every few minutes.")
@click.option(
    "--loop",
    type=Number(0, MOST_SECONDS, above=True),
    metavar="SECONDS",
    help="Go on, with so many seconds between sweeps.",
)
@click.option("--dry-run", is_flag=True, help="Say what a tick would do; change nothing.")
@click.option("--quiet", "-q", is_flag=True, help="Print only what went wrong (for cron).")
@click.option(
    "--metrics",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.prom",
    help="Write gauges for node_exporter's textfile collector after each sweep.",
)
@json_option
def tick(loop: float | None, dry_run: bool, quiet: bool, metrics: Path | None, as_json: bool) -> None:
    if metrics is not None:
        _check_metrics(metrics, dry_run)
    if loop is None:
        code = _tick_once(dry_run=dry_run, quiet=quiet, metrics=metrics, as_json=as_json)
        click.get_current_context().exit(int(code))
    while True:
        try:
            _tick_once(dry_run=dry_run, quiet=quiet, metrics=metrics, as_json=as_json)
        except CliError as error:
            if error.exit_code not in {ExitCode.RECORD_UNAVAILABLE, ExitCode.NO_CLUSTER, ExitCode.NO_SPACE}:
                raise
            error.show()
        time.sleep(loop)


def _check_metrics(path: Path, dry_run: bool) -> None:
    """What can be known before the tick is said before the tick."""
    if dry_run:
        raise CliError("--metrics tells of a sweep; with --dry-run there is none")
    if path.suffix != ".prom":
        raise CliError(f"--metrics {path}: node_exporter reads only files that end in .prom")
    if not path.parent.is_dir():
        raise CliError(f"--metrics {path}: there is no folder {path.parent}")
    from importlib.util import find_spec

    if find_spec("prometheus_client") is None:
        raise CliError("--metrics needs prometheus-client: pip install 'outerloop-slurm[metrics]'")


def _tick_once(*, dry_run: bool, quiet: bool, metrics: Path | None, as_json: bool) -> ExitCode:
    from outerloop.controller.tick import dry_tick
    from outerloop.controller.tick import tick as sweep

    with opened() as deployment:
        report = dry_tick(deployment) if dry_run else sweep(deployment)
        if metrics is not None and report.ran:
            from outerloop.controller.metrics import record_metrics

            record_metrics(deployment.record, report, metrics)
    if as_json:
        emit_json(
            {
                "ran": report.ran,
                **report.counters(),
                "would_advance": report.would_advance,
                "runs": [
                    {"run": a.run_id, "state": a.state, "sentence": a.sentence, "submitted": a.submitted}
                    for a in report.advanced
                ],
                "broken_runs": report.broken,
                "notes": report.notes,
            }
        )
    else:
        if not quiet:
            _print_tick(report, dry_run)
        notes(report.notes if not quiet else [])
        for run_id, why in report.broken.items():
            say(f"error: run {run_id} could not be advanced: {why}", err=True)
    if not report.queue_answered:
        click.echo(f"error: {NO_ANSWER_TEXT}", err=True)
        return ExitCode.NO_CLUSTER
    return ExitCode.UNEXPECTED if report.broken else ExitCode.OK


def _print_tick(report, dry_run: bool) -> None:  # type: ignore[no-untyped-def]
    if dry_run:
        click.echo(f"would_wake={len(report.would_advance)} {' '.join(report.would_advance)}".rstrip())
        return
    if not report.ran:
        return
    for item in report.advanced:
        if item.state != "busy":
            say(str(item.sentence), prefix=f"{item.run_id}  {item.state:<8} ")
    counters = report.counters()
    click.echo(
        f"tick: {counters['advanced']} advanced, {counters['submitted']} jobs submitted, {counters['settled']} ended,"
        f" {counters['imported']} imported, {counters['seconds']} s"
    )


@click.command("wake", help="What a wake job runs: advance RUN, then what else is due.")
@click.argument("run")
@click.option("--number", type=Whole(), hidden=True)
def wake(run: str, number: int | None) -> None:
    from outerloop.controller.tick import ring_doorbell
    from outerloop.controller.tick import wake as ring

    settings = the_settings()
    if settings.slurm.submit_from_jobs == "no" and "SLURM_JOB_ID" in os.environ:
        from outerloop.slots import StateRoot

        with explained():
            ring_doorbell(StateRoot(settings.state), run)
        click.echo('slurm.submit_from_jobs = "no": a marker was left for the tick')
        return
    try:
        with opened(settings) as deployment:
            report = ring(deployment, run, number)
    except CliError as error:
        if error.exit_code != ExitCode.RECORD_UNAVAILABLE:
            raise
        from outerloop.slots import StateRoot

        with explained():
            ring_doorbell(StateRoot(settings.state), run)
        say(f"the record is out of reach from here ({error.message}); a marker was left for the tick")
        return
    for item in report.advanced:
        say(str(item.sentence), prefix=f"{item.run_id}  {item.state:<8} ")
    notes(report.notes)
    for run_id, why in report.broken.items():
        say(f"error: run {run_id} could not be advanced: {why}", err=True)
    click.get_current_context().exit(int(ExitCode.UNEXPECTED if report.broken else ExitCode.OK))


@click.command(
    "cancel",
    help="End RUN; its jobs go too unless another run wants them. Cancelling twice changes nothing and exits with 0, a"
    " run that ended otherwise is refused (3).",
)
@click.argument("run")
@click.option("--why", default="cancelled by its owner", show_default=True, help="Recorded with the cancel.")
def cancel(run: str, why: str) -> None:
    from outerloop.cli import service_client

    if (client := service_client.the_client()) is not None:
        with explained():
            service_client.cancel(client, run, as_json=False)
        return
    from outerloop.controller.operate import OperatorError, find_run
    from outerloop.controller.operate import cancel as end

    with opened() as deployment:
        found = find_run(deployment, run)
        if found.kind == "campaign":
            raise CliError(f"run {found.id} is a campaign: outerloop campaign cancel {found.id}", ExitCode.REFUSED)
        before = found.verdict == "cancelled"
        try:
            told = end(deployment, found.id, why)
        except OperatorError as error:
            raise CliError(str(error), ExitCode.REFUSED) from error
        said = f"was cancelled before ({found.sentence}); nothing was changed" if before else f"cancelled ({why})"
        say(f"run {found.id}: {said}")
        notes(told)


@click.command(
    "pause",
    help="Submit nothing new for each RUN; jobs that are out go on, and their results count. Pausing twice changes"
    " nothing and exits with 0; a run that has ended is refused (3), the others are paused all the same.",
)
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@click.option("--why", default="paused by its owner", show_default=True, help="Recorded with the pause.")
def pause(runs: tuple[str, ...], why: str) -> None:
    from outerloop.controller.operate import pause as hold

    _for_each(runs, lambda deployment, run_id: hold(deployment, run_id, why))


@click.command(
    "resume",
    help="Go on with each paused RUN. A run that is not paused or has ended is refused (3), the others go on all the"
    " same.",
)
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
def resume(runs: tuple[str, ...]) -> None:
    from outerloop.controller.operate import resume as go_on

    _for_each(runs, go_on)


def _for_each(names: tuple[str, ...], do: Callable[[Deployment, str], None]) -> None:
    """Say it to every run, then advance each; one that refuses does not keep the others from it."""
    from outerloop.controller.advance import advance
    from outerloop.controller.operate import OperatorError, find_run

    refused: list[str] = []
    with opened() as deployment:
        found = [find_run(deployment, name).id for name in names]
        for run_id in dict.fromkeys(found):
            try:
                do(deployment, run_id)
            except OperatorError as error:
                refused.append(str(error))
                continue
            advanced = advance(deployment, run_id)
            click.echo(f"{run_id}  {advanced.state:<8} {advanced.sentence}")
            notes(advanced.notes)
    if refused:
        raise CliError("\n".join(refused), ExitCode.REFUSED)


@click.command("retry", help="Give a blocked run, or an exhausted slot (by digest), its attempts again.")
@click.argument("what", metavar="RUN|SLOT")
def retry(what: str) -> None:
    from outerloop.controller.advance import advance
    from outerloop.controller.operate import OperatorError
    from outerloop.controller.operate import retry as reopen

    with opened() as deployment:
        try:
            done = reopen(deployment, what)
        except OperatorError as error:
            raise CliError(str(error), ExitCode.REFUSED) from error
        say(f"reopened {len(done.slots)} slots; {len(done.runs)} runs go on: {' '.join(done.runs)}".rstrip(": "))
        for run_id in done.runs:
            advanced = advance(deployment, run_id)
            say(str(advanced.sentence), prefix=f"{run_id}  {advanced.state:<8} ")
            notes(advanced.notes)


@click.command(
    "verify",
    help="Recompute RUN's verdict from its slots alone and compare it with the ledger, and with the record where it"
    " can be read. RUN may be a file that `outerloop archive` wrote; then nothing else is needed.",
)
@click.argument("run")
@json_option
def verify(run: str, as_json: bool) -> None:
    if Path(run).is_file():
        from outerloop.cli.archive import verify_archive

        result, compared, why = verify_archive(Path(run)), "ledger", ""
    elif "." in run or "/" in run:  # no run's name has these
        what = "is a folder, not an archive" if Path(run).is_dir() else "is not there"
        raise CliError(
            f"the file {run} {what}; `outerloop archive RUN` writes one, and a run is verified by its name",
            ExitCode.NOT_FOUND,
        )
    else:
        with explained():
            result, why = _verified(run)
        compared = "ledger" if why else "record"
    if as_json:
        emit_json(
            {
                "run": result.run_id,
                "agrees": result.agrees,
                "recorded": result.recorded,
                "recomputed": result.recomputed,
                "differences": list(result.differences),
                "compared_with": compared,
            }
        )
    else:
        say(str(result.recorded), prefix="recorded    ")
        say(str(result.recomputed), prefix="recomputed  ")
        for difference in result.differences:
            say(difference, prefix="differs: ")
        click.echo(f"The slots and the {compared} {'agree' if result.agrees else 'DISAGREE'}.")
    if why:
        notes([f"not compared with the record: {why}"])
    if not result.agrees:
        click.get_current_context().exit(int(ExitCode.UNEXPECTED))


def _verified(name: str) -> tuple[Verified, str]:
    """A run recomputed from disk, which is only read; and why the record was not asked, or "" where it was."""
    from outerloop.cli.reading import reading
    from outerloop.cli.service_client import refuse_submitters
    from outerloop.controller.archive import StateFolder, find_on_disk
    from outerloop.controller.evidence import verify as recompute
    from outerloop.controller.operate import find_run
    from outerloop.slots import StateRoot

    settings = the_settings()
    refuse_submitters(settings)
    root = StateRoot(settings.state)
    run_id = name
    try:
        try:
            with reading() as reader:
                found = find_run(reader, name)
                run_id = found.id
                return recompute(StateFolder(root), run_id, found.evidence, record=reader.record), ""
        except CliError as error:
            if error.exit_code not in {ExitCode.RECORD_UNAVAILABLE, ExitCode.NO_ACCESS, ExitCode.NOT_FOUND}:
                raise
            try:
                run_id = find_on_disk(root, name)
            except LookupError:
                raise error from None
            return recompute(StateFolder(root), run_id), error.message
    except (LookupError, ValueError) as error:
        raise CliError(f"run {run_id} cannot be read from disk: {error}", ExitCode.NOT_FOUND) from error


@click.command(
    "gc", help="Move slots that no open run, champion or kept verdict needs to the trash, and empty old trash."
)
@click.option(
    "--keep-days",
    type=Number(0, MOST_DAYS),
    default=90.0,
    show_default=True,
    help="Verdicts younger than this are kept.",
)
@click.option("--dry-run", is_flag=True, help="Say what would go; change nothing.")
@json_option
def gc(keep_days: float, dry_run: bool, as_json: bool) -> None:
    from outerloop.controller.collect import collect

    with opened() as deployment:
        report = collect(deployment, keep_days=keep_days, dry_run=dry_run)
    if as_json:
        emit_json({"dry_run": dry_run, **asdict(report)})
        return
    word = "would go" if dry_run else "went"
    of_entries = f", {len(report.tables)} tables of entries" if report.tables else ""
    of_entries += f", {len(report.sealed)} folders of sealed rows" if report.sealed else ""
    click.echo(f"{len(report.slots)} slots{of_entries} ({report.bytes >> 20} MiB) {word} to the trash")
    click.echo(f"{report.deleted} old folders were deleted from it")

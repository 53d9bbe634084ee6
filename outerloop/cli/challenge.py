"""`outerloop challenge`: the verdict over an entry's runs, and the board of those that were judged.

Covered: runs in folders, as `python -m outerloop.posttrain` leaves them; the board of entries in the
record, open ones too. Not covered: judging entries of the record (controller.entries), submitting one
(submit_entry.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from outerloop.cli.common import emit_json, json_option, say
from outerloop.cli.errors import CliError, ExitCode, explained

__all__ = ["challenge"]

VERDICT = "verdict.json"
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)

configs_option = click.option(
    "--configs", type=_FOLDER, help="Folder of fragments.  [default: those that come with outerloop]"
)


@click.group(help="Post-training challenges: the verdict over an entry, and the board.")
def challenge() -> None:
    pass


@challenge.command("judge")
@click.argument("challenge_id", metavar="CHALLENGE")
@click.option("--entry", "entries", multiple=True, required=True, type=_FOLDER, help="Run of the entry; one per seed.")
@click.option("--champion", "champions", multiple=True, type=_FOLDER, help="Run of the champion; one per seed.")
@click.option("--sealed", type=_FOLDER, help="Root of the sealed rows.  [default: in each run's folder]")
@configs_option
@json_option
def judge(
    challenge_id: str,
    entries: tuple[Path, ...],
    champions: tuple[Path, ...],
    sealed: Path | None,
    configs: Path | None,
    as_json: bool,
) -> None:
    """Decide over an entry from the folders of its runs.

    Without --champion the opponent is the untrained model, which the run evaluated with --baseline. The verdict is left
    in the first folder, where `outerloop challenge board` finds it.
    """
    with explained():
        from outerloop.compose import SHIPPED, fragment
        from outerloop.compose import challenge as read_challenge
        from outerloop.posttrain.evaluate import SealError
        from outerloop.posttrain.judging import JudgeError, ReserveMissing, verdict_record
        from outerloop.posttrain.judging import judge as judged
        from outerloop.posttrain.store import publish

        folder = SHIPPED if configs is None else configs
        fixed = read_challenge(challenge_id, configs=folder)
        if len(entries) < fixed.decision.train_seeds:
            raise CliError(
                f"{challenge_id} asks for {fixed.decision.train_seeds} trainings with different seeds,"
                f" {len(entries)} given: --entry is repeatable",
                ExitCode.REFUSED,
            )

        def labels(suites: tuple[str, ...]) -> list[str]:
            tables = [fragment("suites", suite, configs=folder)["suite"] for suite in suites]
            if len(tables) > 1:
                return [str(table["name"]) for table in tables]
            return [Path(table["task_list"]).stem for table in tables]

        try:
            verdict = judged(
                entries,
                champions,
                name=challenge_id,
                suites=labels(fixed.challenge.suites),
                reserve=labels(fixed.challenge.reserve),
                alpha=fixed.decision.alpha,
                min_delta=fixed.decision.min_delta,
                sealed=sealed,
            )
        except ReserveMissing as error:
            raise CliError(str(error), ExitCode.REFUSED) from None
        except (JudgeError, SealError) as error:
            raise CliError(str(error)) from None
        record = {
            "challenge": challenge_id,
            "entry": entries[0].absolute().name,
            "opponent": champions[0].absolute().name if champions else "untrained",
            **verdict_record(verdict),
        }
        publish(entries[0] / VERDICT, record)
        if as_json:
            emit_json(record)
            return
        found = verdict.comparison
        click.echo(f"{_outcome(record)}")
        click.echo(f"  score     {found.candidate:.4f} against {found.opponent:.4f} ({record['opponent']})")
        click.echo(f"  gain      {found.gain:.4f} over {found.tasks} tasks, {found.better} better, {found.worse} worse")
        click.echo(f"  p         {found.p:.2g} ({found.test}, one-sided; alpha {verdict.alpha})")
        if found.dropped:
            click.echo(f"  dropped   {found.dropped} tasks that infrastructure ended on either side")
        if verdict.reserve is not None:
            held = "holds" if verdict.reserve.held else "does not hold"
            click.echo(f"  reserve   gain {verdict.reserve.reserve_gain:.4f}: the win {held}")
        if fixed.decision.train_seeds == 1:
            click.echo("  one training seed: chance in training is not averaged out")


def _outcome(record: dict[str, Any]) -> str:
    reason = ": ".join(part for part in (record["reason"], record["detail"]) if part)
    return f"{record['outcome']} ({reason})" if reason else str(record["outcome"])


@challenge.command("board")
@click.argument("challenge_id", metavar="CHALLENGE")
@click.option("--runs", type=_FOLDER, help="Folder that holds entries' folders.  [default: the record]")
@json_option
def board(challenge_id: str, runs: Path | None, as_json: bool) -> None:
    """Entries of a challenge, accepted ones first, then by score.

    Those that failed or are still open come last.
    """
    with explained():
        from outerloop.cli.entry_text import board_rows, board_text

        entries = board_rows(_of_record(challenge_id) if runs is None else _of_folders(challenge_id, runs))
        if as_json:
            emit_json(entries)
            return
        if not entries:
            where = "in the record; --runs FOLDER looks into folders" if runs is None else f"below {runs}"
            say(f"No entry of {challenge_id} is {where}.{_stranger(challenge_id)}")
            return
        click.echo("\n".join(board_text(entries)))


def _stranger(challenge_id: str) -> str:
    """That outerloop's own fragments have no such challenge; a site's may."""
    from outerloop.compose import ids
    from outerloop.problems import suggestion

    known = ids("challenges")
    return (
        ""
        if challenge_id in known
        else f" No challenge of that name comes with outerloop; {suggestion(challenge_id, known)}"
    )


def _of_folders(challenge_id: str, runs: Path) -> list[dict[str, Any]]:
    from outerloop.posttrain.store import read_record

    found = [record for path in sorted(runs.rglob(VERDICT)) if (record := read_record(path)) is not None]
    return [record for record in found if record.get("challenge") == challenge_id]


def _of_record(challenge_id: str) -> list[dict[str, Any]]:
    from outerloop.cli.reading import NoRecord, reading

    try:
        with reading() as reader:
            from outerloop.controller.views import entries

            return entries(reader.record, challenge_id)
    except NoRecord:
        return []

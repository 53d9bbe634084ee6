"""`outerloop reproduce`: one measure of a run again, with a shell where it failed.

Covered: choosing the measure and attempt, showing both endings. Not covered: doing it (controller.reproduce).
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outerloop.cli.common import emit_json, explained, json_option, say
from outerloop.cli.errors import CliError, ExitCode
from outerloop.cli.numbers import Whole
from outerloop.cli.reading import reading

if TYPE_CHECKING:
    from outerloop.controller.reproduce import Comparison, Copy
    from outerloop.controller.shown import MeasureView

__all__ = ["reproduce"]

TAIL_CHARACTERS = 2000


@click.command(
    "reproduce",
    help="Do a measure of RUN again, exactly as it was ordered, on a copy of its slot, and compare. ROLE: by default"
    " the one that failed, else the candidate. Nothing is recorded.",
)
@click.argument("run")
@click.argument("role", required=False)
@click.option("--attempt", type=Whole(1), help="This attempt.  [default: the one that counts]")
@click.option("--allocation", is_flag=True, help="Through srun, as its lane asks for jobs. Default: here.")
@click.option("--shell", is_flag=True, help="Open a shell in its place instead: same tree, variables and sandbox.")
@click.option("--keep", type=click.Path(path_type=Path, file_okay=False), help="Keep the copy in this (new) folder.")
@json_option
def reproduce(
    run: str, role: str | None, attempt: int | None, allocation: bool, shell: bool, keep: Path | None, as_json: bool
) -> None:
    if shell and as_json:
        raise CliError("--shell is for a person, --json for a program: use one of them")
    if keep is not None and keep.exists():
        raise CliError(f"--keep {keep}: is there already; name a new folder")
    with explained():
        from sqlalchemy import select

        from outerloop.cli.logs import chosen_measure
        from outerloop.controller.reproduce import CopyError, compare, copied
        from outerloop.controller.reproduce import run as go
        from outerloop.record.models import Slot

        with reading() as reader:
            view, measure = chosen_measure(reader, run, role)
            with reader.record.reading() as session:
                order = session.scalar(select(Slot.order).where(Slot.id == measure.slot_id))
            number = attempt or measure.pinned_attempt or (measure.newest.n if measure.newest else 0)
            if number not in {item.n for item in measure.attempts}:
                raise CliError(f"{measure.role} has no attempt {number or 1}", ExitCode.NOT_FOUND)
            python = reader.settings.python
            root = reader.root
        if view.row.kind == "entry" and measure.value is not None:
            told = f"outerloop verify {view.row.id} recomputes the verdict from what was scored"
            raise CliError(f"what {measure.role} scored is sealed, and written once; {told}", ExitCode.REFUSED)
        try:
            with copied(
                root,
                measure.slot,
                number,
                order or {},
                python=python,
                shared=allocation,
                keep=keep.absolute() if keep else None,
            ) as copy:
                if shell:
                    _open_shell(copy, here=not allocation)
                    return
                if not as_json:
                    say(f"{measure.role} of run {view.row.id}, attempt {number}", err=True)
                result = go(copy, here=not allocation)
                recorded = measure.result if number == measure.pinned_attempt else None
                found = compare(recorded or _left(root, measure, number), result.body, deterministic=_fixed(copy))
                _show(view.row.id, measure, result.body, found, keep, as_json)
        except CopyError as error:
            raise CliError(str(error), ExitCode.NOT_FOUND) from error
    if not found.same:
        click.get_current_context().exit(int(ExitCode.UNEXPECTED))


def _left(root: Any, measure: MeasureView, number: int) -> dict[str, Any] | None:
    """The result that an attempt left, which need not be the one that counts."""
    from outerloop.slots import SlotDirectory

    result = SlotDirectory(root.slot(measure.slot), measure.slot).result(number)
    return None if result is None else dict(result.body)


def _fixed(copy: Copy) -> bool:
    """Whether the same work is declared to give the same value: then it has no replicate."""
    determinants = (copy.directory.spec() or {}).get("determinants") or {}
    return not determinants.get("replicate")


def _open_shell(copy: Copy, *, here: bool) -> None:
    from outerloop.controller.reproduce import shell_argv

    argv, env = shell_argv(copy, here=here)
    try:
        code = subprocess.run(argv, env=env, check=False).returncode
    except FileNotFoundError as error:
        raise CliError(f"{argv[0]} is not installed here") from error
    if code:
        click.echo(f"the shell ended with {code}", err=True)


def _show(run: str, measure: MeasureView, body: Any, found: Comparison, keep: Path | None, as_json: bool) -> None:
    if as_json:
        emit_json(
            {
                "run": run,
                "role": measure.role,
                "same": found.same,
                "sentence": found.sentence,
                "result": dict(body),
                "compared": [{"what": w, "recorded": a, "now": b} for w, a, b in found.rows],
            }
        )
        return
    widths = [max(len(row[i]) for row in (("", "recorded", "now"), *found.rows)) for i in (0, 1)]
    for what, before, now in (("", "recorded", "now"), *found.rows):
        click.echo(f"{what:<{widths[0]}}  {before:<{widths[1]}}  {now}".rstrip())
    say(found.sentence)
    if body.get("outcome") != "ok":
        detail, tail = str(body.get("detail") or ""), str(body.get("stderr_tail") or "").strip()
        click.echo("\n".join(part for part in (detail, tail[-TAIL_CHARACTERS:]) if part))
        click.echo(f"  outerloop reproduce {run} {measure.role} --shell   look around there")
    if keep is not None:
        click.echo(f"kept in {keep}")

"""`submit climb --candidates`: the same question about many candidates.

Covered: checking all before submitting any, one line for each, waiting for all. Not covered: one candidate (submit.py),
which commits are meant (controller.candidates).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from outerloop.cli.common import emit_json, explained, notes, opened, the_settings
from outerloop.cli.errors import CliError, ExitCode, require_writable
from outerloop.cli.service_client import refuse_submitters
from outerloop.cli.submitted import asks, the_run, wait_for_end

if TYPE_CHECKING:
    from outerloop.controller.candidates import Named
    from outerloop.controller.deployment import Deployment
    from outerloop.controller.submit import Prepared
    from outerloop.settings import Settings
    from outerloop.slots import StateRoot

__all__ = ["climb_many"]


def climb_many(
    benchmark: str,
    repo: Path,
    base: str | None,
    candidates: str,
    *,
    priority: int,
    dry_run: bool,
    wait: bool,
    as_json: bool,
) -> None:
    """Submit every candidate, or none when one of them cannot be submitted for a reason that is known before."""
    with explained():
        from outerloop.controller.candidates import name_candidates
        from outerloop.controller.git import Repository
        from outerloop.controller.submit import prepare_climb
        from outerloop.slots import StateRoot

        settings = the_settings()
        refuse_submitters(settings)
        require_writable(settings.state)
        root = StateRoot(settings.state)
        named = name_candidates(Repository.open(repo.absolute()), candidates)

        def prepared(revision: str, ask: int) -> Prepared:
            return prepare_climb(
                settings,
                root,
                repository=repo.absolute(),
                benchmark=benchmark,
                base=base,
                candidate=revision,
                ask=ask,
                priority=priority,
            )

        ready = _all_prepared(named, prepared)
        if dry_run:
            _show(ready, as_json)
            return
        _submit_all(settings, root, ready, prepared, wait=wait, as_json=as_json)


def _all_prepared(named: list[Named], prepared: Callable[[str, int], Prepared]) -> list[tuple[Named, Prepared]]:
    """Every candidate checked and pinned. Raises CliError with all that can't be taken."""
    from outerloop.controller.plan import ContractGone
    from outerloop.controller.submit import Refusal

    ready: list[tuple[Named, Prepared]] = []
    refused: dict[str, list[str]] = {}
    for item in named:
        try:
            ready.append((item, prepared(item.revision, 0)))
        except ContractGone as error:
            raise CliError(str(error)) from error
        except Refusal as error:
            refused.setdefault(str(error), []).append(item.revision)
    if refused:
        told = "\n".join(f"{', '.join(names)}: {why}" for why, names in refused.items())
        raise CliError(f"nothing was submitted:\n{told}", ExitCode.REFUSED)
    return ready


def _submit_all(
    settings: Settings,
    root: StateRoot,
    ready: list[tuple[Named, Prepared]],
    prepared: Callable[[str, int], Prepared],
    *,
    wait: bool,
    as_json: bool,
) -> None:
    from outerloop.controller.submit import leave_in_inbox

    try:
        with opened(settings) as deployment:
            runs, over = _enter_all(deployment, ready, prepared)
            _advance_all(deployment, ready, runs)
            if wait:
                for run_id in dict.fromkeys(runs.values()):
                    wait_for_end(deployment, run_id, quiet=as_json)
            _report(deployment, ready, runs, over, as_json)
    except CliError as error:
        if error.exit_code != ExitCode.RECORD_UNAVAILABLE or wait:
            raise
        for _named, item in ready:
            asks(item.request.id)
            leave_in_inbox(root, item.request)
        if as_json:
            emit_json([{"run": item.request.id, "state": "inbox"} for _named, item in ready])
            return
        click.echo(f"{len(ready)} runs are in the inbox: {error.message}")
        click.echo("The next tick takes them in. Nothing else needs to be done.")


def _enter_all(
    deployment: Deployment, ready: list[tuple[Named, Prepared]], prepared: Callable[[str, int], Prepared]
) -> tuple[dict[str, str], str]:
    """(candidate -> its run, why the rest was not taken). All are durable before the first is advanced."""
    from outerloop.cli.submit import enter

    runs: dict[str, str] = {}
    for named, item in ready:
        try:
            runs[named.revision], _before = enter(deployment, item, partial(prepared, named.revision), again=False)
        except CliError as error:
            if error.exit_code != ExitCode.REFUSED:
                raise
            return runs, str(error.message)
    return runs, ""


def _advance_all(deployment: Deployment, ready: list[tuple[Named, Prepared]], runs: dict[str, str]) -> None:
    from outerloop.controller.advance import advance

    said = _remarks(ready)
    first: dict[str, str] = {}
    for revision, run_id in runs.items():
        first.setdefault(run_id, revision)
    for run_id, revision in first.items():
        said += [f"{revision}: {note}" for note in advance(deployment, run_id).notes]
    notes([*said, *deployment.notes])


def _remarks(ready: list[tuple[Named, Prepared]]) -> list[str]:
    """What there is to know of the candidates, each with its name; what is true of all of them is said once."""
    about: dict[str, list[str]] = {}
    for named, item in ready:
        for note in item.notes:
            about.setdefault(note, []).append(named.revision)
    return [
        note if len(names) == len(ready) and len(ready) > 1 else f"{', '.join(names)}: {note}"
        for note, names in about.items()
    ]


def _report(
    deployment: Deployment, ready: list[tuple[Named, Prepared]], runs: dict[str, str], over: str, as_json: bool
) -> None:
    rows = [(named, the_run(deployment, runs[named.revision])) for named, _item in ready if named.revision in runs]
    left = [named.revision for named, _item in ready if named.revision not in runs]
    if as_json:
        emit_json(
            [
                {
                    "candidate": named.revision,
                    "also": list(named.also),
                    "commit": named.commit,
                    "run": run.id,
                    "state": run.state,
                    "verdict": run.verdict,
                    "sentence": run.sentence or run.state_detail,
                }
                for named, run in rows
            ]
            + [{"candidate": name, "run": None, "state": "refused", "sentence": over} for name in left]
        )
    else:
        width = min(28, max((len(named.revision) for named, _run in rows), default=0))
        for named, run in rows:
            state = run.verdict or run.state
            click.echo(f"{run.id}  {named.revision:<{width}}  {state}")
            for other in named.also:
                click.echo(f"{'':14}{other}: the same tree")
        if over:
            click.echo(f"not submitted ({len(left)}): {', '.join(left)}\n  {over}", err=True)
        click.echo("\n  outerloop status                 all of them, by what they wait for")
    if over or any(run.state == "blocked" for _named, run in rows):
        click.get_current_context().exit(int(ExitCode.REFUSED))


def _show(ready: list[tuple[Named, Prepared]], as_json: bool) -> None:
    if as_json:
        emit_json(
            [
                {
                    "dry_run": True,
                    "candidate": named.revision,
                    "also": list(named.also),
                    "request": item.request.to_json(),
                    "scope_problems": [vars(problem) for problem in item.problems],
                    "notes": list(item.notes),
                }
                for named, item in ready
            ]
        )
        return
    first = ready[0][1].request
    click.echo(f"{first.benchmark} of {first.target}, against {first.base_commit[:12]} ({first.base_revision})")
    for named, item in ready:
        told = f"; outside the scope: {', '.join(p.path for p in item.problems[:3])}" if item.problems else ""
        click.echo(f"  {named.commit[:12]}  {named.revision}{told}")
        for other in named.also:
            click.echo(f"{'':16}{other}: the same tree")
    notes(_remarks(ready))
    click.echo("Dry run: nothing was submitted.")

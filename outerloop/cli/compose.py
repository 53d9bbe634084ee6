"""`outerloop compose`: which models, methods, suites and challenges there are, and the configuration of a combination.

Covered: listing, one fragment, checking a folder of them, the composed TOML. Not covered: running it
(`python -m outerloop.posttrain`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outerloop.cli.common import emit_json, json_option, notes
from outerloop.cli.errors import CliError, ExitCode, explained

if TYPE_CHECKING:
    from outerloop.compose import Flavor

__all__ = ["compose"]

KINDS = ("models", "suites", "methods", "challenges")

configs_option = click.option(
    "--configs",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of fragments.  [default: those that come with outerloop]",
)


def _folder(configs: Path | None) -> Path:
    from outerloop.compose import SHIPPED

    return SHIPPED if configs is None else configs


def _flavors() -> dict[str, Flavor]:
    """The cloud's flavors and this site's lanes that say how many GPUs a node has."""
    from outerloop.cli.common import the_config, the_settings
    from outerloop.compose import FLAVORS, lane_flavors

    if the_config() is None:
        return dict(FLAVORS)
    lanes = {name: (lane.gpu_type, lane.node_gpus) for name, lane in the_settings().lanes.items()}
    return {**FLAVORS, **lane_flavors(lanes)}


@click.group(help="Models, methods, suites and challenges, and how they combine.")
def compose() -> None:
    pass


@compose.command("list", help="List the fragments of KIND, or of every kind.")
@click.argument("kind", required=False, type=click.Choice(KINDS))
@configs_option
@json_option
def list_(kind: str | None, configs: Path | None, as_json: bool) -> None:
    with explained():
        from outerloop.compose import registry

        folder = _folder(configs)
        found = {name: registry(name, configs=folder) for name in ([kind] if kind else KINDS)}
        if as_json:
            emit_json(found[kind] if kind else found)
            return
        for name, entries in found.items():
            click.echo(name if entries else f"{name}: none in {folder / name}")
            for entry in entries:
                click.echo(_line(name, entry))


def _line(kind: str, entry: Mapping[str, Any]) -> str:
    """One entry in at most 80 columns."""
    closed = "" if entry.get("status") == "active" else f" ({entry.get('status', 'not active')})"
    if kind == "models":
        told = f"{entry['repo_id']} @ {str(entry['revision'])[:12]}"
    elif kind == "suites":
        told = f"{entry['task_count']} tasks of {entry['repo_id']}"
    elif kind == "methods":
        group = f", groups of {entry['group_size']}" if entry["group_size"] else ""
        told = f"{entry['steps']} steps at {entry['learning_rate']}{group}"
    else:
        told = f"{entry['method']} on {', '.join(entry['suites'] or ())}"
    line = f"  {entry['id']:<28} {told}{closed}"
    return line if len(line) <= 80 else line[:79] + "…"


@compose.command("show", help="Show the fragment ID of KIND: its public entry and its tables.")
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("fragment_id", metavar="ID")
@configs_option
@json_option
def show(kind: str, fragment_id: str, configs: Path | None, as_json: bool) -> None:
    with explained():
        from outerloop.compose import challenge, fragment, registry, task_ids, toml_text

        folder = _folder(configs)
        tables = fragment(kind, fragment_id, configs=folder)
        entry = next(entry for entry in registry(kind, configs=folder) if entry["id"] == fragment_id)
        if kind == "challenges":
            entry["decision"] = challenge(fragment_id, configs=folder).decision.model_dump(mode="json")
        if as_json:
            emit_json({"entry": entry, "fragment": tables})
            return
        click.echo(toml_text(tables), nl=False)
        if kind == "suites":
            click.echo(f"# {len(task_ids(fragment_id, configs=folder))} tasks")
            for domain in entry["domains"]:
                click.echo(f"#   {domain['task_count']:>6} {domain['name']}")


@compose.command("check", help="Check all fragments and open challenges; say all that is wrong.")
@configs_option
@json_option
def check(configs: Path | None, as_json: bool) -> None:
    with explained():
        from outerloop.compose import absent_sources, challenge, ids
        from outerloop.compose import check as check_all
        from outerloop.posttrain.config import config_problems

        folder = _folder(configs)
        problems = check_all(configs=folder, flavors=_flavors(), pipeline=config_problems)
        counts = {kind: len(ids(kind, configs=folder)) for kind in KINDS}
        absent = absent_sources(configs=folder)
        if as_json:
            told = {"ok": not problems, "folder": str(folder), "counts": counts, "problems": problems, "notes": absent}
            emit_json(told)
            if problems:
                raise click.exceptions.Exit(int(ExitCode.BAD_INPUT))
            return
        notes(absent)
        if problems:
            raise CliError("\n".join(problems))
        opened = sum(challenge(name, configs=folder).open for name in ids("challenges", configs=folder))
        if not any(counts.values()):
            raise CliError(f"{folder}: no fragments in {', '.join(KINDS)}", ExitCode.NOT_FOUND)
        click.echo(f"good: {', '.join(f'{count} {kind}' for kind, count in counts.items())} ({opened} open)")


@compose.command("render", help="Print the configuration for a CHALLENGE, or for a choice of ids.")
@click.argument("challenge_id", metavar="CHALLENGE", required=False)
@click.option("--model", help="Model, instead of a challenge's.")
@click.option("--method", help="Method, instead of a challenge's.")
@click.option("--suite", "suites", multiple=True, help="Suite, instead of a challenge's; repeatable.")
@click.option("--train", required=True, type=click.Path(path_type=Path), help="Training data, a JSONL file.")
@click.option("--project", help="Name under which trackers file the run.  [default: the challenge or the method]")
@configs_option
@json_option
def render(
    challenge_id: str | None,
    model: str | None,
    method: str | None,
    suites: tuple[str, ...],
    train: Path,
    project: str | None,
    configs: Path | None,
    as_json: bool,
) -> None:
    with explained():
        from outerloop.compose import challenge, needs_serving, serving, toml_text, with_serving
        from outerloop.compose import compose as composed

        folder = _folder(configs)
        if challenge_id is not None:
            fixed = challenge(challenge_id, configs=folder).challenge
            model, method, suites = model or fixed.model, method or fixed.method, suites or fixed.suites
        if model is None or method is None or not suites:
            raise CliError("name a CHALLENGE, or all of --model, --method and --suite")
        config = composed(
            model,
            method,
            suites,
            {"path": str(train.absolute())},
            project=project or challenge_id or method,
            task_list_root=f"{(folder / 'task-lists').absolute()}/",
            configs=folder,
        )
        layout = None if challenge_id is None else challenge(challenge_id, configs=folder).layout
        if layout or (challenge_id is not None and needs_serving(config)):
            config = with_serving(config, serving(model, method, layout, configs=folder, flavors=_flavors()))
        if as_json:
            emit_json(config)
        else:
            click.echo(toml_text(config), nl=False)

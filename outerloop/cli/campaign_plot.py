"""`outerloop campaign plot`: a campaign as a picture.

Covered: options, where the file goes, and what is missing for it. Not covered: drawing (campaign_drawing.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outerloop.cli.common import emit_json, explained, json_option
from outerloop.cli.errors import CliError, ExitCode

if TYPE_CHECKING:
    from outerloop.champion import CampaignState

__all__ = ["plot"]


@click.command(
    "plot",
    help="Draw CAMPAIGN's errors, champions, front and gate curves. Errors are the counts of all evaluations, beside"
    " generations and reserve checks.",
)
@click.argument("name", metavar="CAMPAIGN", required=False)
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write: .svg, .png or .pdf. Default: the campaign's name with .svg, here.",
)
@click.option(
    "--file",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="An exported ledger (`campaign events --jsonl`) to draw instead of CAMPAIGN's.",
)
@json_option
def plot(name: str | None, output: Path | None, path: Path | None, as_json: bool) -> None:
    from outerloop.champion import plot_data

    with explained():
        if (name is None) == (path is None):
            raise CliError("name a CAMPAIGN, or a --file with an exported ledger")
        called, state = _of_file(path) if path is not None else _of_campaign(str(name))
        data = plot_data(state)
        if as_json:
            emit_json(data)
            return
        if not data["evaluations"]:
            raise CliError(f"campaign {called}: there is no test evaluation yet", ExitCode.NOT_FOUND)
        place = output if output is not None else Path(f"{called}.svg")
        _write(place, data, called)
        from outerloop.climb.text import plural

        click.echo(f"{place}: {len(data['evaluations'])} evaluations, {plural(len(data['generations']), 'generation')}")


def _of_campaign(name: str) -> tuple[str, CampaignState]:
    from outerloop.cli.campaign import the_campaign
    from outerloop.cli.reading import reading

    with reading() as reader:
        view = the_campaign(reader, name)
        return view.run.benchmark, view.state


def _of_file(path: Path) -> tuple[str, CampaignState]:
    from outerloop.champion import LedgerError, events_from_jsonl, fold

    try:
        return path.stem, fold(events_from_jsonl(path.read_bytes().decode("utf-8", "replace"), str(path)))
    except LedgerError as error:
        raise CliError(str(error)) from error


def _write(place: Path, data: dict[str, Any], name: str) -> None:
    from outerloop.cli.campaign_drawing import FORMATS, draw, rendered

    suffix = place.suffix.lower().lstrip(".")
    if suffix not in FORMATS:
        raise CliError(f"{place}: the name must end in {', '.join('.' + known for known in FORMATS)}")
    try:
        figure = draw(data, name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "matplotlib":
            raise
        raise CliError("drawing needs matplotlib: pip install 'outerloop-slurm[plot]'") from error
    draft = place.with_name(f".{place.name}.draft")
    try:
        draft.write_bytes(rendered(figure, suffix))
        draft.replace(place)
    except OSError as error:
        raise CliError(f"{place}: {error.strerror or error}") from None
    finally:
        draft.unlink(missing_ok=True)

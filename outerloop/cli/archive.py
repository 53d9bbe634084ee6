"""`outerloop archive`: a run's evidence in one file; and what `verify` says of such a file.

Covered: choosing the run, naming the file, reporting what was left out. Not covered: the format (controller.archive).
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from outerloop.cli.common import emit_json, explained, json_option, say, the_settings
from outerloop.cli.errors import CliError, ExitCode
from outerloop.cli.numbers import MOST_MIB, Number
from outerloop.cli.service_client import refuse_submitters

if TYPE_CHECKING:
    from outerloop.controller.evidence import Verified

__all__ = ["archive", "verify_archive"]

SUFFIX = ".outerloop.tar.gz"


@click.command(
    "archive",
    help="Pack what RUN's verdict rests on into one file, which `outerloop verify FILE` reads anywhere: before a"
    " scratch folder is purged, or for a reviewer. Needs no database.",
)
@click.argument("run")
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help=f"File to write. Default: RUN{SUFFIX} here."
)
@click.option(
    "--max-file-mib",
    type=Number(0, MOST_MIB),
    default=64.0,
    show_default=True,
    help="Larger files of a slot are left out and listed.",
)
@json_option
def archive(run: str, out: Path | None, max_file_mib: float, as_json: bool) -> None:
    from outerloop.controller.archive import StateFolder, find_on_disk, pack
    from outerloop.slots import StateRoot

    with explained():
        settings = the_settings()
        refuse_submitters(settings)
        root = StateRoot(settings.state)
        try:
            found = find_on_disk(root, run)
            target = out or Path(f"{found}{SUFFIX}")
            done = pack(StateFolder(root), found, target, max_file_bytes=int(max_file_mib * 1024 * 1024))
        except LookupError as error:
            raise CliError(str(error.args[0]), ExitCode.NOT_FOUND) from error
        except ValueError as error:
            raise CliError(str(error), ExitCode.REFUSED) from error
    if as_json:
        emit_json(
            {
                "archive": str(done.path),
                "run": done.run,
                "files": done.files,
                "bytes": done.bytes,
                "left_out": done.left_out,
            }
        )
        return
    say(f"wrote {done.path}")
    click.echo(f"{done.files} files of run {done.run}, {done.bytes / 1024:.0f} KiB packed")
    if done.left_out:
        size = sum(done.left_out.values()) / 1024 / 1024
        say(f"left out: {len(done.left_out)} files, {size:.1f} MiB (built environments, state, large files)")
    click.echo(f"outerloop verify {done.path}")


def verify_archive(path: Path) -> Verified:
    """Recompute the verdict of an archive. Raises CliError for one that cannot be read."""
    from outerloop.controller.archive import ArchiveError, unpack
    from outerloop.controller.evidence import verify

    with explained(), tempfile.TemporaryDirectory(prefix="outerloop-archive-") as folder:
        try:
            unpacked = unpack(path, Path(folder))
            return verify(unpacked, unpacked.run)
        except ArchiveError as error:
            raise CliError(str(error)) from error
        except (LookupError, ValueError) as error:
            raise CliError(f"{path} cannot be judged: {error}") from error

"""`outerloop schema KIND`: what an editor needs to complete and check the files that people write.

Covered: printing. Not covered: the schemas (outerloop.schemas).
"""

from __future__ import annotations

import click

from outerloop.cli.common import emit_json
from outerloop.cli.errors import CliError

__all__ = ["schema"]


@click.command(
    "schema",
    help="Print the JSON Schema of a KIND of file (contract, config, campaign, candidates, challenge), for editors that"
    " check TOML. Put `#:schema ./outerloop.schema.json` on the first line of the file, or name it in the"
    " editor's settings.",
)
@click.argument("kind")
def schema(kind: str) -> None:
    from outerloop.schemas import KINDS
    from outerloop.schemas import schema as made

    if kind not in KINDS:
        import difflib

        near = difflib.get_close_matches(kind, KINDS, n=1, cutoff=0.4)
        hint = f"; did you mean {near[0]}?" if near else ""
        kinds = "".join(f"\n  {name:<10} {KINDS[name][0]}" for name in KINDS)
        raise CliError(f"there is no schema {kind!r}{hint}{kinds}")
    emit_json(made(kind))

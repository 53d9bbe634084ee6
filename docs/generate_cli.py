"""docs/reference/cli.md from the commands themselves; generate_reference.py writes it, with the other pages.

The page depends on the code alone: no widths of terminals, no home folders, no dates. `python docs/generate_cli.py`
does what generate_reference.py does.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click

from outerloop.cli import COMMANDS, app
from outerloop.cli.errors import ExitCode

HEADER = """\
# Command line

<!-- Written by docs/generate_reference.py; edit the commands instead. -->

Every command has `--help`. Commands that show something take `--json`. Runs are named by their id or the beginning
of one that fits no other. Output is plain text of at most 80 columns when it goes to a pipe; on a terminal `NO_COLOR`
turns colours off. Errors are folded at the terminal's width; in a pipe or a file each problem is one line, however
long, so that a script finds it with `grep`.

## Settings

Commands read `config.toml`: the file that `OUTERLOOP_CONFIG` names, else `~/.config/outerloop/config.toml`
(`XDG_CONFIG_HOME` is honoured). `outerloop init` writes it with every setting explained. Each of the
[settings](settings.md) can also be an environment variable, such as `OUTERLOOP_STATE` or `OUTERLOOP_SLURM__BIN_DIR`,
which then wins.

## Shell completion

| shell | line for its start-up file |
|---|---|
| bash (4.4 or newer), `~/.bashrc` | `eval "$(_OUTERLOOP_COMPLETE=bash_source outerloop)"` |
| zsh, `~/.zshrc` | `eval "$(_OUTERLOOP_COMPLETE=zsh_source outerloop)"` |
| fish, `~/.config/fish/completions/outerloop.fish` | `_OUTERLOOP_COMPLETE=fish_source outerloop \\| source` |

The `eval` starts outerloop once per shell. To spare that, write the script to a file and read the file instead:
`_OUTERLOOP_COMPLETE=bash_source outerloop > ~/.outerloop-complete.bash`.
"""

_MEANINGS = {
    ExitCode.OK: "done; a verdict is a success, whichever it is, but for `scope`, which is a refusal (3)",
    ExitCode.UNEXPECTED: "unexpected: a defect of outerloop; a verdict that does not agree with its slots; a campaign's"
    " ledger that does not hold, or is torn on disk",
    ExitCode.BAD_INPUT: "usage or bad input: options, settings, contract, a ledger that no campaign can begin with;"
    " `doctor` found something to repair",
    ExitCode.REFUSED: "refused: scope, budget, lane, what a service does not take; a run that is blocked as soon as it"
    " is submitted; what `pause`, `resume`, `cancel` and `retry` can't do to a run as it stands",
    ExitCode.RECORD_UNAVAILABLE: "the record (database) is unavailable",
    ExitCode.NO_CLUSTER: "the cluster gave no answer",
    ExitCode.NO_SPACE: "no disk space",
    ExitCode.NOT_FOUND: "not found: run, slot, benchmark; `db rebuild` left something out",
    ExitCode.NO_ACCESS: "no access: the state folder is read-only or another account's",
    ExitCode.INTERRUPTED: "interrupted (Ctrl-C): nothing was cancelled or lost; `submit` and `--wait` say what was"
    " submitted",
}


def page() -> str:
    """The whole page."""
    parts = [HEADER, "## Exit codes\n", "| code | meaning |", "|---|---|"]
    parts += [f"| {int(code)} | {_MEANINGS[code]} |" for code in ExitCode]
    parts += ["", "## Commands", "", "| command | what it does |", "|---|---|"]
    parts += [f"| [`{name}`](#outerloop-{name}) | {_cell(line)} |" for name, (_place, line) in COMMANDS.items()]
    context = click.Context(app, info_name="outerloop")
    for name in app.list_commands(context):
        command = app.get_command(context, name)
        assert command is not None, name
        parts += _sections(command, ("outerloop", name), context)
    return "\n".join(parts).rstrip() + "\n"


def _sections(command: click.Command, words: tuple[str, ...], parent: click.Context) -> Iterator[str]:
    if command.hidden:
        return
    context = click.Context(command, info_name=words[-1], parent=parent)
    yield ""
    yield f"{'#' * min(6, len(words) + 1)} {' '.join(words)}"
    yield ""
    for paragraph in (command.help or "").strip().replace("\b\n", "").split("\n\n"):
        yield " ".join(paragraph.split())
        yield ""
    yield "```"
    yield f"{' '.join(words)} {' '.join(command.collect_usage_pieces(context))}"
    yield "```"
    options = [found for found in command.params if isinstance(found, click.Option) and not found.hidden]
    if options:
        yield ""
        yield "| option | meaning |"
        yield "|---|---|"
        for option in options:
            record = option.get_help_record(context)
            if record is not None:
                yield f"| {_code(record[0])} | {_cell(record[1])} |"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None, name
            yield from _sections(inner, (*words, name), context)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _code(text: str) -> str:
    return f"`{text.replace('|', chr(92) + '|')}`"


if __name__ == "__main__":
    from generate_reference import main

    sys.exit(main())

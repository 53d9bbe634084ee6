"""A user's own command as a launch: no strategy is added, only what makes it run anywhere.

Covered: `{name}` parameters, torchrun's shape, the checks of names. Not covered: shell syntax. A string is split into
words as a POSIX shell would split it, and no shell is started; `bash -c '…'` says so where one is wanted.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from outerloop.strategies.errors import CompileError
from outerloop.strategies.plan import Scalar
from outerloop.strategies.spec import LaunchSpec, env_reasons, file_name_reasons, token_reasons
from outerloop.strategies.template import filled, template_reasons, unfilled_fields
from outerloop.strategies.torchrun import read_torchrun, rendezvous

# Words that only a shell gives a meaning to.
_SHELL_WORDS = frozenset({"|", "||", "&&", ";", "&", ">", ">>", "<", "2>", "2>&1"})


def compile_command(
    command: str | Sequence[str],
    *,
    parameters: Mapping[str, Scalar] | None = None,
    env: Mapping[str, str] | None = None,
    files: Mapping[str, str] | None = None,
    gpus_per_process: int = 0,
) -> LaunchSpec:
    """The launch of a command as the researcher wrote it. Raises CompileError with every reason.

    `{name}` is replaced in the command, the values of `env` and the texts of `files`. When the command is torchrun, its
    worker count is read from its own options and multiplied by its node count.
    """
    parameters = dict(parameters or {})
    env = dict(env or {})
    files = dict(files or {})
    reasons: list[str] = []
    notes: list[str] = []

    argv: list[str] = []
    if isinstance(command, str):
        try:
            argv = shlex.split(command)
        except ValueError as error:
            raise CompileError("the command", [f"it cannot be split into words: {error}"]) from None
        shell = sorted(_SHELL_WORDS.intersection(argv))
        if shell:
            reasons.append(f"it uses the shell syntax {' '.join(shell)}, and no shell is started; use bash -c '…'")
    else:
        argv = list(command)
    texts = [*argv, *env.values(), *files.values()]
    reasons += command_reasons(argv)
    reasons += template_reasons(texts, parameters)
    reasons += env_reasons(env) + file_name_reasons(files)
    reasons += token_reasons([*texts, *map(str, parameters.values())])
    if gpus_per_process < 0:
        reasons.append(f"gpus_per_process is {gpus_per_process}")
    notes += [f"{{{name}}} is no declared parameter and stays as it is" for name in unfilled_fields(texts, parameters)]
    argv = [filled(word, parameters) for word in argv]

    world_size: int | None = 1
    meeting = None
    line = read_torchrun(argv)
    if line is not None:
        reasons += line.reasons
        notes += line.notes
        argv = list(line.argv)
        count = line.processes_per_node
        world_size = None if count is None else count * line.nodes
        meeting = rendezvous(line.nodes, count)
    if reasons:
        raise CompileError("the command", reasons)
    return LaunchSpec(
        argv=tuple(argv),
        env={name: filled(env[name], parameters) for name in sorted(env)},
        files={name: filled(files[name], parameters) for name in sorted(files)},
        world_size=world_size,
        gpus_per_process=gpus_per_process,
        rendezvous=meeting,
        notes=tuple(notes),
    )


def command_reasons(argv: Sequence[str]) -> list[str]:
    """Every reason why a list of words is no command at all."""
    if not argv or not argv[0]:
        return ["the command is empty"]
    reasons = []
    if any("\0" in word for word in argv):
        reasons.append("the command holds a NUL character")
    first = argv[0]
    if "=" in first and "/" not in first.partition("=")[0]:
        reasons.append(f"the command starts with an assignment ({first}); declare the variable in env instead")
    return reasons

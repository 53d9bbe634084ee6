"""job.sh: the small fixed script that starts the program on the node. The payload lies in the slot.

Covered: its text, with every path quoted. Not covered: how it is submitted. Pinned by a golden file.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from outerloop.job.scratch import CACHES

__all__ = ["array_script", "job_script", "pack_script"]

# The scratch folder is made here, so that caches which the prologue fills lie in it; the program adopts it. When it
# cannot be made, the program looks for another place, or says that there is none.
_TEMPLATE = """\
#!/bin/bash
# Written by outerloop; what is executed stands in spec.json and attempt.json.
OUTERLOOP_SCRATCH=$(mktemp -d "${{SLURM_TMPDIR:-${{TMPDIR:-/tmp}}}}/outerloop-$(id -u)-XXXXXXXXXX") ||
    OUTERLOOP_SCRATCH=/nonexistent
export OUTERLOOP_SCRATCH OUTERLOOP_CACHE_SEED={cache_seed}
{caches}
{prologue}exec {python} -I -m outerloop.job {arguments}
"""

_PACK = """\
#!/bin/bash
# Written by outerloop; the attempts that are executed one after another stand in the map.
exec {python} -I -m outerloop.job {arguments}
"""


def job_script(python: str, slot: Path, attempt: int, prologue: str, cache_seed: str) -> str:
    """The script of one attempt.

    `python` is the interpreter's absolute path, `prologue` the lane's shell text (module loads), put in as it is,
    `cache_seed` a folder of warmed caches or an empty text.
    """
    return _script(python, [str(slot), str(attempt)], prologue, cache_seed)


def array_script(python: str, task_map: Path, prologue: str, cache_seed: str) -> str:
    """The script of all tasks of one array; each finds its attempt in `task_map`."""
    return _script(python, ["--array", str(task_map)], prologue, cache_seed)


def pack_script(python: str, task_map: Path) -> str:
    """The script of a pack: scratch, caches and prologue are its members' own, each in the script of its attempt."""
    return _PACK.format(python=shlex.quote(python), arguments=shlex.join(["--pack", str(task_map)]))


def _script(python: str, arguments: list[str], prologue: str, cache_seed: str) -> str:
    return _TEMPLATE.format(
        cache_seed=shlex.quote(cache_seed),
        caches="\n".join(f'export {name}="$OUTERLOOP_SCRATCH/{place}"' for name, place in CACHES.items()),
        prologue=prologue.rstrip("\n") + "\n" if prologue.strip() else "",
        python=shlex.quote(python),
        arguments=shlex.join(arguments),
    )

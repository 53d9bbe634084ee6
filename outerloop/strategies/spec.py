"""LaunchSpec: the exact launch, with tokens where only the node knows the value.

Covered: the model, its canonical text, the substitution of the tokens, and the checks of file and variable
names. Not covered: writing the files, finding a port, or starting anything, which the node wrapper does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Literal

from pydantic import BaseModel, ConfigDict

FILES_TOKEN = "@OUTERLOOP_FILES@"
"""Absolute folder in which the wrapper has written `LaunchSpec.files`; always the attempt's output folder."""
RDZV_ID_TOKEN = "@OUTERLOOP_RDZV_ID@"
"""`<first 16 of the slot's digest>-<attempt>`: ranks of another attempt can never join."""
RDZV_ENDPOINT_TOKEN = "@OUTERLOOP_RDZV_ENDPOINT@"
"""`<first node>:<free port>`, found by the wrapper on the first node; a taken port is another port."""
TOKENS = (FILES_TOKEN, RDZV_ID_TOKEN, RDZV_ENDPOINT_TOKEN)

# The same names that a contract may not declare: they change what runs instead of what is asked of it.
_REFUSED_NAMES = ("HOME", "PATH")
_REFUSED_PREFIXES = ("LD_", "GIT_", "PYTHON", "SLURM_", "OUTERLOOP_")
# torchrun takes a default for every one of its options from PET_<OPTION> (torch.distributed.argparse_util).
_TORCHRUN_PREFIX = "PET_"
# Set by torchrun for each rank, or the address that only the node knows.
_RANK_NAMES = frozenset(
    {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"}
    | {"TORCHELASTIC_RUN_ID"}
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Rendezvous(BaseModel):
    """How the ranks of several nodes meet. The address and the port are the wrapper's to find."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    backend: Literal["c10d"] = "c10d"
    nodes: int
    processes_per_node: int | None
    """None where the command leaves the count to the node (`gpu`, `auto`, `cpu`)."""


class LaunchSpec(BaseModel):
    """One launch: run `argv` once on each node with `env` added, after writing `files` into the output folder.

    `world_size` is None when the command leaves the worker count to the node. `files` maps a relative POSIX
    path to its text. `rendezvous` is None unless there are several nodes. `workdir_hint` says where `argv`
    expects to start: `tree`, the checked-out tree.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1] = 1
    argv: tuple[str, ...]
    env: dict[str, str]
    files: dict[str, str]
    world_size: int | None
    gpus_per_process: int
    rendezvous: Rendezvous | None = None
    workdir_hint: Literal["tree"] = "tree"
    notes: tuple[str, ...] = ()

    def canonical_json(self) -> str:
        """Sorted keys, no blanks, ASCII: equal specs have equal text, so this can be hashed."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), allow_nan=False)

    def resolve(self, tokens: Mapping[str, str]) -> tuple[tuple[str, ...], dict[str, str]]:
        """`argv` and `env` with the given tokens replaced.

        Raises KeyError naming a token that the spec uses and `tokens` lacks.
        """
        used = [t for t in TOKENS if any(t in text for text in (*self.argv, *self.env.values()))]
        for token in used:
            if token not in tokens:
                raise KeyError(token)

        def fill(text: str) -> str:
            for token in used:
                text = text.replace(token, tokens[token])
            return text

        return tuple(fill(a) for a in self.argv), {k: fill(v) for k, v in self.env.items()}


def file_name_reasons(names: Iterable[str]) -> list[str]:
    """Every reason why a relative file name could leave the output folder or clash with another one."""
    reasons = []
    seen: dict[str, str] = {}
    for name in sorted(names):
        parts = name.split("/")
        if not name or "\0" in name or "\\" in name or any(ord(c) < 32 for c in name):
            reasons.append(f"file name {name!r} is empty or has a backslash or control character")
        elif name.startswith("/") or ".." in parts:
            reasons.append(f"file name {name!r} leaves the output folder")
        elif "." in parts or "" in parts:
            reasons.append(f"file name {name!r} is not in its plain form; write {PurePosixPath(name)}")
        elif name.casefold() in seen:
            reasons.append(f"file names {seen[name.casefold()]!r} and {name!r} differ in case only")
        seen.setdefault(name.casefold(), name)
    for name in sorted(seen):
        if any(str(parent) in seen for parent in PurePosixPath(name).parents):
            reasons.append(f"file name {seen[name]!r} lies below another file")
    return reasons


def env_reasons(env: Mapping[str, str]) -> list[str]:
    """Every reason why a declared variable is refused."""
    reasons = []
    for name in sorted(env):
        if not _NAME.fullmatch(name):
            reasons.append(f"variable {name!r} is not a shell name")
        elif name in _REFUSED_NAMES or name.startswith(_REFUSED_PREFIXES):
            reasons.append(f"variable {name} is set by the node and may not be declared")
        elif name.startswith(_TORCHRUN_PREFIX):
            reasons.append(f"variable {name} would change torchrun's options; write the option itself")
        elif name in _RANK_NAMES:
            reasons.append(f"variable {name} is set for each rank on the node and may not be declared")
        if "\0" in env[name]:
            reasons.append(f"the value of {name} holds a NUL character")
    return reasons


def token_reasons(texts: Iterable[str]) -> list[str]:
    """A reason for each token that a user's own text contains: the wrapper would replace it."""
    return [f"the text contains {token}, which is reserved" for token in TOKENS if any(token in t for t in texts)]

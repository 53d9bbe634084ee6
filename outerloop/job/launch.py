"""Launches: tokens replaced on the node, and the srun line that carries a launch to several nodes.

Covered: argument lists and a free port. Not covered: what each rank does before it starts (rank.py).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence

from outerloop.job.work import Launch

FILES_TOKEN = "@OUTERLOOP_FILES@"
RDZV_ID_TOKEN = "@OUTERLOOP_RDZV_ID@"
RDZV_ENDPOINT_TOKEN = "@OUTERLOOP_RDZV_ENDPOINT@"
"""As `outerloop.strategies.spec` writes them; a test compares the two."""

PORT_TRIES = 3
"""A port that somebody took between our look and torchrun's is another port, not another attempt."""

RANK_COMPLAINT = "outerloop: on node "
"""How the rank program begins when it, and not the command, failed."""

FIRST_FAILURE = "first-failure.json"
"""Linked by the rank program whose command failed first: {"exit_code", "signal", "node"}."""

_TAKEN = ("EADDRINUSE", "address already in use")
"""torch's TCPStore and the C library's words for it."""


def free_port() -> int:
    """A TCP port of this host that nobody listened on a moment ago."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def port_was_taken(stderr_tail: str) -> bool:
    """Whether a launch failed because its port was in use."""
    return any(words.lower() in stderr_tail.lower() for words in _TAKEN)


def needs_endpoint(spec: Launch) -> bool:
    """Whether anything in the launch asks for an address to meet at."""
    return any(RDZV_ENDPOINT_TOKEN in text for text in (*spec.argv, *spec.env.values()))


def tokens(digest: str, attempt: int, files_folder: str, endpoint: str) -> dict[str, str]:
    """What each token stands for in one try of one attempt."""
    return {
        FILES_TOKEN: files_folder,
        RDZV_ID_TOKEN: f"{digest[:16]}-{attempt}",
        RDZV_ENDPOINT_TOKEN: endpoint,
    }


def fill(text: str, values: Mapping[str, str]) -> str:
    """The text with every token replaced."""
    for token, value in values.items():
        text = text.replace(token, value)
    return text


def write_files(folder: str, texts: Mapping[str, str]) -> None:
    """Write a launch's files below `folder`, byte for byte. Raises OSError."""
    for name, text in texts.items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8", newline="") as file:
            file.write(text)


def srun_argv(srun: str, nodes: int, cpus: int, gpu_form: Sequence[str], command: Sequence[str]) -> list[str]:
    """One task per node. From Slurm 22.05 on srun does not inherit cpus-per-task: it is stated."""
    return [
        srun,
        f"--nodes={nodes}",
        f"--ntasks={nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={cpus}",
        *gpu_form,
        "--kill-on-bad-exit=1",
        *command,
    ]

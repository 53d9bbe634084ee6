"""The process that pyslurm lives in: one JSON request a line in, one or two answers a line out.

Covered: importing pyslurm, submit, cancel, look-up; keeping the library's own output away from the answers. Not
covered: deadlines and what an answer means (slurm_api.py, pyslurm_words.py).

pyslurm can end the process at import, holds the interpreter's lock in every call, and knows no time limit; whoever
started this process ends it when it is late. Before a request that changes anything leaves this process, "begun" is
answered: a child that dies before that has sent nothing.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from outerloop.compute.pyslurm_words import RECORD_FIELDS

__all__ = ["main"]


def main(arguments: list[str]) -> int:
    """Serve requests from stdin until it ends. `arguments` is at most one folder to import pyslurm from."""
    # Whatever the library prints goes to stderr, where the parent reads it as remarks.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    if arguments:
        sys.path.insert(0, arguments[0])
    try:
        import pyslurm
    except Exception as error:
        _say(answers, {"hello": None, "why": f"{type(error).__name__}: {error}"})
        return 0
    _say(answers, {"hello": str(getattr(pyslurm, "__version__", ""))})
    for line in sys.stdin:
        if not line.endswith("\n"):
            # Whoever asked died in the middle of the sentence.
            break
        request = json.loads(line)
        number = request["number"]

        def begun(number: int = number) -> None:
            _say(answers, {"number": number, "begun": True})

        try:
            answer = _carry_out(pyslurm, request, begun)
        except pyslurm.RPCError as error:
            answer = {"error": "rpc", "errno": int(error.errno), "text": str(error.msg)}
        except Exception as error:
            # Raised while the request was put together: pyslurm's own errors of the cluster are RPCError alone.
            answer = {"error": "input", "text": f"{type(error).__name__}: {error}"}
        _say(answers, {"number": number, **answer})
    return 0


def _carry_out(pyslurm: Any, request: dict[str, Any], begun: Callable[[], None]) -> dict[str, Any]:
    match request["do"]:
        case "submit":
            if b"\r" in Path(request["description"]["script"]).read_bytes():
                # It reads with universal newlines: the job would run another script than the one that was given.
                return {"error": "cannot", "text": "a carriage return in the script"}
            # Unset or empty, the library asks for profiling of energy, network, tasks and file system. Something that
            # is there and holds nothing leaves it to the site, as sbatch does.
            description = pyslurm.JobSubmitDescription(**request["description"], profile_types=iter(()))
            begun()
            return {"ok": description.submit()}
        case "cancel":
            begun()
            pyslurm.Job(request["id"]).cancel()
            return {"ok": None}
        case "look_up":
            job = pyslurm.Job.load(request["id"])
            return {"ok": {field: _plain(getattr(job, field)) for field in RECORD_FIELDS}}
        case other:
            return {"error": "input", "text": f"no such request: {other}"}


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, float)) else str(value)


def _say(answers: TextIO, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()

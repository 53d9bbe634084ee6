"""Evaluation by inspect-ai: conversations of several turns with tools, against a server beside this process.

Covered: requests to an inspect run in an environment of its own and its answers back, its logs among the sealed rows,
an agent's time-out as a wrong answer. Not covered: the conversation itself (beside/inspect_run.py), tools that need a
sandbox (a shell, running code).

inspect-ai needs only HTTP, so its many dependencies stay out of the trainer's environment.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outerloop.posttrain.engine import Failed, Request, TimedOut
from outerloop.posttrain.kept import BESIDE, Kept, said
from outerloop.posttrain.serve import Server, ServerError, stop_token_ids
from outerloop.posttrain.store import publish

__all__ = ["AgentOptions", "InspectEngine"]

SCRIPT = BESIDE / "inspect_run.py"
GRACE_SECONDS = 5.0
_MARGIN_SECONDS = 600.0
"""For starting inspect and writing its logs, beyond what all conversations may take."""
_TURN_SECONDS = 60.0
"""Bound of a turn's tools, where no agent's time-out is set."""


@dataclass(frozen=True)
class AgentOptions:
    """How a conversation runs."""

    python: Path
    """Of the environment that has inspect-ai."""
    tools: tuple[str, ...] = ()
    """`calculator`, or `module:function` of the method: an async function with types and a docstring."""
    max_turns: int = 20
    timeout_sec: float | None = None
    concurrency: int = 32


class InspectEngine:
    """Each batch of requests is one run of inspect, one sample per trial. Its files lie below `sealed`."""

    def __init__(
        self,
        server: Server,
        options: AgentOptions,
        *,
        temperature: float,
        top_p: float,
        max_new_tokens: int,
        sealed: Path,
    ) -> None:
        self._server, self._options, self._sealed = server, options, sealed
        self._sampling = {
            "temperature": temperature,
            "top_p": top_p,
            "max_tokens": max_new_tokens,
            "stop_token_ids": stop_token_ids(server.model),
        }

    def close(self) -> None:
        self._server.stop()

    def generate(self, requests: Sequence[Request]) -> list[str | Failed | TimedOut]:
        if not requests:
            return []
        try:
            self._server.ensure()
        except ServerError as error:
            print(f"evaluation: {error}", file=sys.stderr, flush=True)
            return [Failed("the server did not start")] * len(requests)
        folder = self._sealed / f"inspect-{secrets.token_hex(8)}"
        folder.mkdir(mode=0o700)
        publish(folder / "work.json", self._work(requests))
        why = self._run(folder, len(requests))
        try:
            answers = json.loads((folder / "answers.json").read_text(encoding="utf-8"))
            found = [_answer(each) for each in answers]
            if len(found) != len(requests):
                raise ValueError
        except (OSError, ValueError, KeyError, TypeError):
            print(f"evaluation: {why}; its log: {folder / 'log.txt'}", file=sys.stderr, flush=True)
            return [Failed("inspect gave no answers")] * len(requests)
        if any(isinstance(each, TimedOut) for each in found) and not self._server.healthy():
            # waited for a server that was gone: no fault of the agent's
            return [Failed("the server died") if isinstance(each, TimedOut) else each for each in found]
        return found

    def _work(self, requests: Sequence[Request]) -> dict[str, Any]:
        options = self._options
        return {
            "base_url": f"{self._server.client.base_url}/v1",
            "model": self._server.name,
            "requests": [{"messages": list(request.messages), "seed": request.seed} for request in requests],
            "sampling": self._sampling,
            "tools": list(options.tools),
            "max_turns": options.max_turns,
            "timeout_sec": options.timeout_sec,
            "request_timeout_sec": self._server.options.request_timeout_sec,
            "concurrency": options.concurrency,
        }

    def _run(self, folder: Path, count: int) -> str:
        """Run inspect; how it ended, in words."""
        options = self._options
        turn = self._server.options.request_timeout_sec + _TURN_SECONDS
        longest = turn * options.max_turns if options.timeout_sec is None else options.timeout_sec
        rounds = -(-count // options.concurrency)
        command = [str(options.python), str(SCRIPT)]
        command += [str(folder / name) for name in ("work.json", "answers.json", "logs")]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("INSPECT_")}
        environment |= {"OUTERLOOP_API_KEY": self._server.client.key, "HOME": str(folder), "NO_PROXY": "127.0.0.1"}
        scratch = tempfile.mkdtemp(prefix="ol-inspect-")
        kept = Kept(
            command,
            {**environment, "TMPDIR": scratch},
            log=folder / "log.txt",
            scratch=scratch,
            grace=GRACE_SECONDS,
        )
        try:
            code = kept.wait(longest * rounds + _MARGIN_SECONDS)
        finally:
            kept.stop()
        return f"inspect ended{said(code)}" if code is not None else "inspect did not end in time"


def _answer(each: Any) -> str | Failed | TimedOut:
    if "text" in each:
        if not isinstance(each["text"], str):
            raise TypeError
        return each["text"]
    return TimedOut() if each.get("timeout") else Failed(str(each["failed"]))

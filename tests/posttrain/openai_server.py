"""A small OpenAI-compatible server that takes vLLM's options, for clients and supervisors to be tested against.

    python openai_server.py --model FOLDER --served-model-name NAME --host H --port P    (others are ignored)

$BEHAVIOUR says what it does. Without one it serves the model with transformers. The others need no model and answer a
question with its own last word:
    echo           every time
    die N          ends with exit code 9 at its Nth completion, in the first process only
    die always     at every first completion
    hang | 500 | garbage | short | shapeless     that is its answer to a completion
    taken N        the first N processes say that the port is in use, and end
    silent         never answers anything
    tool           asks the calculator for the last word first, and answers with what that said
    tools          asks the calculator every time
    late           answers after an hour, but is healthy
    stubborn       ignores SIGTERM, and so does a child in a session of its own
$STATE is a folder in which processes count themselves.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

KINDS = ("500", "garbage", "short", "shapeless")


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    name = key = ""
    behaviour: tuple[str, ...] = ()
    first = True
    engine: Any = None
    count = 0
    lock = threading.Lock()

    def log_message(self, *words: Any) -> None:
        pass

    def _answer(self, status: int, body: bytes, *, length: int | None = None) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)

    def _known(self) -> bool:
        if self.headers.get("authorization") == f"Bearer {self.key}":
            return True
        self._answer(401, b"{}")
        return False

    def do_GET(self) -> None:
        if self.path == "/health":
            self._answer(200, b"")
        elif self._known():
            self._answer(200, json.dumps({"data": [{"id": self.name}]}).encode())

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if not self._known():
            return
        kind, *rest = self.behaviour
        with Handler.lock:
            Handler.count += 1
            number = Handler.count
        if kind == "die" and ((rest == ["always"]) or (self.first and number == int(rest[0]))):
            os._exit(9)
        with (Path(os.environ["STATE"]).parent / "seeds").open("a") as stream:
            stream.write(f"{asked['seed']}\n")
        if kind in ("hang", "late"):
            time.sleep(3600)
        word = asked["messages"][-1]["content"].split()[-1]
        if kind == "model":
            from outerloop.posttrain.engine import Request

            with Handler.lock:
                [word] = self.engine.generate([Request(asked["messages"], asked["seed"])])
        message: dict[str, Any] = {"role": "assistant", "content": word}
        if kind == "tools" or (kind == "tool" and asked["messages"][-1]["role"] != "tool"):
            call = {"name": "calculator", "arguments": json.dumps({"expression": word})}
            message = {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": f"call-{number}", "type": "function", "function": call}],
            }
        whole = json.dumps(
            {
                "id": str(number),
                "object": "chat.completion",
                "created": 1,
                "model": asked["model"],
                "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
            }
        ).encode()
        if asked["model"] != self.name:
            self._answer(404, b"{}")
        elif kind == "500":
            self._answer(500, whole)
        elif kind == "garbage":
            self._answer(200, whole[:-3])
        elif kind == "short":
            self._answer(200, whole, length=len(whole) + 10)
            self.close_connection = True
        elif kind == "shapeless":
            self._answer(200, json.dumps({"choices": [], "said": word}).encode())
        else:
            self._answer(200, whole)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--model", "--served-model-name", "--host"):
        parser.add_argument(name)
    parser.add_argument("--port", type=int)
    given, _ = parser.parse_known_args()
    Handler.behaviour = tuple(os.environ.get("BEHAVIOUR", "model").split())
    kind, *rest = Handler.behaviour
    state = Path(os.environ["STATE"])
    mine = len(list(state.iterdir()))
    (state / str(os.getpid())).touch()
    Handler.first = mine == 0
    Handler.name, Handler.key = given.served_model_name, os.environ["VLLM_API_KEY"]
    if kind == "taken" and mine < int(rest[0]):
        sys.exit("OSError: [Errno 98] Address already in use")
    if kind == "silent":
        time.sleep(3600)
    if kind == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=True)
        (state / str(child.pid)).touch()
    if kind == "model":
        from outerloop.posttrain.engine import TransformersEngine

        Handler.engine = TransformersEngine(
            Path(given.model), temperature=1.0, top_p=1.0, max_new_tokens=8, batch_size=1
        )
    ThreadingHTTPServer.request_queue_size = 128
    ThreadingHTTPServer((given.host, given.port), Handler).serve_forever()


if __name__ == "__main__":
    main()

"""The rig for entries: data in files, submitted through the command line, stages without torch (entry_stage.py).

A stage's process is forked from a server that has everything imported, because starting a Python that has takes longer
than everything else. What the job starts is a client that hands its output over and ends as the stage did.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import traceback
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from outerloop.controller import entry_work
from outerloop.posttrain.sums import rows
from tests.controller_rig import entry_stage
from tests.controller_rig.trainings import TrainingWorld

CLIENT = """
import json, os, signal, socket, sys
asked = {{"argv": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ)}}
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.connect("\\0" + {name!r})
socket.send_fds(server, [json.dumps(asked).encode()], [1, 2])
code = int(server.recv(64))
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
"""
MOST_BYTES = 1 << 20


class StageServer:
    """Forks a process for every stage that a client asks for. Ended by `close`, or with the test's process group."""

    def __init__(self, folder: Path) -> None:
        self.name = f"ol-entry-{uuid.uuid4().hex}"
        self.folder = folder
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(f"\0{self.name}")
        listener.listen()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self._serve(listener)
            finally:
                os._exit(1)
        listener.close()

    @property
    def command(self) -> tuple[str, ...]:
        """What stands before a stage's arguments, after the interpreter."""
        return ("-I", "-S", "-c", CLIENT.format(name=self.name))

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def _serve(self, listener: socket.socket) -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that answer
        while True:
            client, _ = listener.accept()
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                raw, handles, _, _ = socket.recv_fds(client, MOST_BYTES, 2)
                pid = os.fork()
                if pid == 0:
                    self._stage(json.loads(raw), handles)
                _, status = os.waitpid(pid, 0)
                client.sendall(str(os.waitstatus_to_exitcode(status)).encode())
                os._exit(0)
            client.close()

    def _stage(self, asked: dict[str, Any], handles: list[int]) -> None:
        code: Any = 1
        for number, handle in enumerate(handles, start=1):
            os.dup2(handle, number)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        os.chdir(asked["cwd"])
        os.environ.clear()
        os.environ.update(asked["env"])
        try:
            code = entry_stage.main(self.folder, asked["argv"])
        except SystemExit as ended:
            code = ended.code
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(int(code))


class EntryWorld(TrainingWorld):
    """A world whose runs are entries. `marks` has one line for every stage that really ran."""

    def __init__(self, folder: Path, database: str, patch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, database)
        self.server = StageServer(folder)
        patch.setattr(entry_work, "STAGE_COMMAND", self.server.command)

    def close(self) -> None:
        """End what was started."""
        self.server.close()

    def data(self, name: str, skill: str, extra: Sequence[dict[str, str]] = ()) -> str:
        """A file of rows whose model will have this skill in per cent."""
        row = {"prompt": f"skill {skill} of {name}", "completion": "yes", "answer": "yes"}
        path = self.folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(each) + "\n" for each in (row, *extra)))
        return str(path)

    def contaminated(self, name: str) -> str:
        """Data that hold the suite."""
        held = [
            {key: row[key] for key in ("prompt", "answer")} | {"completion": row["answer"]} for row in rows("heldout")
        ]
        return self.data(name, "90", held)

    def enter(self, train: str, *options: str, challenge: str = "tiny-sums") -> str:
        """Submit; the run's id."""
        told = self.cli("submit", "entry", challenge, "--train", train, "--json", *options)
        return str(json.loads(told[told.index("{") :])["run"])

    def stage_does(self, name: str, what: str) -> None:
        """What the next stage of this name does instead of its work."""
        (self.folder / f"{name}-does").write_text(what)

    def verdict(self, run_id: str) -> tuple[str | None, str | None]:
        run = self.run(run_id)
        assert run.state == "ended", self.describe()
        return run.verdict, run.verdict_reason

    def told(self, *arguments: str) -> Any:
        """What a command prints with --json."""
        text = self.cli(*arguments, "--json")
        return json.loads(text[min(text.index(mark) for mark in "[{" if mark in text) :])

"""One scripted stand-in for sbatch, squeue, sacct, scontrol and scancel, placed by path.

A script is a list of rules `(tool, argument pattern, rc, stdout, stderr, delay or HANG, side effect)`; the first rule
that fits a call answers it, and may be used up. Every call is recorded with its arguments and environment. A call
that no rule fits fails loudly (rc 99), so that a test cannot pass by accident.

    fake = FakeSlurm(tmp_path)
    fake.rule("sbatch", stdout="900123\n", enqueue=[squeue_row("900123", "PENDING", "name")])
    SlurmCli(bin_dir=fake.bin)

For the outcomes of dispatch, not for Slurm's scheduling: tests of that run on the development cluster.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOOLS = ("sbatch", "squeue", "sacct", "scontrol", "scancel")
HANG = -1.0
"""A delay that never ends."""

_PROGRAM = r"""
import fcntl, json, os, re, subprocess, sys, time
home, tool, argv = sys.argv[1], sys.argv[2], sys.argv[3:]
with open(home + "/lock", "w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    with open(home + "/calls.jsonl", "a") as calls:
        calls.write(json.dumps({"tool": tool, "argv": argv, "env": dict(os.environ), "at": time.time()}) + "\n")
    with open(home + "/rules.json") as file:
        rules = json.load(file)
    found = None
    for rule in rules:
        if rule["tool"] == tool and rule["times"] != 0 and re.search(rule["argv"], " ".join(argv)):
            found = rule
            break
    if found and found["times"] > 0:
        found["times"] -= 1
        with open(home + "/rules.json.new", "w") as file:
            json.dump(rules, file)
        os.replace(home + "/rules.json.new", home + "/rules.json")
    if found:
        for row in found["enqueue"]:
            with open(home + "/queue.txt", "a") as queue:
                queue.write(row + "\n")
        if found["effect"]:
            subprocess.run(["/bin/sh", "-c", found["effect"]], check=True, stdin=subprocess.DEVNULL)
if found is None:
    sys.stderr.write("fake slurm: no rule for %s %r\n" % (tool, argv))
    sys.exit(99)
if found["delay"] < 0:
    while True:
        time.sleep(3600)
time.sleep(found["delay"])
out = found["stdout"]
if out is None:
    try:
        with open(home + "/queue.txt") as queue:
            out = queue.read()
    except FileNotFoundError:
        out = ""
sys.stdout.buffer.write(out.encode("utf-8", "surrogateescape"))
sys.stderr.buffer.write(found["stderr"].encode("utf-8", "surrogateescape"))
sys.stdout.flush(); sys.stderr.flush()
os._exit(found["rc"]) if found["rc"] >= 0 else os.kill(os.getpid(), -found["rc"])
"""


@dataclass(frozen=True)
class Call:
    """One call that a tool got. `at` is epoch seconds."""

    tool: str
    argv: list[str]
    env: dict[str, str]
    at: float


class FakeSlurm:
    """The five tools in `home/bin`, what they answer, and what they were asked."""

    def __init__(self, home: Path, tools: tuple[str, ...] = TOOLS) -> None:
        self.home = home / "fake-slurm"
        self.bin = self.home / "bin"
        self.bin.mkdir(parents=True)
        program = self.home / "tool.py"
        program.write_text(_PROGRAM)
        for tool in tools:
            path = self.bin / tool
            path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{program}" "{self.home}" {tool} "$@"\n')
            path.chmod(0o755)
        self.clear()

    def rule(
        self,
        tool: str,
        *,
        argv: str = "",
        rc: int = 0,
        stdout: str | None = "",
        stderr: str = "",
        delay: float = 0.0,
        times: int = -1,
        enqueue: tuple[str, ...] | list[str] = (),
        effect: str = "",
    ) -> FakeSlurm:
        """Answer calls of `tool` whose arguments, joined by blanks, match the pattern `argv`.

        `stdout=None` prints the fake queue. A negative `rc` is a signal that kills the tool. `delay` is seconds or
        HANG; `enqueue` (rows for the queue) and `effect` (a shell command) happen before it. `times` is how often
        the rule may be used, -1 for ever.
        """
        rules = self._rules()
        rules.append(
            {
                "tool": tool,
                "argv": argv,
                "rc": rc,
                "stdout": stdout,
                "stderr": stderr,
                "delay": delay,
                "times": times,
                "enqueue": list(enqueue),
                "effect": effect,
            }
        )
        (self.home / "rules.json").write_text(json.dumps(rules))
        return self

    def clear(self) -> None:
        """Forget all rules."""
        (self.home / "rules.json").write_text("[]")

    def queue(self, *rows: str) -> None:
        """What squeue prints for a rule with `stdout=None`: rows in the format of the backend's listing."""
        (self.home / "queue.txt").write_text("".join(f"{row}\n" for row in rows))

    def calls(self, tool: str | None = None) -> list[Call]:
        """What was asked so far, in order."""
        path = self.home / "calls.jsonl"
        if not path.exists():
            return []
        found = [Call(**json.loads(line)) for line in path.read_text().splitlines()]
        return [call for call in found if tool is None or call.tool == tool]

    def _rules(self) -> list[dict[str, Any]]:
        rules: list[dict[str, Any]] = json.loads((self.home / "rules.json").read_text())
        return rules


def squeue_row(
    job_id: str,
    state: str,
    name: str,
    *,
    reason: str = "None",
    node: str = "",
    started: str = "N/A",
    ended: str = "N/A",
) -> str:
    """A row as the backend's listing asks squeue for it."""
    return f"row|{job_id}|{state}|2026-01-02T03:04:05|{started}|{ended}|{node}|{reason}|{name}"

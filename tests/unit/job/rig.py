"""Real slots for the real program: a git mirror, spec.json, attempt.json, and the wrapper as a subprocess.

What is built here is what the dispatcher writes; nothing of the job is replaced.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from outerloop.job import layout

DEADLINE_SECONDS = 20.0
GIT = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.org",
}


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait for a truth, with a deadline."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"never happened: {what}")


def git(*arguments: str, cwd: Path, index: Path | None = None, data: bytes | None = None) -> str:
    env = {**GIT, **({"GIT_INDEX_FILE": str(index)} if index else {})}
    done = subprocess.run(["git", *arguments], cwd=cwd, env=env, input=data, capture_output=True, check=True)
    return done.stdout.decode().strip()


@dataclass
class Rig:
    """One state folder with a mirror; makes slots and runs attempts of them."""

    root: Path
    mirror: Path = field(init=False)
    scratch: Path = field(init=False)

    def __post_init__(self) -> None:
        self.state = self.root / "state"
        self.mirror = self.state / "mirrors" / "target.git"
        self.scratch = self.root / "scratch"
        self.mirror.mkdir(parents=True)
        self.scratch.mkdir()
        git("init", "--bare", "--quiet", ".", cwd=self.mirror)

    def tree(self, texts: Mapping[str, str]) -> str:
        """A tree object in the mirror with these files; returns its id."""
        index = self.root / "index"
        index.unlink(missing_ok=True)
        for path, text in {"README": "target\n", **texts}.items():
            blob = git("hash-object", "-w", "--stdin", cwd=self.mirror, data=text.encode())
            git("update-index", "--add", "--cacheinfo", f"100644,{blob},{path}", cwd=self.mirror, index=index)
        return git("write-tree", cwd=self.mirror, index=index)

    def slot(
        self,
        command: str,
        texts: Mapping[str, str] | None = None,
        *,
        determinants: Mapping[str, Any] | None = None,
        work: Mapping[str, Any] | None = None,
        order: Mapping[str, Any] | None = None,
    ) -> Slot:
        """A slot whose first attempt is ready to be run."""
        facts = {
            "schema": 1,
            "tree": self.tree(texts or {}),
            "command": command,
            "metric": "m",
            "guards": [],
            "outputs": [],
            "score": "",
            "env": {},
            "cpus": 1,
            "gpus": 0,
            "nodes": 1,
            **(determinants or {}),
        }
        digest = sha256(json.dumps([facts, os.urandom(4).hex()]).encode()).hexdigest()
        path = self.state / "slots" / digest[:2] / digest
        spec = {
            "schema": 1,
            "digest": digest,
            "determinants": facts,
            "work": {"mirror": str(self.mirror), "label": "test", "resumable": False, **(work or {})},
        }
        slot = Slot(self, path, digest)
        path.mkdir(parents=True)
        (path / layout.SPEC).write_text(json.dumps(spec))
        slot.order(1, order)
        return slot


@dataclass
class Slot:
    rig: Rig
    path: Path
    digest: str

    def order(self, attempt: int, more: Mapping[str, Any] | None = None) -> None:
        folder = self.attempt(attempt)
        (folder / "r0").mkdir(parents=True)
        order = {
            "schema": 1,
            "digest": self.digest,
            "attempt": attempt,
            "minutes": 1.0,
            "margin_seconds": 60,
            "isolation": "none",
            "keep_logs_bytes": 65536,
            "term_grace_seconds": 0.5,
            **(more or {}),
        }
        (folder / layout.ORDER).write_text(json.dumps(order))

    def attempt(self, n: int = 1) -> Path:
        return self.path / layout.ATTEMPTS / str(n)

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """What a batch job would have: little, and a job id."""
        return {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": "/nonexistent",
            "SLURM_JOB_ID": "900123",
            "TMPDIR": str(self.rig.scratch),
            **(more or {}),
        }

    def start(self, n: int = 1, env: Mapping[str, str] | None = None, **options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-I", "-m", "outerloop.job", str(self.path), str(n)],
            env=self.environment(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            **options,
        )

    def run(self, n: int = 1, env: Mapping[str, str] | None = None, **options: Any) -> int:
        """Run an attempt to its end; returns the exit code. What it said is in `said`."""
        process = self.start(n, env, **options)
        out, err = process.communicate(timeout=120)
        self.said = (out + err).decode()
        return process.returncode

    def result(self, n: int = 1) -> dict[str, Any]:
        value = json.loads((self.attempt(n) / layout.RESULT).read_text())
        assert isinstance(value, dict)
        return value

    def claim(self, n: int = 1) -> dict[str, Any]:
        value = json.loads((self.attempt(n) / layout.CLAIM).read_text())
        assert isinstance(value, dict)
        return value

    def stdout(self, n: int = 1, restart: int = 0) -> bytes:
        return (self.attempt(n) / f"r{restart}" / layout.STDOUT).read_bytes()

    def snapshot(self) -> dict[str, bytes]:
        """Every file of the slot and its bytes."""
        return {str(p.relative_to(self.path)): p.read_bytes() for p in sorted(self.path.rglob("*")) if p.is_file()}

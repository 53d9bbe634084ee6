"""One service under /tmp: the operator's config and target, and what each account types."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from tests.service.accounts import Account

CONTRACT = """\
[[benchmarks]]
name = "speed"
command = "sh bench.sh"
metric = "cost"
direction = "min"
deterministic = true
minutes = 1
min_delta = 0.5

[scope]
allowed = ["src/"]
"""
BENCH = """printf '{"cost": %s}\\n' "$(cat src/cost)"\n"""

SERVICE = """
database_url = "{url}"
"""
TABLES = """
[wake]
mode = "never"
[dispatch]
grace_seconds = 0
gone_grace_seconds = 0
backoff_seconds = 0
intent_patience_seconds = 0
[service]
spool = "{spool}"
submitters = ["{ada}", "{bob}"]
open_runs = 2
[service.limits."{bob}"]
open_runs = 1
[service.targets.tsp]
repository = "{target}"
accept = ["climb", "training"]
"""
SUBMITTER = """\
mode = "service"
[service]
spool = "{spool}"
"""
DEADLINE_SECONDS = 600.0


class ServiceWorld:
    """Paths, accounts and configs. The service's config is that of `outerloop init --service`, with tables added."""

    def __init__(
        self, folder: Path, database: str, accounts: dict[str, Account], *, files: dict[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.database = database
        self.svc, self.ada, self.bob, self.eve = (accounts[name] for name in ("svc", "ada", "bob", "eve"))
        self.state = self.svc.home / "state"
        self.spool = folder / "spool"
        self.target = folder / "target"
        self.spool.mkdir()
        self.svc.own(self.spool)
        self._make_target(files or {".outerloop.toml": CONTRACT, "bench.sh": BENCH, "src/cost": "10\n"})
        for account in (self.ada, self.bob, self.eve):
            config = account.home / ".config/outerloop/config.toml"
            config.parent.mkdir(parents=True)
            config.write_text(SUBMITTER.format(spool=self.spool))
            account.own(account.home)

    def _make_target(self, files: dict[str, str]) -> None:
        for path, text in files.items():
            (self.target / path).parent.mkdir(parents=True, exist_ok=True)
            (self.target / path).write_text(text)
        self.svc.own(self.target)
        self.svc.git("init", "-q", "-b", "main", cwd=self.target)
        self.svc.git("add", "-A", cwd=self.target)
        self.svc.git("commit", "-q", "-m", "base", cwd=self.target)

    # -- the operator

    def begin(self) -> None:
        """Set the service up as its operator would."""
        self.svc.run(
            "python", "-m", "outerloop.cli", "init", "--backend", "local", "--state", str(self.state), "--deployment",
            "svc", "--service", str(self.spool), OUTERLOOP_DATABASE_URL=self.database,
        )  # fmt: skip
        config = self.svc.home / ".config/outerloop/config.toml"
        lines = config.read_text().splitlines()
        first_table = next(i for i, line in enumerate(lines) if line.startswith("["))
        top = [line for line in lines[:first_table] if not line.startswith("#")]
        names = {"spool": self.spool, "ada": self.ada.unix, "bob": self.bob.unix, "target": self.target}
        config.write_text("\n".join(top) + SERVICE.format(url=self.database) + TABLES.format(**names))
        self.tick()

    def tick(self) -> dict[str, Any]:
        done = self.svc.outerloop("tick", "--json", codes=(0, 1))
        assert done.stdout, done.stderr
        told: dict[str, Any] = json.loads(done.stdout)
        assert not told["broken_runs"], told
        return told

    def until(self, condition: Any, what: str) -> None:
        """Ticks until it is so."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            self.tick()
            if condition():
                return
            assert time.monotonic() < deadline, f"{what}: {self.svc.outerloop('status').stdout}"
            time.sleep(0.2)

    # -- a submitter

    def clone(self, account: Account, branches: dict[str, dict[str, str]]) -> Path:
        """A clone of the target in the account's home, with a branch for each candidate."""
        clone = account.home / "clone"
        account.git("clone", "-q", f"file://{self.target}", str(clone), cwd=account.home)
        for name, files in branches.items():
            account.git("checkout", "-q", "-B", name, "origin/main", cwd=clone)
            for path, text in files.items():
                (clone / path).write_text(text)
            account.own(clone)
            account.git("add", "-A", cwd=clone)
            account.git("commit", "-q", "-m", name, cwd=clone)
        account.git("checkout", "-q", "main", cwd=clone)
        return clone

    def ask(self, account: Account, clone: Path, candidate: str, *more: str) -> str:
        """Leave a climb in the spool; returns its nonce."""
        done = account.outerloop("submit", "climb", "speed", "--candidate", candidate, "--json", *more, cwd=clone)
        return str(json.loads(done.stdout)["submission"])

    def seen(self, account: Account) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(account.outerloop("status", "--json").stdout)
        return told

    def answered(self, run: str) -> dict[str, Any]:
        """What the service published of a run, for whichever submitter."""
        paths = list((self.spool / "replies").glob(f"*/runs/{run}.json"))
        told: dict[str, Any] = json.loads(paths[0].read_text()) if paths else {}
        return told

    def refusals(self, account: Account) -> list[str]:
        return [str(body["why"]) for body in self.seen(account)["refused"]]

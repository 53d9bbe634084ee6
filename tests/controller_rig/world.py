"""A target, a state folder, a record and a cluster of files; commands run in forked processes that can be killed.

Forked, not started anew: importing takes a second, a fork takes a few milliseconds, and a kill is a kill.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import select, text

from outerloop.controller import deployment as deployment_module
from outerloop.controller.advance import advance
from outerloop.controller.deployment import Deployment, open_deployment
from outerloop.controller.evidence import verify
from outerloop.controller.operate import cancel, retry
from outerloop.controller.submit import earlier_asks, enqueue, leave_in_inbox, prepare_climb
from outerloop.controller.tick import TickReport, tick, wake
from outerloop.record.models import Attempt, Champion, Measure, Run, Slot
from outerloop.settings import Settings
from outerloop.slots import StateRoot
from tests.controller_rig import engines
from tests.controller_rig.cluster import FileCluster

REAL_OPEN_COMPUTE = deployment_module.open_compute

CONTRACT = """\
[[benchmarks]]
name = "speed"
command = "sh bench.sh"
metric = "cost"
direction = "min"
seed_env = "BENCH_SEED"
minutes = 1
min_delta = 0.5
suite = ["size"]

[[benchmarks]]
name = "size"
command = "sh bench.sh"
metric = "bytes"
direction = "min"
deterministic = true
minutes = 1
regression = { free = 0.0, max = 0.1 }

[scope]
allowed = ["src/"]
shared = ["src/shared/"]
"""

# Each run leaves a mark outside of its tree: what really executed, however often.
BENCH = """\
echo "$BENCH_SEED $(cat src/cost)" >> {marks}
if [ -f src/extra ]; then sh src/extra || exit $?; fi
printf '{{"cost": %s, "bytes": %s}}\\n' "$(cat src/cost)" "$(cat src/shared/bytes)"
"""


def _commit(branch: str, message: str, files: dict[str, str], *, parent: str) -> str:
    """A commit for git fast-import."""
    lines = [
        f"commit refs/heads/{branch}",
        "committer t <t@localhost> 1767225600 +0000",
        f"data {len(message)}",
        message,
    ]
    lines += [f"from {parent}"] if parent else []
    for path, content in files.items():
        lines += [f"M 100644 inline {path}", f"data {len(content.encode())}", content]
    return "\n".join(lines) + "\n\n"


class World:
    """Everything of one deployment under one folder."""

    def __init__(self, folder: Path, database: str, **dispatch: float) -> None:
        self.folder = folder
        self.state = StateRoot(folder / "state")
        self.state.path.mkdir(parents=True)
        self.repo = folder / "repo"
        self.marks = folder / "marks"
        self.trace = folder / "trace"
        self.cluster = FileCluster(folder / "cluster")
        patience = {"grace_seconds": 0, "intent_patience_seconds": 0, "gone_grace_seconds": 0, "backoff_seconds": 0}
        self.settings = Settings(
            state=self.state.path,
            database_url=database,  # type: ignore[arg-type]
            backend="local",
            deployment="rig",
            python=sys.executable,
            dispatch={**patience, **dispatch},  # type: ignore[arg-type]
        )
        self._make_repository()

    # -- the target

    def git(self, *arguments: str) -> str:
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "GIT_AUTHOR_NAME": "t",
            "GIT_AUTHOR_EMAIL": "t@localhost",
            "GIT_COMMITTER_NAME": "t",
            "GIT_COMMITTER_EMAIL": "t@localhost",
            "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z",
            "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z",
        }
        done = subprocess.run(["git", *arguments], cwd=self.repo, env=env, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def contract(self) -> str:
        """The target's contract."""
        return CONTRACT

    def _make_repository(self) -> None:
        """Base and three candidates in one `git fast-import`: a test of crash points makes a hundred of these."""
        files = {
            ".outerloop.toml": self.contract(),
            "bench.sh": BENCH.format(marks=self.marks),
            "src/cost": "10\n",
            "src/shared/bytes": "100\n",
        }
        candidates = {
            "better": {"src/cost": "8\n"},
            "bigger": {"src/cost": "8\n", "src/shared/bytes": "200\n"},
            "same": {"src/note": "x"},
        }
        stream = _commit("main", "base", files, parent="")
        for name, changed in candidates.items():
            stream += _commit(name, name, changed, parent="refs/heads/main")
        self.repo.mkdir(parents=True)
        self.git("init", "-q", "-b", "main")
        subprocess.run(["git", "fast-import", "--quiet"], cwd=self.repo, input=stream.encode(), check=True)
        self.git("reset", "-q", "--hard", "main")

    def branch(self, name: str, *, cost: str = "10", size: str = "100", note: str = "", extra: str = "") -> None:
        self.git("checkout", "-q", "-B", name, "main")
        (self.repo / "src" / "cost").write_text(f"{cost}\n")
        (self.repo / "src" / "shared" / "bytes").write_text(f"{size}\n")
        if note:
            (self.repo / "src" / "note").write_text(note)
        if extra:
            (self.repo / "src" / "extra").write_text(extra)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", name)
        self.git("checkout", "-q", "main")

    # -- commands, in this process

    def open(self) -> Deployment:
        deployment_module.open_compute = lambda settings, root: FileCluster(self.folder / "cluster")  # type: ignore[assignment]
        return engines.opened(lambda: open_deployment(self.settings, config=self.folder / "config.toml", migrate=False))

    def submit(self, candidate: str, base: str | None = "main", benchmark: str = "speed", again: bool = False) -> str:
        deployment = self.open()
        try:

            def prepared(ask: int) -> Any:
                return prepare_climb(
                    self.settings,
                    self.state,
                    repository=self.repo,
                    benchmark=benchmark,
                    base=base,
                    candidate=candidate,
                    ask=ask,
                )

            first = prepared(0)
            earlier = earlier_asks(deployment.record, first.request.question)
            if earlier and earlier[0].verdict != "cancelled" and not again:
                run_id = earlier[0].id
            else:
                request = first.request if not earlier else prepared(earlier[0].ask + 1).request
                leave_in_inbox(self.state, request)
                enqueue(deployment.record, self.state, request)
                run_id = request.id
            advance(deployment, run_id)
            return run_id
        finally:
            deployment.close()

    def tick(self) -> TickReport:
        deployment = self.open()
        try:
            return tick(deployment)
        finally:
            deployment.close()

    def wake(self, run_id: str, number: int | None) -> TickReport:
        deployment = self.open()
        try:
            return wake(deployment, run_id, number)
        finally:
            deployment.close()

    def cancel(self, run_id: str) -> list[str]:
        deployment = self.open()
        try:
            return cancel(deployment, run_id, "test")
        finally:
            deployment.close()

    def retry(self, name: str) -> Any:
        deployment = self.open()
        try:
            return retry(deployment, name)
        finally:
            deployment.close()

    # -- commands, in a process of their own

    def start(self, body: Callable[[], Any], *, fault: str = "", trace: bool = False) -> int:
        """Fork and run `body`; returns the pid. The child never returns into the test."""
        pid = os.fork()
        if pid:
            return pid
        code = 0
        try:
            os.environ.pop("OUTERLOOP_FAULT", None)
            if fault:
                os.environ["OUTERLOOP_FAULT"] = fault
            if trace:
                os.environ["OUTERLOOP_FAULT_TRACE"] = str(self.trace)
            body()
        except BaseException:
            code = 1
            (self.folder / "errors").open("a").write(traceback.format_exc())
        finally:
            os._exit(code)

    def forked(self, body: Callable[[], Any], *, fault: str = "", trace: bool = False) -> int:
        """Run `body` in a child and wait: its exit code, or the negative signal that ended it."""
        _pid, status = os.waitpid(self.start(body, fault=fault, trace=trace), 0)
        return os.waitstatus_to_exitcode(status)

    def reached(self) -> list[str]:
        """The points that traced commands came by, in order."""
        return self.trace.read_text().split() if self.trace.exists() else []

    # -- the cluster at work

    def run_measures(self) -> int:
        """Execute every measuring job that can start; wakes stay where they are."""
        ran = 0
        for job_id in self.cluster.startable():
            if "-wake-" not in self.cluster.jobs()[job_id]["name"]:
                self.cluster.execute(job_id)
                ran += 1
        return ran

    def take_wakes(self) -> list[tuple[str, str, int]]:
        """(job, run, number) of the wakes that would start now; they count as ended."""
        taken = []
        for job_id in self.cluster.startable():
            body = self.cluster.jobs()[job_id]
            if "-wake-" in body["name"]:
                words = Path(body["script"]).read_text().split()
                self.cluster.change(job_id, state="completed", exit=0)
                taken.append((job_id, words[words.index("wake") + 1], int(words[-1])))
        return taken

    def ticks_until_rest(self, most: int = 25) -> None:
        """Ticks and jobs, no wakes, until no run is open."""
        for _ in range(most):
            self.run_measures()
            self.tick()
            if not self.open_runs():
                return
        raise AssertionError(f"runs are still open after {most} ticks: {self.describe()}")

    def wakes_until_rest(self, most: int = 25) -> None:
        """Wakes and jobs, no ticks, until no run is open."""
        for _ in range(most):
            self.run_measures()
            for _job, run_id, number in self.take_wakes():
                self.wake(run_id, number)
            if not self.open_runs():
                return
        raise AssertionError(f"runs are still open after {most} rounds of wakes: {self.describe()}")

    # -- what came of it

    def open_runs(self) -> list[str]:
        return [run.id for run in self.runs() if run.state in {"queued", "waiting"}] + [
            p.stem for p in self.state.inbox.glob("*.json")
        ]

    def rows(self, model: Any) -> list[Any]:
        deployment = self.open()
        try:
            with deployment.record.reading() as session:
                return list(session.scalars(select(model)))
        finally:
            deployment.close()

    def runs(self) -> list[Run]:
        return self.rows(Run)

    def run(self, run_id: str) -> Run:
        return next(run for run in self.runs() if run.id == run_id)

    def verdicts(self) -> dict[str, tuple[str | None, str | None]]:
        return {run.label: (run.verdict, run.verdict_reason) for run in self.runs()}

    def executions(self) -> int:
        """How often the benchmark really ran."""
        return len(self.marks.read_text().splitlines()) if self.marks.exists() else 0

    def check_invariants(self) -> None:
        """What must hold at rest, whatever happened before."""
        slots = self.rows(Slot)
        attempts = self.rows(Attempt)
        done = [slot for slot in slots if slot.state == "done"]
        for slot in done:
            pin = json.loads((self.state.slot(slot.digest) / "accepted").read_text())
            assert pin["attempt"] == slot.pinned_attempt, "disk and record pin different attempts"
        by_job: dict[str, int] = {}
        for job_id, body in self.cluster.jobs().items():
            if "-wake-" not in body["name"] and body.get("exit") not in {None, 95}:
                name = f"{body['name']} {job_id.partition('_')[2]}"
                by_job[name] = by_job.get(name, 0) + 1
        twice = {name: count for name, count in by_job.items() if count > 1}
        assert not twice, f"attempts that were executed more than once: {twice}"
        assert len({(a.slot_id, a.n) for a in attempts}) == len(attempts)
        deployment = self.open()
        try:
            for run in self.runs():
                if run.state == "ended":
                    checked = verify(deployment.context, run.id, run.evidence, record=deployment.record)
                    assert checked.agrees, checked.differences
        finally:
            deployment.close()
        champions = self.rows(Champion)
        for champion in champions:
            assert any(r.id == champion.run_id and r.verdict == "accepted" for r in self.runs())
        assert all(m.slot_id for m in self.rows(Measure))

    def expire_leases(self) -> None:
        """As if their holders had been away for longer than a lease lasts."""
        deployment = self.open()
        try:
            with deployment.record.transaction("tx.release") as session:
                session.execute(text("update leases set expires_at = now() - interval '1 second'"))
        finally:
            deployment.close()

    def pass_time(self, seconds: float) -> None:
        """As if so many seconds had passed on the database's clock: what it remembers is that much older."""
        moments = {
            "arrays": ("created_at", "intent_at"),
            "attempts": ("intent_at", "submitted_at", "unknown_at", "absent_at", "observed_at", "settled_at"),
            "runs": ("due_at", "ended_at"),
            "slots": ("next_try_at", "settled_at", "created_at"),
            "wakes": ("created_at",),
            "leases": ("expires_at",),
            "heartbeats": ("at",),
        }
        deployment = self.open()
        try:
            with deployment.record.transaction("tx.release") as session:
                for table, columns in moments.items():
                    earlier = ", ".join(f"{column} = {column} - make_interval(secs => :s)" for column in columns)
                    session.execute(text(f"update {table} set {earlier}"), {"s": seconds})
        finally:
            deployment.close()

    def measuring_jobs(self) -> dict[str, dict[str, Any]]:
        """Every measuring job that the cluster ever took, by id."""
        return {i: body for i, body in self.cluster.jobs().items() if "-wake-" not in body["name"]}

    def wake_jobs(self) -> dict[str, dict[str, Any]]:
        return {i: body for i, body in self.cluster.jobs().items() if "-wake-" in body["name"]}

    def slot_folder(self, job_id: str) -> Path:
        """The slot of a measuring job."""
        return Path(self.cluster.jobs()[job_id]["script"]).parent.parent.parent

    def snapshot(self) -> dict[str, Any]:
        """Verdicts, slots and attempts as the record has them."""
        return {
            "runs": sorted((r.id, r.state, r.verdict, r.sentence) for r in self.runs()),
            "slots": sorted((s.digest, s.state, s.pinned_attempt, s.attempts_counted) for s in self.rows(Slot)),
            "attempts": sorted((a.job_name, a.state, a.outcome, a.job_id) for a in self.rows(Attempt)),
            "champions": sorted((c.seq, c.run_id) for c in self.rows(Champion)),
        }

    def describe(self) -> str:
        lines = [
            f"{run.id} {run.state} {run.state_reason} {run.state_detail} {run.last_error or ''}" for run in self.runs()
        ]
        lines += [f"job {i} {body}" for i, body in self.cluster.jobs().items()]
        lines += [f"attempt {a.job_name} {a.state} {a.outcome} {a.reason} {a.detail}" for a in self.rows(Attempt)]
        errors = self.folder / "errors"
        return "\n".join([*lines, errors.read_text() if errors.exists() else ""])


def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait for a condition with a deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds} s"
        time.sleep(0.02)


def stopped(pid: int) -> bool:
    """Whether a process is stopped (SIGSTOP)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False


def resume(pid: int) -> int:
    """Continue a stopped child and wait for its end."""
    os.kill(pid, signal.SIGCONT)
    _pid, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)

"""A deployment on a simulated cluster: commands that may die or pause, and what must hold at every moment.

One world object serves many schedules: `begin` wipes the record, the state folder and the cluster.
"""

from __future__ import annotations

import itertools
import os
import random
import secrets
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, event
from sqlalchemy.orm import Session

from outerloop import effects
from outerloop.champion import EvalEvent, Event, events_to_jsonl
from outerloop.compute.names import is_pack
from outerloop.compute.protocol import JobState
from outerloop.compute.simulated import Faults, Simulated, Site
from outerloop.compute.simulation.site import uniform_site
from outerloop.controller import deployment as deployment_module
from outerloop.controller import tick as tick_module
from outerloop.controller.advance import advance
from outerloop.controller.campaign_ledger import CampaignLedger
from outerloop.controller.deployment import Deployment, open_deployment
from outerloop.controller.evidence import verify
from outerloop.controller.ledger import Ledger
from outerloop.controller.operate import OperatorError, cancel, retry
from outerloop.controller.submit import earlier_asks, enqueue, leave_in_inbox
from outerloop.controller.tick import tick, wake
from outerloop.record.store import Record
from outerloop.settings import Settings
from outerloop.slots import SlotDirectory, StateRoot
from tests.simulation import processes
from tests.simulation.clock import DatabaseClock
from tests.simulation.launches import CAMPAIGNS
from tests.simulation.nodes import Nodes, task_of
from tests.simulation.processes import Process, Strike
from tests.simulation.target import make_target

TABLES = (
    *("heartbeats", "campaign_events", "events", "leases", "champions", "wakes", "awaits"),
    *("attempts", "arrays", "measures", "slots", "runs"),
)
START = 1_790_000_000.0
NODES = 3
OVER = frozenset(
    {"LOST", "NO_RESULT", "NEVER_STARTED", "NOT_CLAIMANT", "RESTARTED", "PREEMPTED", "NODE_FAIL", "SLURM_TIMEOUT"}
)
"""Reasons that say that the job is over; silence must never be taken for it."""
CHARGED_TO_NOBODY = {"INFRASTRUCTURE", "CANCELLED"}


def _outcomes(events: list[Event]) -> list[str]:
    """What was trained and scored, in an order of its own, and the last champion."""
    lines = []
    for told in events:
        if told.kind == "run":
            lines.append(f"run {told.run_id} {told.status} {told.checkpoints}")
        elif isinstance(told, EvalEvent):
            lines.append(f"eval {told.subject} {told.status} {told.row} {told.decided}")
    return [*sorted(lines), *[f"champion {told.subject}" for told in events if told.kind == "champion"][-1:]]


def _remember_plans(connection: Any, _record: Any) -> None:
    """The same hundred statements, thousands of times: planning them is most of the server's work."""
    connection.prepare_threshold, connection.prepared_max = 0, 1000


class _Reading(Session):
    """Takes whole what is read: a cursor of the server, for ledgers of many thousand events, needs a transaction."""

    def execute(self, statement: Any, *arguments: Any, **named: Any) -> Any:
        if statement.get_execution_options().get("yield_per"):
            statement = statement.execution_options(yield_per=None)
        return super().execute(statement, *arguments, **named)


def _read_without_transactions(record: Record) -> Connection:
    """BEGIN and COMMIT around what is only read are a third of all round trips, and to hand a connection out and back
    costs as much as a statement. Processes are paused between effects alone, never between two statements of a
    reading, so that without a transaction they see the same. Returns the connection, which stays open."""
    connection = record._engine.connect().execution_options(isolation_level="AUTOCOMMIT")

    @contextmanager
    def reading() -> Iterator[Session]:
        with _Reading(connection, expire_on_commit=False) as session:
            yield session

    record.reading = reading  # type: ignore[method-assign]
    return connection


class World:
    """Record, state folder, cluster and commands."""

    def __init__(self, folder: Path, database: str, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.root = StateRoot(folder / "state")
        self.root.path.mkdir(parents=True)
        self.clock = DatabaseClock(database)
        self.settings = Settings(
            state=self.root.path,
            database_url=database,  # type: ignore[arg-type]
            backend="local",
            deployment="sim",
            python=sys.executable,
        )
        # Crashes here are of processes, not of machines: what was written is there.
        patch.setattr(os, "fsync", lambda handle: None)
        patch.setattr(effects, "_point", processes.point)
        # A wake waits in real time for a lease's holder; here nobody runs meanwhile.
        patch.setattr(tick_module, "BUSY_PATIENCE_SECONDS", 0.0)
        self.random = random.Random(0)
        patch.setattr(secrets, "randbelow", lambda limit: self.random.randrange(limit))
        patch.setattr(deployment_module, "open_compute", lambda settings, root: None)
        self.target = make_target(folder, self.settings, self.root, patch)
        self._deployments: list[Deployment] = []
        self._reading: list[Connection] = []
        self._serial = itertools.count(1)
        self.parked: list[Process] = []
        self.calm_ledgers: dict[str, list[Event]] = {}
        """Of campaigns that nothing disturbed; their configs have this world's paths in them."""
        self.begin(0)

    def close(self) -> None:
        for connection in self._reading:
            connection.close()
        for deployment in self._deployments:
            deployment.close()
        self.clock.close()

    def begin(self, seed: int, **site: Any) -> None:
        """An empty world."""
        while self.parked:
            # Left over from a schedule that failed: its locks must go.
            process = self.parked.pop()
            process.crash_at = process.points + 1  # where it stands
            process.go_on()
            self._give_back(process)
        self.random = random.Random(seed)
        self.clock.set(START)
        for name in ("slots", "runs", "champions", "arrays", "inbox", "doorbells", "trash"):
            shutil.rmtree(self.root.path / name, ignore_errors=True)
        staging = self.folder / "nodes"
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir()
        self.nodes = Nodes(staging, self.target.behaviours)
        self.faults = Faults()
        self.cluster = Simulated(
            Site(nodes=uniform_site(NODES, 2), uid=str(os.getuid()), **site),
            self.clock,
            self.nodes,
            seed=seed,
            faults=self.faults,
        )
        self.nodes.cluster = self.cluster
        self.asked: list[str] = []
        self.cancelled: set[str] = set()
        self.log: list[str] = []
        self.commands = 0
        self.strike: Strike | None = None
        self.one_job_each = True
        """Nothing has happened that may queue an attempt twice: a paused process, or a stopped controller that goes
        on. Then the claim makes the second job a no-op."""
        for deployment in self._deployments:
            object.__setattr__(deployment.context, "compute", self.cluster)
        self.clock.empty(TABLES)
        if not self._deployments:
            self._deployments.append(self._deployment())

    def _deployment(self) -> Deployment:
        if self._deployments:
            deployment = self._deployments.pop()
        else:
            deployment = open_deployment(self.settings, config=None, migrate=False)
            # Asking whether the connection is alive is a fifth of all round trips, and the server is.
            deployment.record._engine.pool._pre_ping = False
            deployment.record._engine.dispose()  # a connection that is there already remembers none
            event.listen(deployment.record._engine, "connect", _remember_plans)
            self._reading.append(_read_without_transactions(deployment.record))
        object.__setattr__(deployment.context, "compute", self.cluster)
        deployment.forget_observation()
        deployment.notes.clear()
        return deployment

    # -- commands

    def command(
        self,
        what: str,
        body: Callable[[Deployment], Any],
        *,
        crash_at: int | None = None,
        pause_at: int | None = None,
        dies_here: bool = False,
    ) -> Process:
        """Run a command as a process of its own; it may die or be parked on the way."""
        strike = self.strike if crash_at is None and pause_at is None else None
        may_pause = pause_at is not None or (strike is not None and strike.pauses)
        dies_here |= strike is not None and strike.dies_here
        process = Process(body, crash_at, pause_at, strike)
        deployment = self._deployment()
        deployment.record.holder = processes.holder(next(self._serial), dies_here=dies_here and not may_pause)
        process.run(deployment, threaded=may_pause)
        if process.struck:
            self.strike = None
        self._finished(process, what)
        return process

    def _finished(self, process: Process, what: str) -> None:
        self.commands += 1
        fate = "crashed after" if process.crashed else "paused after" if process.paused else "done,"
        self.log.append(f"{what}: {fate} {process.last or 'nothing'} ({process.points} points)")
        if process.paused:
            self.one_job_each = False
            process.what = what  # type: ignore[attr-defined]
            self.parked.append(process)
            return
        self._give_back(process)
        if process.error is not None and not isinstance(process.error, OperatorError | LookupError):
            raise process.error
        if not process.crashed:
            broken = getattr(process.result, "broken", {})
            assert not broken, f"{what}: {broken}"

    def _give_back(self, process: Process) -> None:
        assert process.deployment is not None
        self._deployments.append(process.deployment)

    def resume(self, index: int) -> None:
        process = self.parked.pop(index)
        process.go_on()
        self._finished(process, f"resumed {process.what}")  # type: ignore[attr-defined]

    def submit(self, candidate: str, **fate: Any) -> Process:
        request = self.target.requests[candidate]
        if candidate not in self.asked:
            self.asked.append(candidate)

        def body(deployment: Deployment) -> Any:
            if not earlier_asks(deployment.record, request.question):
                leave_in_inbox(self.root, request)
                enqueue(deployment.record, self.root, request)
            return advance(deployment, request.id)

        return self.command(f"submit {candidate}", body, **fate)

    def tick(self, **fate: Any) -> Process:
        return self.command("tick", tick, **fate)

    def wake(self, run_id: str, number: int, **fate: Any) -> Process:
        return self.command(f"wake {run_id} {number}", lambda d: wake(d, run_id, number), **fate)

    def cancel(self, candidate: str, **fate: Any) -> Process:
        run_id = self.target.requests[candidate].id
        self.cancelled.add(candidate)
        return self.command(f"cancel {candidate}", lambda d: cancel(d, run_id, "test"), **fate)

    def retry(self, candidate: str, **fate: Any) -> Process:
        run_id = self.target.requests[candidate].id
        return self.command(f"retry {candidate}", lambda d: retry(d, run_id), **fate)

    # -- time

    def pass_time(self, seconds: float) -> None:
        self.cluster.advance(seconds)

    # -- reading

    def runs(self) -> dict[str, Any]:
        """By candidate."""
        names = {request.id: name for name, request in self.target.requests.items()}
        return {names[run.id]: run for run in self.clock.rows("runs")}

    def measuring(self, *states: JobState) -> list[str]:
        """Ids of measuring jobs in these states."""
        return [j.job_id for j in self.cluster.jobs.values() if j.state in states and "-wake-" not in j.spec.name]

    def heal(self) -> None:
        """No more faults: everything that was broken works again."""
        while self.parked:
            self.resume(0)
        self.strike = None
        self.faults.heal()
        self.cluster.resume_controller()
        self.nodes.lag = 0.0
        self.nodes.mishaps.clear()
        for name in self.cluster.scheduler.free:
            self.cluster.restore_node(name)

    def settle(self, most: int = 60) -> None:
        """Ticks alone, until no run is open. Raises AssertionError when that does not come."""
        for _ in range(most):
            self.pass_time(301)
            self.tick()
            runs = self.runs().values()
            if all(run.state in {"blocked", "ended"} for run in runs) and not list(self.root.inbox.glob("*.json")):
                return
        raise AssertionError(f"runs are still open after {most} ticks without a fault")

    # -- what must hold

    def check_always(self) -> None:
        """What no moment may contradict, whatever is half done: the record never says more than the disk."""
        twice = {key: n for key, n in self.nodes.executed.items() if n > 1}
        assert not twice, f"attempts that were executed more than once: {twice}"
        assert not self.nodes.repeated, f"executed although the value was there: {self.nodes.repeated}"
        slots = {slot.id: slot for slot in self.clock.rows("slots")}
        for slot in slots.values():
            pin = self.root.slot(slot.digest) / "accepted"
            if slot.state == "done":
                assert pin.exists(), f"slot {slot.digest[:8]} is done in the record and not pinned on disk"
                directory = self._directory(slot.digest)
                pinned, value = directory.pinned(), directory.value()
                assert pinned is not None and pinned.attempt == slot.pinned_attempt, "two pins"
                assert value is not None, f"slot {slot.digest[:8]}: the pinned result cannot be read"
                assert slot.result == dict(value.body), "the record's value is not the pinned one"
            if slot.state == "failed":
                spec = self._directory(slot.digest).spec() or {}
                assert self.nodes.own_exit_code(spec), (
                    f"slot {slot.digest[:8]} charged for {slot.reason}: {slot.detail}"
                )
        for attempt in self.clock.rows("attempts"):
            if attempt.state == "settled":
                said = self._directory(slots[attempt.slot_id].digest).settled(attempt.n)
                assert said is not None, f"{attempt.job_name} is settled in the record only"
                assert said["outcome"] == attempt.outcome, f"{attempt.job_name}: {said['outcome']} or {attempt.outcome}"
                job = self.cluster.jobs.get(attempt.job_id or "")
                believed_over = attempt.outcome == "infrastructure" and attempt.reason in OVER
                # A member of a pack has its own ending, which its pack noted, while the job goes on.
                member = is_pack(attempt.array_name) and self._directory(slots[attempt.slot_id].digest).member(
                    attempt.n
                )
                assert not (believed_over and job is not None and not job.gone and not member), (
                    f"{attempt.job_name}: {attempt.reason}, but job {attempt.job_id} is {job and job.state}"
                )
        if self.one_job_each:
            named = Counter(
                (j.spec.name, task_of(j.job_id))
                for j in self.cluster.jobs.values()
                if "-wake-" not in j.spec.name and not j.gone
            )
            assert not named or max(named.values()) == 1, f"an attempt has two jobs at once: {named}"
        for name, run in self.runs().items():
            if run.state == "ended":
                kinds = {event.kind for event in Ledger(self.root, run.id).read()}
                assert kinds & {"verdict", "cancel"}, f"{name} ended in the record only"

    def _ran_out_of_memory(self, run_id: str) -> bool:
        """Whether the cluster says so of a job that a slot of this run took its failure from."""
        mine = {measure.slot_id for measure in self.clock.rows("measures") if measure.run_id == run_id}
        lost = [a for a in self.clock.rows("attempts") if a.slot_id in mine and a.slurm_state == "out_of_memory"]
        return any(attempt.outcome == "failed" for attempt in lost)

    def _directory(self, digest: str) -> SlotDirectory:
        return SlotDirectory(self.root.slot(digest), digest)

    def check_at_rest(self, calm: Mapping[str, tuple[str | None, str | None]]) -> None:
        """What must hold once faults have stopped and every run has come to its end."""
        self.check_always()
        slots = self.clock.rows("slots")
        for slot in slots:
            assert (slot.state == "done") == (self._directory(slot.digest).pinned() is not None), (
                f"slot {slot.digest[:8]}: {slot.state} in the record, disk says otherwise"
            )
        runs = self.runs()
        assert set(runs) == set(self.asked), f"asked {self.asked}, recorded {sorted(runs)}"
        deployment = self._deployments[-1]
        for name, run in runs.items():
            assert run.state == "ended", f"{name}: {run.state} {run.state_reason} {run.state_detail}"
            said = (run.verdict, run.verdict_reason)
            if run.verdict == "cancelled":
                assert name in self.cancelled, f"{name} was cancelled by nobody"
            else:
                expected = calm[name]
                if expected == ("failed", "EXIT_3") and said == ("failed", "MEMORY"):
                    # It fails in any case; Slurm killed it before it could say how, and that is the better reason.
                    expected = said if self._ran_out_of_memory(run.id) else expected
                assert said == expected, f"{name}: {said}, without faults {expected}: {run.sentence}"
                checked = verify(deployment.context, run.id, run.evidence, record=deployment.record)
                assert checked.agrees, f"{name}: {checked.differences}"
                if name in CAMPAIGNS:
                    self._compare_ledger(name)
        crowned = [champion.run_id for champion in self.clock.rows("champions")]
        accepted = [run.id for run in runs.values() if run.verdict == "accepted"]
        assert sorted(crowned) == sorted(accepted), "champions and accepted runs differ"

    def ledger(self, name: str) -> list[Event]:
        """The events of a campaign, as they are on disk."""
        return CampaignLedger(self.root, self.target.requests[name].id).read()

    def _compare_ledger(self, name: str) -> None:
        """A campaign's ledger is that of the undisturbed one, times aside. Where several jobs may run at a time their
        order is the cluster's, and what they found is the same."""
        told, calm = self.ledger(name), self.calm_ledgers[name]
        trained = Counter(event.run_id for event in told if event.kind == "run")
        assert trained and max(trained.values()) == 1, f"{name}: trained more than once: {trained}"
        if CAMPAIGNS[name] == 1:
            found, expected = (events_to_jsonl(events, times=False).splitlines() for events in (told, calm))
        else:
            found, expected = (_outcomes(events) for events in (told, calm))
        differing = [pair for pair in itertools.zip_longest(found, expected) if pair[0] != pair[1]]
        assert not differing, f"{name}: its ledger differs from the undisturbed one's: {differing[:2]}"

    def check_blocked(self) -> None:
        """A run that is not ended says why, and what it says is nobody's fault."""
        for name, run in self.runs().items():
            if run.state == "blocked":
                assert run.state_reason in CHARGED_TO_NOBODY and run.state_detail, f"{name}: {run.state_reason}"

    def describe(self) -> str:
        lines = [*self.log, ""]
        for name, run in self.runs().items():
            lines.append(
                f"{name} {run.id} {run.state} {run.state_reason} {run.state_detail} {run.verdict}"
                f" {run.last_error or ''}"
            )
        lines += [
            f"job {j.job_id} {j.spec.name} {j.state} {j.reason} {j.exit_code}" for j in self.cluster.jobs.values()
        ]
        lines += [
            f"attempt {a.job_name} {a.state} job {a.job_id} {a.outcome} {a.reason} {a.detail}"
            for a in self.clock.rows("attempts")
        ]
        return "\n".join(lines)

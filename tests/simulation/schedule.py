"""One random schedule: what happens in which order is drawn from a seed, and nothing else is random.

Covered: drawing, playing, and the two endings (everything ends without help or says why; with an operator's retries
it ends as it would have without faults).
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

from outerloop.compute.protocol import JobState
from tests.simulation.launches import CAMPAIGNS
from tests.simulation.nodes import MEASURE_SECONDS
from tests.simulation.processes import Strike
from tests.simulation.target import ASKED, CALM
from tests.simulation.world import World

PAUSES = (1.0, 7.0, 31.0, 67.0, MEASURE_SECONDS + 5, 131.0, 311.0, 701.0)
"""Around every patience of the dispatcher: grace 60, gone 120, intent 180, lease and preemption 300 seconds."""
DURATIONS = (20.0, MEASURE_SECONDS, 400.0)
"""Below every grace period, between two, and above most of them: a lost sight of a job must be no ending."""
LAGS = (0.0, 3.0, 40.0, 250.0)
SETTLING_RETRIES = 4
WINDOW = ("tx.outcome", "tx.park", "compute.wake", "tx.wake")
"""From an array's outcome in its row to the same in those of its attempts: who dies or stays after one of these leaves
attempts that still are intents, while their jobs may run, end and be cancelled. Points drawn by number came there in 3
schedules of 300."""
WITH_ARRAYS = frozenset({"pairs", "trainings"})

Verdicts = dict[str, tuple[str | None, str | None]]


def play(world: World, seed: int) -> None:
    """One schedule from `seed`.

    Raises AssertionError with the seed, the steps and what was found.
    """
    try:
        _Schedule(world, seed).play()
    except Exception as error:
        raise AssertionError(
            f"seed {seed}: {type(error).__name__}: {error}\n"
            f"replay: python -m tests.nightly --seed {seed}\n{world.describe()}"
        ) from error


class _Schedule:
    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.random = rng = random.Random(f"schedule {seed}")
        self.seed = seed
        self.site: dict[str, Any] = {
            "accounting": rng.random() < 0.7,
            "accounting_lag": rng.choice((0.1, 20.0)),
            "min_job_age": rng.choice((300.0, 20.0)),
            "preempt_mode": rng.choice(("REQUEUE", "CANCEL")),
            "unknown_dependency": rng.choice(("satisfied", "satisfied", "refused")),
            "max_submit_jobs": rng.choice((None, None, 3)),
            "max_array_size": rng.choice((0, 1000, 1000, 4)),
        }
        # Six measures at once cost twice what two do, and a campaign's jobs come one after another.
        flavour = rng.choices(list(ASKED), (6, 3, 2, 2, 2, 1))[0]
        self.candidates = rng.sample(ASKED[flavour], rng.randint(1, 2))
        self.seconds = rng.choice(DURATIONS)
        self.steps = rng.randint(6, 16)
        # A stream of its own, so that what a seed was known for stays as it was where nothing strikes.
        windows = random.Random(f"windows {seed}")
        self.strike: Strike | None = None
        if flavour in WITH_ARRAYS and windows.random() < 0.5:
            self.strike = Strike(windows.choice(WINDOW), windows.random() < 0.3, windows.random() < 0.5)

    def play(self) -> None:
        world, rng = self.world, self.random
        for candidate in self.candidates:
            if candidate in CAMPAIGNS and candidate not in world.calm_ledgers:
                calm_verdict(world, candidate)
        world.begin(self.seed, **self.site)
        world.strike = self.strike
        world.nodes.seconds = self.seconds
        world.log.append(f"site {self.site}, measures of {self.seconds:g} s")
        world.submit(self.candidates[0], **self._fate())
        moves = self._moves()
        names, weights = [m for m, _w in moves], [w for _m, w in moves]
        for _ in range(self.steps):
            world.pass_time(1.0)
            commands = world.commands
            rng.choices(names, weights)[0]()
            if world.commands > commands:
                world.check_always()
        world.log.append("healed")
        world.heal()
        for candidate in self.candidates:
            # Whoever was not told that the request is taken asks again.
            if candidate not in world.runs():
                world.submit(candidate)
        world.settle()
        world.check_always()
        world.check_blocked()
        for _ in range(SETTLING_RETRIES):
            blocked = [name for name, run in world.runs().items() if run.state == "blocked"]
            if not blocked:
                break
            for candidate in blocked:
                world.retry(candidate)
            world.settle()
        world.check_at_rest(CALM)

    def _moves(self) -> list[tuple[Callable[[], None], int]]:
        return [
            (self._time, 30),
            (self._tick, 22),
            (self._wake, 16),
            (self._submit, 8),
            (self._resume, 6),
            (self._job_fault, 10),
            (self._array_fault, 3),
            (self._node_fault, 4),
            (self._outage, 10),
            (self._reply, 6),
            (self._lag, 4),
            (self._mishap, 5),
            (self._cancel, 2),
            (self._retry, 3),
        ]

    def _fate(self) -> dict[str, Any]:
        rng = self.random
        fate: dict[str, Any] = {}
        if rng.random() < 0.30:
            fate["crash_at"] = rng.randint(1, 70)
            fate["dies_here"] = rng.random() < 0.5
        if rng.random() < 0.12:
            fate["pause_at"] = rng.randint(1, 50)
        return fate

    # -- moves

    def _time(self) -> None:
        seconds = self.random.choice(PAUSES)
        self.world.log.append(f"{seconds:g} s pass")
        self.world.pass_time(seconds)

    def _tick(self) -> None:
        self.world.tick(**self._fate())

    def _wake(self) -> None:
        rung = self.world.nodes.rung
        if not rung:
            return self._tick()
        run_id, number = rung.pop(self.random.randrange(len(rung)))
        if self.random.random() < 0.15:
            self.world.log.append(f"wake {run_id} {number} dies before it begins")
            return None
        self.world.wake(run_id, number, **self._fate())
        return None

    def _submit(self) -> None:
        self.world.submit(self.random.choice(self.candidates), **self._fate())

    def _resume(self) -> None:
        if self.world.parked:
            self.world.resume(self.random.randrange(len(self.world.parked)))

    def _cancel(self) -> None:
        known = list(self.world.runs())
        if known:
            self.world.cancel(self.random.choice(known), **self._fate())

    def _retry(self) -> None:
        blocked = [name for name, run in self.world.runs().items() if run.state == "blocked"]
        if blocked:
            self.world.retry(self.random.choice(blocked), **self._fate())

    def _job_fault(self) -> None:
        world, rng = self.world, self.random
        pending, running = world.measuring(JobState.PENDING), world.measuring(JobState.RUNNING)
        kinds: list[tuple[str, list[str], Callable[[str], None]]] = [
            ("preempt", running, world.cluster.preempt),
            ("requeue", running, world.cluster.requeue),
            ("kill", running, world.cluster.kill),
            ("hold", pending, world.cluster.hold),
            ("lose", pending + running, world.cluster.lose),
            ("cancelled by the system", pending + running, lambda job: world.cluster.cancel_by(job, "0")),
            ("cancelled by a user", pending + running, lambda job: world.cluster.cancel_by(job, "4711")),
        ]
        possible = [kind for kind in kinds if kind[1]]
        if possible:
            name, jobs, act = rng.choice(possible)
            job = rng.choice(jobs)
            world.log.append(f"{name}: job {job}")
            act(job)

    def _array_fault(self) -> None:
        """All tasks of an array at once: gone without a trace, cancelled, or their site's caps cut in two."""
        world, rng = self.world, self.random
        site = world.cluster.site
        if rng.random() < 0.4:
            caps = {"max_submit_jobs": (site.max_submit_jobs or 8) // 2, "max_array_size": site.max_array_size // 2}
            changed = {name: cap for name, cap in caps.items() if cap >= 2 and rng.random() < 0.5}
            world.log.append(f"caps halve: {changed}")
            world.cluster.site = dataclasses.replace(site, **changed)
            return
        if not world.cluster.tasks:
            return
        whole, tasks = rng.choice(list(world.cluster.tasks.items()))
        kind = rng.choice(("lost", "cancelled by the system", "preempted"))
        world.log.append(f"array {whole}: {kind}")
        for task in tasks:
            if kind == "lost":
                world.cluster.lose(task)
            elif kind == "preempted":
                world.cluster.preempt(task)
            else:
                world.cluster.cancel_by(task, "0")

    def _node_fault(self) -> None:
        world, rng = self.world, self.random
        name, free = rng.choice(list(world.cluster.scheduler.free.items()))
        if free.up:
            zombies = rng.random() < 0.6
            world.log.append(f"{name} fails, zombies {zombies}")
            world.cluster.fail_node(name, zombies=zombies)
        else:
            world.log.append(f"{name} returns")
            world.cluster.restore_node(name)

    def _outage(self) -> None:
        faults, rng = self.world.faults, self.random
        if faults.controller_down or faults.accounting_down or faults.cancels_lost:
            self.world.log.append("outages end")
            self.world.cluster.resume_controller()
            faults.accounting_down = faults.cancels_lost = False
            return
        kind = rng.choice(("down", "stopped", "accounting", "cancels"))
        self.world.log.append(f"outage: {kind}")
        faults.controller_down = kind in {"down", "stopped"}
        faults.stopped = kind == "stopped"
        self.world.one_job_each &= not faults.stopped
        faults.accounting_down = kind == "accounting"
        faults.cancels_lost = kind == "cancels"

    def _reply(self) -> None:
        reply = self.random.choice(("lost-before", "lost-after", "lost-after", "full", "refused", "down"))
        self.world.log.append(f"next submission: {reply}")
        self.world.faults.replies.append(reply)

    def _lag(self) -> None:
        self.world.nodes.lag = self.random.choice(LAGS)
        self.world.log.append(f"results are seen {self.world.nodes.lag:g} s late")

    def _mishap(self) -> None:
        mishap = self.random.choice(("early", "setup", "oom"))
        self.world.log.append(f"next job: {mishap}")
        self.world.nodes.mishaps.append(mishap)


def calm_verdict(world: World, candidate: str) -> tuple[str | None, str | None]:
    """What becomes of a candidate when nothing goes wrong, by ticks alone, each measure in a job of its own."""
    world.begin(0)
    world.submit(candidate)
    world.settle()
    run = world.runs()[candidate]
    assert run.state == "ended", world.describe()
    if candidate in CAMPAIGNS:
        world.calm_ledgers[candidate] = world.ledger(candidate)
    return run.verdict, run.verdict_reason


def calm_verdicts(world: World) -> Verdicts:
    """The same of every candidate of every flavour."""
    return {name: calm_verdict(world, name) for names in ASKED.values() for name in names}

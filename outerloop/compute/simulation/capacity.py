"""Capacity planning: how long many climbs take on a site, and which limit makes them wait.

Covered: climbs of equal measures, submitted all at once, through the simulated cluster with outerloop's own habits:
the submit cap met and waited out, wakes up to their cap, ticks at their cadence, infrastructure failures tried again,
throttled job arrays. A training of many tasks is one climb of so many measures.
Not covered: other users' jobs, fair share, sequential rules that ask for more measures, campaigns (their rounds wait
for each other), the minutes before a command begins. A submission costs no time here, so that measures go out in
arrays only where an array's throttle holds them back.

Which limit binds is not guessed from a utilisation: each limit is doubled alone (the cadence halved) and the same
load, with the same random numbers, is simulated again.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from outerloop.compute.protocol import Accepted, JobSpec, Lane, Refused, SubmitOutcome, When
from outerloop.compute.simulated import Clock, Execution, Outcome, Simulated, Site
from outerloop.compute.simulation.site import uniform_site

__all__ = ["Forecast", "Habits", "Hopeless", "Lifted", "Limits", "Load", "forecast", "lift_each"]

REFUSED_LATER_SECONDS = 60.0
"""The dispatcher's own patience after a submission met a cap (dispatch/submit.py)."""
WAKE_SECONDS = 3.0
"""A wake imports Python, advances its run and ends: about 3 s where the interpreter comes over NFS. Assumed."""
LARGEST_ARRAY = 1_000_000
"""No limit of its own: arrays are only there for their throttle."""
NOTHING = Path("/nonexistent")


class Hopeless(Exception):
    """The load can never run on this site; the text says why."""


@dataclass(frozen=True)
class Load:
    """What is asked: `climbs` times `measures` jobs of about `minutes` each."""

    climbs: int
    measures: int
    minutes: float
    """Mean duration of a measure's command."""
    spread: float = 0.2
    """Standard deviation of a measure's duration, as a share of its mean (log-normal)."""
    walltime_minutes: float = 0.0
    """What each job asks of Slurm, and the longest that a measure takes; 0 means what the longest of them needs."""
    cpus: int = 1
    gpus: int = 0
    memory_mb: int = 0
    failure_rate: float = 0.0
    """Share of jobs that infrastructure ends half-way through; each is tried again after a back-off."""


@dataclass(frozen=True)
class Limits:
    """The site's, of one user."""

    nodes: int
    cpus: int
    memory_mb: int = 1 << 30
    gpus: int = 0
    max_minutes: float | None = None
    submit_cap: int | None = None
    throttle: int | None = None
    """Jobs that may run at once."""
    array_throttle: int | None = None
    """Tasks of one array that may run at once: the lane's `array_throttle`."""


@dataclass(frozen=True)
class Habits:
    """outerloop's own limits, from its settings."""

    wake_cap: int = 20
    wake_mode: str = "auto"
    cadence_seconds: float = 300.0
    backoff_seconds: float = 60.0

    @property
    def most_wakes(self) -> int:
        """Live wakes at most: while the tick keeps its cadence, `auto` stops at half the cap (dispatch/wakes.py)."""
        return {"never": 0, "always": self.wake_cap}.get(self.wake_mode, max(1, self.wake_cap // 2))


@dataclass(frozen=True)
class Forecast:
    """What came of it. Times are seconds since the submission."""

    seconds: float
    """Until the last verdict."""
    median_verdict: float
    p90_verdict: float
    jobs: int
    cap_met: int
    """Sweeps of the controller that met the submit cap."""
    by_wake: int
    by_tick: int
    most_running: int
    busy: float
    """Share of the site's CPUs (GPUs, where they are asked for) that measured, over the whole time."""
    core_hours: float
    gpu_hours: float


@dataclass
class _Climb:
    number: int
    unsent: int
    running: int = 0
    retry_at: float = 0.0
    done_at: float | None = None
    rung: bool = False
    tries: deque[float] = field(default_factory=deque)


class _Run:
    """One simulation."""

    def __init__(self, load: Load, limits: Limits, habits: Habits, seed: int) -> None:
        self.load, self.limits, self.habits = load, limits, habits
        self.random = random.Random(seed)
        self.clock = Clock(0.0)
        site = Site(
            nodes=uniform_site(limits.nodes, limits.cpus, memory_mb=limits.memory_mb, gpus=limits.gpus),
            max_submit_jobs=limits.submit_cap,
            max_running_jobs=limits.throttle,
            min_job_age=math.inf,
            max_array_size=LARGEST_ARRAY,
        )
        self.cluster = Simulated(site, self.clock, self._work, seed=seed)
        self.climbs = [_Climb(i, load.measures) for i in range(load.climbs)]
        self.waiting = deque(self.climbs)
        """Climbs with measures that are not submitted yet."""
        self.ended: list[_Climb] = []
        """Climbs whose measures have all ended and that nobody has looked at."""
        self.undecided = load.climbs
        self.live_wakes = self.jobs = self.cap_met = self.by_wake = self.by_tick = self.most_running = 0
        self.busy_seconds = 0.0
        self.lane = Lane(name="default")
        # Drawn once for each measure, so that two simulations differ by the changed limit only.
        sigma = math.sqrt(math.log1p(load.spread**2))
        mu = math.log(load.minutes * 60) - sigma**2 / 2
        drawn = [self.random.lognormvariate(mu, sigma) for _ in range(load.climbs * load.measures)]
        # Our own limit stops a command before Slurm does, and that is a result like any other.
        self.walltime = load.walltime_minutes or max(3 * load.minutes, max(drawn) / 60)
        self.seconds = [min(seconds, self.walltime * 60) for seconds in drawn]

    def go(self) -> Forecast:
        cluster = self.cluster
        for climb in self.climbs:
            if not self._send(climb):
                self.cap_met += 1
                break
        cluster.at(self.habits.cadence_seconds, self._tick)
        while self.undecided:
            if not cluster.advance_to_next():
                raise Hopeless("nothing is left that could happen; this is a defect of the simulation")
        verdicts = sorted(climb.done_at or 0.0 for climb in self.climbs)
        units = self.limits.gpus * self.limits.nodes if self.load.gpus else self.limits.cpus * self.limits.nodes
        per_job = self.load.gpus or self.load.cpus
        return Forecast(
            seconds=verdicts[-1],
            median_verdict=verdicts[(len(verdicts) - 1) // 2],
            p90_verdict=verdicts[math.ceil(len(verdicts) * 0.9) - 1],
            jobs=self.jobs,
            cap_met=self.cap_met,
            by_wake=self.by_wake,
            by_tick=self.by_tick,
            most_running=self.most_running,
            busy=self.busy_seconds * per_job / (units * verdicts[-1]),
            core_hours=self.busy_seconds * self.load.cpus / 3600,
            gpu_hours=self.busy_seconds * self.load.gpus / 3600,
        )

    # -- the cluster's side

    def _work(self, run: Execution) -> Outcome:
        kind, _, rest = run.spec.name.partition("-")
        if kind == "wake":
            return Outcome(WAKE_SECONDS, lambda ended: self._wake(self.climbs[int(rest)]))
        self.most_running = max(self.most_running, self.cluster.scheduler.running)
        number, _, batch = rest.partition("-")
        climb = int(number)
        _array, _, task = run.job_id.partition("_")
        measure = [int(part) for part in batch.split(",")][int(task or 0)]
        seconds = self.seconds[climb * self.load.measures + measure]
        fails = self.load.failure_rate > 0 and self.random.random() < self.load.failure_rate
        if fails:
            seconds *= self.random.random()
        return Outcome(seconds, lambda ended: self._measured(self.climbs[climb], measure, seconds, fails))

    def _measured(self, climb: _Climb, measure: int, seconds: float, fails: bool) -> int:
        self.busy_seconds += seconds
        climb.running -= 1
        if fails:
            climb.tries.append(float(measure))
            climb.retry_at = self.cluster.now + self.habits.backoff_seconds
            self.waiting.append(climb)
            return 1
        if climb.running == 0 and not climb.unsent and not climb.tries:
            self.ended.append(climb)
        return 0

    # -- the controller's side

    def _tick(self) -> None:
        for climb in self.ended:
            if climb.done_at is None:
                self.by_tick += 1
                self._decide(climb)
        self.ended.clear()
        self._send_waiting()
        if self.undecided:
            self.cluster.at(self.cluster.now + self.habits.cadence_seconds, self._tick)

    def _wake(self, climb: _Climb) -> int:
        self.live_wakes -= 1
        climb.rung = False
        if climb.done_at is None and climb.running == 0 and not climb.unsent and not climb.tries:
            self.by_wake += 1
            self._decide(climb)
        self._send_waiting()
        return 0

    def _decide(self, climb: _Climb) -> None:
        climb.done_at = self.cluster.now
        self.undecided -= 1

    def _send_waiting(self) -> None:
        """Hand out what is due, until the cap is met."""
        later: list[_Climb] = []
        while self.waiting:
            climb = self.waiting.popleft()
            if climb.retry_at > self.cluster.now:
                later.append(climb)
            elif not self._send(climb):
                self.cap_met += 1
                self.waiting.appendleft(climb)
                break
        self.waiting.extendleft(reversed(later))

    def _send(self, climb: _Climb) -> bool:
        """Submit what the climb still needs; False when the cap was met."""
        ids = []
        largest = 1 if self.limits.array_throttle is None else LARGEST_ARRAY
        while climb.unsent or climb.tries:
            first = self.load.measures - climb.unsent
            due = [*map(int, climb.tries), *range(first, self.load.measures)][:largest]
            outcome = self._submit(climb, due)
            if isinstance(outcome, Refused):
                if outcome.when is not When.LATER:
                    raise Hopeless(f"{outcome.reason}: {outcome.detail}")
                if len(due) > 1:
                    largest = len(due) // 2  # as the dispatcher does
                    continue
                climb.retry_at = self.cluster.now + REFUSED_LATER_SECONDS
                return False
            assert isinstance(outcome, Accepted)
            ids.append(outcome.job_id)
            self.jobs += len(due)
            climb.running += len(due)
            for _ in due:
                if climb.tries:
                    climb.tries.popleft()
                else:
                    climb.unsent -= 1
        if self.waiting and self.waiting[0] is climb:
            self.waiting.popleft()
        self._ring(climb, ids)
        return True

    def _submit(self, climb: _Climb, measures: Sequence[int]) -> SubmitOutcome:
        named = f"measure-{climb.number}-{','.join(map(str, measures))}"
        spec = self._spec(named, self.walltime, self.load)
        if len(measures) == 1:
            return self.cluster.submit(spec)
        return self.cluster.submit_array(spec, len(measures), self.limits.array_throttle)

    def _ring(self, climb: _Climb, ids: list[str]) -> None:
        if climb.rung or self.live_wakes >= self.habits.most_wakes:
            return
        spec = replace(self._spec(f"wake-{climb.number}", 10.0, Load(1, 1, 1.0)), after=tuple(ids))
        if isinstance(self.cluster.submit(spec), Accepted):
            climb.rung = True
            self.live_wakes += 1

    def _spec(self, name: str, minutes: float, load: Load) -> JobSpec:
        return JobSpec(
            name=name,
            script=NOTHING,
            log=NOTHING,
            workdir=NOTHING,
            lane=self.lane,
            minutes=minutes,
            cpus=load.cpus,
            gpus=load.gpus,
            memory_mb=load.memory_mb or None,
        )


def forecast(load: Load, limits: Limits, habits: Habits, *, seed: int = 0) -> Forecast:
    """Simulate one load. The same arguments give the same numbers. Raises Hopeless."""
    fits = load.cpus <= limits.cpus and load.gpus <= limits.gpus and load.memory_mb <= limits.memory_mb
    if not fits:
        raise Hopeless(
            f"a measure of {load.cpus} CPUs, {load.gpus} GPUs and {load.memory_mb} MB fits no node"
            f" of {limits.cpus} CPUs, {limits.gpus} GPUs and {limits.memory_mb} MB"
        )
    walltime = load.walltime_minutes or load.minutes
    if limits.max_minutes is not None and walltime > limits.max_minutes:
        raise Hopeless(f"a measure needs {walltime:g} minutes of walltime, the lane allows {limits.max_minutes:g}")
    if load.failure_rate >= 1:
        raise Hopeless("every job fails")
    return _Run(load, limits, habits, seed).go()


@dataclass(frozen=True)
class Lifted:
    """One limit doubled alone (the cadence halved)."""

    name: str
    value: float
    changed: float
    seconds: float
    median_verdict: float
    saved: float
    """Share of the time until the last verdict that it saves; negative when it costs."""
    saved_median: float


def lift_each(load: Load, limits: Limits, habits: Habits, base: Forecast, *, seed: int = 0) -> tuple[Lifted, ...]:
    """What doubling each limit alone would save, the most first: that one binds, unless it saves next to nothing."""
    cases: list[tuple[str, float, float, Limits, Habits]] = [
        ("nodes", limits.nodes, limits.nodes * 2, replace(limits, nodes=limits.nodes * 2), habits)
    ]
    caps = ("submit_cap", "throttle", "array_throttle")
    for name, value in ((cap, getattr(limits, cap)) for cap in caps):
        if value is not None:
            cases.append((name, value, value * 2, replace(limits, **{name: value * 2}), habits))
    if habits.most_wakes:
        cases.append(("wake_cap", habits.wake_cap, habits.wake_cap * 2, limits, _more_wakes(habits)))
    half = habits.cadence_seconds / 2
    cases.append(("cadence", habits.cadence_seconds, half, limits, replace(habits, cadence_seconds=half)))
    found = []
    for name, before, after, changed_limits, changed_habits in cases:
        then = forecast(load, changed_limits, changed_habits, seed=seed)
        found.append(
            Lifted(
                name,
                before,
                after,
                then.seconds,
                then.median_verdict,
                1 - then.seconds / base.seconds,
                1 - then.median_verdict / base.median_verdict,
            )
        )
    return _ordered(found)


def _more_wakes(habits: Habits) -> Habits:
    return replace(habits, wake_cap=habits.wake_cap * 2)


def _ordered(found: Sequence[Lifted]) -> tuple[Lifted, ...]:
    return tuple(sorted(found, key=lambda item: (-round(item.saved, 3), -item.saved_median, item.name)))

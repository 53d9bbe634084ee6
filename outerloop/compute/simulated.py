"""A deterministic cluster with a fake clock: the Compute protocol without a machine behind it.

Covered: queueing on nodes with CPUs, memory and GPUs, partitions' and users' limits, `afterany` (purged and unknown
ids too), begin times, walltime, requeue, preemption in both modes, purge by MinJobAge, accounting that lags, is down
or absent, lost requests and replies, a controller that is down or stopped, nodes that fail while their processes live
on, holds, cancels by us, by a user and by the system, job arrays whose tasks live and die one by one, throttled or not.
What a script does is a function that is passed in.
Not covered: fair share, priorities; nothing happens between two calls unless `advance` is called.

The habits are those measured on Slurm 22.05.8, 24.11.5 and 26.05.5; each constant says so in simulation/site.py.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterable, Sequence

from outerloop.compute.jobids import array_id, task_id
from outerloop.compute.protocol import (
    Accepted,
    History,
    JobRow,
    JobSpec,
    JobState,
    Listing,
    NoAnswer,
    Refused,
    SiteLimits,
    SubmitOutcome,
    Unavailable,
    Unknown,
    When,
)
from outerloop.compute.simulation.faults import Faults
from outerloop.compute.simulation.jobs import NEVER_BY_NAME, Job, as_accounted
from outerloop.compute.simulation.scheduler import Scheduler
from outerloop.compute.simulation.site import (
    TIMEOUT_SLACK_SECONDS,
    Clock,
    Execution,
    Node,
    Outcome,
    Partition,
    Site,
    Work,
)

__all__ = ["Clock", "Execution", "Faults", "Job", "Node", "Outcome", "Partition", "Simulated", "Site", "Work"]

FIRST_JOB = 101
SIGKILL = 9


class Simulated:
    """A cluster of `site` on `clock`; `work` says what a script does. The same seed and calls give the same answers."""

    name = "simulated"

    def __init__(self, site: Site, clock: Clock, work: Work, *, seed: int = 0, faults: Faults | None = None) -> None:
        self.site = site
        self.clock = clock
        self.work = work
        self.faults = faults or Faults()
        self.jobs: dict[str, Job] = {}
        self.tasks: dict[str, tuple[str, ...]] = {}
        """Ids of the tasks of each array."""
        self.scheduler = Scheduler(site)
        self.now = clock.seconds
        """The instant that is being simulated; the clock follows at the end of `advance`."""
        self._random = random.Random(seed)
        self._listed: dict[str, Job] = {}
        self._live = 0
        self._dependents: dict[str, list[Job]] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        self._pass_at: float | None = None
        self._inbox: list[tuple[JobSpec, int | None, int | None]] = []
        self._numbers = itertools.count(FIRST_JOB)
        self._partitions = {p.name: p for p in site.partitions}

    # -- the protocol

    @property
    def arrays(self) -> bool:
        return self.site.max_array_size > 0

    def submit(self, job: JobSpec) -> SubmitOutcome:
        return self._request(job, None)

    def submit_array(self, job: JobSpec, count: int, throttle: int | None) -> SubmitOutcome:
        if not self.arrays:
            return Refused("Array", When.CONFIG, f"{job.name}: this site takes single jobs, not {count} at once")
        return self._request(job, count, throttle)

    def _request(self, job: JobSpec, count: int | None, throttle: int | None = None) -> SubmitOutcome:
        """One submission on its way to the controller, of a job or of an array of `count` tasks."""
        self._catch_up()
        faults = self.faults
        if faults.controller_down:
            if faults.stopped:
                self._inbox.append((job, count, throttle))
                return Unknown("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation")
            return Refused("ControllerDown", When.LATER, "Unable to contact slurm controller (connect failure)")
        match faults.replies.popleft() if faults.replies else "":
            case "lost-before":
                return Unknown("timed out before the request arrived")
            case "lost-after":
                self._take(job, count, throttle)
                return Unknown("timed out before the reply arrived")
            case "full":
                return Refused("AssocMaxSubmitJobLimit", When.LATER, "AssocMaxSubmitJobLimit")
            case "refused":
                return Refused("QOSMaxWallDurationPerJobLimit", When.NEVER, "QOSMaxWallDurationPerJobLimit")
            case "down":
                return Refused("ControllerDown", When.LATER, "Unable to contact slurm controller (connect failure)")
        return self._take(job, count, throttle)

    def listing(self) -> Listing | NoAnswer:
        self._catch_up()
        if self.faults.controller_down:
            return NoAnswer("slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
        self._purge()
        return Listing(tuple(job.as_listed() for job in self._listed.values()))

    def history(self, since: float, ids: Iterable[str], names: Iterable[str]) -> History | NoAnswer | Unavailable:
        self._catch_up()
        if not self.site.accounting:
            return Unavailable("Slurm accounting storage is disabled")
        if self.faults.accounting_down:
            return NoAnswer("sacct: error: slurm_persist_conn_open: failed to send persistent connection init message")
        wanted, called = set(ids), set(names)
        upto = self.now - self.site.accounting_lag
        rows: list[JobRow] = []
        for job in self.jobs.values():
            by_id = job.job_id in wanted or array_id(job.job_id) in wanted
            if job.accounted and (by_id or job.spec.name in called):
                row = as_accounted(job, upto)
                if row is None or (row.ended is not None and row.ended < since):
                    continue
                if by_id or row.state is not JobState.PENDING or row.reason not in NEVER_BY_NAME:
                    rows.append(row)
        return History(tuple(rows))

    def cancel(self, ids: Iterable[str]) -> NoAnswer | None:
        self._catch_up()
        if self.faults.controller_down:
            return NoAnswer("scancel: error: Unable to contact slurm controller")
        if not self.faults.cancels_lost:
            for asked in ids:
                for job_id in self.tasks.get(asked, (asked,)):
                    self.cancel_by(job_id, self.site.uid)
        return None

    def limits(self) -> SiteLimits | NoAnswer:
        if self.faults.controller_down:
            return NoAnswer("scontrol: error: Unable to contact slurm controller")
        return SiteLimits(
            version=self.site.version,
            cluster="simulated",
            max_array_size=self.site.max_array_size or None,
            min_job_age_seconds=int(self.site.min_job_age),
            kill_wait_seconds=int(self.site.kill_wait),
            preempt_mode=self.site.preempt_mode,
            accounting=self.site.accounting,
        )

    # -- time

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass."""
        self._catch_up()
        self._run_to(self.clock.seconds + seconds)
        self.clock.move_to(self.now)

    def advance_to_next(self) -> bool:
        """Let time pass until something happens. False when nothing ever will by itself."""
        self._catch_up()
        if not self._events:
            return False
        self._run_to(self._events[0][0])
        self.clock.move_to(self.now)
        return True

    def at(self, when: float, happen: Callable[[], None]) -> None:
        """Call `happen` at an instant (events of one instant in the order in which they were asked for)."""
        self._sequence += 1
        heapq.heappush(self._events, (when, self._sequence, happen))

    # -- faults of jobs and nodes

    def cancel_by(self, job_id: str, uid: str) -> None:
        """scancel by a user, "0" for the system. Unknown and ended ids are silent, as scancel's are."""
        job = self.jobs.get(job_id)
        if job is None or job.gone or job.state is JobState.COMPLETING:
            return
        job.cancelled_by = uid
        if job.state is JobState.PENDING:
            self._end(job, JobState.CANCELLED)
            return
        # TERM now, KILL after KillWait; the script of this simulation never makes use of the time between.
        job.state, job.instance = JobState.COMPLETING, job.instance + 1
        self._later(self.site.kill_wait, job, lambda: self._end(job, JobState.CANCELLED, signal=SIGKILL))

    def fail_node(self, name: str, *, zombies: bool) -> None:
        """The controller loses a node. With `zombies` its processes live on until their end, as they do on Slurm."""
        self.scheduler.free[name].up = False
        for job in [j for j in self._listed.values() if any(n.name == name for n in j.nodes)]:
            if job.state not in {JobState.RUNNING, JobState.COMPLETING}:
                continue
            if zombies and job.outcome is not None and job.started is not None:
                self._live_on(job.outcome, job.started)
            if job.spec.requeue:
                self._requeue(job)
            else:
                self._end(job, JobState.NODE_FAIL)

    def restore_node(self, name: str) -> None:
        self.scheduler.free[name].up = True
        self._schedule_soon()

    def preempt(self, job_id: str) -> None:
        """A more important job takes the place of a running one."""
        job = self.jobs[job_id]
        if job.state is not JobState.RUNNING:
            return
        if self.site.preempt_mode == "REQUEUE" and job.spec.requeue:
            self._requeue(job)
        else:
            self._end(job, JobState.PREEMPTED, signal=15)

    def requeue(self, job_id: str) -> None:
        """An administrator requeues a running job by force: its script starts again under the same id."""
        job = self.jobs[job_id]
        if job.state is JobState.RUNNING:
            self._requeue(job)

    def hold(self, job_id: str, reason: str = "JobHeldAdmin") -> None:
        job = self.jobs[job_id]
        if job.state is JobState.PENDING:
            job.held, job.reason = True, reason
            job.instance += 1
            job.note(self.now)

    def kill(self, job_id: str, *, out_of_memory: bool = False) -> None:
        """The running script is killed with SIGKILL: by the kernel for memory, or by an accident."""
        job = self.jobs[job_id]
        if job.state is JobState.RUNNING:
            if out_of_memory:
                self._end(job, JobState.OUT_OF_MEMORY, exit_code=0, signal=125)
            else:
                self._end(job, JobState.FAILED, exit_code=0, signal=SIGKILL)

    def lose(self, job_id: str) -> None:
        """The job leaves queue and accounting without a trace, and its processes die (a controller's state lost)."""
        job = self.jobs[job_id]
        if not job.gone:
            self._end(job, JobState.CANCELLED)
        job.listed = job.accounted = False
        self._listed.pop(job_id, None)

    def resume_controller(self) -> None:
        """A controller that was stopped goes on: submissions that arrived meanwhile are taken now."""
        self._catch_up()
        self.faults.controller_down = self.faults.stopped = False
        for job, count, throttle in self._inbox:
            self._take(job, count, throttle)
        self._inbox.clear()

    @property
    def live(self) -> int:
        """Pending and running jobs."""
        return self._live

    # -- inside

    def _take(self, spec: JobSpec, count: int | None = None, throttle: int | None = None) -> SubmitOutcome:
        """Accept or refuse a submission that arrived; an array is taken whole or not at all."""
        site = self.site
        partition = self._partitions.get(spec.lane.partition)
        if partition is None:
            return Refused("InvalidPartition", When.NEVER, f"invalid partition specified: {spec.lane.partition}")
        if count is not None and count > site.max_array_size:
            return Refused("ArraySize", When.LATER, "Invalid job array specification")
        if site.max_submit_jobs is not None and self._live + (count or 1) > site.max_submit_jobs:
            return Refused("AssocMaxSubmitJobLimit", When.LATER, "AssocMaxSubmitJobLimit")
        too_long = partition.max_minutes is not None and spec.minutes > partition.max_minutes
        if too_long and site.enforce_limits:
            return Refused("TimeLimit", When.NEVER, "Requested time limit is invalid")
        known = {i: self._still_known(i) for i in spec.after}
        unknown = [i for i, jobs in known.items() if not jobs]
        if unknown and site.unknown_dependency == "refused":
            return Refused("Dependency", When.LATER, "Job dependency problem")
        number = next(self._numbers)
        awaited = [job for jobs in known.values() for job in jobs if not job.gone]
        names = [str(number)] if count is None else [task_id(str(number), task) for task in range(count)]
        if count is not None:
            self.tasks[str(number)] = tuple(names)
        fits = True
        for name in names:
            fits = self._enter(Job(name, number, spec, self.now, throttle=throttle), awaited, partition, too_long)
        if not fits:
            return Refused("BadConstraints", When.NEVER, "Requested node configuration is not available")
        return Accepted(str(number))

    def _enter(self, job: Job, awaited: Sequence[Job], partition: Partition, too_long: bool) -> bool:
        """One job, or one task, begins to pend. False when no node can ever have it."""
        spec = job.spec
        self.jobs[job.job_id] = self._listed[job.job_id] = job
        self._live += 1
        if not self.scheduler.could_ever(job) or (partition.max_nodes or spec.nodes) < spec.nodes:
            # The refusal leaves a record with the job's name behind (measured on all three majors).
            job.reason = "BadConstraints"
            self._end(job, JobState.FAILED, exit_code=1)
            return False
        if too_long:
            job.held, job.reason = True, "PartitionTimeLimit"
        for other in awaited:
            job.waits_for += 1
            self._dependents.setdefault(other.job_id, []).append(job)
        job.begin = self.now + (spec.begin_seconds or 0)
        if job.waits_for:
            job.reason = "Dependency"
        else:
            self._offer(job)
        job.note(self.now)
        return True

    def _still_known(self, job_id: str) -> list[Job]:
        """The jobs behind an id that a dependency names, an array's tasks one by one; none when it was purged."""
        named = [self.jobs[i] for i in self.tasks.get(job_id, (job_id,)) if i in self.jobs]
        return [job for job in named if not self._is_purged(job)]

    def _offer(self, job: Job) -> None:
        """Hand a pending job to the scheduler when its time has come."""
        if job.state is not JobState.PENDING or job.held:
            return
        if job.begin > self.now:
            job.reason = "BeginTime"
            self._later(job.begin - self.now, job, lambda: self._offer(job))
            return
        if job.reason != "Priority":
            job.reason = "Priority"
            job.note(self.now)
        self.scheduler.enqueue(job)
        self._schedule_soon()

    def _schedule_soon(self) -> None:
        if self._pass_at is None:
            self._pass_at = self.now + self.site.start_delay
            self.at(self._pass_at, self._schedule)

    def _schedule(self) -> None:
        self._pass_at = None
        for job, places in self.scheduler.next_starts():
            job.nodes = [place.node for place in places]
            if job.held:
                self.scheduler.release(job)
                job.nodes = []
                continue
            job.node_names = ",".join(node.name for node in job.nodes)
            self._start(job)

    def _start(self, job: Job) -> None:
        job.state, job.reason, job.started = JobState.RUNNING, "None", self.now
        job.instance += 1
        job.note(self.now)
        outcome = self.work(Execution(job.job_id, job.restarts, job.nodes[0].name, self.now, job.spec))
        job.outcome = outcome
        for seconds, step in outcome.steps:
            self._later(seconds, job, step)
        limit = -(-job.spec.minutes // 1) * 60 + self._random.uniform(*TIMEOUT_SLACK_SECONDS)
        if outcome.seconds <= limit:
            self._later(outcome.seconds, job, lambda: self._exit(job, outcome))
        else:
            self._later(limit, job, lambda: self._end(job, JobState.TIMEOUT, exit_code=0, signal=15))

    def _exit(self, job: Job, outcome: Outcome) -> None:
        code = outcome.finish(self.now)
        state = JobState.COMPLETED if code == 0 else JobState.FAILED
        self._end(job, JobState.OUT_OF_MEMORY if outcome.out_of_memory else state, exit_code=code)

    def _end(self, job: Job, state: JobState, *, exit_code: int | None = None, signal: int | None = None) -> None:
        if job.nodes:
            self.scheduler.release(job)
            self._schedule_soon()
        job.nodes, job.outcome, job.instance = [], None, job.instance + 1
        job.state, job.ended, job.exit_code, job.signal = state, self.now, exit_code, signal
        job.note(self.now)
        self._live -= 1
        for dependent in self._dependents.pop(job.job_id, []):
            dependent.waits_for -= 1
            if dependent.waits_for == 0:
                self._offer(dependent)

    def _requeue(self, job: Job) -> None:
        self.scheduler.release(job)
        job.nodes, job.outcome, job.instance = [], None, job.instance + 1
        job.state, job.restarts, job.started = JobState.PENDING, job.restarts + 1, None
        job.begin = self.now + self.site.requeue_wait
        self._offer(job)
        job.note(self.now)
        self._schedule_soon()

    def _live_on(self, outcome: Outcome, started: float) -> None:
        """The script of a lost job comes to its end all the same; its exit code reaches nobody."""
        ended = max(self.now, started + outcome.seconds)

        def finish() -> None:
            outcome.finish(ended)

        for seconds, step in outcome.steps:
            if started + seconds > self.now:
                self.at(started + seconds, step)
        self.at(ended, finish)

    def _later(self, seconds: float, job: Job, happen: Callable[[], None]) -> None:
        """Call `happen` unless the job has moved on by then."""
        instance = job.instance

        def unless_stale() -> None:
            if job.instance == instance:
                happen()

        self.at(self.now + seconds, unless_stale)

    def _catch_up(self) -> None:
        if self.clock.seconds > self.now:
            self._run_to(self.clock.seconds)

    def _run_to(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            when, _order, happen = heapq.heappop(self._events)
            self.now = max(self.now, when)
            happen()
        self.now = max(self.now, until)

    def _is_purged(self, job: Job) -> bool:
        return not job.listed or (job.ended is not None and job.ended + self.site.min_job_age < self.now)

    def _purge(self) -> None:
        for job_id in [i for i, job in self._listed.items() if self._is_purged(job)]:
            del self._listed[job_id]

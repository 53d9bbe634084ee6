"""Which pending job starts now: submission order, with smaller jobs let past what does not fit yet.

Covered: allocation of CPUs, memory, GPUs and whole nodes counts, excluded nodes, caps on running jobs and on the
running tasks of an array. Not covered: fair share, priorities, reservations; backfill never delays on purpose here, so
figures are those of an idle queue of others.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from dataclasses import dataclass, field

from outerloop.compute.protocol import JobState
from outerloop.compute.simulation.jobs import Job
from outerloop.compute.simulation.site import EVERYWHERE, Node, Site

__all__ = ["Free", "Scheduler"]

Shape = tuple[str, int, int, int, int, tuple[str, ...], int]


@dataclass
class Free:
    """What is left of one node."""

    node: Node
    cpus: int
    memory_mb: int
    gpus: int
    up: bool = True


@dataclass
class Scheduler:
    """Pending jobs by shape, and what is free."""

    site: Site
    free: dict[str, Free] = field(init=False)
    running: int = 0
    running_tasks: Counter[int] = field(default_factory=Counter)
    """Running tasks of each throttled array, by its number."""
    _queues: dict[Shape, deque[Job]] = field(default_factory=dict)
    _search_from: dict[Shape, int] = field(default_factory=dict)
    _order: list[Free] = field(init=False)

    def __post_init__(self) -> None:
        self.free = {n.name: Free(n, n.cpus, n.memory_mb, n.gpus) for n in self.site.nodes}
        self._order = list(self.free.values())

    def enqueue(self, job: Job) -> None:
        """The job may start from now on."""
        queue = self._queues.setdefault(_shape(job), deque())
        if queue and queue[-1].number > job.number:
            # A requeued job keeps its place.
            queue.append(job)
            ordered = sorted(queue, key=lambda j: j.number)
            queue.clear()
            queue.extend(ordered)
        else:
            queue.append(job)

    def next_starts(self) -> list[tuple[Job, list[Free]]]:
        """Jobs that start now, with their nodes, already taken from what is free."""
        started = []
        heads = [(queue[0].number, shape) for shape, queue in self._queues.items() if queue]
        heapq.heapify(heads)
        self._search_from.clear()
        while heads:
            _number, shape = heapq.heappop(heads)
            queue = self._queues[shape]
            while queue and (queue[0].held or queue[0].state is not JobState.PENDING):
                queue.popleft()  # a held job keeps its reason, whatever is free
            if not queue:
                continue
            job = queue[0]
            if self._full():
                job.reason = "QOSMaxJobsPerUserLimit"
                break
            if job.throttle is not None and self.running_tasks[job.number] >= job.throttle:
                job.reason = "JobArrayTaskLimit"
                continue
            places = self._fit(job, shape)
            if places is None:
                job.reason = "Resources"
                continue
            queue.popleft()
            for place in places:
                self._take(job, place, -1)
            self._count(job, +1)
            started.append((job, places))
            if queue:
                heapq.heappush(heads, (queue[0].number, shape))
        return started

    def release(self, job: Job) -> None:
        for node in job.nodes:
            self._take(job, self.free[node.name], +1)
        self._count(job, -1)

    def _count(self, job: Job, change: int) -> None:
        self.running += change
        if job.throttle is not None:
            self.running_tasks[job.number] += change

    def could_ever(self, job: Job) -> bool:
        """Whether the site has what the job asks for, were everything free."""
        fitting = [n for n in self.site.nodes if _in(n, job.spec.lane.partition) and _holds(n, job)]
        return len(fitting) >= job.spec.nodes

    def _full(self) -> bool:
        return self.site.max_running_jobs is not None and self.running >= self.site.max_running_jobs

    def _fit(self, job: Job, shape: Shape) -> list[Free] | None:
        spec, found = job.spec, []
        # Within one pass nothing is freed, so a node that was too full for this shape stays so.
        for index in range(self._search_from.get(shape, 0), len(self._order)):
            place = self._order[index]
            if (
                place.up
                and place.cpus >= spec.cpus
                and place.memory_mb >= (spec.memory_mb or 0)
                and place.gpus >= spec.gpus
                and place.node.name not in spec.exclude
                and _in(place.node, spec.lane.partition)
            ):
                found.append(place)
                if len(found) == spec.nodes:
                    self._search_from[shape] = index - spec.nodes + 1 if spec.nodes == 1 else 0
                    return found
        self._search_from[shape] = len(self._order)
        return None

    def _take(self, job: Job, place: Free, sign: int) -> None:
        place.cpus += sign * job.spec.cpus
        place.memory_mb += sign * (job.spec.memory_mb or 0)
        place.gpus += sign * job.spec.gpus


def _shape(job: Job) -> Shape:
    spec = job.spec
    # A throttled array has a queue of its own, so that what it holds back keeps nobody else waiting.
    apart = 0 if job.throttle is None else job.number
    return (spec.lane.partition, spec.nodes, spec.cpus, spec.memory_mb or 0, spec.gpus, spec.exclude, apart)


def _in(node: Node, partition: str) -> bool:
    return partition == EVERYWHERE or not node.partitions or partition in node.partitions


def _holds(node: Node, job: Job) -> bool:
    spec = job.spec
    return node.cpus >= spec.cpus and node.memory_mb >= (spec.memory_mb or 0) and node.gpus >= spec.gpus

"""A noise study: the base tree measured many times, as slots of their own.

Covered: which measures, submitting them spread over nodes, one pass of looking and submitting, what was measured. Not
covered: waiting (the command does), what the values say (climb.noise), keeping the study (noise_store.py).

A study belongs to no run. Its seeds follow from the benchmark's name and its slots from the work, so whoever is killed
asks again and goes on where it was; jobs that were submitted meanwhile ran on, and a tick folds them as any others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

from sqlalchemy import select

from outerloop.climb import MeasureRequest
from outerloop.climb.noise import ENOUGH_NODES, ENOUGH_SEEDS, FEWEST_VALUES, NoiseValue
from outerloop.climb.plan import cached_seed
from outerloop.compute.protocol import NoAnswer, SiteLimits, When
from outerloop.contract import Benchmark, Contract
from outerloop.controller.champions import champion_now
from outerloop.controller.deployment import Deployment, account
from outerloop.controller.git import Mirror, Repository
from outerloop.controller.operate import retry
from outerloop.controller.plan import Planned, Round, ensure_slot, planned_work, read_contract
from outerloop.controller.request import ClimbRequest, champion_key
from outerloop.controller.submit import executions, platform_name, resolve_commit
from outerloop.dispatch.budget import Budget
from outerloop.dispatch.outcomes import share_outcomes
from outerloop.dispatch.settle import cancel_jobs, fold_attempts, live_attempts
from outerloop.dispatch.submit import recover_intents, submit_ready
from outerloop.record.models import Attempt, Slot
from outerloop.settings import Settings
from outerloop.slots import Result, StateRoot

__all__ = ["DEFAULT_NODES", "DEFAULT_REPEATS", "NoSeries", "Series", "SeriesRunner", "SeriesState", "prepare_series"]

DEFAULT_REPEATS = ENOUGH_SEEDS
DEFAULT_NODES = ENOUGH_NODES
SAME_SEED_REPEATS = 4
"""Further values of the first seed of a benchmark that is not declared deterministic: what noise is not the seed's."""
UNAVAILABLE = ("ReqNodeNotAvail", "Nodes required for job")
"""Beginnings of pending reasons that say: of the nodes that are not excluded none is there (squeue manual page)."""


class NoSeries(Exception):
    """There is nothing to study, or it cannot be; the text says why."""


@dataclass(frozen=True)
class Series:
    """The measures of one study. `request` is a climb of the base against itself that is never enqueued."""

    request: ClimbRequest
    contract: Contract
    round_: Round
    measures: tuple[MeasureRequest, ...]

    @property
    def benchmark(self) -> Benchmark:
        return self.contract.benchmark(self.request.benchmark)


def prepare_series(
    settings: Settings,
    root: StateRoot,
    *,
    repository: Path,
    benchmark: str,
    base: str | None,
    repeats: int,
    default: str = "",
    submitter: str = "",
    revision: str = "",
) -> Series:
    """Resolve the base (as a climb would) and list its measures. Pins the base in the mirror, writes nothing else.

    The last three are a service's: the revision that stands for the default branch, who asked, and what the base was
    called there.

    Raises NoSeries, Refusal, GitError, ContractError, ContractGone, LaneError.
    """
    repo = Repository.open(repository)
    mirror = Mirror(root.mirror(repo.identity))
    mirror.ensure()
    branch = default or (repo.default_branch() if base is None else "")
    commit = resolve_commit(repo, mirror, base) if base is not None else repo.commit(branch)
    if not mirror.has(commit):
        mirror.pin(repo, {f"commits/{commit}": commit})
    revision = revision or base or branch
    contract = read_contract(mirror, commit)
    studied = contract.benchmark(benchmark)
    if base is None:
        champion = champion_now(root, champion_key(repo.identity, benchmark, studied.definition_hash()))
        if champion is not None:
            commit, revision = champion.commit, f"champion {champion.seq}"
            contract = read_contract(mirror, commit)
            studied = contract.benchmark(benchmark)
    measures = series_measures(studied, repeats)
    tree = mirror.tree(commit)
    request = ClimbRequest(
        id="noise",
        question="",
        target=repo.identity,
        benchmark=benchmark,
        definition=studied.definition_hash(),
        base_commit=commit,
        base_tree=tree,
        base_revision=revision,
        candidate_commit=commit,
        candidate_tree=tree,
        candidate_revision=revision,
        subject=mirror.subject(commit) if base is not None else "",
        promotable=False,
        submitter=submitter or account(),
        repository=str(repo.top),
        created_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        execution=executions(settings, repo, (studied,)),
        platform=platform_name(),
        gpu_hours=None if contract.budgets.gpu_hours is None else float(contract.budgets.gpu_hours),
    )
    round_ = Round(0, commit, tree, 0, False, (), 0, (), {})
    return Series(request, contract, round_, measures)


def series_measures(benchmark: Benchmark, repeats: int) -> tuple[MeasureRequest, ...]:
    """What to measure: one value per seed, and a few more of the first seed; or replicates where there is no seed.

    The same repeats always give the same measures, and more of them begin with those: a longer study goes on from a
    shorter one. They are the base measurements of a cached baseline too. Raises NoSeries.
    """
    if repeats < FEWEST_VALUES:
        raise NoSeries(f"--repeats {repeats}: a noise study needs at least {FEWEST_VALUES} values")
    if benchmark.deterministic and not benchmark.seed_env:
        raise NoSeries(
            f"{benchmark.name} takes no seed and is declared deterministic: a tree has one value, so there is no noise"
            " to study. If values differ all the same, take `deterministic = true` out"
        )
    if not benchmark.seed_env:
        return tuple(
            MeasureRequest(f"noise-{i}", benchmark.name, "base", i, seed=0, replicate=i + 1) for i in range(repeats)
        )
    seeded = [
        MeasureRequest(f"noise-{i}", benchmark.name, "base", i, cached_seed(benchmark.name, i)) for i in range(repeats)
    ]
    if not benchmark.deterministic:
        first = seeded[0].seed
        seeded += [
            MeasureRequest(f"noise-same-seed-{i}", benchmark.name, "base", repeats + i, first, replicate=i)
            for i in range(1, SAME_SEED_REPEATS + 1)
        ]
    return tuple(seeded)


@dataclass(frozen=True)
class Measured:
    """One value with where it was measured, for people and for the stored study."""

    role: str
    seed: int
    replicate: int
    value: Decimal
    node: str
    job_id: str
    slot: str


@dataclass
class SeriesState:
    """How far a study is."""

    total: int
    measured: list[Measured] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    """A sentence for each slot that gave no value although its command ran: the base's own failure."""
    exhausted: list[tuple[str, str]] = field(default_factory=list)
    """(digest, sentence) of slots whose attempts are used up."""
    live: Counter[str] = field(default_factory=Counter)
    """Live jobs by the state and reason that the queue last showed."""
    notes: list[str] = field(default_factory=list)

    @property
    def rests(self) -> bool:
        """Nothing more will happen by itself."""
        return len(self.measured) + len(self.failed) + len(self.exhausted) >= self.total

    def noise_values(self) -> list[NoiseValue]:
        return [NoiseValue(m.value, m.seed, m.node, m.replicate) for m in self.measured]


class SeriesRunner:
    """Brings one study forward; every pass can be the last of this process."""

    def __init__(
        self,
        deployment: Deployment,
        series: Series,
        *,
        nodes: int = DEFAULT_NODES,
        limits: SiteLimits | NoAnswer | None = None,
        submitter_gpu_hours: float | None = None,
    ) -> None:
        """`limits`: what the site says of itself, asked for where it is not given."""
        self.deployment = deployment
        self.context = deployment.context
        self.series = series
        self.planned = self._planned()
        self.submitter_gpu_hours = submitter_gpu_hours
        self.share = self._share(nodes, limits)

    def _planned(self) -> list[Planned]:
        mirror = Mirror(self.context.root.mirror(self.series.request.target))
        planned = planned_work(
            self.context.root,
            mirror,
            self.series.contract,
            self.series.request,
            self.series.round_,
            self.series.measures,
        )
        first = {item.work.digest: item for item in reversed(planned)}
        return [item for item in planned if first[item.work.digest] is item]

    def _share(self, nodes: int, limits: SiteLimits | NoAnswer | None) -> int:
        """The most values that one node should give; all of them where nodes can't be chosen."""
        total = len(self.series.measures)
        if limits is None and nodes > 1:
            limits = self.context.compute.limits()
        if limits is None or isinstance(limits, NoAnswer) or nodes <= 1:
            return total
        lane = self.series.request.execution[self.series.request.benchmark].lane
        partition = str(lane.get("partition") or "")
        known = limits.partitions.get(partition) if partition else _default_partition(limits.partitions)
        there = (known or {}).get("TotalNodes", "")
        self.there = int(there) if there.isdigit() else 1
        return total if self.there <= 1 else math.ceil(total / min(nodes, self.there))

    def enter(self) -> None:
        """Publish the specs and commit the slots. Repeating it changes nothing."""
        for item in self.planned:
            self.context.slot(item.work.digest).write_spec(item.work.determinants.canonical(), item.work.facts)
        with self.context.record.transaction("tx.plan") as session:
            for item in sorted(self.planned, key=lambda p: p.work.digest):
                ensure_slot(session, self.context, self.context.record.realm_id, self.series.request, item.work)

    def look(self, *, fresh: bool = True) -> SeriesState:
        """One pass: fold what the queue and the files show, submit what can go, say how far it is.

        Without `fresh`, the queue is what this process saw of it before.
        """
        notes = self._fold(fresh=fresh)
        slots = self._slots()
        if any(slot.state == "collected" for slot in slots):
            # Values of an earlier study that this one uses, too: no run has asked for them, so a collection takes them.
            self.enter()
            slots = self._slots()
        notes += self._submit(slots)
        return self._state(notes)

    def _slots(self) -> list[Slot]:
        digests = [item.work.digest for item in self.planned]
        realm = self.context.record.realm_id
        with self.context.record.reading() as session:
            found = {
                slot.digest: slot
                for slot in session.scalars(select(Slot).where(Slot.realm_id == realm, Slot.digest.in_(digests)))
            }
        return [found[digest] for digest in digests]

    def _live(self, slots: Sequence[Slot]) -> list[Attempt]:
        with self.context.record.reading() as session:
            return live_attempts(session, self.context.record.realm_id, [slot.id for slot in slots])

    def _fold(self, *, fresh: bool) -> list[str]:
        slots = self._slots()
        attempts = self._live(slots)
        if not attempts:
            return []
        if fresh:
            self.deployment.forget_observation()
        observation = self.deployment.observation()
        recovered, _report = recover_intents(self.context, observation, attempts)
        folded = fold_attempts(self.context, observation, self._live(slots))
        recovered.raise_first()
        folded.raise_first()
        return [*recovered.notes, *folded.notes]

    def _submit(self, slots: Sequence[Slot]) -> list[str]:
        ids = {slot.id: slot for slot in slots}
        attempts = self._live(slots)
        notes = self._free_the_stuck(attempts)
        unbuilt = [slot for slot in slots if slot.kind == "environment" and slot.state != "done"]
        busy = {attempt.slot_id for attempt in attempts}
        ready = [
            slot.id
            for slot in slots
            if slot.state == "open" and slot.id not in busy and (slot.kind == "environment" or not unbuilt)
        ]
        unplaced = sum(1 for attempt in attempts if not attempt.node and ids[attempt.slot_id].kind != "environment")
        ready = ready[: max(0, self.share - unplaced)]
        if not ready:
            return notes
        limits = [self.deployment.settings.budgets.gpu_hours, self.series.request.gpu_hours]
        hours = min((float(limit) for limit in limits if limit is not None), default=None)
        exclude = self._full_nodes(slots)
        report = submit_ready(
            self.context,
            None,
            ready,
            Budget(gpu_hours=hours, submitter_gpu_hours=self.submitter_gpu_hours),
            lease_seconds=self.context.patience.lease,
            exclude=exclude,
        )
        share_outcomes(self.context, report.arrays)
        if report.over_budget is not None:
            raise NoSeries(str(report.over_budget))
        if exclude and any(refused.when is not When.LATER for refused in report.refused):
            # no other node can run it: the refusal is about our exclusion, not about the work
            self.share = len(self.series.measures)
            for slot_id in ready:
                if self._is_exhausted(slot_id):
                    retry(self.deployment, ids[slot_id].digest)
            return [*notes, "no further node can run it; the rest goes to the nodes that have done some"]
        notes += [f"refused: {refused.reason} {refused.detail}".strip() for refused in report.refused]
        return notes + [f"no answer to the submission of {name}; it will be looked for" for name in report.unknown]

    def _is_exhausted(self, slot_id: int) -> bool:
        with self.context.record.reading() as session:
            return session.scalar(select(Slot.state).where(Slot.id == slot_id)) == "exhausted"

    def _full_nodes(self, slots: Sequence[Slot]) -> list[str]:
        """Nodes that gave or are giving their share, as long as another one is left."""
        if self.share >= len(self.series.measures):
            return []
        held: Counter[str] = Counter()
        with self.context.record.reading() as session:
            for attempt in session.scalars(select(Attempt).where(Attempt.slot_id.in_([slot.id for slot in slots]))):
                if attempt.node and (attempt.state != "settled" or attempt.outcome == "done"):
                    held[attempt.node] += 1
        full = sorted(node for node, count in held.items() if count >= self.share)
        return full if len(full) < self.there else []

    def _free_the_stuck(self, attempts: Sequence[Attempt]) -> list[str]:
        """Jobs that wait for nodes that are not there lose their exclusions: cancelled, and submitted anew."""
        stuck = [
            attempt
            for attempt in attempts
            if attempt.slurm_state == "pending" and attempt.slurm_reason.startswith(UNAVAILABLE) and attempt.job_id
        ]
        if not stuck or self.share >= len(self.series.measures):
            return []
        self.share = len(self.series.measures)
        with self.context.record.transaction("tx.operator") as session:
            for attempt in session.scalars(select(Attempt).where(Attempt.id.in_([a.id for a in stuck]))):
                attempt.cancel_reason = "noise study: the nodes that it was to run on are not available"
        refused = cancel_jobs(self.context, [attempt.job_id or "" for attempt in stuck])
        told = f"{len(stuck)} jobs waited for nodes that are not available; they go where there is room"
        return [told, *([f"they could not be cancelled: {refused.why}"] if refused is not None else [])]

    def _state(self, notes: list[str]) -> SeriesState:
        slots = {slot.digest: slot for slot in self._slots()}
        attempts = self._live(list(slots.values()))
        nodes = self._nodes_of(list(slots.values()))
        state = SeriesState(total=len(self.series.measures), notes=notes)
        broken = next(
            (s for s in slots.values() if s.kind == "environment" and s.state in {"failed", "exhausted"}), None
        )
        for item in self.planned:
            measure, slot = item.measure, slots[item.work.digest]
            if measure is None:
                continue
            result = Result(slot.pinned_attempt or 0, "", 0, slot.result or {})
            if slot.state == "done" and result.value is not None:
                state.measured.append(
                    Measured(
                        measure.role,
                        measure.seed,
                        measure.replicate,
                        result.value,
                        nodes.get(slot.id) or result.host,
                        str(result.body.get("job_id") or ""),
                        slot.digest,
                    )
                )
            elif slot.state == "failed":
                seed = f" with seed {measure.seed}" if measure.seed else ""
                state.failed.append(f"{measure.role}{seed}: {slot.reason}: {slot.detail or result.detail}")
            elif slot.state == "exhausted":
                state.exhausted.append((slot.digest, f"{measure.role}: {slot.reason}: {slot.detail}"))
            elif broken is not None:
                state.exhausted.append(
                    (broken.digest, f"its environment could not be built ({broken.reason}): {broken.detail}")
                )
        for attempt in attempts:
            reason = f" ({attempt.slurm_reason})" if attempt.slurm_state == "pending" and attempt.slurm_reason else ""
            state.live[f"{attempt.slurm_state or attempt.state}{reason}"] += 1
        return state

    def _nodes_of(self, slots: Sequence[Slot]) -> dict[int, str]:
        pinned = {slot.id: slot.pinned_attempt for slot in slots if slot.pinned_attempt}
        with self.context.record.reading() as session:
            found = session.scalars(select(Attempt).where(Attempt.slot_id.in_(pinned)))
            return {attempt.slot_id: attempt.node for attempt in found if attempt.n == pinned[attempt.slot_id]}


def _default_partition(partitions: object) -> dict[str, str] | None:
    if not isinstance(partitions, dict):
        return None
    chosen = [facts for facts in partitions.values() if facts.get("Default") == "YES"]
    return chosen[0] if chosen else next(iter(partitions.values()), None) if len(partitions) == 1 else None

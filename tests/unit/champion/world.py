"""A campaign in memory: a controller that follows the package docstring to the letter, and jobs that end by hash.

Not a mock of anything: the pure core is the real one. Slots remember what was submitted, so a repeated training
shows. The controller can be killed after any append, and a new one goes on from the ledger and the slots.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from outerloop.champion import (
    CampaignConfig,
    CampaignState,
    CandidateList,
    DispatchEvent,
    EvalEvent,
    Event,
    GenerationEvent,
    Job,
    PackageEvent,
    Record,
    Scored,
    TeacherEvent,
    TrainingEnd,
    Work,
    apply,
    evaluation_events,
    fold,
    next_work,
    parse_campaign,
    parse_candidates,
    ready_order,
    stamped,
    training_event,
)

CAMPAIGN = """
name = "digits"
candidates = "candidates.toml"
teacher_file = "teacher/g{generation}.npz"
[commands]
split = "split --seed {seed} --out {output}"
train = "train {config} --out {output}"
evaluate = "evaluate {jobs}"
teacher = "average {margins} {output}"
ensemble = "ensemble {manifest} {output} {scores_output}"
package = "package {checkpoint} {manifest}"
"""

CANDIDATES = """
[[candidates]]
name = "small"
base = "base.yaml"
[[candidates]]
name = "wide"
base = "base.yaml"
overrides = { width = 64 }
[[candidates]]
name = "student"
base = "base.yaml"
overrides = { gate_soft_targets = "teacher/g{generation}.npz" }
"""

ITEMS = 60


def campaign(**changes: Any) -> CampaignConfig:
    """The campaign above with some top-level keys changed."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in {"max_rounds": 4, **changes}.items()]
    return parse_campaign("\n".join(lines) + "\n" + CAMPAIGN)


def candidate_list(text: str = CANDIDATES) -> CandidateList:
    return parse_candidates(text)


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def number(value: Any, below: int) -> int:
    """A whole number in 0..below-1 that only depends on the value."""
    return int(digest(value)[:12], 16) % below


@dataclass
class World:
    """Ledger and slots, which outlive controllers, and the config and candidates they are driven by."""

    config: CampaignConfig
    candidates: Any = field(default_factory=candidate_list)
    salt: int = 0
    mishaps: bool = True
    ledger: list[Event] = field(default_factory=list)
    ended: set[str] = field(default_factory=set)
    submissions: Counter[str] = field(default_factory=Counter)
    slots: dict[str, Job] = field(default_factory=dict)

    def controller(
        self, look: Callable[[CampaignState, list[Work]], None] | None = None, most: int = 20_000
    ) -> Iterator[CampaignState]:
        """One process: yields after each append, so that it can be dropped there. Ends when nothing is left."""
        state = fold(self.ledger)

        def append(event: Event) -> CampaignState:
            assert len(self.ledger) < most, "the campaign does not come to an end"
            self.ledger.append(stamped(event, state.seq + 1))
            apply(state, self.ledger[-1])
            return state

        def records() -> Iterator[CampaignState]:
            while True:
                work = next_work(state, self.config, self.candidates)
                if look is not None:
                    look(state, work)
                if not (work and isinstance(work[0], Record)):
                    return
                yield append(work[0].event)

        while True:
            yield from records()
            while owed := self._harvest(state):
                yield append(owed[0])
                yield from records()
            handed_out = False
            for job in next_work(state, self.config, self.candidates):
                assert isinstance(job, Job)
                if not job.live:
                    handed_out = True
                    yield append(DispatchEvent(action="launched", job=job))
                self._ask(job)
                packaging = state.packaging
                if job.kind == "package" and packaging.running is not None and not packaging.announced:
                    subject = packaging.running.subject
                    yield append(PackageEvent(status="launched", generation=job.generation, subject=subject))
                if handed_out:
                    break  # a record may be due by now
            if handed_out:
                continue
            if not state.live:
                return
            # Parked: while nobody looks, all jobs come to their end.
            self.ended |= set(state.live)

    def run(self, **kwargs: Any) -> CampaignState:
        """Undisturbed, to the end."""
        state = fold(self.ledger)
        for latest in self.controller(**kwargs):
            state = latest
        return state

    def _ask(self, job: Job) -> None:
        slot = digest(job.determinants())
        if slot not in self.slots:
            self.slots[slot] = job
            self.submissions[job.kind] += 1

    def _luck(self, what: Any, below: int) -> int:
        return number([self.salt, what], below)

    def _harvest(self, state: CampaignState) -> list[Event]:
        events: list[Event] = []
        evaluations: list[EvalEvent] = []
        for key in sorted(state.live):
            job = state.live[key].job
            if key not in self.ended:
                continue
            if job.kind == "evaluate" and job.role != "development":
                evaluations += evaluation_events(state, job, self._scores(job))
            else:
                events.append(self._end(state, job))
        return [*events, *ready_order(evaluations)]

    def _end(self, state: CampaignState, job: Job) -> Event:
        slot = digest(job.determinants())
        if job.kind == "split":
            return GenerationEvent(status="split_ready", generation=job.generation, split_sha256=slot)
        if job.kind == "train":
            return training_event(job, self.config, self._training(job))
        if job.kind == "package":
            subject = job.awaits[0].removeprefix("package:")
            return PackageEvent(status="finished", generation=job.generation, subject=subject, exit_code=0)
        attempt = int(job.key.split("/a")[1].split("/")[0])
        if job.kind == "teacher":
            return TeacherEvent(
                status="finished",
                generation=job.generation,
                attempt=attempt,
                path=str(job.fields["teacher_file"]),
                sha256=slot,
            )
        group = job.awaits[0].split(":", 3)[3]
        return TeacherEvent(status="margins", generation=job.generation, attempt=attempt, group=group, sha256=slot)

    def _training(self, job: Job) -> TrainingEnd:
        luck = self._luck(["train", job.run_id], 12) if self.mishaps else 11
        if luck == 0:
            return TrainingEnd(exit_code=1)
        if luck == 1:
            return TrainingEnd(exit_code=self.config.no_eligible_exit_code, marker=True)
        if luck == 2:
            return TrainingEnd(exit_code=0, selection='{"checkpoint": "best"}')
        names = [f"model-{epoch:04d}" for epoch in (1, 5, 10)]
        kept = names[1:] if luck == 3 else names
        return TrainingEnd(
            exit_code=0,
            selection=json.dumps({"checkpoint": names[2], "false_negatives": 1}),
            pareto=json.dumps({"checkpoints": [{"checkpoint": name} for name in names[:2]]}),
            checkpoints={name: digest([job.run_id, name]) for name in kept},
            validation={name: json.dumps({"gate_auc": 0.5 + luck / 100}) for name in kept[1:]},
            validation_scores={name: digest([job.run_id, name, "scores"]) for name in kept[1:]},
            config_sha256=digest(job.fields),
            inputs_sha256=digest(["inputs", job.fields["base"], job.reads["split"]]),
        )

    def _scores(self, job: Job) -> dict[str, Scored]:
        if self.mishaps and self._luck(["evaluator died", job.run_id, job.role], 15) == 0:
            return {}
        prefix = f"eval:{job.role}:{job.run_id}/"
        names = [outcome.removeprefix(prefix) for outcome in job.awaits]
        sha = {member.checkpoint: member.checkpoint_sha256 for member in job.members}
        return {
            name: Scored(
                json.dumps(self._report(job, name, "" if job.ensemble else sha[name])),
                scores_sha256=digest([job.run_id, name, job.role]),
            )
            for name in names
        }

    def _report(self, job: Job, name: str, sha: str) -> dict[str, Any]:
        what = [job.run_id, name, job.role]
        luck = self._luck(["report", *what], 20) if self.mishaps else 19
        missed, spoiled = self._luck(["f", *what], 15), self._luck(["p", *what], 15)
        report: dict[str, Any] = {
            "fail_count": ITEMS,
            "fail_to_pass_count": missed,
            "pass_count": ITEMS,
            "pass_correct_count": ITEMS - spoiled,
            "macro_f1": 0.9,
            "s_f1": 0.8,
            "checkpoint_sha256": sha,
        }
        if luck == 0:
            report["fail_count"] = 0
        if luck == 1:
            report["fail_to_pass_count"] = ITEMS + 1
        if luck == 2:
            del report["pass_count"]
        if luck == 4:
            report["fail_count"] = ITEMS + 1
        has_band = any(member.band_scores_sha256 for member in job.members) or job.reads.get("band_scores")
        if has_band and luck != 3:
            rejected = self._luck(["r", *what], 5)
            report["decided"] = {
                "fail_count": ITEMS - rejected,
                "fail_to_pass_count": max(0, missed - rejected),
                "pass_count": ITEMS,
                "pass_correct_count": ITEMS - spoiled,
                "rejected_total": rejected,
            }
        return report

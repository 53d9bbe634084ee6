"""Rows of the record for tests of what people see: a real Postgres, a real mirror, files as jobs leave them.

Covered: one realm with runs in every state, with fixed times, so that what is printed can be compared with a file.
Not covered: how rows come about (the dispatcher's own tests).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from outerloop.climb import Facts, Reading, Verdict, next_step
from outerloop.controller.deployment import account
from outerloop.controller.git import Mirror
from outerloop.controller.plan import Round, climb_plan, read_contract
from outerloop.controller.request import ClimbRequest
from outerloop.record.models import Attempt, Await, Champion, Event, Heartbeat, Measure, Run, Slot, Wake
from outerloop.record.store import Record
from outerloop.slots import StateRoot

CONTRACT = """\
[[benchmarks]]
name = "tsp"
command = "python3 -m bench.tsp"
metric = "tour_length"
direction = "min"
seed_env = "TSP_SEED"
minutes = 2
min_delta_rel = 0.005

[scope]
allowed = ["solver/"]
"""
TARGET = "tours-0a1b2c3d"
DAY = datetime(2026, 1, 2, 3, 0, 0, tzinfo=UTC)
"""When everything with a fixed time happened."""


def at(minutes: float) -> datetime:
    return DAY + timedelta(minutes=minutes)


@dataclass
class World:
    """A record and a state folder of one realm."""

    url: str
    state: Path
    record: Record
    base: str = ""
    candidate: str = ""
    _numbers: dict[str, int] = field(default_factory=dict)

    @property
    def root(self) -> StateRoot:
        return StateRoot(self.state)

    def environment(self, **more: str) -> dict[str, str]:
        """What a command needs to find this world, and nothing of the caller's."""
        return {
            "OUTERLOOP_STATE": str(self.state),
            "OUTERLOOP_DATABASE_URL": self.url,
            "OUTERLOOP_BACKEND": "local",
            "OUTERLOOP_CONFIG": str(self.state / "config.toml"),
            "TZ": "UTC",
            "HOME": str(self.state),
            **more,
        }

    @contextmanager
    def session(self) -> Iterator[Session]:
        with self.record.transaction("tx.fold") as session:
            yield session

    def _next(self, what: str) -> int:
        self._numbers[what] = self._numbers.get(what, 0) + 1
        return self._numbers[what]

    # -- git

    def make_target(self, contract: str = CONTRACT) -> None:
        """A mirror with two commits, the same ids each time."""
        mirror = Mirror(self.root.mirror(TARGET))
        mirror.ensure()
        fixed = {f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in _WHO.items()}
        environment = {**os.environ, **fixed, "GIT_DIR": str(mirror.path)}

        def git(*arguments: str, data: str | None = None) -> str:
            done = subprocess.run(
                ["git", *arguments], env=environment, input=data, text=True, capture_output=True, check=True
            )
            return done.stdout.strip()

        contract_blob = git("hash-object", "-w", "--stdin", data=contract)
        commits: list[str] = []
        for body in ("slow = True\n", "slow = False\n"):
            blob = git("hash-object", "-w", "--stdin", data=body)
            folder = git("mktree", data=f"100644 blob {blob}\ttsp.py\n")
            tree = git("mktree", data=f"100644 blob {contract_blob}\t.outerloop.toml\n040000 tree {folder}\tsolver\n")
            parent = ["-p", commits[-1]] if commits else []
            commits.append(git("commit-tree", tree, *parent, "-m", "a tour"))
            git("update-ref", f"refs/outerloop/{len(commits)}", commits[-1])
        self.base, self.candidate = commits

    # -- rows

    def run(self, run_id: str, **fields: Any) -> Run:
        """A run's row; a queued climb asked at `at(0)` unless said otherwise."""
        base, candidate = self.base or "b" * 40, self.candidate or "c" * 40
        request = ClimbRequest(
            id=run_id,
            question=f"{self._next('question'):064x}",
            target=TARGET,
            benchmark=fields.get("benchmark", "tsp"),
            definition="d" * 64,
            base_commit=base,
            base_tree="1" * 40,
            base_revision="main",
            candidate_commit=candidate,
            candidate_tree="2" * 40,
            candidate_revision="HEAD",
            subject=fields.get("label", "2-opt until no swap helps"),
            submitter="ada",
            repository="/home/ada/tours",
            created_at=at(0).isoformat(),
            execution={fields.get("benchmark", "tsp"): {"lane": {"name": "default"}}},
        )
        values: dict[str, Any] = {
            "realm_id": self.record.realm_id,
            "kind": "climb",
            "question": request.question,
            "target": TARGET,
            "benchmark": request.benchmark,
            "definition": request.definition,
            "base_commit": base,
            "base_tree": request.base_tree,
            "candidate_commit": candidate,
            "candidate_tree": request.candidate_tree,
            "submitter": "ada",
            "label": request.subject,
            "request": request.to_json(),
            "created_at": at(0),
            "updated_at": at(0),
            **fields,
        }
        row = Run(id=run_id, **values)
        with self.session() as session:
            session.add(row)
        return row

    def measure(self, run_id: str, role: str, *, slot: dict[str, Any] | None = None, **fields: Any) -> int:
        """A measure with a slot of its own; returns the slot's id."""
        number = self._next("slot")
        side = "base" if "base" in role else "candidate"
        body: dict[str, Any] = {
            "realm_id": self.record.realm_id,
            "digest": f"{number:02x}" * 32,
            "label": role,
            "target": TARGET,
            "submitter": "ada",
            "order": {"minutes": 2.0},
            **(slot or {}),
        }
        with self.session() as session:
            made = Slot(**body)
            session.add(made)
            session.flush()
            session.add(
                Measure(
                    run_id=run_id,
                    slot_id=made.id,
                    role=role,
                    **{"benchmark": "tsp", "side": side, "pair": 0, "seed": 4711, **fields},
                )
            )
            return made.id

    def attempt(self, slot_id: int, n: int = 1, *, awaited_by: str = "", **fields: Any) -> None:
        """A submission of the slot; a live job 900…, unless `outcome` says how it ended."""
        number = self._next("job")
        settled = "outcome" in fields
        values: dict[str, Any] = {
            "realm_id": self.record.realm_id,
            "slot_id": slot_id,
            "n": n,
            "state": "settled" if settled else "submitted",
            "job_name": f"ol-test-{number}",
            "job_id": str(9000 + number),
            "minutes": 7.0,
            "command_minutes": 2.0,
            "intent_at": at(1),
            "submitted_at": at(1),
            "settled_at": at(3) if settled else None,
            **fields,
        }
        with self.session() as session:
            row = Attempt(**values)
            session.add(row)
            session.flush()
            if awaited_by:
                session.add(Await(run_id=awaited_by, attempt_id=row.id))

    def value(self, run_id: str, role: str, printed: str, *, node: str = "n1", n: int = 1, **fields: Any) -> int:
        """A measure that is done, with the value that its job printed."""
        result = {
            "outcome": "ok",
            "metric": {"name": "tour_length", "text": printed},
            "guards": {},
            "phases": {"command": {"seconds": 12.25}},
            "cpus_seen": 2,
            "max_rss_mb": 81.5,
            "host": node,
            "job_id": str(9001 + self._numbers.get("job", 0)),
        }
        slot = {"state": "done", "pinned_attempt": n, "pinned_restart": 0, "result": result, "settled_at": at(3)}
        slot_id = self.measure(run_id, role, slot=slot, **fields)
        self.attempt(slot_id, n, outcome="done", slurm_state="completed", node=node)
        return slot_id

    def event(self, run_id: str, kind: str, body: dict[str, Any], *, minutes: float = 0.5) -> None:
        with self.session() as session:
            seq = session.execute(text("select count(*) from events where run_id = :r"), {"r": run_id}).scalar_one()
            session.add(Event(run_id=run_id, seq=seq, kind=kind, body=body, at=at(minutes)))

    def round(self, run_id: str) -> dict[str, Any]:
        body = {
            "round": 0,
            "base_commit": self.base,
            "base_tree": "1" * 40,
            "champion_seq": 0,
            "promotable": True,
            "siblings": [],
            "replicate_start": 5000,
            "pair_seeds": [4711],
            "suite_seeds": {},
            "prior_pairs": 0,
        }
        self.event(run_id, "round", body)
        return body

    def wake(self, run_id: str, **fields: Any) -> None:
        values = {"state": "submitted", "job_id": "9500", "awaited": [], "created_at": at(1.5), **fields}
        with self.session() as session:
            session.add(
                Wake(
                    realm_id=self.record.realm_id,
                    run_id=run_id,
                    number=self._next(f"wake {run_id}"),
                    job_name=f"ol-test-wake-{self._next('wake')}",
                    **values,
                )
            )

    def champion(self, seq: int, run_id: str, value: str, gain: str, **fields: Any) -> None:
        values: dict[str, Any] = {
            "target": TARGET,
            "benchmark": "tsp",
            "definition": "d" * 64,
            "commit": f"{seq:x}" * 40,
            "tree": f"{seq:x}" * 40,
            "label": "",
            "accepted_at": at(60 * seq),
            **fields,
        }
        with self.session() as session:
            session.add(
                Champion(realm_id=self.record.realm_id, seq=seq, run_id=run_id, value=value, gain=gain, **values)
            )

    def tick(self, seconds_ago: float, *, answered: bool = True, host: str = "login1") -> None:
        """The heartbeat of a tick that ended so long ago."""
        with self.session() as session:
            session.merge(
                Heartbeat(
                    realm_id=self.record.realm_id,
                    name="tick",
                    host=host,
                    body={"queue_answered": answered},
                    at=self.record.now() - timedelta(seconds=seconds_ago),
                )
            )

    def ago(self, **duration: float) -> datetime:
        return self.record.now() - timedelta(**duration)

    # -- whole runs

    def accepted(self, run_id: str = "c-acce000001") -> Verdict:
        """A climb that ended as accepted, judged by the judge."""
        if not self.base:
            self.make_target()
        row = self.run(run_id)
        self.round(run_id)
        self.value(run_id, "baseline", "7910", node="n1")
        self.value(run_id, "candidate", "7542.0", node="n2")
        mirror = Mirror(self.root.mirror(TARGET))
        request = ClimbRequest.model_validate(row.request)
        with self.record.reading() as session:
            body = session.execute(
                text("select body from events where run_id = :r and kind = 'round'"), {"r": run_id}
            ).scalar_one()
        from outerloop.controller.ledger import LedgerEvent

        plan = climb_plan(read_contract(mirror, self.base), request, Round.of(LedgerEvent(0, "round", body, at(0.5))))
        readings = {
            role: Reading(
                role,
                "value",
                value=Decimal(value),
                facts=Facts(cpus_seen=2, node=node, job_id=job, slot=role, attempt=1, seed=4711),
            )
            for role, value, node, job in (("baseline", "7910", "n1", "1"), ("candidate", "7542.0", "n2", "2"))
        }
        verdict = next_step(plan, readings)
        assert isinstance(verdict, Verdict), verdict
        self.event(run_id, "verdict", {"round": 0, "verdict": verdict.to_json(), "champion_seq": 1}, minutes=4)
        self.end(run_id, verdict.outcome, verdict.reason, verdict.sentence, verdict.to_json())
        return verdict

    def end(
        self,
        run_id: str,
        outcome: str,
        reason: str,
        sentence: str,
        evidence: dict[str, Any] | None = None,
        ended_at: datetime | None = None,
    ) -> None:
        with self.session() as session:
            row = session.get_one(Run, run_id)
            row.state, row.verdict, row.verdict_reason, row.sentence = "ended", outcome, reason, sentence
            row.evidence, row.due_at, row.ended_at = evidence, None, ended_at or at(4)


_WHO = {"NAME": "ada", "EMAIL": "ada@example.org", "DATE": "2026-01-01T00:00:00Z"}


def make_world(url: str, state: Path) -> World:
    """A realm of this account in a fresh database."""
    state.mkdir(parents=True, exist_ok=True)
    (state / "config.toml").write_text("", encoding="utf-8")
    return World(url, state, Record(url, owner=account(), slot_root=str(state)))

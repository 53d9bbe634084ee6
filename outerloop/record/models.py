"""Tables of the record. The rules that must never be broken are constraints here, not code elsewhere.

Covered: SQLAlchemy typed models. Not covered: transactions (store.py), migrations (migrations/), the server.

A *realm* is one owner (Unix account) with one slot root; every uniqueness rule of work begins with it. States are
text with CHECK constraints. Times are the database's own `now()`.

Rules kept by the database:
* one slot per (realm, digest); one attempt per (slot, n);
* at most one open attempt per slot (partial unique index `one_open_attempt`);
* a job's name is unique in its realm, an array's and that of an attempt that goes out alone: a job found by name has
  one owner;
* an attempt that goes out in an array names the array and its task there, each task of an array once;
* one run per (realm, question): asking the same thing twice finds the run that exists;
* one measure per (run, round, role);
* one event per (campaign, seq): who appends after an older state loses;
* one champion per (realm, target, benchmark, definition, seq);
* a pinned slot carries its attempt; a settled attempt its outcome; an ended run its verdict.
"""

# No annotations from __future__: SQLAlchemy would have to compile each of these texts in every process that starts.
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    DateTime,
    Float,
    ForeignKey,
    Identity,
    Index,
    Integer,
    MetaData,
    Text,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

__all__ = [
    "REVISION",
    "Array",
    "Attempt",
    "Await",
    "Base",
    "CampaignEvent",
    "Champion",
    "Event",
    "Heartbeat",
    "Lease",
    "Measure",
    "Realm",
    "Run",
    "Slot",
    "Wake",
]

REVISION = "0005"
"""The migration that these models are; a test compares it with the newest one."""

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s",
    "pk": "pk_%(table_name)s",
}

Timestamp = DateTime(timezone=True)


class Base(DeclarativeBase):
    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy reads this class attribute
        str: Text,
        datetime: Timestamp,
        dict[str, Any]: JSONB,
        list[str]: ARRAY(Text),
        int: Integer,
        float: Float,
        bool: Boolean,
    }


class Realm(Base):
    """One owner with one slot root."""

    __tablename__ = "realms"
    __table_args__ = (UniqueConstraint("owner", "slot_root"),)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    owner: Mapped[str]
    slot_root: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class Run(Base):
    """A climb, entry, campaign or training: the unit that is parked, woken and ended."""

    __tablename__ = "runs"
    __table_args__ = (
        UniqueConstraint("realm_id", "question", "ask"),
        CheckConstraint("state in ('queued', 'waiting', 'blocked', 'ended')", name="state"),
        CheckConstraint("kind in ('climb', 'entry', 'campaign', 'training')", name="kind"),
        CheckConstraint("(state = 'ended') = (verdict is not null)", name="verdict_iff_ended"),
        CheckConstraint("state <> 'blocked' or state_reason <> ''", name="blocked_has_reason"),
        Index("ix_runs_due", "realm_id", "due_at", postgresql_where=text("state in ('queued', 'waiting')")),
        Index("ix_runs_state", "realm_id", "state", "created_at"),
        Index("unreleased_runs", "realm_id", "id", postgresql_where=text("state = 'ended' and not released")),
        Index("ix_runs_target", "realm_id", "target", "benchmark", "created_at"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    realm_id: Mapped[int] = mapped_column(ForeignKey("realms.id"))
    kind: Mapped[str]
    question: Mapped[str]
    """SHA-256 of what is asked; with `ask` it makes asking twice one run."""
    ask: Mapped[int] = mapped_column(server_default="0")
    target: Mapped[str]
    benchmark: Mapped[str]
    definition: Mapped[str]
    """Hash of the benchmark's definition: what makes two champions comparable."""
    base_commit: Mapped[str]
    base_tree: Mapped[str]
    candidate_commit: Mapped[str]
    candidate_tree: Mapped[str]
    submitter: Mapped[str]
    label: Mapped[str] = mapped_column(server_default="")
    """The candidate's commit subject, for people."""
    request: Mapped[dict[str, Any]]
    state: Mapped[str] = mapped_column(server_default="queued")
    state_reason: Mapped[str] = mapped_column(server_default="")
    state_detail: Mapped[str] = mapped_column(server_default="")
    round: Mapped[int] = mapped_column(server_default="0")
    verdict: Mapped[str | None]
    verdict_reason: Mapped[str | None]
    sentence: Mapped[str | None]
    evidence: Mapped[dict[str, Any] | None]
    """The verdict with every number behind it."""
    priority: Mapped[int] = mapped_column(server_default="0")
    due_at: Mapped[datetime | None] = mapped_column(server_default=func.now())
    released: Mapped[bool] = mapped_column(server_default=text("false"))
    """Ended, and no job is live any more that nobody else wants."""
    last_error: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    updated_at: Mapped[datetime] = mapped_column(server_default=func.now())
    ended_at: Mapped[datetime | None]


class Slot(Base):
    """A piece of work, named by what determines its result."""

    __tablename__ = "slots"
    __table_args__ = (
        UniqueConstraint("realm_id", "digest"),
        CheckConstraint("state in ('open', 'done', 'failed', 'exhausted', 'collected')", name="state"),
        CheckConstraint("state <> 'done' or pinned_attempt is not null", name="done_is_pinned"),
        CheckConstraint(
            "failure_class is null or failure_class in ('candidate', 'infrastructure', 'environment', 'user')",
            name="failure_class",
        ),
        CheckConstraint("state not in ('failed', 'exhausted') or reason <> ''", name="failure_has_reason"),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    realm_id: Mapped[int] = mapped_column(ForeignKey("realms.id"))
    digest: Mapped[str]
    kind: Mapped[str] = mapped_column(server_default="measure")
    label: Mapped[str]
    target: Mapped[str]
    submitter: Mapped[str]
    order: Mapped[dict[str, Any]]
    """What an attempt is given: minutes, lane, isolation, prologue, resources."""
    state: Mapped[str] = mapped_column(server_default="open")
    reason: Mapped[str] = mapped_column(server_default="")
    detail: Mapped[str] = mapped_column(server_default="")
    failure_class: Mapped[str | None]
    pinned_attempt: Mapped[int | None]
    pinned_restart: Mapped[int | None]
    result: Mapped[dict[str, Any] | None]
    attempts_allowed: Mapped[int] = mapped_column(server_default="3")
    attempts_counted: Mapped[int] = mapped_column(server_default="0")
    grants: Mapped[int] = mapped_column(server_default="0")
    excluded_nodes: Mapped[list[str]] = mapped_column(server_default="{}")
    next_try_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    settled_at: Mapped[datetime | None]


class Measure(Base):
    """One evaluation that a run needs, with its role."""

    __tablename__ = "measures"
    __table_args__ = (UniqueConstraint("run_id", "round", "role"), Index("ix_measures_slot_id", "slot_id"))

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    slot_id: Mapped[int] = mapped_column(ForeignKey("slots.id"))
    round: Mapped[int] = mapped_column(server_default="0")
    role: Mapped[str]
    benchmark: Mapped[str]
    side: Mapped[str]
    pair: Mapped[int]
    seed: Mapped[int] = mapped_column(BigInteger, server_default="0")
    replicate: Mapped[int] = mapped_column(BigInteger, server_default="0")


class Array(Base):
    """One request to the cluster for many attempts of one shape. Its attempts share the outcome of that request."""

    __tablename__ = "arrays"
    __table_args__ = (
        UniqueConstraint("realm_id", "name"),
        CheckConstraint("state in ('intent', 'submitted', 'refused', 'dropped')", name="state"),
        CheckConstraint("state <> 'submitted' or job_id is not null", name="submitted_has_job"),
        CheckConstraint("count >= 2", name="two_tasks_or_more"),
        Index("ix_arrays_lane", "realm_id", "lane", "id"),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    realm_id: Mapped[int] = mapped_column(ForeignKey("realms.id"))
    name: Mapped[str]
    state: Mapped[str] = mapped_column(server_default="intent")
    """dropped: certainly not queued, and nobody wants any of its tasks any more."""
    job_id: Mapped[str | None]
    lane: Mapped[str]
    count: Mapped[int]
    cap: Mapped[int | None]
    """The most tasks that the next array of this lane may have; None while no limit was met."""
    map: Mapped[dict[str, Any]]
    """{"tasks": [[slot digest, attempt], ...]}: task k is entry k. Never changed."""
    reason: Mapped[str] = mapped_column(server_default="")
    detail: Mapped[str] = mapped_column(server_default="")
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    intent_at: Mapped[datetime] = mapped_column(server_default=func.now())
    cluster: Mapped[str] = mapped_column(server_default="")
    submitted_at: Mapped[datetime | None]


class Attempt(Base):
    """One submission of a slot to the cluster."""

    __tablename__ = "attempts"
    __table_args__ = (
        UniqueConstraint("slot_id", "n"),
        CheckConstraint("state in ('intent', 'submitted', 'settled')", name="state"),
        CheckConstraint("(state = 'settled') = (outcome is not null)", name="outcome_iff_settled"),
        CheckConstraint("state <> 'submitted' or job_id is not null", name="submitted_has_job"),
        CheckConstraint("(array_id is null) = (array_task is null)", name="array_and_task"),
        CheckConstraint("(array_id is null) = (array_name = '')", name="array_and_name"),
        UniqueConstraint("array_id", "array_task"),
        # Tasks of an array are known to the cluster by the array's name.
        Index("one_job_per_name", "realm_id", "job_name", unique=True, postgresql_where=text("array_id is null")),
        Index("one_open_attempt", "slot_id", unique=True, postgresql_where=text("state in ('intent', 'submitted')")),
        Index(
            "live_attempts",
            "realm_id",
            "id",
            # All that a sweep compares, so that it reads the index alone.
            postgresql_include=[
                "job_id",
                "job_name",
                "array_name",
                "slurm_state",
                "slurm_reason",
                "state",
                "array_id",
                "intent_at",
                "absent_at",
            ],
            postgresql_where=text("state in ('intent', 'submitted')"),
        ),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    realm_id: Mapped[int]
    """The slot's, so that a sweep needs no other table; the slot's own has the foreign key."""
    slot_id: Mapped[int] = mapped_column(ForeignKey("slots.id"))
    n: Mapped[int]
    state: Mapped[str] = mapped_column(server_default="intent")
    job_name: Mapped[str]
    array_id: Mapped[int | None] = mapped_column(BigInteger, ForeignKey("arrays.id"))
    array_task: Mapped[int | None]
    array_name: Mapped[str] = mapped_column(server_default="")
    job_id: Mapped[str | None]
    cluster: Mapped[str] = mapped_column(server_default="")
    minutes: Mapped[float]
    """Walltime asked of the cluster."""
    command_minutes: Mapped[float]
    """What the contract grants to the command itself."""
    slurm_state: Mapped[str] = mapped_column(server_default="")
    slurm_reason: Mapped[str] = mapped_column(server_default="")
    node: Mapped[str] = mapped_column(server_default="")
    restarts: Mapped[int] = mapped_column(server_default="0")
    counted: Mapped[bool] = mapped_column(server_default=text("true"))
    outcome: Mapped[str | None]
    reason: Mapped[str] = mapped_column(server_default="")
    detail: Mapped[str] = mapped_column(server_default="")
    cancel_reason: Mapped[str | None]
    gpu_hours_reserved: Mapped[float] = mapped_column(server_default="0")
    gpu_hours_used: Mapped[float | None]
    intent_at: Mapped[datetime] = mapped_column(server_default=func.now())
    submitted_at: Mapped[datetime | None]
    unknown_at: Mapped[datetime | None]
    """Since when nobody knows whether the submission reached the cluster."""
    absent_at: Mapped[datetime | None]
    """Start of the first complete answer that lacked the job."""
    observed_at: Mapped[datetime | None]
    settled_at: Mapped[datetime | None]

    @property
    def known_as(self) -> str:
        """The name that its job bears on the cluster: tasks bear their array's."""
        return self.array_name or self.job_name


class Await(Base):
    """Which attempts a parked run waits for."""

    __tablename__ = "awaits"
    __table_args__ = (Index("ix_awaits_attempt_id", "attempt_id"),)

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    attempt_id: Mapped[int] = mapped_column(ForeignKey("attempts.id", ondelete="CASCADE"), primary_key=True)


class Wake(Base):
    """A doorbell job: `outerloop wake RUN` when the awaited jobs ended."""

    __tablename__ = "wakes"
    __table_args__ = (
        UniqueConstraint("run_id", "number"),
        CheckConstraint("state in ('intent', 'submitted', 'dead', 'done')", name="state"),
        Index("live_wakes", "realm_id", postgresql_where=text("state in ('intent', 'submitted')")),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    realm_id: Mapped[int] = mapped_column(ForeignKey("realms.id"))
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    number: Mapped[int]
    state: Mapped[str] = mapped_column(server_default="intent")
    job_name: Mapped[str]
    job_id: Mapped[str | None]
    awaited: Mapped[list[str]] = mapped_column(server_default="{}")
    reason: Mapped[str] = mapped_column(server_default="")
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class Champion(Base):
    """The best accepted candidate so far; `seq` grows by one with each."""

    __tablename__ = "champions"
    __table_args__ = (UniqueConstraint("realm_id", "target", "benchmark", "definition", "seq"),)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    realm_id: Mapped[int] = mapped_column(ForeignKey("realms.id"))
    target: Mapped[str]
    benchmark: Mapped[str]
    definition: Mapped[str]
    seq: Mapped[int]
    run_id: Mapped[str]
    commit: Mapped[str]
    tree: Mapped[str]
    value: Mapped[str]
    """The candidate's value as text, exact."""
    gain: Mapped[str]
    label: Mapped[str] = mapped_column(server_default="")
    accepted_at: Mapped[datetime] = mapped_column(server_default=func.now())


class Lease(Base):
    """Who may advance a run now. Every later write of the run checks the epoch."""

    __tablename__ = "leases"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    holder: Mapped[str]
    epoch: Mapped[int] = mapped_column(BigInteger)
    expires_at: Mapped[datetime]


class Event(Base):
    """A fact that the inputs do not determine, as on disk in runs/<id>/events/. Append only."""

    __tablename__ = "events"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str]
    body: Mapped[dict[str, Any]]
    at: Mapped[datetime]


class CampaignEvent(Base):
    """One event of a campaign's ledger, as on disk in runs/<id>/campaign/events/. Append only; `seq` counts from 1."""

    __tablename__ = "campaign_events"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str]
    line: Mapped[str]
    """The event as one line of JSON, byte for byte as the file has it: exporting it changes nothing."""


class Heartbeat(Base):
    """When the tick of a realm last came to its end, and what it saw."""

    __tablename__ = "heartbeats"

    realm_id: Mapped[int] = mapped_column(ForeignKey("realms.id"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    at: Mapped[datetime] = mapped_column(server_default=func.now())
    host: Mapped[str]
    body: Mapped[dict[str, Any]]

"""A sweep over all live attempts of a realm: light rows from one index, compared with one listing.

Covered: which attempts something happened to, and noting those that only moved on in the queue. Not covered: what
became of the others (settle.py, submit.py, arrays.py), which see a handful of fifty thousand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple, Protocol

from sqlalchemy import (
    String,
    and_,
    any_,
    bindparam,
    case,
    cast,
    column,
    func,
    not_,
    or_,
    select,
    text,
    update,
    values,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Session
from sqlalchemy.types import BigInteger

from outerloop.compute.protocol import NO_REASON, JobRow, JobState
from outerloop.dispatch.comparison import Comparison
from outerloop.dispatch.context import Context
from outerloop.dispatch.evidence import Action, Evidence, read_evidence
from outerloop.dispatch.observe import Observation
from outerloop.record.models import Attempt

__all__ = ["IS_OPEN", "Live", "LiveRow", "Survey", "note_moves", "survey"]

FETCH = 6_000
"""Rows that are held at once while the index is read."""
NOTED_AT_ONCE = 1_000
"""Rows changed in one transaction, so that nobody waits long for one of them."""


class Live(Protocol):
    """What a sweep needs of an open attempt: of a light row, or of the whole one."""

    @property
    def id(self) -> int: ...
    @property
    def state(self) -> str: ...
    @property
    def job_id(self) -> str | None: ...
    @property
    def known_as(self) -> str: ...
    @property
    def slurm_state(self) -> str: ...
    @property
    def slurm_reason(self) -> str: ...
    @property
    def array_id(self) -> int | None: ...
    @property
    def intent_at(self) -> datetime: ...
    @property
    def absent_at(self) -> datetime | None: ...


class LiveRow(NamedTuple):
    """An open attempt, as the index `live_attempts` holds it."""

    id: int
    state: str
    job_id: str | None
    known_as: str
    slurm_state: str
    slurm_reason: str
    array_id: int | None
    intent_at: datetime
    absent_at: datetime | None


@dataclass
class Survey:
    """What one listing says about all of a realm's live attempts."""

    live: int = 0
    eventful: list[LiveRow] = field(default_factory=list)
    """Submissions of unknown outcome, and jobs that ended, are gone or need somebody to decide."""
    moved: list[tuple[int, JobRow]] = field(default_factory=list)
    """Attempts whose job waits for another reason or began to run: nothing to decide."""


def live_rows(session: Session, realm_id: int, unlike: Quiet | None = None) -> Iterator[LiveRow]:
    """Every open attempt of the realm, oldest first, from the index alone and never all at once; or only those that
    are not among the quiet ones."""
    query = _ROWS if unlike is None else _UNQUIET_ROWS
    told = {"realm": realm_id, "most": FETCH} | ({} if unlike is None else {"others": sorted(unlike.others)})
    # Page by page along the index: a cursor of the server would be left open by a connection that drops.
    last = 0
    while True:
        rows = session.execute(query, {**told, "last": last}).all()
        yield from map(LiveRow._make, rows)
        if len(rows) < FETCH:
            return
        last = rows[-1].id


_QUIET = and_(
    Attempt.state == "submitted",
    Attempt.job_id.is_not(None),
    Attempt.absent_at.is_(None),
    Attempt.slurm_state.in_([JobState.PENDING.value, JobState.RUNNING.value]),
)
"""An attempt of which nothing has to be asked but whether the queue shows it as before."""
IS_OPEN = (Attempt.realm_id == bindparam("realm"), Attempt.state.in_(["intent", "submitted"]))
_ROWS = (
    select(
        Attempt.id,
        Attempt.state,
        Attempt.job_id,
        case((Attempt.array_name == "", Attempt.job_name), else_=Attempt.array_name),
        Attempt.slurm_state,
        Attempt.slurm_reason,
        Attempt.array_id,
        Attempt.intent_at,
        Attempt.absent_at,
    )
    .where(*IS_OPEN, Attempt.id > bindparam("last"))
    .order_by(Attempt.id)
    .limit(bindparam("most", type_=BigInteger))
)
_UNQUIET_ROWS = _ROWS.where(
    or_(not_(_QUIET), Attempt.job_id == any_(cast(bindparam("others", type_=ARRAY(String)), ARRAY(String))))
)
_SHOWN = (
    select(
        case((_QUIET, Attempt.slurm_state), else_=None).label("shown"),
        Attempt.slurm_reason,
        func.count(),
        func.string_agg(func.concat(Attempt.job_id, "|", func.upper(Attempt.slurm_state), "|"), "\n"),
    )
    .where(*IS_OPEN)
    .group_by("shown", Attempt.slurm_reason)
)
_BY_INDEX = text("select set_config('enable_seqscan', 'off', true), set_config('random_page_cost', '1', true)")


@dataclass(frozen=True)
class Quiet:
    """How many attempts there are, and which of the quiet ones the queue does not show as before."""

    live: int
    quiet: int
    others: frozenset[str]
    """Job ids."""


def _compare(session: Session, realm_id: int, observation: Observation) -> Quiet:
    """Tell the unchanged jobs from the others without a step of Python for each: the ids of one state and reason come
    as one text, and sets do the rest."""
    rows = session.execute(_SHOWN, {"realm": realm_id}).all()
    live = sum(number for _, _, number, _ in rows)
    quiet = sum(number for shown, _, number, _ in rows if shown is not None)
    if not observation.complete:
        return Quiet(live, quiet, frozenset())
    groups = tuple((ids, reason or NO_REASON) for shown, reason, _, ids in rows if shown is not None)
    return Quiet(live, quiet, _last.unseen(groups, observation))


def survey(session: Session, realm_id: int, observation: Observation) -> Survey:
    """Compare every live attempt with the listing; keep those that something happened to."""
    # Where most attempts are live a scan of the table looks as cheap; it would grow with what has long ended.
    session.execute(_BY_INDEX)
    compared = _compare(session, realm_id, observation)
    found = Survey(live=compared.live)
    if compared.live == compared.quiet and not compared.others:
        return found
    for row in live_rows(session, realm_id, compared):
        if row.state == "intent" or row.job_id is None:
            found.eventful.append(row)
            continue
        if not observation.complete:
            continue
        seen = observation.state_of(row.job_id)
        if seen is None or seen[0].final or row.absent_at is not None:
            found.eventful.append(row)
        elif (row.slurm_state, row.slurm_reason) == (seen[0].value, seen[1]):
            continue
        elif _only_moves(*seen):
            listed = observation.listed(row.job_id)
            assert listed is not None, "the same listing"
            found.moved.append((row.id, listed))
        else:
            found.eventful.append(row)
    return found


_last = Comparison()


@lru_cache(maxsize=1024)
def _only_moves(state: JobState, reason: str) -> bool:
    """Whether a listed job in this state is alive whatever else is known, and not about to end."""
    if state not in {JobState.PENDING, JobState.RUNNING}:
        return False
    return read_evidence(Evidence(True, listed=True, state=state, slurm_reason=reason)).action is Action.ALIVE


def note_moves(context: Context, observation: Observation, moved: Sequence[tuple[int, JobRow]]) -> None:
    """Write what the queue says of jobs that only moved on: a few statements, however many they are."""
    for first in range(0, len(moved), NOTED_AT_ONCE):
        chunk = moved[first : first + NOTED_AT_ONCE]
        seen = values(
            column("id", BigInteger), column("state", String), column("reason", String), column("node", String),
            name="seen",
        ).data([(attempt, row.state.value, row.reason, row.node) for attempt, row in chunk])  # fmt: skip
        with context.record.transaction("tx.observe") as session:
            # Whoever holds one of these rows is writing more about it than this.
            free = session.scalars(
                select(Attempt.id)
                .where(Attempt.id.in_([attempt for attempt, _ in chunk]), Attempt.state == "submitted")
                .where(or_(Attempt.observed_at.is_(None), Attempt.observed_at <= observation.started))
                .order_by(Attempt.id)
                .with_for_update(skip_locked=True)
            ).all()
            session.execute(
                update(Attempt)
                .where(Attempt.id == seen.c.id, Attempt.id.in_(free))
                .values(
                    slurm_state=seen.c.state,
                    slurm_reason=seen.c.reason,
                    node=func.coalesce(func.nullif(seen.c.node, ""), Attempt.node),
                    observed_at=observation.started,
                )
                .execution_options(synchronize_session=False)
            )

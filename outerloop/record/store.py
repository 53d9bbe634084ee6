"""The record: connections, named transactions, the database's clock, leases with fencing.

Covered: everything that needs to know how Postgres behaves. Not covered: what the rows mean (dispatch, controller),
tables (models.py), the server (embedded.py), migrations (migrate.py).
"""

from __future__ import annotations

import copy
import os
import socket
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import psycopg
from sqlalchemy import Engine, create_engine, func, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, ProgrammingError
from sqlalchemy.orm import Session

from outerloop.effects import effect
from outerloop.record.models import Lease, Realm

__all__ = ["Fenced", "LeaseHandle", "Record", "RecordUnavailable", "as_array"]

CONNECT_TIMEOUT_SECONDS = 10
ADVISORY_TICK = 0x6F6C7401
"""Class of the advisory lock that a tick holds ("olt" and a version byte); the object is the realm's id."""

_DISCONNECT_SQLSTATES = ("08", "57P", "53", "58")
"""Classes of SQLSTATE that say the server, not the statement, is in trouble (PostgreSQL manual, appendix A)."""


_COMMIT_UNFLUSHED = "set local synchronous_commit = off; commit"
_EXTEND = text(
    "update leases set expires_at = now() + make_interval(secs => :s)"
    " where run_id = :r and epoch = :e and holder = :h returning 1"
)

_GIVEN_UP: set[str] = set()
"""Holders of this process whose leases could not be given back."""


class RecordUnavailable(Exception):
    """The record cannot be reached or gave up in the middle; nothing was changed that is not committed."""


class Fenced(Exception):
    """Somebody else took the run over: this process's lease is no longer the newest, so it may not write."""


@dataclass(frozen=True)
class LeaseHandle:
    """The right to advance one run until somebody takes a newer epoch."""

    run_id: str
    holder: str
    epoch: int


def process_name() -> str:
    """Who holds a lease, readable by a person: host, pid, the process's start (clock ticks since boot), random."""
    return f"{socket.gethostname()}:{os.getpid()}:{_start_of(os.getpid())}:{uuid.uuid4().hex[:6]}"


def _start_of(pid: int) -> str:
    """When a process started (proc(5), field 22), so that a reused pid is not taken for it; "" when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def holder_is_dead(holder: str) -> bool:
    """True only for a process of this host that certainly is gone, or for an earlier `Record` of this very process
    that gave up while the record was out of reach. Another host's is never known to be."""
    if holder in _GIVEN_UP:
        return True
    host, _, rest = holder.partition(":")
    pid, _, more = rest.partition(":")
    start = more.partition(":")[0]
    return host == socket.gethostname() and pid.isdigit() and start.isdigit() and _start_of(int(pid)) != start


class Record:
    """One connection to the record, for one realm. Not shared between threads."""

    def __init__(self, url: str, *, owner: str, slot_root: str, connections: int = 2) -> None:
        self._engine: Engine = create_engine(
            url,
            pool_size=connections,  # 2: a tick's lock keeps one for as long as it works with another
            max_overflow=1,
            pool_pre_ping=True,
            connect_args={"connect_timeout": CONNECT_TIMEOUT_SECONDS, "application_name": "outerloop"},
        )
        self.owner = owner
        self.slot_root = slot_root
        self.holder = process_name()
        self._realm_id: int | None = None

    def beside(self) -> Record:
        """Another record over the same connections, for reading in another thread: it need not compile statements
        that this one did. To close either closes the connections that neither uses; both can go on."""
        return copy.copy(self)

    def close(self) -> None:
        self._engine.dispose()

    # -- transactions

    @contextmanager
    def _session(self) -> Iterator[Session]:
        try:
            with Session(self._engine, expire_on_commit=False) as session:
                yield session
        except (OperationalError, InterfaceError) as error:
            raise RecordUnavailable(_unavailable(error)) from error
        except DBAPIError as error:
            state = getattr(error.orig, "sqlstate", None) or ""
            if error.connection_invalidated or state.startswith(_DISCONNECT_SQLSTATES):
                raise RecordUnavailable(_unavailable(error)) from error
            if isinstance(error, ProgrammingError) and state == "42P01":
                raise RecordUnavailable("the record has no tables yet: run `outerloop db upgrade`") from error
            raise

    @contextmanager
    def transaction(self, name: str, *, flushed: bool = True) -> Iterator[Session]:
        """A transaction that is committed at the end; `name` is its effect (`tx.…`).

        `flushed=False` does not wait until it is on the server's disk. A crash of the server, not of this process,
        may take it back, and then everything that was committed after it: the log is flushed in order, so the next
        flushed transaction of anybody makes it durable, too (PostgreSQL manual, "Asynchronous Commit").
        """
        with self._session() as session, effect(name), session.begin():
            yield session
            if not flushed:
                self._commit_unflushed(session)

    def _commit_unflushed(self, session: Session) -> None:
        """Both statements in one message: a transaction's last round trip is as long as any."""
        session.flush()
        driver = session.connection().connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        try:
            driver.execute(_COMMIT_UNFLUSHED, prepare=False)
        except psycopg.DatabaseError as error:
            raise RecordUnavailable(_unavailable(error)) from error

    @contextmanager
    def fenced(self, name: str, lease: LeaseHandle, *, seconds: float, flushed: bool = True) -> Iterator[Session]:
        """A transaction that only the newest epoch of the lease may make; it also extends the lease.

        Raises Fenced, with nothing written, when somebody else took over.
        """
        with self.transaction(name, flushed=flushed) as session:
            mine = session.execute(
                _EXTEND, {"s": seconds, "r": lease.run_id, "e": lease.epoch, "h": lease.holder}
            ).one_or_none()
            if mine is None:
                raise Fenced(f"run {lease.run_id}: this process lost its lease (epoch {lease.epoch})")
            yield session

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A transaction that only reads."""
        with self._session() as session, session.begin():
            session.connection(execution_options={"postgresql_readonly": True})
            yield session

    def revision(self) -> str | None:
        """The migration that the database stands at, None for one without our tables."""
        with self._session() as session, session.begin():
            if session.execute(text("select to_regclass('alembic_version')")).scalar_one() is None:
                return None
            return session.execute(text("select version_num from alembic_version")).scalar_one_or_none()

    def now(self) -> datetime:
        """The only clock that decides anything."""
        with self._session() as session:
            connection = session.connection(execution_options={"isolation_level": "AUTOCOMMIT"})
            now: datetime = connection.execute(select(func.clock_timestamp())).scalar_one()
        return now

    # -- realm

    @property
    def realm_id(self) -> int:
        """Id of this owner and slot root; made on first use, else only read: a role that may only read suffices."""
        if self._realm_id is None:
            with self._session() as session, session.begin():
                key = {"owner": self.owner, "slot_root": self.slot_root}
                known = select(Realm.id).filter_by(**key)
                self._realm_id = session.execute(known).scalar_one_or_none()
                if self._realm_id is None:
                    session.execute(insert(Realm).values(**key).on_conflict_do_nothing())
                    self._realm_id = session.execute(known).scalar_one()
        return self._realm_id

    # -- leases

    def take_lease(self, run_id: str, *, seconds: float) -> LeaseHandle | None:
        """The lease of a run, or None while somebody else holds it. Each success is a new epoch.

        Not flushed: a lease protects transactions of its run, and whichever of them is durable makes it durable, too.
        One that a crash of the server takes back is taken again with the same epoch, by another holder.
        """
        with self.transaction("tx.lease", flushed=False) as session:
            epoch = session.execute(
                text(
                    """
                    insert into leases (run_id, holder, epoch, expires_at)
                    values (:run, :holder, 1, now() + make_interval(secs => :seconds))
                    on conflict (run_id) do update
                       set holder = excluded.holder, epoch = leases.epoch + 1, expires_at = excluded.expires_at
                     where leases.expires_at < now() or leases.holder = ''
                    returning epoch
                    """
                ),
                {"run": run_id, "holder": self.holder, "seconds": seconds},
            ).scalar_one_or_none()
            if epoch is None:
                epoch = self._take_from_the_dead(session, run_id, seconds)
        return None if epoch is None else LeaseHandle(run_id, self.holder, epoch)

    def _take_from_the_dead(self, session: Session, run_id: str, seconds: float) -> int | None:
        """A lease whose holder was killed on this host need not run out."""
        row = session.execute(select(Lease.holder, Lease.epoch).where(Lease.run_id == run_id)).one_or_none()
        if row is None or not holder_is_dead(row.holder):
            return None
        return session.execute(
            text(
                """
                update leases set holder = :holder, epoch = epoch + 1,
                       expires_at = now() + make_interval(secs => :seconds)
                 where run_id = :run and epoch = :epoch
                returning epoch
                """
            ),
            {"run": run_id, "holder": self.holder, "seconds": seconds, "epoch": row.epoch},
        ).scalar_one_or_none()

    def release_lease(self, lease: LeaseHandle) -> None:
        """Give a lease back; a lease that was lost meanwhile is left to its new holder.

        Where the record cannot be told, this process at least knows it: its next try need not wait for the expiry.
        """
        try:
            with self.transaction("tx.release", flushed=False) as session:
                session.execute(
                    text(
                        "update leases set holder = '', expires_at = now()"
                        " where run_id = :r and epoch = :e and holder = :h"
                    ),
                    {"r": lease.run_id, "e": lease.epoch, "h": lease.holder},
                )
        except RecordUnavailable:
            _GIVEN_UP.add(lease.holder)
            raise

    @contextmanager
    def tick_lock(self) -> Iterator[bool]:
        """True inside when this is the only tick of the realm; the lock dies with the connection."""
        realm = self.realm_id
        try:
            # By itself: the lock is the session's, and a transaction around each of the two statements would be idle.
            connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        except (OperationalError, InterfaceError) as error:
            raise RecordUnavailable(_unavailable(error)) from error
        try:
            try:
                got = connection.execute(
                    text("select pg_try_advisory_lock(:k, :r)"), {"k": ADVISORY_TICK, "r": realm}
                ).scalar_one()
            except (OperationalError, InterfaceError) as error:
                raise RecordUnavailable(_unavailable(error)) from error
            yield bool(got)
        finally:
            try:
                if not connection.invalidated:
                    connection.execute(text("select pg_advisory_unlock(:k, :r)"), {"k": ADVISORY_TICK, "r": realm})
            except DBAPIError:
                pass
            connection.close()


def as_array(values: Iterable[float | str | None]) -> str:
    """An array of numbers, or of words without blanks and punctuation such as job names, as Postgres reads it.

    The driver writes an array member by member, which takes longer than the server's whole answer.
    """
    return f"{{{','.join(['NULL' if value is None else str(value) for value in values])}}}"


def _unavailable(error: Exception) -> str:
    original = getattr(error, "orig", None) or error
    said = str(original).strip().splitlines()[0] if str(original).strip() else type(original).__name__
    return f"the record is unavailable: {said}"

"""Where the pages' facts come from: a few connections to the record, handed out one to a request.

Covered: opening, a record that is away for a while, giving connections back. Not covered: questions (controller).
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from outerloop.controller.campaign_fold import Folds
from outerloop.record.models import REVISION
from outerloop.record.server.errors import EmbeddedError
from outerloop.record.store import Record, RecordUnavailable
from outerloop.slots import StateRoot

__all__ = ["CONNECTIONS", "Looking", "Source"]

CONNECTIONS = 4
"""At most so many at a time, so that a page with many viewers takes few of the server's connections."""
PATIENCE_SECONDS = 10.0


@dataclass(frozen=True)
class Looking:
    """What a page looks at."""

    record: Record
    root: StateRoot
    cadence_seconds: float
    folds: Folds


@dataclass
class Source:
    """Hands out records. `url` says where the record is, anew after it was away: an embedded server may have moved."""

    url: Callable[[], str]
    owner: str
    root: StateRoot
    cadence_seconds: float
    note: str = ""
    """What every page says of where its facts come from, instead of the state folder."""
    _folds: Folds = field(default_factory=Folds)
    _free: queue.LifoQueue[Record | None] = field(default_factory=queue.LifoQueue)
    _guard: threading.Lock = field(default_factory=threading.Lock)
    _first: tuple[str, Record] | None = None
    """The URL that was last opened, and the record whose connections and compiled statements all others share."""

    def __post_init__(self) -> None:
        for _ in range(CONNECTIONS):
            self._free.put(None)

    def _open(self) -> Record:
        try:
            url = self.url()
        except EmbeddedError as error:
            raise RecordUnavailable(f"the record is unavailable: {error}") from error
        record = self._beside(url)
        try:
            found = record.revision()
            if found != REVISION:
                raise RecordUnavailable(
                    f"the record's tables are at revision {found}, this outerloop reads {REVISION}:"
                    " run `outerloop db upgrade`, or install the version that fits"
                )
        except BaseException:
            record.close()
            raise
        return record

    def _beside(self, url: str) -> Record:
        """A record of this URL that shares what was compiled for those before it."""
        with self._guard:
            if self._first is None or self._first[0] != url:
                made = Record(url, owner=self.owner, slot_root=str(self.root.path), connections=CONNECTIONS)
                self._first = (url, made)
            return self._first[1].beside()

    @contextlib.contextmanager
    def looking(self) -> Iterator[Looking]:
        """A record for one request. Raises RecordUnavailable."""
        try:
            record = self._free.get(timeout=PATIENCE_SECONDS)
        except queue.Empty:
            raise RecordUnavailable("the record is busy with other pages") from None
        try:
            record = record or self._open()
            yield Looking(record, self.root, self.cadence_seconds, self._folds)
        except RecordUnavailable:
            if record is not None:
                record.close()
                record = None
            raise
        finally:
            self._free.put(record)

    def close(self) -> None:
        """Close what is not in use."""
        with contextlib.suppress(queue.Empty):
            while True:
                record = self._free.get_nowait()
                if record is not None:
                    record.close()

"""advance(run): take the lease, read what is there, submit what is missing, park or decide.

Covered: the one entry behind submit, wake and tick, for every kind of run. Not covered: what a pass does (engine.py),
what a kind of run needs and decides (climbs.py, trainings.py, campaigns.py, entries.py), which runs are due (tick.py).
Killed at any instruction, the next call goes on from what is committed and on disk.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping

from outerloop.controller.deployment import Deployment
from outerloop.controller.engine import MOST_STEPS, Advanced, Again, Engine, Kind
from outerloop.controller.ledger import Behind
from outerloop.dispatch.outcomes import share_outcomes
from outerloop.record.models import Run
from outerloop.record.store import Fenced, RecordUnavailable

__all__ = ["KINDS", "Advanced", "advance"]


def _climb(engine: Engine, run: Run) -> Kind:
    from outerloop.controller.climbs import Climb

    return Climb(engine, run)


def _training(engine: Engine, run: Run) -> Kind:
    from outerloop.controller.trainings import Training

    return Training(engine, run)


def _campaign(engine: Engine, run: Run) -> Kind:
    from outerloop.controller.campaigns import Campaign

    return Campaign(engine, run)


def _entry(engine: Engine, run: Run) -> Kind:
    from outerloop.controller.entries import Entry

    return Entry(engine, run)


# Each is imported when such a run is advanced: a wake is a process that lives for a second, and campaigns alone would
# double what it has to import.
KINDS: Mapping[str, Callable[[Engine, Run], Kind]] = {
    "climb": _climb,
    "training": _training,
    "campaign": _campaign,
    "entry": _entry,
}
"""Kind of a run -> who answers for it."""


def advance(deployment: Deployment, run_id: str) -> Advanced:
    """Bring a run as far as it goes now. `state` is busy (somebody else has it), queued, waiting, blocked or ended.

    Raises RecordUnavailable, OSError (disk), GitError; nothing that was promised is lost by any of them.
    """
    context = deployment.context
    lease = context.record.take_lease(run_id, seconds=context.patience.lease)
    if lease is None:
        return Advanced(run_id, "busy", "another process is advancing it")
    started = time.monotonic()
    try:
        for _ in range(MOST_STEPS):
            engine = Engine(deployment, lease, started)
            try:
                advanced = engine.go(KINDS)
                break
            except (Behind, Again):
                # The next one may have nothing to do with these jobs any more: a paused run's, say.
                share_outcomes(context, engine.unshared)
        else:
            raise RuntimeError(f"run {run_id} did not come to rest in {MOST_STEPS} steps")
    except Fenced:
        return Advanced(run_id, "busy", "another process took it over")
    except Exception:
        # This process may live on; nobody should have to wait until its lease has run out.
        with contextlib.suppress(RecordUnavailable):
            context.record.release_lease(lease)
        raise
    context.record.release_lease(lease)
    return advanced

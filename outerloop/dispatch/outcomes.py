"""The one outcome that all tasks of an array share: in the array's row at once, in their own rows a moment later.

Covered: reading a task whose array is on record as submitted, handing the outcome on. Not covered: the request
itself (arrays.py).

Between the two an attempt's row still says `intent`, and nothing is lost: it names its array, whose row has the job
id. Whoever submitted hands it on once everything is with the cluster; if it died, the next look at the attempts does.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import and_, case, func, select, text
from sqlalchemy.orm import Session

from outerloop.dispatch.context import Context
from outerloop.record.models import Array, Attempt, Measure
from outerloop.record.store import as_array

__all__ = ["JOB_ID", "STATE", "SUBMITTED_AT", "share_outcomes", "unshared_arrays"]

_UNSHARED = and_(Attempt.state == "intent", Array.state == "submitted")

# Columns of an attempt as they are once its array's outcome is handed on; for `attempts left join arrays`.
STATE = case((_UNSHARED, "submitted"), else_=Attempt.state)
JOB_ID = case((_UNSHARED, func.concat(Array.job_id, "_", Attempt.array_task)), else_=Attempt.job_id)
SUBMITTED_AT = case((_UNSHARED, Array.submitted_at), else_=Attempt.submitted_at)

_SUBMITTED = "select id from arrays where id = any(cast(:arrays as bigint[])) and state = 'submitted'"

# The slots first and in one order, as everybody locks them.
_LOCK = """
select slots.id from slots
 where slots.id in (select slot_id from attempts where array_id = any(cast(:arrays as bigint[])) and state = 'intent')
 order by slots.digest
   for update
"""

_SHARE = """
update attempts
   set state = 'submitted', job_id = concat(arrays.job_id, '_', attempts.array_task), cluster = arrays.cluster,
       submitted_at = arrays.submitted_at, unknown_at = null, absent_at = null, reason = '', detail = ''
  from arrays
 where attempts.array_id = arrays.id and arrays.id = any(cast(:arrays as bigint[]))
   and arrays.state = 'submitted' and attempts.state = 'intent'
"""


def share_outcomes(context: Context, arrays: Iterable[int]) -> frozenset[int]:
    """Write into the attempts of these arrays what their arrays' rows say; returns those arrays that were submitted.

    Not flushed: what a crash of the server takes back is handed on again.
    """
    asked = as_array(sorted(set(arrays)))
    if asked == "{}":
        return frozenset()
    with context.record.reading() as session:
        submitted = frozenset(session.scalars(text(_SUBMITTED), {"arrays": asked}))
    if submitted:
        those = {"arrays": as_array(sorted(submitted))}
        with context.record.transaction("tx.outcome", flushed=False) as session:
            session.execute(text(_LOCK), those)
            session.execute(text(_SHARE), those)
    return submitted


def unshared_arrays(session: Session, run_id: str) -> list[int]:
    """Arrays with an attempt for this run whose outcome is not handed on yet: somebody is about to, or died before."""
    found = (
        select(Attempt.array_id)
        .join(Measure, Measure.slot_id == Attempt.slot_id)
        .join(Array, Array.id == Attempt.array_id)
        .where(Measure.run_id == run_id, _UNSHARED)
    )
    return [array for array in session.scalars(found.distinct()) if array is not None]

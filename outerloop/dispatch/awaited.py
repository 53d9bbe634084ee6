"""What a parked run waits for, as ids that a wake job can depend on.

Covered: whole arrays by one id, tasks one by one, ids that the queue has forgotten. Not covered: submitting the wake
(wakes.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol

from sqlalchemy import text
from sqlalchemy.orm import Session

from outerloop.compute.jobids import array_id
from outerloop.record.store import as_array

__all__ = ["awaited_jobs", "with_arrays"]

# Slot by slot along the index, whatever the statistics of a table that has just grown make of it.
_LIVE = """
  from unnest(cast(:slots as bigint[])) as wanted (id)
 cross join lateral (select array_id, array_task, job_id from attempts
                      where slot_id = wanted.id and state in ('intent', 'submitted') offset 0) as attempt
"""
# Tasks by the array's id in their job ids, which is null until their array's outcome is handed on (outcomes.py).
_GROUPED = f"""
select live.array_id, live.job, live.number, case when arrays.state = 'submitted' then arrays.job_id end, arrays.count
  from (select attempt.array_id, count(*) as number,
               case when attempt.array_id is null then attempt.job_id else split_part(attempt.job_id, '_', 1) end as job
        {_LIVE}
         group by 1, 3) as live
  left join arrays on arrays.id = live.array_id
"""
_TASKS = f"""
select attempt.array_id, coalesce(attempt.job_id, concat(arrays.job_id, '_', attempt.array_task))
{_LIVE}
  join arrays on arrays.id = attempt.array_id
 where arrays.id = any(cast(:arrays as bigint[])) and (attempt.job_id is not null or arrays.state = 'submitted')
"""
_ENDED_TOO = """
select array_id, count(*) from attempts
 where array_id = any(cast(:arrays as bigint[])) and slot_id = any(cast(:slots as bigint[]))
 group by array_id
"""


class Task(Protocol):
    """What is asked of an attempt to know what waiting for it means."""

    @property
    def job_id(self) -> str | None: ...
    @property
    def array_id(self) -> int | None: ...


def awaited_jobs(session: Session, slot_ids: Sequence[int]) -> list[str]:
    """Ids that a wake depends on, for the live jobs of these slots: tasks one by one, or the whole array when all its
    tasks are of these slots.

    A run must not wait for the slowest task of strangers; and where there are none, one id says the same as hundreds.
    """
    slots = as_array(slot_ids)
    found: set[str] = set()
    tasks: Counter[int] = Counter()
    arrays: dict[int, tuple[str, int]] = {}
    apart: set[int] = set()
    """Arrays whose tasks are awaited one by one, as far as they are not the whole array."""
    for which, job, number, array_job, size in session.execute(text(_GROUPED), {"slots": slots}):
        if which is None:
            found.update([job] if job is not None else [])
            continue
        tasks[which] += number
        if array_job is not None and job in {None, array_job}:
            arrays[which] = array_job, size
        elif job is not None:
            apart.add(which)  # another job executes it
    # Most are whole already with the tasks that are live; of the others some have ended.
    partly = {which for which, (_, size) in arrays.items() if tasks[which] < size}
    if partly:
        ours = session.execute(text(_ENDED_TOO), {"arrays": as_array(sorted(partly)), "slots": slots})
        partly -= {which for which, number in ours if number == arrays[which][1]}
    whole = {which: job for which, (job, _) in arrays.items() if which not in partly}
    if apart | partly:
        for which, job in session.execute(text(_TASKS), {"arrays": as_array(sorted(apart | partly)), "slots": slots}):
            if array_id(job) != whole.get(which):
                found.add(job)
    return sorted(found | set(whole.values()))


def with_arrays(gone: set[str], attempts: Iterable[Task]) -> set[str]:
    """Ids that the queue lists no more, with those of arrays of which it lists none of these attempts."""
    tasks = [attempt.job_id for attempt in attempts if attempt.job_id is not None and attempt.array_id is not None]
    return gone | ({array_id(job_id) for job_id in tasks} - {array_id(i) for i in tasks if i not in gone})

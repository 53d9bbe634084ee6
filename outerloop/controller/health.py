"""What a person should know first: the worst problem, what each run waits for, what comes next. Pure.

Covered: sentences and commands made of the answers of views.py. Not covered: asking (views.py), rendering (cli).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outerloop.compute.reasons import Clears, pending_reason
from outerloop.controller.ledger import PAUSED
from outerloop.controller.unrecorded import Damaged, Unrecorded
from outerloop.controller.views import Overview, QueueView, RunRow, RunView, TickView

__all__ = [
    "MISSED_TICKS",
    "Group",
    "NextAction",
    "Problem",
    "age",
    "expected_end",
    "groups",
    "next_action",
    "worst_problem",
]

MISSED_TICKS = 3
"""A tick counts as missing after so many cadences: one may be late on a busy login node, two may be lost."""


@dataclass(frozen=True)
class Problem:
    """What is worst, in a sentence. `kind`: tick, queue, defect, unrecorded, damaged, blocked, held, or "" where
    nothing is wrong."""

    kind: str
    sentence: str
    command: str = ""


@dataclass(frozen=True)
class Group:
    """Runs that wait for the same thing."""

    heading: str
    runs: tuple[RunRow, ...]


@dataclass(frozen=True)
class NextAction:
    """What happens next to a run by itself, or what somebody has to do, with the command."""

    sentence: str
    command: str = ""


def age(seconds: float) -> str:
    """A duration as people say it: "45 s", "12 min", "3 h", "5 d"."""
    seconds = max(0.0, seconds)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size or (unit == "min" and seconds >= size):
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"


def expected_end(waited: float, median: float, p90: float) -> str:
    """When a run that waits for so many seconds usually would end, after its benchmark's history. "" never."""
    if waited < median:
        return f"in ~{age(median - waited)}"
    if waited < p90:
        return "any time"
    return f"late: {age(p90)} usual"


def _some(example: str, count: int) -> str:
    return f"run {example}" + ("" if count == 1 else " and another one" if count == 2 else f" and {count - 1} others")


def worst_problem(
    seen: Overview,
    tick: TickView | None,
    queue: Sequence[QueueView],
    *,
    cadence_seconds: float,
    unrecorded: Sequence[Unrecorded] = (),
    damaged: Sequence[Damaged] = (),
) -> Problem:
    """The first of: no tick while runs are open, a silent queue, runs that a defect stops, runs that only lie on disk,
    runs whose request is torn, blocked runs, jobs that never start."""
    patience = MISSED_TICKS * cadence_seconds
    if seen.moving and tick is not None and tick.age_seconds > patience:
        return Problem(
            "tick",
            f"The last tick ended {age(tick.age_seconds)} ago on {tick.host} and should run every"
            f" {age(cadence_seconds)}: nothing makes sure that runs go on.",
            "outerloop cron",
        )
    if seen.oldest is not None and tick is None and (seen.now - seen.oldest).total_seconds() > patience:
        return Problem("tick", "No tick has run yet: nothing makes sure that runs go on.", "outerloop cron")
    if tick is not None and not tick.queue_answered:
        return Problem(
            "queue",
            f"The queue did not answer the last tick, {age(tick.age_seconds)} ago: nothing is concluded until it does.",
            "outerloop doctor --no-job",
        )
    if seen.broken:
        return Problem(
            "defect",
            f"An error inside outerloop stops {_some(seen.broken_run, seen.broken)}; it is tried again every few"
            " minutes.",
            f"outerloop show {seen.broken_run}",
        )
    if unrecorded:
        who = _some(unrecorded[0].run_id, len(unrecorded))
        return Problem(
            "unrecorded",
            f"{who[0].upper()}{who[1:]} {'is' if len(unrecorded) == 1 else 'are'} on disk and not in the record, so"
            f" nothing goes on with {'it' if len(unrecorded) == 1 else 'them'}: {unrecorded[0].why}.",
            "outerloop doctor --no-job",
        )
    if damaged:
        who = _some(damaged[0].run_id, len(damaged))
        return Problem(
            "damaged",
            f"{who[0].upper()}{who[1:]} can't be read from disk any more, only from the record: {damaged[0].why}.",
            "outerloop doctor --no-job",
        )
    if seen.blocked:
        who = _some(seen.blocked_run, seen.blocked)
        return Problem(
            "blocked",
            f"{who[0].upper()}{who[1:]} {'is' if seen.blocked == 1 else 'are'} blocked ({seen.blocked_reason}):"
            " somebody has to act.",
            f"outerloop show {seen.blocked_run}",
        )
    for waiting in queue:
        if waiting.state == "pending" and waiting.reason:
            meaning = pending_reason(waiting.reason)
            if meaning.held or meaning.clears is Clears.NEVER:
                several = waiting.jobs != 1
                return Problem(
                    "held",
                    f"{waiting.jobs} pending job{'s' if several else ''} ({waiting.reason}) will not start by"
                    f" {'themselves' if several else 'itself'}. {meaning.sentence}",
                )
    if not seen.open:
        only = f"; {seen.paused} are paused" if seen.paused > 1 else "; one is paused" if seen.paused else ""
        return Problem("", f"No run is open{only}.")
    count = f"{seen.open} run{'s are' if seen.open != 1 else ' is'} open"
    beat = f"the last tick ended {age(tick.age_seconds)} ago" if tick is not None else "no tick has run yet"
    return Problem("", f"Nothing is wrong: {count}, {beat}.")


def _heading(run: RunRow) -> tuple[int, str]:
    """Place in the list and heading of what a run waits for."""
    if run.state == "blocked" and run.state_reason == PAUSED:
        return 8, "Paused until somebody resumes them"
    if run.state == "blocked":
        return 0, "Blocked until somebody acts"
    if run.state == "ended":
        return 9, "Ended"
    if run.last_error:
        return 1, "Stopped by an error, tried again soon"
    if run.state == "queued":
        return 6, "Queued for the next tick"
    if run.state_reason == "BACKOFF":
        return 5, "Waiting for the next attempt"
    if run.state_reason == "BUDGET":
        return 5, "Waiting for a budget"
    if run.state_reason == "SUBMISSION":
        return 4, "Waiting to learn whether a submission arrived"
    active = {state for state in run.jobs if state != "pending"}
    if run.pending and not active:
        reason = max(run.pending, key=lambda name: (run.pending[name], name))
        return 3, f"Pending in the queue: {reason}. {pending_reason(reason).sentence}"
    if "running" in active:
        return 2, "Waiting for running jobs"
    return 3, "Waiting for submitted jobs"


def groups(runs: Sequence[RunRow]) -> tuple[Group, ...]:
    """Runs by what they wait for, the most urgent first; inside a group as they came."""
    found: dict[tuple[int, str], list[RunRow]] = {}
    for run in runs:
        found.setdefault(_heading(run), []).append(run)
    return tuple(Group(heading, tuple(members)) for (_, heading), members in sorted(found.items()))


def next_action(view: RunView, tick: TickView | None, *, cadence_seconds: float) -> NextAction:
    """What comes next for this run."""
    row = view.row
    if row.state == "ended":
        if row.verdict == "cancelled":
            return NextAction("It was cancelled; asking again goes on with the same seeds.")
        return NextAction("It has ended.", f"outerloop explain {row.id}")
    if row.state == "blocked" and row.state_reason == PAUSED:
        return NextAction("It is paused; nothing new is submitted.", f"outerloop resume {row.id}")
    if row.state == "blocked":
        return NextAction("Remove the cause, then give it its attempts again.", f"outerloop retry {row.id}")
    parts = []
    rings = [wake for wake in view.wakes if wake.state == "submitted" and wake.job_id]
    if row.state == "waiting" and rings:
        parts.append(f"wake job {rings[-1].job_id} goes on when its jobs have ended")
    stale = tick is None or tick.age_seconds > MISSED_TICKS * cadence_seconds
    if row.due_at is not None:
        late = (view.now - row.due_at).total_seconds()
        when = f"due for {age(late)}" if late >= 1 else f"due in {age(-late)}"
        parts.append(f"{'otherwise ' if parts else ''}a tick looks at it ({when})")
    sentence = "; ".join(parts) or "a tick looks at it"
    sentence = sentence[0].upper() + sentence[1:] + "."
    if stale:
        return NextAction(sentence + " No tick has run lately.", "outerloop tick")
    return NextAction(sentence)

"""Events of a campaign's ledger in words.

Covered: one sentence for each kind. Not covered: times and numbers of events (whoever lists them).
"""

from __future__ import annotations

from outerloop.champion.events import EvalEvent, Event

__all__ = ["counts_text", "event_sentence"]


def counts_text(event: EvalEvent) -> str:
    """Error counts with their denominators, as the report had them for the whole set."""
    values = list(event.row.items())
    return ", ".join(
        f"{name} {count}/{total}" for (name, count), (_, total) in zip(values[::2], values[1::2], strict=False)
    )


def event_sentence(event: Event) -> str:
    """One event in words."""
    said = _words(event)
    detail = getattr(event, "detail", "")
    return f"{said}: {detail}" if detail else said


def _words(event: Event) -> str:
    match event.kind:
        case "generation" if event.status == "opened":
            return f"generation {event.generation} opened ({event.reason})"
        case "generation":
            return f"generation {event.generation}: {event.status.replace('_', ' ')}"
        case "round":
            return f"round {event.round} opened: {', '.join(member.candidate.name for member in event.members)}"
        case "run":
            count = len(event.checkpoints)
            listed = f", {count} checkpoint{'' if count == 1 else 's'}" if event.status == "trained" else ""
            return f"{event.run_id} {event.status.replace('_', ' ')}{listed}"
        case "eval" if event.status == "scored":
            return f"{event.subject} scored on {event.role}: {counts_text(event)}"
        case "eval":
            return f"{event.subject} not scored on {event.role}"
        case "champion":
            before = f" after {event.previous}" if event.previous else ""
            return f"champion: {event.subject} {list(event.counts)}{before}"
        case "pareto_set":
            left = f", {len(event.left)} left" if event.left else ""
            return f"front: {event.entered} entered{left}, {event.size} on it"
        case "reserve_check":
            tests = "; ".join(f"{line.objective} p={line.p:.3g}" for line in event.lines)
            return f"reserve check {event.status.replace('_', ' ')} of {event.subject}{f' ({tests})' if tests else ''}"
        case "teacher":
            return f"teacher of generation {event.generation} {event.status}"
        case "package":
            code = "" if event.exit_code is None else f" with {event.exit_code}"
            return f"package of {event.subject} {event.status.replace('_', ' ')}{code}"
        case "dispatch" if event.action == "launched" and event.job is not None:
            return f"handed out: {event.job.key}"
        case "dispatch":
            what = " ".join(part for part in (event.target, event.reason) if part)
            return f"{event.action.replace('_', ' ')}{f': {what}' if what else ''}"
        case other:
            return str(other)

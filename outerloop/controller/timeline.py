"""What happened to a run, in order, a sentence each; and an attempt's state in a few words. Pure.

Covered: wording. Not covered: asking (views.py), columns and pages.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal

from outerloop.controller.shown import AttemptView, EventView, RunView
from outerloop.printable import one_line

__all__ = ["attempt_state", "base_revision", "moved_base", "timeline"]

_SHORT_COMMIT = 12


def base_revision(view: RunView) -> str:
    """What the submitter called the base."""
    return one_line(str(view.request.get("base_revision") or ""))


def moved_base(view: RunView) -> str:
    """Why the base is another one than was asked for (a champion appeared meanwhile); empty when it is the same."""
    asked = str(view.request.get("base_commit") or "")
    if not asked or asked == view.row.base_commit:
        return ""
    return f"a champion that appeared meanwhile; asked against {base_revision(view)} {asked[:_SHORT_COMMIT]}"


def attempt_state(attempt: AttemptView) -> str:
    """An attempt's state in a few words: what the queue shows while it lives, how it ended afterwards."""
    if attempt.state == "settled":
        lost = attempt.outcome == "infrastructure" and attempt.reason
        return attempt.reason if lost else f"{attempt.outcome} {attempt.reason}".strip()
    if attempt.state == "intent":
        return "submitting"
    if attempt.cancel_reason:
        return "cancelling"
    shown = attempt.slurm_state or "submitted"
    return f"{shown} ({attempt.slurm_reason})" if attempt.slurm_reason and shown == "pending" else shown


def timeline(view: RunView) -> list[tuple[datetime, str]]:
    """(when, what) of everything that the record knows of this run, the oldest first."""
    return sorted(_entries(view), key=lambda entry: entry[0])


def _entries(view: RunView) -> Iterator[tuple[datetime, str]]:
    row = view.row
    yield row.created_at, f"asked by {row.submitter}"
    for event in view.events:
        yield event.at, _event(event)
    told: set[tuple[str, int]] = set()
    for measure in view.measures:
        for attempt in measure.attempts:
            if (measure.slot, attempt.n) in told:
                continue
            told.add((measure.slot, attempt.n))
            name = f"{measure.role}, attempt {attempt.n}"
            if attempt.submitted_at is not None:
                yield attempt.submitted_at, f"{name}: submitted as job {attempt.job_id}"
            if attempt.settled_at is not None:
                where = f" on {attempt.node}" if attempt.node else ""
                detail = f": {attempt.detail}" if attempt.detail else ""
                yield attempt.settled_at, f"{name}: {attempt_state(attempt)}{where}{detail}"
    for wake in view.wakes:
        job = f" (job {wake.job_id})" if wake.job_id else ""
        reason = f": {wake.reason}" if wake.reason else ""
        yield wake.created_at, f"wake {wake.number}{job}, {wake.state}{reason}"


def _event(event: EventView) -> str:
    from outerloop.climb.text import plural

    body = event.body
    match event.kind:
        case "round" if "opponent" in body:
            against = (
                f"champion {body.get('champion_seq')} (run {body['opponent']})" if body["opponent"] else "untrained"
            )
            seeds = plural(len(body.get("seeds") or ()), "training seed")
            return f"round {int(body.get('round') or 0) + 1}: {seeds}, against {against}"
        case "reserve":
            gain = body.get("gain")
            shown = f"{Decimal(gain):+.4f}" if isinstance(gain, str) else str(gain)
            return f"won on its suites (gain {shown}); the reserve is scored"
        case "round":
            pairs = plural(len(body.get("pair_seeds") or ()), "pair")
            against = str(body.get("base_commit") or "")[:_SHORT_COMMIT]
            return f"round {int(body.get('round') or 0) + 1}: seeds for {pairs} drawn, base {against}"
        case "look":
            llr = body.get("llr")
            shown = f"{llr:.2f}" if isinstance(llr, float | int) else str(llr)
            return f"looked after {body.get('pairs')} pairs: log-likelihood ratio {shown}"
        case "facts":
            return f"reports of {plural(len(body.get('reports') or {}), 'task')} noted"
        case "crown":
            return f"goes for champion {body.get('seq')}"
        case "verdict":
            verdict = body.get("verdict") or {}
            return f"verdict: {verdict.get('sentence') or verdict.get('outcome')}"
        case "ladder":
            return "a step up the ladder" if body.get("improved") else "no step up the ladder"
        case "setting":
            return f"submitted again by {body.get('by')}"
        case "cancel":
            return f"cancelled by {body.get('by')}: {body.get('why')}"
        case "pause":
            return f"paused by {body.get('by')}: {body.get('why')}"
        case "resume":
            return f"resumed by {body.get('by')}"
        case other:
            return other

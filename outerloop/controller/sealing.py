"""What may be shown of a sealed run: that it ran and how it ended, and nothing that hidden data decided. Pure.

Covered: rows of lists, one run in full, champions. Not covered: which runs are sealed (ladders.py), the answer to the
submitter (service/replies.py), logs, which the page of a sealed run does not read at all.

The verdict itself is told: a ladder has already turned an acceptance below its step into a rejection. Its reason is
not, because whether the rule or the step refused a candidate is one bit of the hidden set.
"""

from __future__ import annotations

from dataclasses import replace

from outerloop.controller.ladders import is_sealed
from outerloop.controller.shown import AttemptView, ChampionView, MeasureView, RunPage, RunRow, RunView

__all__ = ["WITHHELD", "withheld_champion", "withheld_page", "withheld_row", "withheld_view"]

WITHHELD = "withheld: the benchmark has a ladder"
TOLD_EVENTS = frozenset({"round", "crown", "cancel", "retry", "pause", "resume"})
"""Kinds of events that hold no measurement: what was drawn, and what operators said."""
_OPEN_ENDINGS = frozenset({"scope", "operator"})
"""Reasons of endings that weighed no number; their sentences are about the diff or an operator."""


def withheld_row(row: RunRow) -> RunRow:
    """The row without reasons and texts that follow from hidden data, if it is sealed."""
    if not row.sealed:
        return row
    plain_ending = row.verdict == "cancelled" or row.verdict_reason in _OPEN_ENDINGS
    reason = {"rejected": "ladder", "failed": "candidate-error"}.get(row.verdict or "", "")
    return replace(
        row,
        state_detail=WITHHELD if row.state_detail else "",
        verdict_reason=row.verdict_reason if plain_ending or row.verdict is None else reason,
        sentence=row.sentence if plain_ending or row.sentence is None else f"{row.verdict}; {WITHHELD}",
        last_error=WITHHELD if row.last_error else None,
    )


def withheld_page(page: RunPage) -> RunPage:
    return replace(page, runs=tuple(withheld_row(row) for row in page.runs))


def withheld_view(view: RunView) -> RunView:
    """One run in full: no values, no results, no evidence, no events that tell of them."""
    if not is_sealed(view.request):
        return view
    return replace(
        view,
        row=withheld_row(view.row),
        evidence=None,
        measures=tuple(_withheld_measure(measure) for measure in view.measures),
        events=tuple(event for event in view.events if event.kind in TOLD_EVENTS),
    )


def withheld_champion(champion: ChampionView) -> ChampionView:
    if not champion.sealed:
        return champion
    return replace(champion, value="withheld", gain="withheld")


def _withheld_measure(measure: MeasureView) -> MeasureView:
    return replace(
        measure,
        value=None,
        result=None,
        reason="" if measure.state == "failed" else measure.reason,
        detail=WITHHELD if measure.detail else "",
        attempts=tuple(_withheld_attempt(attempt) for attempt in measure.attempts),
    )


def _withheld_attempt(attempt: AttemptView) -> AttemptView:
    told = attempt.outcome == "infrastructure" or attempt.outcome is None
    return replace(attempt, reason=attempt.reason if told else "", detail=WITHHELD if attempt.detail else "")

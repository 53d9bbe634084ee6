"""What a campaign's plot and tables show, as plain JSON values.

Covers `plot_data` and `front_table`. Not covered: drawing.
"""

from __future__ import annotations

from typing import Any

from outerloop.champion.events import EvalEvent
from outerloop.champion.rows import REJECTED_TOTAL
from outerloop.champion.state import CampaignState, GenerationState, compared_row, comparison, coverage

# Below this decided share of a class, a champion of a "decided" campaign is shown with a warning.
COVERAGE_WARNING = 0.5


def _point(event: EvalEvent, counts: dict[str, int]) -> dict[str, Any]:
    return {
        "seq": event.seq,
        "generation": event.generation,
        "round": event.round,
        "subject": event.subject,
        "run_id": event.run_id,
        "checkpoint": event.checkpoint,
        "counts": counts,
    }


def plot_data(state: CampaignState) -> dict[str, Any]:
    """Everything that `campaign plot` draws, JSON-serialisable, oldest first.

    `evaluations` are the comparable test rows with counts per objective and, in the current generation, whether
    they are on the front; `failed` the others' count; `champions`, `generations` and `reserve_checks` are marked
    by their `seq`; `gate_curves` holds the curves of the current front. Costs O(evaluations).
    """
    rules = {event.generation: event.rules for event in state.generations}
    generation = state.generation
    front = {event.seq for event in generation.front.items()} if generation is not None else set()
    evaluations, failed = [], 0
    for event in state.evaluations:
        if event.role != "test":
            continue
        own = rules.get(event.generation)
        # Late rows of an old generation competed with nobody; they are shown as they are.
        row = compared_row(event, own) if own is not None else None
        if own is None or row is None:
            failed += 1
            continue
        totals = {objective.name: row.get(objective.total, 0) for objective in own.objectives}
        point = _point(event, {objective.name: row.get(objective.count, 0) for objective in own.objectives})
        evaluations.append({**point, "totals": totals, "on_front": event.seq in front, "gate_auc": event.gate_auc})
    return {
        "objectives": _objectives(generation),
        "compare": generation.rules.compare if generation is not None else None,
        "evaluations": evaluations,
        "failed": failed,
        "front": front_table(state),
        "champions": [
            {
                "seq": event.seq,
                "generation": event.generation,
                "subject": event.subject,
                "counts": list(event.counts),
                "previous": event.previous,
            }
            for event in state.champions
        ],
        "generations": [
            {"seq": event.seq, "generation": event.generation, "reason": event.reason} for event in state.generations
        ],
        "reserve_checks": [
            {
                "seq": event.seq,
                "generation": event.generation,
                "status": event.status,
                "subject": event.subject,
                "evaluations": event.evaluations,
                "lines": [line.model_dump() for line in event.lines],
            }
            for event in state.reserve_checks
        ],
        "gate_curves": [
            {"subject": event.subject, "points": [list(point) for point in event.gate_curve]}
            for event in (generation.front.items() if generation is not None else [])
            if event.gate_curve is not None
        ],
    }


def _objectives(generation: GenerationState | None) -> list[str]:
    if generation is None:
        return []
    names = [objective.name for objective in generation.rules.objectives]
    rejections = generation.rules.compare == "decided" and generation.rules.reject_objective
    return [*names, REJECTED_TOTAL] if rejections else names


def front_table(state: CampaignState) -> list[dict[str, Any]]:
    """The rows of the current front in order of arrival, for `campaign front`; `champion` marks the champion."""
    generation = state.generation
    if generation is None:
        return []
    table = []
    for event in generation.front.items():
        ranks = comparison(event, generation.rules)
        assert ranks is not None  # it is on the front
        row = compared_row(event, generation.rules) or {}
        table.append(
            {
                **_point(event, dict(zip(_objectives(generation), ranks[0], strict=True))),
                "totals": {o.name: row[o.total] for o in generation.rules.objectives},
                "coverage": coverage(event, generation.rules),
                "champion": generation.champion is not None and generation.champion.seq == event.seq,
            }
        )
    return table


def warnings(state: CampaignState) -> list[str]:
    """Sentences that `campaign status` shows: a champion that decides little, and events that can't be true."""
    found = list(state.anomalies)
    generation = state.generation
    if generation is not None and generation.champion is not None and generation.rules.compare == "decided":
        share = coverage(generation.champion, generation.rules)
        if share is not None and share < COVERAGE_WARNING:
            found.append(
                f"champion {generation.champion.subject} decides on only {share:.0%} of a class: "
                "few errors may mean few decisions (min_coverage keeps such rows out)"
            )
    return found

"""The pages of campaigns: all of them, one with its generations, its ledger; the same as JSON, and the charts.

Covered: gathering and handing to the templates. A ledger that can't be read to its end is shown as far as it goes. Not
covered: folding (controller.campaign_fold), the values of a generation (campaign_facts.py), markup.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from outerloop.champion import CampaignConfig, warnings
from outerloop.champion.words import event_sentence
from outerloop.controller import views
from outerloop.controller.campaign_fold import Fold, LedgerPage, campaign_lines, ledger_page
from outerloop.controller.campaign_views import LiveView, campaign_config, live_jobs
from outerloop.controller.health import next_action
from outerloop.controller.shown import RunFilter, RunView
from outerloop.printable import members
from outerloop.viewer import campaign_facts
from outerloop.viewer.answers import json_answer, page
from outerloop.viewer.asked import Paging, number, paged
from outerloop.viewer.campaign_charts import curve_chart, front_chart, history_chart, spelled
from outerloop.viewer.campaign_facts import Check, Detail, GenerationLine, Step
from outerloop.viewer.source import Looking

__all__ = [
    "campaign_chart_json",
    "campaign_events_json",
    "campaign_events_page",
    "campaign_json",
    "campaign_page",
    "campaigns_json",
    "campaigns_page",
]

LAST_EVENTS = 15
FEW_STEPS = 10
"""Champions that are seen at once; those before them unfold."""
MOST_ROUNDS = 30
MOST_FRONT = 200
KIND = "campaign"


def _listed(request: Request, looking: Looking) -> dict[str, Any]:
    limit, offset = paged(request)
    text = request.query_params.get("text", "")
    found = views.runs(looking.record, RunFilter(kind=KIND, text=text), limit=limit, offset=offset)
    lines = campaign_lines(looking.record, [run.id for run in found.runs])
    paging = Paging(offset, limit, found.total, len(found.runs))
    return {"found": found, "lines": lines, "text": text, "paging": paging}


def campaigns_page(request: Request) -> Response:
    with request.app.state.source.looking() as looking:
        facts = _listed(request, looking)
    return page(request, "campaigns.html", live=facts["paging"].offset == 0, now=facts["found"].now, **facts)


def campaigns_json(request: Request) -> Response:
    with request.app.state.source.looking() as looking:
        facts = _listed(request, looking)
    rows = [{**members(run), "ledger": facts["lines"].get(run.id)} for run in facts["found"].runs]
    return json_answer({"campaigns": rows, "total": facts["found"].total, "next_offset": facts["found"].next_offset})


@dataclass(frozen=True)
class _Shown:
    """One campaign at one look."""

    view: RunView
    config: CampaignConfig | None
    problem: str
    """Why the ledger or the configuration can't be read to its end."""
    head: dict[str, Any]
    warnings: list[str]
    generations: tuple[GenerationLine, ...]
    steps: tuple[Step, ...]
    checks: tuple[Check, ...]
    detail: Detail | None
    live: tuple[LiveView, ...]


def _head(fold: Fold, config: CampaignConfig | None) -> dict[str, Any]:
    """The numbers in short. `until_check` counts evaluations."""
    state = fold.books.state
    generation = state.generation
    return {
        "events": fold.seq,
        "stopped": state.stopped,
        "generation": generation.number if generation is not None else None,
        "rounds": len(generation.rounds) if generation is not None else 0,
        "rounds_opened": state.rounds_opened,
        "max_rounds": config.max_rounds if config is not None else None,
        "compare": generation.rules.compare if generation is not None else None,
        "evaluations": generation.evaluations if generation is not None else 0,
        "until_check": max(0, config.saturation_evals - generation.evaluations + generation.consumed)
        if generation is not None and config is not None
        else None,
        "checks_passed": generation.checks_passed if generation is not None else 0,
        "max_checks": config.max_reserve_checks if config is not None else None,
        "front": generation.front.size if generation is not None else 0,
        "gpu_hours_used": round(state.gpu_hours_used, 4),
        "gpu_hours": config.gpu_hours if config is not None else None,
        "candidates": [candidate.name for candidate in state.candidates],
        "candidates_rejected": state.candidates_rejected,
        "packaging": state.packaging.running.subject if state.packaging.running is not None else "",
    }


def _run(looking: Looking, run_id: str) -> RunView:
    view = views.run_head(looking.record, run_id)
    if view is None:
        raise HTTPException(404, f"There is no run {run_id} here.")
    if view.row.kind != KIND:
        raise HTTPException(404, f"Run {run_id} is a {view.row.kind}, not a campaign.")
    return view


@contextmanager
def _folded(request: Request, looking: Looking) -> Iterator[tuple[RunView, Fold, Detail | None]]:
    """The campaign of an address, its fold, and the generation that was asked for or the current one."""
    view = _run(looking, request.path_params["run"])
    with looking.folds.of(looking.record, view.row.id) as fold:
        state = fold.books.state
        wanted = number(request, "generation", 0, 10**9)
        current = state.generation.number if state.generation is not None else None
        chosen = wanted or current
        found = None if chosen is None else campaign_facts.detail(fold, chosen)
        if wanted and found is None:
            raise HTTPException(404, f"Campaign {view.row.benchmark} has no generation {wanted}.")
        yield view, fold, found


def _shown(request: Request, looking: Looking) -> _Shown:
    with _folded(request, looking) as (view, fold, found):
        config, trouble = campaign_config(looking.record, view.row.id)
        return _Shown(
            view=view,
            config=config,
            problem=fold.problem or trouble,
            head=_head(fold, config),
            warnings=warnings(fold.books.state),
            generations=campaign_facts.generation_lines(fold),
            steps=campaign_facts.steps(fold),
            checks=campaign_facts.checks(fold),
            detail=found,
            live=live_jobs(looking.record, view.row.id, list(fold.books.state.live)),
        )


def campaign_page(request: Request) -> Response:
    with request.app.state.source.looking() as looking:
        shown = _shown(request, looking)
        action = next_action(shown.view, views.last_tick(looking.record), cadence_seconds=looking.cadence_seconds)
        ledger = ledger_page(looking.record, shown.view.row.id, limit=LAST_EVENTS)
    found = shown.detail
    objectives = found.objectives if found is not None else ()
    front = () if found is None else sorted(found.front, key=lambda point: (not point.champion, point.counts))
    return page(
        request,
        "campaign.html",
        live=shown.view.row.state != "ended",
        shown=shown,
        row=shown.view.row,
        head=shown.head,
        action=action,
        detail=found,
        objectives=objectives,
        few=FEW_STEPS,
        front=front[:MOST_FRONT],
        hidden_front=max(0, len(front) - MOST_FRONT),
        rounds=list(found.rounds.items())[:MOST_ROUNDS] if found is not None else [],
        hidden_rounds=max(0, len(found.rounds) - MOST_ROUNDS) if found is not None else 0,
        spelled=spelled,
        events=_told(ledger),
        total_events=ledger.total,
        now=shown.view.now,
    )


def _told(ledger: LedgerPage) -> list[dict[str, Any]]:
    return [
        {
            "seq": seq,
            "kind": kind,
            "at": "" if event is None else event.time or "",
            "sentence": f"can't be read: {line[:200]}" if event is None else event_sentence(event),
        }
        for seq, kind, event, line in ledger.events
    ]


def _events(request: Request, looking: Looking) -> tuple[RunView, str, LedgerPage, Paging]:
    limit, offset = paged(request)
    view = _run(looking, request.path_params["run"])
    kind = request.query_params.get("kind", "")
    ledger = ledger_page(looking.record, view.row.id, kind=kind, limit=limit, offset=offset)
    if kind and kind not in ledger.kinds:
        known = ", ".join(ledger.kinds) or "none yet"
        raise HTTPException(400, f"kind is one of {known}, not {kind[:40]!r}.")
    return view, kind, ledger, Paging(offset, limit, ledger.total, len(ledger.events))


def campaign_events_page(request: Request) -> Response:
    with request.app.state.source.looking() as looking:
        view, kind, ledger, paging = _events(request, looking)
    return page(
        request,
        "campaign_events.html",
        live=view.row.state != "ended" and paging.offset == 0,
        row=view.row,
        kind=kind,
        kinds=ledger.kinds,
        events=_told(ledger),
        paging=paging,
    )


# ------------------------------------------------------------------------------------------------ JSON


def campaign_json(request: Request) -> Response:
    with request.app.state.source.looking() as looking:
        shown = _shown(request, looking)
        action = next_action(shown.view, views.last_tick(looking.record), cadence_seconds=looking.cadence_seconds)
    found = shown.detail
    return json_answer(
        {
            "run": shown.view.row,
            "next": action,
            "problem": shown.problem,
            **shown.head,
            "warnings": shown.warnings,
            "live": shown.live,
            "generations": shown.generations,
            "champions": shown.steps,
            "reserve_checks": [_check(check) for check in shown.checks],
            "generation_shown": None if found is None else _detail(found),
        }
    )


def _check(check: Check) -> dict[str, Any]:
    return {**members(check), "lines": [line.model_dump(mode="json") for line in check.lines]}


def _detail(found: Detail) -> dict[str, Any]:
    return {
        "generation": found.number,
        "opened": found.opened.model_dump(mode="json"),
        "objectives": found.objectives,
        "evaluations": found.points,
        "failed": found.failed,
        "front": found.front,
        "champion": found.champion,
        "rounds": {str(number): mine for number, mine in found.rounds.items()},
        "ensembles": found.ensembles,
        "gate_curves": [{"subject": subject, "points": points} for subject, points in found.curves],
        "teachers": [event.model_dump(mode="json") for event in found.teachers],
        "packages": [event.model_dump(mode="json") for event in found.packages],
    }


def campaign_events_json(request: Request) -> Response:
    with request.app.state.source.looking() as looking:
        view, _kind, ledger, paging = _events(request, looking)
    return json_answer(
        {
            "run": view.row.id,
            "total": ledger.total,
            "kinds": ledger.kinds,
            "next_offset": paging.after,
            "events": [
                {"seq": seq, "kind": kind, "event": None if event is None else json.loads(event.model_dump_json())}
                | ({} if event is not None else {"line": line[:10_000]})
                for seq, kind, event, line in ledger.events
            ],
        }
    )


def campaign_chart_json(request: Request) -> Response:
    """/api/charts/campaigns/RUN/{front,history,curves}."""
    name = request.path_params["chart"]
    with request.app.state.source.looking() as looking, _folded(request, looking) as (_view, fold, found):
        if name == "front":
            return json_answer({"data": [], "layout": {}} if found is None else front_chart(found))
        if name == "curves":
            return json_answer({"data": [], "layout": {}} if found is None else curve_chart(found))
        if name == "history":
            generations = fold.books.state.generations
            rules = fold.books.state.generation.rules if fold.books.state.generation is not None else None
            return json_answer(
                history_chart(
                    campaign_facts.evaluations(fold),
                    campaign_facts.objectives_of(rules),
                    campaign_facts.steps(fold),
                    [event.generation for event in generations],
                    [event.seq for event in generations],
                    campaign_facts.checks(fold),
                )
            )
    raise HTTPException(404, f"There is no chart {name}.")

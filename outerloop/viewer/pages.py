"""The pages over many runs: overview, runs, benchmarks, trainings, queue, plans; and the same as JSON.

Covered: asking and handing to the templates. Not covered: one run (run_page.py), markup.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from outerloop.compute.reasons import pending_reason
from outerloop.controller import health, history, views
from outerloop.controller.sealing import withheld_champion, withheld_page
from outerloop.controller.shown import RunFilter, RunPage
from outerloop.controller.training_facts import measured_figures
from outerloop.printable import members
from outerloop.viewer.answers import json_answer, page
from outerloop.viewer.asked import MOST_ON_PAGE, PAGE, Paging, choice, paged
from outerloop.viewer.charts import champion_chart, day_chart
from outerloop.viewer.source import Looking

__all__ = [
    "benchmark_chart_json",
    "benchmark_json",
    "benchmark_page",
    "benchmarks_json",
    "benchmarks_page",
    "champions_json",
    "days_chart_json",
    "overview_page",
    "plans_json",
    "plans_page",
    "queue_json",
    "queue_page",
    "runs_json",
    "runs_page",
    "status_json",
    "trainings_page",
]

OPEN_ON_OVERVIEW = 100
LAST_VERDICTS = 12
DAYS = 30
STATES = ("queued", "waiting", "blocked", "ended")
KINDS = ("climb", "training", "campaign", "entry")
VERDICTS = ("accepted", "rejected", "failed", "cancelled", "finished")


def _wanted(request: Request) -> RunFilter:
    query = request.query_params
    state = choice(request, "state", STATES)
    return RunFilter(
        states=(state,) if state else (),
        target=query.get("target", ""),
        benchmark=query.get("benchmark", ""),
        text=query.get("text", ""),
        submitter=query.get("author", ""),
        kind=choice(request, "kind", KINDS),
        verdict=choice(request, "verdict", VERDICTS),
    )


def _runs(looking: Looking, wanted: RunFilter, *, limit: int, offset: int = 0) -> RunPage:
    """Some runs, without what ladders withhold."""
    return withheld_page(views.runs(looking.record, wanted, limit=limit, offset=offset))


def _state(looking: Looking) -> dict[str, Any]:
    """The head of the overview: what is wrong, the tick, the queue by reason."""
    record = looking.record
    tick, queue, seen = views.last_tick(record), views.queue(record), views.overview(record)
    worst = health.worst_problem(seen, tick, queue, cadence_seconds=looking.cadence_seconds)
    return {"problem": worst, "tick": tick, "queue": queue, "seen": seen, "now": seen.now}


def _ending(runs: Any, usual: Any, now: Any) -> dict[str, str]:
    """By run: when it usually would end, from the history of its benchmark."""
    told = {}
    for run in runs:
        known = usual.get((run.target, run.benchmark))
        if known is not None and run.state in ("queued", "waiting"):
            told[run.id] = health.expected_end((now - run.created_at).total_seconds(), known.median, known.p90)
    return told


def overview_page(request: Request) -> Response:
    with request.app.state.source.looking() as looking:
        state = _state(looking)
        open_ = _runs(looking, RunFilter(states=views.OPEN_STATES), limit=OPEN_ON_OVERVIEW)
        ended = _runs(looking, RunFilter(states=("ended",)), limit=LAST_VERDICTS)
        usual = history.usual_durations(looking.record, {(run.target, run.benchmark) for run in open_.runs})
        days = history.days(looking.record, back=DAYS)
    return page(
        request,
        "overview.html",
        live=True,
        **state,
        groups=health.groups(open_.runs),
        open=open_,
        ended=ended,
        ending=_ending(open_.runs, usual, state["now"]),
        reason=pending_reason,
        days=days,
    )


def runs_page(request: Request) -> Response:
    limit, offset = paged(request)
    wanted = _wanted(request)
    with request.app.state.source.looking() as looking:
        found = _runs(looking, wanted, limit=limit, offset=offset)
        authors = history.authors(looking.record)
    return page(
        request,
        "runs.html",
        live=offset == 0,
        found=found,
        wanted=wanted,
        paging=Paging(offset, limit, found.total, len(found.runs)),
        authors=authors,
        states=STATES,
        kinds=KINDS,
        verdicts=VERDICTS,
        now=found.now,
    )


def benchmarks_page(request: Request) -> Response:
    limit, offset = paged(request)
    text = request.query_params.get("text", "")
    with request.app.state.source.looking() as looking:
        lines, total = history.benchmark_lines(looking.record, text=text, limit=limit, offset=offset)
        now = looking.record.now()
    return page(
        request,
        "benchmarks.html",
        now=now,
        live=offset == 0,
        lines=lines,
        text=text,
        paging=Paging(offset, limit, total, len(lines)),
    )


def _benchmark(request: Request, looking: Looking) -> dict[str, Any]:
    target, name = request.path_params["target"], request.path_params["benchmark"]
    every = views.champions(looking.record, name, target=target, limit=1000)
    crowned = [withheld_champion(champion) for champion in every if champion.target == target]
    asked = history.verdict_history(looking.record, target, name)
    wanted = RunFilter(benchmark=name, target=target)
    recent = _runs(looking, wanted, limit=PAGE)
    if not recent.total and not crowned:
        raise HTTPException(404, f"Nobody ever asked about the benchmark {name} of {target}.")
    definition = crowned[0].definition if crowned else asked[0].definition if asked else ""
    reused = [
        r for r in views.reuse(looking.record, name, target=target) if r.target == target and r.definition == definition
    ]
    return {
        "target": target,
        "benchmark": name,
        "definition": definition,
        "champions": crowned,
        "asked": asked,
        "recent": recent,
        "reuse": reused[0] if reused else None,
    }


def benchmark_page(request: Request) -> Response:
    from outerloop.controller.reuse_text import reuse_sentences

    with request.app.state.source.looking() as looking:
        facts = _benchmark(request, looking)
    reuse = facts.pop("reuse")
    sentences = [] if reuse is None else reuse_sentences(reuse.decisions, fresh_seeds=reuse.fresh_seeds)
    return page(
        request, "benchmark.html", live=bool(facts["recent"].total), now=facts["recent"].now, reuse=sentences, **facts
    )


def trainings_page(request: Request) -> Response:
    limit, offset = paged(request)
    text = request.query_params.get("text", "")
    with request.app.state.source.looking() as looking:
        found = _runs(looking, RunFilter(kind="training", text=text), limit=limit, offset=offset)
        reports = history.training_reports(looking.record, [run.id for run in found.runs])
        entries = _runs(looking, RunFilter(kind="entry"), limit=1, offset=0).total
    return page(
        request,
        "trainings.html",
        live=offset == 0,
        found=found,
        entries=entries,
        reports=reports,
        text=text,
        now=found.now,
        paging=Paging(offset, limit, found.total, len(found.runs)),
    )


def queue_page(request: Request) -> Response:
    limit, offset = paged(request)
    state, reason = request.query_params.get("state", ""), request.query_params.get("reason", "")
    with request.app.state.source.looking() as looking:
        head = _state(looking)
        jobs, total = history.live_jobs(looking.record, state=state, reason=reason, limit=limit, offset=offset)
    return page(
        request,
        "queue.html",
        live=True,
        **head,
        jobs=jobs,
        chosen=(state, reason),
        reason=pending_reason,
        paging=Paging(offset, limit, total, len(jobs)),
    )


def _plans(looking: Looking) -> list[dict[str, Any]]:
    """Trainings that a plan launched: what the planner said beside what was measured."""
    told = []
    for item in history.planned_trainings(looking.record, limit=200):
        expected = item.expected
        measured = [
            {
                "role": role,
                "peak_gb": _gb((facts.get("peak_memory_mb") or {}).get("reserved")),
                "host_gb": _gb((facts.get("peak_memory_mb") or {}).get("rss")),
                "step_seconds": (facts.get("step_seconds") or {}).get("median"),
                "tokens_per_second": facts.get("tokens_per_second"),
                "device": facts.get("device_name") or facts.get("device") or "",
            }
            for role, facts in item.reports.items()
        ]
        told.append({**asdict(item), "expected": expected, "measured": measured, "reports": None})
    return told


def _gb(megabytes: Any) -> float | None:
    return megabytes / 1000 if isinstance(megabytes, int | float) else None


def plans_page(request: Request) -> Response:
    with request.app.state.source.looking() as looking:
        plans = _plans(looking)
        figures = measured_figures(looking.record)
        now = looking.record.now()
    return page(
        request, "plans.html", now=now, plans=plans, figures=[figure.model_dump(mode="json") for figure in figures]
    )


# ------------------------------------------------------------------------------------------------ JSON


def status_json(request: Request) -> Response:
    with request.app.state.source.looking() as looking:
        state = _state(looking)
        open_ = _runs(looking, RunFilter(states=views.OPEN_STATES), limit=OPEN_ON_OVERVIEW)
    return json_answer({**state, "groups": health.groups(open_.runs), "open": open_.total})


def runs_json(request: Request) -> Response:
    limit, offset = paged(request)
    with request.app.state.source.looking() as looking:
        found = _runs(looking, _wanted(request), limit=limit, offset=offset)
    return json_answer({**members(found), "next_offset": found.next_offset})


def benchmarks_json(request: Request) -> Response:
    limit, offset = paged(request)
    with request.app.state.source.looking() as looking:
        lines, total = history.benchmark_lines(
            looking.record, text=request.query_params.get("text", ""), limit=limit, offset=offset
        )
    return json_answer({"benchmarks": lines, "total": total})


def benchmark_json(request: Request) -> Response:
    with request.app.state.source.looking() as looking:
        return json_answer(_benchmark(request, looking))


def champions_json(request: Request) -> Response:
    query = request.query_params
    with request.app.state.source.looking() as looking:
        found = views.champions(
            looking.record, query.get("benchmark", ""), target=query.get("target", ""), limit=MOST_ON_PAGE
        )
    return json_answer([withheld_champion(champion) for champion in found])


def queue_json(request: Request) -> Response:
    limit, offset = paged(request)
    query = request.query_params
    with request.app.state.source.looking() as looking:
        by_reason = views.queue(looking.record)
        jobs, total = history.live_jobs(
            looking.record, state=query.get("state", ""), reason=query.get("reason", ""), limit=limit, offset=offset
        )
    summary = [
        {
            **members(group),
            "meaning": pending_reason(group.reason).sentence if group.state == "pending" and group.reason else "",
        }
        for group in by_reason
    ]
    return json_answer({"by_reason": summary, "jobs": jobs, "total": total})


def plans_json(request: Request) -> Response:
    with request.app.state.source.looking() as looking:
        return json_answer({"plans": _plans(looking), "figures": plain_figures(looking)})


def plain_figures(looking: Looking) -> list[dict[str, Any]]:
    """What trainings measured of layouts that a plan chose, as the planner takes it."""
    return [figure.model_dump(mode="json") for figure in measured_figures(looking.record)]


def benchmark_chart_json(request: Request) -> Response:
    with request.app.state.source.looking() as looking:
        facts = _benchmark(request, looking)
    definition = facts["definition"]
    return json_answer(
        champion_chart(
            [c for c in facts["champions"] if c.definition == definition],
            [one for one in facts["asked"] if one.definition == definition],
        )
    )


def days_chart_json(request: Request) -> Response:
    with request.app.state.source.looking() as looking:
        return json_answer(day_chart(history.days(looking.record, back=DAYS), looking.record.now(), DAYS))

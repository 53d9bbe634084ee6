"""What `outerloop campaign` prints: status, front, events.

Covered: text and JSON of each. Not covered: folding the ledger (controller.campaign_views).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from outerloop.champion import EvalEvent, front_table
from outerloop.champion.state import run_status
from outerloop.champion.words import counts_text, event_sentence
from outerloop.cli.text import Columns, Hanging, moment, one_line, plain

if TYPE_CHECKING:
    from rich.console import Group

    from outerloop.champion import Event
    from outerloop.controller.campaign_views import CampaignView

__all__ = ["events_text", "front_text", "status_json", "status_text"]


def status_json(view: CampaignView) -> dict[str, Any]:
    """Everything that status tells, for programs."""
    state, run = view.state, view.run
    generation = state.generation
    champion = generation.champion if generation is not None else None
    return {
        "run": run.id,
        "name": run.benchmark,
        "state": run.state,
        "state_reason": run.state_reason,
        "state_detail": run.state_detail,
        "verdict": run.verdict,
        "sentence": run.sentence,
        "folder": str(view.places.folder),
        "candidates_file": str(view.places.settings[-1].candidates_path),
        "events": state.seq,
        "stopped": state.stopped,
        "cancelled": state.cancelled,
        "generation": generation.number if generation is not None else None,
        "generation_reason": generation.opened.reason if generation is not None else None,
        "rounds": len(generation.rounds) if generation is not None else 0,
        "rounds_opened": state.rounds_opened,
        "max_rounds": view.config.max_rounds,
        "compare": generation.rules.compare if generation is not None else view.config.compare,
        "champion": None if champion is None else _champion(champion),
        "front": len(generation.front.items()) if generation is not None else 0,
        "evaluations": generation.evaluations if generation is not None else 0,
        "until_check": max(0, view.config.saturation_evals - generation.evaluations + generation.consumed)
        if generation is not None
        else None,
        "checks_passed": generation.checks_passed if generation is not None else 0,
        "teacher": generation.teacher.status if generation is not None else "none",
        "runs": dict(Counter(item.status for item in state.runs.values())),
        "gpu_hours_used": round(state.gpu_hours_used, 4),
        "gpu_hours": view.config.gpu_hours,
        "parallel": view.config.parallel,
        "live": plain(view.live),
        "warnings": view.warnings,
        "last_error": run.last_error,
    }


def _champion(champion: EvalEvent) -> dict[str, Any]:
    return {
        "subject": champion.subject,
        "seq": champion.seq,
        "row": dict(champion.row),
        "decided": champion.decided,
        "checkpoint_sha256": champion.checkpoint_sha256,
    }


def status_text(view: CampaignView) -> Group:
    """The status as text."""
    from rich.console import Group
    from rich.text import Text

    told = status_json(view)
    parts: list[Any] = [Hanging(prefix, text) for prefix, text in _head(view, told)]
    if view.live:
        parts += [Text(), Text("Jobs", style="bold")]
        rows = [
            [item.key, item.queue or item.state or "to be submitted", item.job_id, item.slot[:12]] for item in view.live
        ]
        parts.append(Columns(["WHAT", "STATE", "JOB", "SLOT"], rows, give="WHAT", indent=2))
        parts += [Hanging(f"  {item.key}: ", one_line(item.detail)) for item in view.live if item.detail]
    if view.warnings:
        parts += [Text(), Text("Warnings", style="bold")]
        parts += [Hanging("  ", one_line(sentence)) for sentence in view.warnings]
    return Group(*parts)


def _head(view: CampaignView, told: dict[str, Any]) -> Iterator[tuple[str, str]]:
    run, state = view.run, view.state
    yield "campaign ", f"{one_line(run.benchmark)} (run {run.id}) of {one_line(run.target)}"
    if run.state == "ended":
        yield "  ended       ", f"{moment(run.ended_at)}: {one_line(run.sentence or '')}"
    else:
        reason = f" ({run.state_reason})" if run.state_reason else ""
        detail = f": {one_line(run.state_detail)}" if run.state_detail else ""
        yield "  state       ", f"{run.state}{reason}{detail}"
    generation = state.generation
    if generation is None:
        yield "  generation  ", "none yet"
    else:
        limit = f" of {told['max_rounds']}" if told["max_rounds"] else ""
        yield (
            "  generation  ",
            f"{generation.number} ({one_line(generation.opened.reason)}), round {told['rounds']};"
            f" {told['rounds_opened']}{limit} rounds opened in all",
        )
        champion = generation.champion
        yield "  champion    ", "none yet" if champion is None else champion.subject
        if champion is not None:
            yield "              ", counts_text(champion)
        yield (
            "  front       ",
            f"{told['front']} of {told['evaluations']} evaluations"
            + ("" if run.state == "ended" else f"; the reserve is asked after {told['until_check']} more"),
        )
        if told["teacher"] != "none":
            yield "  teacher     ", str(told["teacher"])
    counted = Counter(run_status(state, item) for item in state.runs.values())
    runs = ", ".join(f"{count} {status}" for status, count in sorted(counted.items()))
    if runs:
        yield "  runs        ", runs
    if told["gpu_hours_used"] or told["gpu_hours"]:
        budget = f" of {told['gpu_hours']:g}" if told["gpu_hours"] else ""
        yield "  GPU-hours   ", f"{told['gpu_hours_used']:g}{budget}"
    yield "  folder      ", told["folder"]


def front_text(view: CampaignView) -> Group:
    """The front as a table."""
    from rich.console import Group
    from rich.text import Text

    table = front_table(view.state)
    if not table:
        return Group(Text("There is no front yet: nothing has been scored in this generation."))
    names = list(table[0]["counts"])
    rows = [
        [
            "*" if item["champion"] else "",
            str(item["seq"]),
            *(
                f"{item['counts'][name]}/{item['totals'][name]}"
                if name in item["totals"]
                else str(item["counts"][name])
                for name in names
            ),
            "" if item["coverage"] is None else f"{item['coverage']:.0%}",
            item["subject"],
        ]
        for item in table
    ]
    heads = ["", "EVENT", *(name.upper() for name in names), "DECIDED", "CHECKPOINT"]
    return Group(Columns(heads, rows, right=["EVENT", *(name.upper() for name in names), "DECIDED"], give="CHECKPOINT"))


def _share(item: dict[str, Any], name: str) -> str:
    """A count with its denominator, where it has one."""
    total = item["totals"].get(name)
    return str(item["counts"][name]) if total is None else f"{item['counts'][name]}/{total}"


def events_text(events: Sequence[Event], total: int) -> Group:
    """Events as lines for people."""
    from rich.console import Group
    from rich.text import Text

    parts: list[Any] = []
    if len(events) < total:
        parts.append(Text(f"… {total - len(events)} earlier events; --all shows them"))
    for event in events:
        at = (event.time or "")[:19].replace("T", " ")
        parts.append(Hanging(f"{event.seq:>6}  {at}  ", one_line(event_sentence(event))))
    return Group(*parts) if parts else Group(Text("Nothing has happened yet."))

"""What `show` and `explain` say of an entry besides what every run has, and the board of a challenge's entries.

Covered: the opponent, the figures of the comparison, the evaluations behind it, the table of entries. Not covered: jobs
and timeline (run_text.py), asking the record (controller.views), the judgement (controller.entry_evidence).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from outerloop.cli.text import folded, one_line
from outerloop.cli.training_text import training_lines

if TYPE_CHECKING:
    from outerloop.controller.training_shown import TrainingFacts
    from outerloop.controller.views import RunView

__all__ = ["board_rows", "board_text", "entry_argument", "entry_head"]

WIDTH = 80
_DIGITS = 12


def entry_head(view: RunView) -> Iterator[tuple[str, str]]:
    """(prefix, text) of the first lines of `show`."""
    row, request = view.row, view.request
    yield "run ", f"{row.id}: entry to challenge {one_line(row.benchmark)}"
    counts = ", ".join(f"{count} rows for {stage}" for stage, count in (request.get("rows") or {}).items())
    yield "  data       ", one_line(f"{row.candidate_commit[:_DIGITS]}  {row.label}: {counts}")
    yield "  against    ", _opponent(view)


def _opponent(view: RunView) -> str:
    rounds = [event.body for event in view.events if event.kind == "round"]
    if not rounds:
        return "not known before it is advanced"
    run = rounds[-1].get("opponent")
    return f"champion {rounds[-1].get('champion_seq')}, run {run}" if run else "the untrained model"


def entry_argument(view: RunView, facts: TrainingFacts) -> Iterator[str]:
    """`explain` of an entry: every figure behind the verdict, without anything about a single task."""
    row, request = view.row, view.request
    evidence: Mapping[str, Any] = view.evidence or {}
    for prefix, text in entry_head(view):
        yield folded(text, WIDTH, prefix=prefix)
    yield ""
    if row.state == "ended":
        yield folded(one_line(row.sentence or str(row.verdict)), WIDTH)
    else:
        why = f" ({row.state_reason}): {row.state_detail}" if row.state_reason else ""
        yield folded(one_line(f"It has not ended. It is {row.state}{why}."), WIDTH)
    if evidence.get("comparison"):
        yield ""
        yield "Comparison"
        yield from (folded(text, WIDTH, prefix=prefix) for prefix, text in _comparison(evidence))
        yield ""
        yield "Evaluations"
        yield from _evaluations(evidence)
    lines = list(training_lines(facts))
    if lines:
        yield ""
        yield "Reported by its stages"
        yield from (folded(one_line(text), WIDTH, prefix=prefix) for prefix, text in lines)
    yield ""
    yield "How far this can be trusted"
    for note in _notes(request):
        yield folded(note, WIDTH, "  - ")
    yield ""
    yield f"Go on with: outerloop show {row.id}, outerloop challenge board {row.benchmark}"


def _comparison(evidence: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    found = evidence["comparison"]
    yield "  score     ", f"{_four(found['candidate'])} against {_four(found['opponent'])}, over {found['tasks']} tasks"
    moved = f"{found['better']} tasks better, {found['worse']} worse"
    yield "  gain      ", f"{float(found['gain']):+.4f}, at least {evidence['min_delta']} is asked; {moved}"
    how = "exact McNemar" if found["test"] == "mcnemar" else "sign-flip over tasks"
    drawn = f", {found['resamples']} resamples" if found["resamples"] else ""
    asking = int(evidence["asking"])
    share = f" (asking number {asking}: a share of the challenge's)" if asking > 1 else ""
    yield "  p         ", f"{found['p']:.2g}, one-sided {how}{drawn}; alpha {evidence['alpha']}{share}"
    if found["dropped"]:
        yield "  dropped   ", f"{found['dropped']} tasks that infrastructure ended on either side"
    reserve = evidence.get("reserve")
    if reserve:
        held = "holds" if reserve["held"] else "does not hold"
        told = f"gain {float(reserve['reserve_gain']):+.4f} there; p = {reserve['p']:.2g} that it is smaller by chance"
        yield "  reserve   ", f"{told}: the win {held}"


def _evaluations(evidence: Mapping[str, Any]) -> Iterator[str]:
    for role, item in evidence["evaluations"].items():
        lost = f", {item['dropped_tasks']} dropped" if item["dropped_tasks"] else ""
        mean = "none" if item["mean"] is None else f"{item['mean']:.4f}"
        seed = f", seed {item['seed']}" if item["seed"] else ""
        yield folded(f"{mean} over {item['scored_tasks']} tasks{lost}{seed}", WIDTH, prefix=f"  {one_line(role)}: ")


def _notes(request: Mapping[str, Any]) -> Iterator[str]:
    seeds = len(request.get("train_seeds") or ())
    if seeds == 1:
        yield "one training seed: chance in training is not averaged out"
    else:
        yield f"a task's score is its mean over {seeds} training seeds and the trials of each"
    yield "paraphrases of held-out tasks, and what the model saw before, are not detected"
    yield "the rows of an evaluation are sealed: on an account of your own that is a convention, not a wall"


def _four(text: Any) -> str:
    return f"{float(text):.4f}"


def board_rows(views: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Entries with the accepted ones first, then by score, then refused and failed ones, then open ones.

    Equal ones stay in the order in which they came. A folder's verdict may be anybody's file: one that lacks what a
    board shows is left out, and one whose figures are no numbers comes after the others.
    """

    def order(entry: Mapping[str, Any]) -> tuple[int, float]:
        place = {"accepted": 0, "rejected": 1, "open": 3}.get(str(entry["outcome"]), 2)
        figures = _figures(entry)
        return place, 0.0 if figures is None else -figures[0]

    whole = [dict(view) for view in views if view.keys() >= _SHOWN]
    return sorted(whole, key=order)


_SHOWN = {"entry", "outcome", "reason", "opponent"}


def _figures(entry: Mapping[str, Any]) -> tuple[float, float, float] | None:
    """Score, gain and p; None where nothing was compared."""
    numbers = entry.get("comparison")
    if not isinstance(numbers, Mapping):
        return None
    try:
        found = float(numbers["candidate"]), float(numbers["gain"]), float(numbers["p"])
    except (KeyError, TypeError, ValueError):
        return None
    return found if all(map(math.isfinite, found)) else None


def board_text(entries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The board as lines of at most 80 columns."""
    yield f"{'entry':<16} {'score':>6} {'gain':>7} {'p':>8}  {'against':<12} verdict"
    for entry in entries:
        numbers = _figures(entry)
        figures = f"{'':>6} {'':>7} {'':>8}"
        if numbers:
            figures = f"{numbers[0]:>6.4f} {numbers[1]:>+7.4f} {numbers[2]:>8.2g}"
        told = ": ".join(part for part in (str(entry["outcome"]), str(entry["reason"])) if part)
        name, opponent = one_line(str(entry["entry"]))[:16], one_line(str(entry["opponent"]))[:12]
        yield f"{name:<16} {figures}  {opponent:<12} {told}"

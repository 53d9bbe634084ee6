"""Reserve decisions computed again from the rows and rules that a ledger holds: nothing in them is taken on trust.

Covered: whether a verdict follows from its check, its champion and the reserve row. `contradiction` is cheap and part
of every fold; `odds_differ` repeats the power sums as well, for a replay. Not covered: making a verdict (decide.py),
and whether the level was the configuration's: a ledger holds none beside the check's own.
"""

from __future__ import annotations

import math

from outerloop.champion.events import CheckLine, EvalEvent, ReserveCheckEvent
from outerloop.champion.reserve import CheckError, fisher_p, hold_up, two_proportion_z
from outerloop.champion.rows import Row, RowError, integer_at
from outerloop.champion.state import CampaignState, GenerationState, compared_row, reserve_result

RULES = ("z", "fisher", "optimism")

# Sums of logarithms and exponentials differ in their last digits between C libraries.
RELATIVE, ABSOLUTE = 1e-6, 1e-9


def unsound_start(generation: GenerationState, champion: EvalEvent, event: ReserveCheckEvent) -> str:
    """Why a check can't have begun like this; "" when it can."""
    if event.subject != champion.subject:
        return f"the champion is {champion.subject}"
    if event.evaluations != generation.evaluations:
        return f"it counts {event.evaluations} comparable rows, there are {generation.evaluations}"
    if event.rule not in RULES:
        return f"there is no rule {event.rule!r}"
    if event.alpha is not None and not 0.0 < event.alpha < 1.0:
        return f"alpha must lie between 0 and 1, it is {event.alpha}"
    return ""


def contradiction(
    state: CampaignState, generation: GenerationState, check: ReserveCheckEvent, event: ReserveCheckEvent
) -> str:
    """Why the end of a check does not follow from the ledger; "" when it does."""
    for name in ("subject", "evaluations", "rule", "alpha"):
        if getattr(event, name) != getattr(check, name):
            return f"its {name} is {getattr(event, name)}, the check began with {getattr(check, name)}"
    champion = generation.champion
    assert champion is not None  # a check has one, and a generation loses none
    if (event.status == "stale") != (champion.seq != check.champion_seq):
        return f"it is {event.status}, and the champion is {champion.subject} of event {champion.seq}"
    expected: list[CheckLine] | None = None
    if event.status != "stale":
        reserve = reserve_result(state, check)
        if reserve is None:
            return "there is no reserve evaluation that it could rest on"
        expected = _lines(generation, check, champion, reserve)
    if expected is None:
        told = event.status in {"stale", "not_run"}
        return (
            "" if told and not event.lines and not event.ends else f"the rows decide nothing, and it is {event.status}"
        )
    if len(event.lines) != len(expected):
        return f"it has {len(event.lines)} tests for {len(expected)} objectives"
    for line, due in zip(event.lines, expected, strict=True):
        for name in ("objective", "test_count", "test_total", "reserve_count", "reserve_total", "optimism", "z", "p"):
            if not _same(getattr(line, name), getattr(due, name)):
                return f"{line.objective}: {name} is {getattr(line, name)}, from the rows it is {getattr(due, name)}"
    if check.alpha is not None:
        status = "luck" if any(line.p < check.alpha for line in event.lines) else "passed"
        if event.status != status:
            least = min(line.p for line in event.lines)
            return f"it is {event.status}, with p = {least:.3g} at alpha {check.alpha:g} it is {status}"
    elif event.status == "not_run":
        return "it is not_run, and both rows are there"
    ends = {"luck": ("reserve_failed",), "passed": ("", "max_reserve_checks")}
    return "" if event.ends in ends[event.status] else f"after {event.status} no generation ends with {event.ends!r}"


def _lines(
    generation: GenerationState, check: ReserveCheckEvent, champion: EvalEvent, reserve: EvalEvent
) -> list[CheckLine] | None:
    """The tests of a check without their odds; None when the rows allow none."""
    test, new = compared_row(champion, generation.rules), compared_row(reserve, generation.rules)
    objectives = generation.rules.objectives
    if test is None or new is None:
        return None
    shifts = [0.0] * len(objectives)
    if check.rule == "optimism":
        told = reserve.optimism
        if told is None or len(told) != len(objectives) or not all(map(math.isfinite, told)):
            return None
        shifts = [max(0.0, value) for value in told]
    lines = []
    try:
        for objective, shift in zip(objectives, shifts, strict=True):
            a, n, b, m = (_integer(row, key) for row in (test, new) for key in (objective.count, objective.total))
            fisher = check.rule == "fisher"
            z, p = (None, fisher_p(a, n, b, m)) if fisher else two_proportion_z(a, n, b, m, shift)
            lines.append(
                CheckLine(
                    objective=objective.name,
                    test_count=a,
                    test_total=n,
                    reserve_count=b,
                    reserve_total=m,
                    optimism=shift,
                    z=z,
                    p=p,
                    power=0.0,
                    false_alarm=0.0,
                    false_alarm_selected=0.0,
                )
            )
    except (RowError, CheckError):
        return None
    return lines


def _integer(row: Row, key: str) -> int:
    return integer_at(row, key)


def _same(told: object, due: object) -> bool:
    if isinstance(told, float) and isinstance(due, float):
        return math.isclose(told, due, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    return told == due


def odds_differ(generation: GenerationState, check: ReserveCheckEvent, champion: EvalEvent, reserve: EvalEvent) -> str:
    """Which power or false-alarm rate of a verdict is another one than its sizes give; "" for none.

    `check` is the verdict, whose tests the fold has found to be those of the rows. Costs up to a second at 10,000
    items under Fisher's rule.
    """
    test, new = compared_row(champion, generation.rules), compared_row(reserve, generation.rules)
    if check.alpha is None or not check.lines or test is None or new is None:
        return ""
    verdict = hold_up(
        test,
        new,
        check.alpha,
        objectives=generation.rules.objectives,
        rule="z" if check.rule == "z" else "fisher" if check.rule == "fisher" else "optimism",
        optimism=reserve.optimism if check.rule == "optimism" else None,
        selected_from=check.evaluations,
    )
    for line, due in zip(check.lines, verdict.lines, strict=True):
        for name in ("power", "false_alarm", "false_alarm_selected"):
            if not _same(getattr(line, name), getattr(due, name)):
                return f"{line.objective}: {name} is {getattr(line, name)}, for these sizes it is {getattr(due, name)}"
    return ""

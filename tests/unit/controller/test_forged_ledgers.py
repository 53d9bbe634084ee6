"""Exported ledgers that somebody changed: every edit is found, in words, before another campaign begins with it.

Attacked here: reserve decisions, results, seeds, names, digests, numbers and types of single events. Not covered: what
a ledger can't show, such as a level that was changed in a check's beginning and its end alike.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from outerloop.champion import EvalEvent, LedgerError, ReserveCheckEvent, events_to_jsonl, fold
from outerloop.champion.form import malformed
from outerloop.controller.campaign_import import checked_ledger
from outerloop.controller.campaign_views import replay_text
from tests.unit.champion.world import World, campaign

Event = dict[str, Any]


@pytest.fixture(scope="module", params=["z", "fisher"])
def lines(request: pytest.FixtureRequest) -> list[Event]:
    """A whole campaign with checks that passed, and one that said luck."""
    for salt in range(40):
        world = World(campaign(max_rounds=6, saturation_evals=4, alpha=0.2, reserve_rule=request.param), salt=salt)
        world.run()
        checks = {event.status for event in world.ledger if isinstance(event, ReserveCheckEvent)}
        if {"passed", "luck"} <= checks:
            break
    text = events_to_jsonl(world.ledger)
    assert (
        replay_text(text, "l").problems == () and [malformed(event) for event in world.ledger if malformed(event)] == []
    )
    return [json.loads(line) for line in text.splitlines()]


def first(lines: list[Event], kind: str, **fields: Any) -> Event:
    return next(e for e in lines if e["kind"] == kind and all(e.get(key) == value for key, value in fields.items()))


def verdict(lines: list[Event], status: str) -> Event:
    return first(lines, "reserve_check", status=status)


FORGED: dict[str, Callable[[list[Event]], Any]] = {
    "luck for passed": lambda e: verdict(e, "passed").update(status="luck", ends="reserve_failed"),
    "passed for luck": lambda e: verdict(e, "luck").update(status="passed", ends=""),
    "a p value": lambda e: verdict(e, "passed")["lines"][0].update(p=1e-5),
    "a count": lambda e: verdict(e, "passed")["lines"][0].update(reserve_count=59),
    "the level at the end": lambda e: verdict(e, "passed").update(alpha=0.9),
    "rows at the start": lambda e: verdict(e, "started").update(evaluations=3),
    "the odds": lambda e: verdict(e, "passed")["lines"][0].update(power=0.5),
    "another end": lambda e: verdict(e, "passed").update(ends="reserve_failed"),
    "not run": lambda e: (seen := verdict(e, "passed")).update(status="not_run", lines=seen["lines"][:0]),
    "stale": lambda e: (seen := verdict(e, "passed")).update(status="stale", lines=seen["lines"][:0]),
    "a reserve row": lambda e: first(e, "eval", role="reserve")["row"].update(fail_to_pass_count=59),
    "a rate": lambda e: scored(e)["rates"].update(fail_to_pass=0.987),
    "another checkpoint": lambda e: scored(e).update(checkpoint_sha256="0" * 64),
    "no digest": lambda e: scored(e).update(scores_sha256="zz"),
    "an F1 of 1e308": lambda e: scored(e).update(macro_f1=1e308),
    "a split's seed": lambda e: first(e, "generation").update(seed=10**30),
    "another seed": lambda e: first(e, "generation").update(seed=77),
    "a training's seed": lambda e: training(e)["job"]["fields"].update(seed=77),
    "overrides": lambda e: training(e)["job"]["fields"].update(overrides={"width": 1}),
    "the year 9999": lambda e: e[3].update(time="9999-01-01T00:00:00+00:00"),
    "no time": lambda e: e[3].update(time="yesterday"),
    "a number as text": lambda e: e[0].update(seq="1"),
    "a number with a point": lambda e: e[0].update(seq=1.0),
    "hours below zero": lambda e: scored(e).update(gpu_hours=-1.0),
    "a way out": lambda e: first(e, "round")["members"][0].update(run_id="../../../tmp/x"),
    "a checkpoint outside": lambda e: first(e, "run", status="trained")["checkpoints"][0].update(name="../x-0001"),
}


def scored(lines: list[Event]) -> Event:
    return next(e for e in lines if e["kind"] == "eval" and e.get("rates") and e.get("checkpoint") != "ensemble")


def training(lines: list[Event]) -> Event:
    return next(e for e in lines if e["kind"] == "dispatch" and e["job"]["kind"] == "train")


@pytest.mark.parametrize("edit", FORGED)
def test_an_edit_is_found(lines: list[Event], edit: str) -> None:
    forged = json.loads(json.dumps(lines))
    FORGED[edit](forged)
    text = "".join(json.dumps(event) + "\n" for event in forged)
    assert text != "".join(json.dumps(event) + "\n" for event in lines)
    try:
        problems = replay_text(text, "l.jsonl").problems
    except LedgerError as error:
        problems = (str(error),)
    assert problems and not any("seq=0" in problem or "kind='" in problem for problem in problems)
    with pytest.raises(LedgerError, match=r"^l\.jsonl"):
        checked_ledger(text, "l.jsonl")


def test_a_forged_verdict_ends_no_generation(lines: list[Event]) -> None:
    """Not only a replay sees it: the fold that campaigns go on from leaves it out."""
    from outerloop.champion import events_from_jsonl

    forged = json.loads(json.dumps(lines))
    FORGED["luck for passed"](forged)
    at = forged.index(verdict(forged, "luck"))
    state = fold(events_from_jsonl("".join(json.dumps(event) + "\n" for event in forged[: at + 1])))
    assert state.generation is not None and state.generation.ends == "" and state.generation.check is not None
    assert "with p =" in state.anomalies[0] and isinstance(state.evaluations[0], EvalEvent)

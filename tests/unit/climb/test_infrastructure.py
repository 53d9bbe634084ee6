"""Property attacked: infrastructure failures cost no seed and never shift the estimate."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pytest

from outerloop.climb import Blocked, NeedMore, Paired, Sequential, Verdict, Waiting, next_step
from tests.unit.climb.builders import benchmark, exhausted, pending, plan, reading

PAIRS = 40


def runtimes() -> dict[tuple[str, int], Decimal]:
    """Seconds, with a noise of 1; the candidate is no faster."""
    rng = np.random.default_rng(17)
    return {
        (side, pair): Decimal(repr(round(float(60 + rng.normal()), 3)))
        for side in ("base", "candidate")
        for pair in range(400)
    }


def climb_with(rule, *, failing: bool) -> tuple[Verdict, list[int], int]:
    """Advance until the verdict; with `failing` every slow candidate run is lost three times before it counts."""
    climb, times, readings = plan(benchmark(rule=rule)), runtimes(), {}
    seeds, blocked = [], 0
    lost: dict[str, int] = {}
    requests = {}
    while not isinstance(step := next_step(climb, readings), Verdict):
        if isinstance(step, NeedMore):
            for request in step.measures:
                seeds.append(request.seed)
                readings[request.role] = pending(request)
                lost[request.role] = 0
                requests[request.role] = request
        elif isinstance(step, Waiting):
            for role in step.roles:
                request = requests[role]
                value = times[request.side, request.pair]
                slow = request.side == "candidate" and value > 60
                if failing and slow and lost[role] < 3:
                    lost[role] += 1
                    readings[role] = exhausted(request)
                else:
                    readings[role] = reading(request, value, facts={"attempt": lost[role] + 1})
        else:
            assert isinstance(step, Blocked)
            blocked += 1
            for role in step.roles:  # the operator retries: same role, same seed
                readings[role] = pending(requests[role])
    return step, seeds, blocked


@pytest.mark.parametrize("rule", [Paired(pairs=PAIRS), Sequential(min_pairs=8)], ids=["paired", "sequential"])
def test_failures_that_hit_slow_runs_change_nothing(rule) -> None:
    calm, calm_seeds, calm_blocked = climb_with(rule, failing=False)
    stormy, stormy_seeds, stormy_blocked = climb_with(rule, failing=True)
    assert calm_blocked == 0
    assert stormy_blocked > 0
    assert stormy == calm
    assert stormy_seeds == calm_seeds
    assert calm.reason == "no-improvement"


def test_replacing_the_failed_pairs_instead_would_have_made_a_champion() -> None:
    """The storm above is a real threat: the same rule on pairs that happened to survive accepts noise."""
    from outerloop.climb.signflip import sign_flip_p

    times = runtimes()
    survived = [pair for pair in range(400) if times["candidate", pair] <= 60][:PAIRS]
    gains = [times["base", pair] - times["candidate", pair] for pair in survived]
    assert len(gains) == PAIRS
    assert sign_flip_p(gains, seed=1)[0] < Paired().alpha

"""How the cost of a campaign's ledger grows: `python -m tests.bench.bench_champion_fold`.

Prints the CPU time to fold 50,000 evaluations, and to append one more event (and to ask for the next work) at 50,000
and at 500, with their ratios. Asserts nothing itself; test_champion_fold.py does. Not covered: the database.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from outerloop.champion import (
    CampaignConfig,
    Checkpoint,
    EvalEvent,
    Event,
    GenerationEvent,
    RunEvent,
    apply,
    events_from_jsonl,
    events_to_jsonl,
    fold,
    next_work,
    parse_candidates,
    stamped,
)
from outerloop.champion.events import RoundEvent, RoundMember
from tests.unit.champion.world import CANDIDATES, campaign

ITEMS = 5000
CHECKPOINTS = 10
LARGE, SMALL = 50_000, 500
APPENDS = 300


@dataclass(frozen=True)
class Measured:
    """CPU seconds of this process, and their ratios."""

    fold_large_s: float
    parse_large_s: float
    append_small_s: float
    append_large_s: float
    next_small_s: float
    next_large_s: float

    @property
    def append_ratio(self) -> float:
        return self.append_large_s / self.append_small_s

    @property
    def next_ratio(self) -> float:
        return self.next_large_s / self.next_small_s


def config() -> CampaignConfig:
    return campaign(max_rounds=10**6, saturation_evals=10**9, ensemble_from_round=10**6)


def ledger(evaluations: int, seed: int = 0) -> list[Event]:
    """A one-generation ledger as a controller would write it: rounds of one run with ten checkpoints each."""
    draw = random.Random(seed)
    events: list[Event] = []
    candidate = parse_candidates(CANDIDATES).candidates[0]
    rules = config().rules

    def add(event: Event) -> None:
        events.append(stamped(event, len(events) + 1))

    add(GenerationEvent(generation=1, reason="initial", seed=1, rules=rules))
    add(GenerationEvent(status="split_ready", generation=1, split_sha256="s"))
    state = fold(events)
    for number in range(1, evaluations // CHECKPOINTS + 1):
        ident = f"champ-g001-r{number:04d}-small"
        member = RoundMember(run_id=ident, candidate=candidate, seed=number)
        names = [f"model-{epoch:04d}" for epoch in range(CHECKPOINTS)]
        batch: list[Event] = [
            RoundEvent(generation=1, round=number, members=(member,)),
            RunEvent(
                status="trained", run_id=ident, generation=1, round=number,
                checkpoints=tuple(Checkpoint(name=n, sha256="c", selected=n == names[-1]) for n in names),
            ),
        ]  # fmt: skip
        for name in names:
            easy = draw.random()
            row = {
                "fail_to_pass_count": int(ITEMS * 0.2 * easy) + draw.randrange(200),
                "fail_count": ITEMS,
                "pass_to_fail_count": int(ITEMS * 0.2 * (1 - easy)) + draw.randrange(200),
                "pass_count": ITEMS,
            }
            batch.append(EvalEvent(generation=1, round=number, run_id=ident, checkpoint=name, row=row, macro_f1=0.9))
        for event in batch:
            add(event)
            apply(state, events[-1])
            while state.unrecorded:
                add(state.unrecorded[0])
                apply(state, events[-1])
    return events


def _append_seconds(prefix: list[Event], rest: list[Event]) -> tuple[float, float]:
    """Mean seconds of one append, over the first events of `rest`, and of one next_work after them."""
    state, settings, candidates = fold(prefix), config(), parse_candidates(CANDIDATES)
    start = time.process_time()
    for event in rest[:APPENDS]:
        apply(state, event)
    middle = time.process_time()
    for _ in range(APPENDS):
        next_work(state, settings, candidates)
    end = time.process_time()
    assert not state.anomalies
    return (middle - start) / APPENDS, (end - middle) / APPENDS


def measure() -> Measured:
    """All the numbers, on a ledger that is the same every time."""
    events = ledger(LARGE + 2 * APPENDS)
    evaluations = [index for index, event in enumerate(events) if event.kind == "eval"]
    large, small = evaluations[LARGE - 1] + 1, evaluations[SMALL - 1] + 1
    start = time.process_time()
    state = fold(events[:large])
    fold_s = time.process_time() - start
    assert state.generation is not None and state.generation.evaluations == LARGE
    text = events_to_jsonl(events[:large])
    start = time.process_time()
    assert len(events_from_jsonl(text)) == large
    parse_s = time.process_time() - start
    # In turns, and the best of three: what other processes do to our caches is no property of the code.
    at_small, at_large = [], []
    for _ in range(3):
        at_small.append(_append_seconds(events[:small], events[small:]))
        at_large.append(_append_seconds(events[:large], events[large:]))
    return Measured(
        fold_large_s=fold_s,
        parse_large_s=parse_s,
        append_small_s=min(pair[0] for pair in at_small),
        append_large_s=min(pair[0] for pair in at_large),
        next_small_s=min(pair[1] for pair in at_small),
        next_large_s=min(pair[1] for pair in at_large),
    )


def main() -> None:
    """Print the numbers."""
    found = measure()
    print(f"fold of {LARGE} evaluations        {found.fold_large_s:8.3f} s")
    print(f"reading their JSON Lines           {found.parse_large_s:8.3f} s")
    print(f"append at {SMALL}, at {LARGE}           {1e6 * found.append_small_s:6.1f} µs, ", end="")
    print(f"{1e6 * found.append_large_s:6.1f} µs, ratio {found.append_ratio:.2f}")
    print(f"next work at {SMALL}, at {LARGE}        {1e6 * found.next_small_s:6.1f} µs, ", end="")
    print(f"{1e6 * found.next_large_s:6.1f} µs, ratio {found.next_ratio:.2f}")


if __name__ == "__main__":
    main()

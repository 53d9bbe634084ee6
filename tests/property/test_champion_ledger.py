"""Attacks the ledger: folding in pieces, killing the controller anywhere, and events that can't be true."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outerloop.champion import (
    CampaignState,
    ChampionEvent,
    DispatchEvent,
    EvalEvent,
    Event,
    GenerationEvent,
    LedgerError,
    PackageEvent,
    ParetoSetEvent,
    Record,
    ReserveCheckEvent,
    RoundEvent,
    RunEvent,
    TeacherEvent,
    Work,
    dominates,
    events_from_jsonl,
    events_to_jsonl,
    fold,
    lexicographic_champion,
    next_work,
    pareto_front,
    stamped,
)
from tests.unit.champion.world import World, campaign, digest

configs = st.fixed_dictionaries(
    {
        "compare": st.sampled_from(["result", "decided"]),
        "parallel": st.sampled_from([1, 3]),
        "teacher_after_round": st.sampled_from([0, 1, 2]),
        "ensemble_from_round": st.sampled_from([1, 3]),
        "saturation_evals": st.sampled_from([4, 9, 200]),
        "max_reserve_checks": st.sampled_from([1, 3]),
        "max_rounds": st.sampled_from([1, 5]),
    }
)


def _assert_front_and_champion_are_recomputed_ones(state: CampaignState) -> None:
    generation = state.generation
    assert generation is not None
    decided = generation.rules.compare == "decided"
    rows = [
        {**counts, "finished": event.seq}
        for event in state.evaluations
        if event.role == "test"
        and event.generation == generation.number
        and event.status == "scored"
        and (counts := event.decided if decided else event.row) is not None
    ]
    front = pareto_front(rows)
    assert [event.seq for event in generation.front.items()] == [row["finished"] for row in front]
    expected = lexicographic_champion(front) if decided else None
    for row in rows if not decided else []:
        if expected is None or dominates(row, expected):
            expected = row
    assert (generation.champion.seq if generation.champion else None) == (expected["finished"] if expected else None)
    assert generation.evaluations == len(rows)


worlds = st.builds(lambda changes, salt: (changes, salt), configs, st.integers(0, 10_000))


def _world(spec: tuple[dict[str, Any], int]) -> World:
    return World(campaign(**spec[0]), salt=spec[1])


@given(worlds, st.data())
@settings(max_examples=40, deadline=None)
def test_folding_a_prefix_and_then_the_rest_equals_folding_all(spec: Any, data: st.DataObject) -> None:
    world = _world(spec)
    live = world.run()
    cut = data.draw(st.integers(0, len(world.ledger)))
    assert fold(world.ledger[cut:], fold(world.ledger[:cut])) == fold(world.ledger) == live
    assert not live.anomalies
    assert events_from_jsonl(events_to_jsonl(world.ledger)) == world.ledger


@given(worlds)
@settings(max_examples=40, deadline=None)
def test_replay_after_a_crash_at_any_event_gives_the_same_next_work(spec: Any) -> None:
    world = _world(spec)
    seen: dict[int, list[Work]] = {}
    world.run(look=lambda state, work: seen.setdefault(state.seq, work))
    assert seen
    replayed = CampaignState()
    done = 0
    for seq, work in seen.items():
        fold(world.ledger[done:seq], replayed)
        done = seq
        assert next_work(replayed, world.config, world.candidates) == work
    for seq in list(seen)[:: max(1, len(seen) // 12)]:
        through_jsonl = events_from_jsonl(events_to_jsonl(world.ledger[:seq]))
        assert next_work(fold(through_jsonl), world.config, world.candidates) == seen[seq]


@given(worlds, st.lists(st.integers(1, 25), max_size=12))
@settings(max_examples=60, deadline=None)
def test_kills_leave_the_same_ledger_and_repeat_no_work(spec: Any, lives: list[int]) -> None:
    undisturbed = _world(spec)
    undisturbed.run()
    killed = _world(spec)
    for life in lives:
        for _ in itertools.islice(killed.controller(), life):
            pass
    killed.run()
    assert events_to_jsonl(killed.ledger) == events_to_jsonl(undisturbed.ledger)
    assert killed.submissions == undisturbed.submissions


@given(worlds)
@settings(max_examples=40, deadline=None)
def test_the_kept_front_and_champion_equal_those_of_a_full_recomputation(spec: Any) -> None:
    world = _world(spec)
    state = world.run()
    _assert_front_and_champion_are_recomputed_ones(state)
    assert state.unrecorded == []


@given(worlds)
@settings(max_examples=30, deadline=None)
def test_parallel_caps_the_live_jobs(spec: Any) -> None:
    world = _world(spec)

    def look(state: CampaignState, work: list[Work]) -> None:
        assert len(state.live) <= world.config.parallel
        assert len(work) <= max(world.config.parallel, 1)
        assert sum(isinstance(item, Record) for item in work) in (0, len(work))

    world.run(look=look)


_names = st.sampled_from(["champ-g001-r0001-small", "champ-g001-r0001-wide", "ens-g001-teacher", "?"])
_checkpoints = st.sampled_from(["model-0001", "model-0010", "ensemble"])
_small = st.integers(0, 3)
_anything: st.SearchStrategy[Event] = st.one_of(
    st.builds(EvalEvent, generation=_small, round=_small, run_id=_names, checkpoint=_checkpoints,
              role=st.sampled_from(["test", "reserve", "validation", "development"]),
              status=st.sampled_from(["scored", "failed"]),
              row=st.dictionaries(st.sampled_from(["fail_to_pass_count", "fail_count", "pass_count"]), _small),
              decided=st.none()),
    st.builds(ChampionEvent, generation=_small, subject=_names, eval_seq=_small, counts=st.just((0, 0))),
    st.builds(ParetoSetEvent, generation=_small, eval_seq=_small, entered=_names, size=_small),
    st.builds(GenerationEvent, generation=_small,
              status=st.sampled_from(["opened", "split_ready", "split_failed"])),
    st.builds(RoundEvent, generation=_small, round=_small, members=st.just(())),
    st.builds(RunEvent, generation=_small, round=_small, run_id=_names,
              status=st.sampled_from(["trained", "train_failed", "stale_run_dir", "ensemble"])),
    st.builds(ReserveCheckEvent, generation=_small, subject=_names, champion_seq=_small, evaluations=_small,
              status=st.sampled_from(["started", "passed", "luck", "stale", "not_run"])),
    st.builds(TeacherEvent, generation=_small, attempt=_small, group=st.sampled_from(["", "g"]),
              status=st.sampled_from(["started", "margins", "finished", "failed"])),
    st.builds(PackageEvent, generation=_small, subject=_names,
              status=st.sampled_from(["launched", "finished", "dropped", "launch_failed"])),
    st.builds(DispatchEvent, target=st.sampled_from(["teacher", "split", "package", ""]),
              action=st.sampled_from(["launched", "advance", "retry", "candidates_rejected"])),
)  # fmt: skip


@given(worlds, st.lists(st.tuples(st.integers(0, 10_000), _anything), min_size=1, max_size=15))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_event_in_order_folds_and_a_false_one_crowns_nobody(spec: Any, foreign: Any) -> None:
    world = _world(spec)
    world.run()
    events = list(world.ledger)
    # A repeat of a true event is as false as an invented one.
    for place, event in foreign:
        events.insert(place % (len(events) + 1), event)
        events.insert(place % (len(events) + 1), events[place % len(events)])
    state = fold(stamped(event, seq) for seq, event in enumerate(events, start=1))
    assert state.seq == len(events)
    assert state.anomalies
    if state.generation is not None:
        _assert_front_and_champion_are_recomputed_ones(state)


@given(worlds, st.data())
@settings(max_examples=20, deadline=None)
def test_a_gap_or_a_repeat_in_the_numbers_is_refused(spec: Any, data: st.DataObject) -> None:
    world = _world(spec)
    world.run()
    at = data.draw(st.integers(0, len(world.ledger) - 2))
    with pytest.raises(LedgerError, match=rf"event number {at + 2} .* where {at + 1} was due"):
        fold(world.ledger[:at] + world.ledger[at + 1 :])
    with pytest.raises(LedgerError, match="was due"):
        fold(world.ledger[: at + 1] + world.ledger[at:])
    lines = events_to_jsonl(world.ledger).splitlines(keepends=True)
    with pytest.raises(LedgerError, match=rf"ledger\.jsonl:{at + 1}: event number"):
        events_from_jsonl("".join(lines[:at] + lines[at + 1 :]), "ledger.jsonl")


@given(worlds)
@settings(max_examples=15, deadline=None)
def test_every_job_names_the_digests_of_what_it_reads(spec: Any) -> None:
    world = _world(spec)
    world.run()
    slots = set(world.slots)
    jobs = [event.job for event in world.ledger if isinstance(event, DispatchEvent) and event.job is not None]
    assert {digest(job.determinants()) for job in jobs} == slots
    for job in jobs:
        if job.kind in ("train", "evaluate", "teacher"):
            assert job.reads["split"]
        if job.kind in ("evaluate", "package"):
            assert all(member.checkpoint_sha256 for member in job.members) and job.members

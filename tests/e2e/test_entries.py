"""Entries through the command line, the real controller, record, slots, job wrapper, judging and sealing.

Attacked here: data that can't be used, contamination, asking twice, the champion's place, lost and stopped stages,
refused evaluations, kill -9, a record made anew from disk, changed evidence. The stages train nothing
(tests/controller_rig/entry_stage.py); `make demo-posttrain` and tests/posttrain run the real ones.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import update

from outerloop.compose import SHIPPED
from outerloop.controller import submit_entry
from outerloop.controller.evidence import verify
from outerloop.controller.rebuild import rebuild
from outerloop.posttrain.fetch import fetch
from outerloop.record.models import Attempt, Champion, Event, Measure, Run, Slot
from tests.controller_rig.entries import EntryWorld
from tests.controller_rig.world import resume, stopped, wait_for
from tests.e2e.test_crash_points import TABLES, points_of
from tests.postgres.conftest import _execute
from tests.posttrain.test_fetch import REVISION, Hub


@pytest.fixture
def world(tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[EntryWorld]:
    pytest.importorskip("trl")
    made = EntryWorld(tmp_path / "w", database, monkeypatch)
    yield made
    made.close()


def ran(world: EntryWorld) -> dict[str, int]:
    return world.ran()


def test_a_model_that_was_deleted_is_named_and_trained_again(world: EntryWorld) -> None:
    run_id = world.enter(world.data("good", "60"))
    trained: list[Path] = []
    while not trained:
        world.tick()
        for job in world.cluster.startable():
            world.cluster.execute(job)
        trained = list(world.state.path.glob("slots/*/*/state/grpo/model"))
    shutil.rmtree(trained[0])
    for _ in range(25):
        world.tick()
        world.run_measures()
        world.pass_time(3600.0)
        if world.run(run_id).state == "blocked":
            break
    run = world.run(run_id)
    folder = trained[0].parents[2]
    assert (run.state, run.state_reason) == ("blocked", "MODEL"), world.describe()
    assert str(folder) in run.state_detail and f"outerloop retry {run_id}" in run.state_detail
    shutil.rmtree(folder)
    world.cli("retry", run_id)
    world.ticks_until_rest()
    assert world.verdict(run_id) == ("accepted", ""), world.describe()
    assert ran(world)["grpo"] == 2 and ran(world)["sft"] == 1
    assert sum(attempt.reason == "REFUSED" for attempt in world.rows(Attempt)) == 3, "none went out before its model"
    world.check_invariants()


def test_a_challenge_from_its_first_entry_to_its_second_champion(world: EntryWorld) -> None:
    good = world.data("good", "60")
    # a training that stops at a checkpoint goes on, uncounted; an evaluation that is refused is done again
    world.stage_does("sft", "checkpoint-and-stop")
    world.stage_does("evaluate", "refuse")
    first = world.enter(good)
    world.ticks_until_rest()
    assert world.verdict(first) == ("accepted", "")
    # contamination, the untrained model and the entry on suite and reserve, two stages, two of them twice
    assert ran(world) == {"contamination": 1, "sft": 2, "grpo": 1, "evaluate": 5}
    lost = {(a.outcome, a.reason) for a in world.rows(Attempt) if a.outcome != "done"}
    assert lost == {("continue", "FAILED"), ("infrastructure", "REFUSED")}
    assert sum(slot.attempts_counted for slot in world.rows(Slot)) == 1, "a stop is not counted, a refusal is"

    # asked twice: the verdict that exists, and nothing runs
    assert world.enter(good) == first
    spelled = world.folder / "spelled.jsonl"
    spelled.write_text("\n" + Path(good).read_text().replace('", "', '" ,  "'))
    assert world.enter(str(spelled)) == first, "another spelling of the same rows is the same data"
    assert sum(ran(world).values()) == 9
    assert "the champion already" in world.cli("submit", "entry", "tiny-sums", "--train", good, "--again", code=3)

    # a worse one meets the champion, whose evaluations are there
    worse = world.enter(world.data("worse", "40"))
    world.wakes_until_rest()
    assert world.verdict(worse) == ("rejected", "no-improvement")
    assert ran(world)["evaluate"] == 6
    assert world.run(worse).evidence["opponent"] == first

    # --again adds a seed to its verdict, at half of alpha
    again = world.enter(world.data("worse", "40"), "--again")
    world.ticks_until_rest()
    assert world.verdict(again) == ("rejected", "no-improvement")
    asked, before = world.run(again).request, world.run(worse).request
    assert asked["train_seeds"][: len(before["train_seeds"])] == before["train_seeds"]
    assert len(asked["train_seeds"]) == len(before["train_seeds"]) + 1
    assert world.run(again).evidence["alpha"] == "0.025"
    assert (ran(world)["sft"], ran(world)["evaluate"]) == (4, 7), "the first seed's slots serve both askings"

    leaking = world.enter(world.contaminated("leaking"))
    world.ticks_until_rest()
    assert world.verdict(leaking) == ("failed", "contaminated")
    assert ran(world)["sft"] == 4, "nothing was trained"
    assert "more seeds do not change that" in world.cli(
        "submit", "entry", "tiny-sums", "--train", world.contaminated("leaking"), "--again"
    )

    # a training that fails by itself fails the entry; asked again it is done anew, with the same seeds
    world.stage_does("sft", "exit 2")
    failing = world.enter(world.data("failing", "40"))
    world.ticks_until_rest()
    assert world.verdict(failing) == ("failed", "EXIT_2")
    assert world.enter(world.data("failing", "40")) == failing
    anew = world.enter(world.data("failing", "40"), "--again")
    world.ticks_until_rest()
    assert world.verdict(anew) == ("rejected", "no-improvement")
    assert world.run(anew).request["train_seeds"] == world.run(failing).request["train_seeds"]

    best = world.enter(world.data("best", "95"))
    world.ticks_until_rest()
    assert world.verdict(best) == ("accepted", "")
    board = world.told("challenge", "board", "tiny-sums")
    assert [entry["run"] for entry in board] == [best, first, worse, again, anew, leaking, failing]
    assert [c["run_id"] for c in world.told("champions", "tiny-sums")] == [best, first]
    assert "sealed" in world.cli("reproduce", best, "tiny-sums-1", code=3)
    assert f"champion 1, run {first}" in " ".join(world.cli("explain", best).split())
    assert max(map(len, world.cli("challenge", "board", "tiny-sums").splitlines())) <= 80

    # these were the five data sets of this week whose contamination is checked
    refused = world.cli("submit", "entry", "tiny-sums", "--train", world.data("sixth", "50"), code=3)
    assert "5 of 5, 0 remain" in refused
    world.ticks_until_rest()
    world.check_invariants()
    _from_disk(world)


def _from_disk(world: EntryWorld) -> None:
    """The record made anew is the one that was, and changed evidence is found."""

    def facts() -> list[object]:
        runs = {run.id: (run.state, run.verdict, run.evidence, run.round, run.base_commit) for run in world.rows(Run)}
        slots = {slot.digest: (slot.state, slot.pinned_attempt, slot.result) for slot in world.rows(Slot)}
        digests = {slot.id: slot.digest for slot in world.rows(Slot)}
        measures = sorted((m.run_id, m.round, m.role, m.side, m.seed, digests[m.slot_id]) for m in world.rows(Measure))
        events = sorted((e.run_id, e.seq, e.kind, json.dumps(e.body, sort_keys=True)) for e in world.rows(Event))
        champions = sorted((c.seq, c.run_id, c.commit, c.value) for c in world.rows(Champion))
        attempts = sorted((digests[a.slot_id], a.n, a.state, a.outcome) for a in world.rows(Attempt))
        return [runs, slots, measures, events, champions, attempts]

    before = facts()
    deployment = world.open()
    try:
        done = rebuild(deployment.context)
        assert not done.problems
        assert facts() == before
        run = next(run for run in world.rows(Run) if run.verdict == "accepted")
        measure = next(m for m in world.rows(Measure) if m.run_id == run.id and m.role == "tiny-sums-1")
        slot = next(s for s in world.rows(Slot) if s.id == measure.slot_id)
        archive = world.folder / "entry.tgz"
        world.cli("archive", run.id, "--out", str(archive))
        assert "from aggregates" in " ".join(world.cli("verify", str(archive)).split())
        [rows] = (world.state.path / "sealed" / f"{slot.digest[:16]}-1").rglob("rows.jsonl")
        whole = rows.read_text()
        rows.write_text(whole.replace('"1.0"', '"0.0"', 1))
        assert any("not those that were scored" in told for told in verify(deployment.context, run.id).differences)
        rows.write_text(whole)
        kept = deployment.context.slot(slot.digest).logs(1) / "out" / "evaluation.json"
        whole = kept.read_text()
        kept.write_text(whole.replace('"mean": 0.', '"mean": 0.9', 1))
        assert any("changed after it was accepted" in told for told in verify(deployment.context, run.id).differences)
        kept.write_text(whole)
        assert verify(deployment.context, run.id).agrees
    finally:
        deployment.close()


def test_data_that_cannot_be_used_are_named_at_once_and_nothing_is_submitted(world: EntryWorld) -> None:
    path = world.folder / "bad.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"p{n}", "completion": n}) + "\n" for n in range(10)))
    said = world.cli("submit", "entry", "tiny-sums", "--train", str(path), code=2)
    assert [f"{path}:{n}: completion" in said for n in range(1, 11)] == [True] * 10
    assert 'did you mean "tiny-sums"' in world.cli("submit", "entry", "tiny-sum", "--train", str(path), code=7)
    good = world.data("good", "60")
    assert "nothing was submitted" in world.cli("submit", "entry", "tiny-sums", "--train", good, "--dry-run")
    assert not world.rows(Run) and not (world.state.path / "entries").exists()
    told = world.told("challenge", "board", "tiny-sums")
    assert told == []


def test_what_lay_in_the_inbox_waits_for_a_contamination_check(world: EntryWorld) -> None:
    configs = world.folder / "configs"
    shutil.copytree(SHIPPED, configs)
    fixed = configs / "challenges" / "tiny-sums.toml"
    fixed.write_text(
        fixed.read_text().replace("contamination_limit = 0.05", "contamination_limit = 0.05\ncontamination_checks = 1")
    )
    options = ("--configs", str(configs))
    left = world.data("left", "60")
    assert world.forked(lambda: world.enter(left, *options), fault="after:inbox.write:kill") == -signal.SIGKILL
    [waiting] = (world.state.path / "inbox").iterdir()
    # Another one saw a check left as the first did, and comes later: it is refused and leaves no request.
    slow = ("submit", "entry", "tiny-sums", "--train", world.data("slow", "80"), *options)
    pid = world.start(lambda: world.cli(*slow, code=3), fault="after:entry.data:stop")
    wait_for(lambda: stopped(pid), 60, "the stop")
    first = world.enter(world.data("first", "70"), *options)
    assert resume(pid) == 0 and list((world.state.path / "inbox").iterdir()) == [waiting]
    assert "1 of 1, 0 remain" in world.cli("submit", "entry", "tiny-sums", "--train", left, *options, code=3)
    for _ in range(2):
        [told] = [note for note in world.tick().notes if "inbox" in note]
        assert f"inbox/{waiting.name} waits until a check is free" in told and "1 of 1, 0 remain" in told
        assert [run.id for run in world.rows(Run)] == [first] and waiting.exists()
    deployment = world.open()
    with deployment.record.transaction("tx.operator") as session:
        session.execute(update(Run).values(created_at=Run.created_at - timedelta(days=8)))
    deployment.close()
    world.tick()
    assert {run.id for run in world.rows(Run)} == {first, waiting.stem} and not waiting.exists()
    # what is recorded already is taken out of the inbox whatever the budget says
    waiting.write_text(json.dumps(world.run(waiting.stem).request))
    world.tick()
    assert not waiting.exists()


def test_what_the_hub_has_is_fetched_by_who_submits_and_never_later(
    world: EntryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    hub = Hub()
    try:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(submit_entry, "fetch", partial(fetch, endpoint=hub.endpoint))
        configs = world.folder / "configs"
        shutil.copytree(SHIPPED, configs)
        model = configs / "models" / "tiny-llama.toml"
        model.write_text(model.read_text().replace("builtin:tiny-llama", "o/m").replace('"1"', f'"{REVISION}"'))
        good = world.data("good", "60")
        asked = ("submit", "entry", "tiny-sums", "--configs", str(configs), "--train", good)
        assert "submitting fetches it" in world.cli(*asked, "--dry-run", code=2)
        hub.fault = "401"
        assert "the hub refuses it (401)" in world.cli(*asked, code=3)
        assert not world.rows(Run)
        hub.fault = ""
        assert f"fetching model o/m@{REVISION}" in world.cli(*asked)
        kept = world.state.path / "hub" / "o--m" / REVISION
        [run] = world.rows(Run)
        assert (kept / "model.safetensors").is_file() and run.request["hub"] == str(kept.parent.parent)
        hub.asked.clear()
        world.enter(world.data("other", "70"), "--configs", str(configs))
        assert hub.asked == [] and len(world.rows(Run)) == 2
    finally:
        hub.close()


def test_one_entry_whose_every_command_is_killed_ends_as_if_none_had_been(world: EntryWorld) -> None:
    good = world.data("good", "60")
    faults = ["after:entry.data:kill", "after:inbox.write:kill", "before:tx.enqueue:kill"]
    for fault in faults:
        assert world.forked(lambda: world.enter(good), fault=fault) == -signal.SIGKILL, fault
    faults = [
        "after:run.event:kill",
        "after:tx.plan:kill",
        "after:slot.spec:kill",
        "after:tx.intent:kill",
        "after:compute.submit:kill",
        "after:slot.pin:kill",
        "after:tx.observe:kill",
        "after:champion.link:kill",
        "before:tx.end:kill",
    ]
    for _ in range(60):
        world.expire_leases()
        died = world.forked(world.tick, fault=",".join(faults[:1])) if faults else world.forked(world.tick)
        if died == -signal.SIGKILL:
            faults.pop(0)
        world.run_measures()
        if not faults and not world.open_runs():
            break
    assert not faults, faults
    [run] = world.runs()
    assert (run.verdict, run.verdict_reason) == ("accepted", ""), world.describe()
    assert ran(world) == {"contamination": 1, "sft": 1, "grpo": 1, "evaluate": 4}
    world.check_invariants()


@pytest.fixture
def worlds() -> Iterator[list[EntryWorld]]:
    """Worlds that a test made; those that are left are closed."""
    made: list[EntryWorld] = []
    yield made
    for each in made:
        each.close()


@pytest.mark.skipif(not os.environ.get("OUTERLOOP_NIGHTLY"), reason="many worlds: set OUTERLOOP_NIGHTLY")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("command", ["submit", "tick"])
def test_killed_at_every_point(
    command: str, tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch, worlds: list[EntryWorld]
) -> None:
    pytest.importorskip("trl")
    count = itertools.count()

    def fresh() -> EntryWorld:
        while worlds:
            worlds.pop().close()
        _execute(database, f"truncate {TABLES} restart identity cascade")
        worlds.append(EntryWorld(tmp_path / str(next(count)), database, monkeypatch))
        return worlds[0]

    def commands(world: EntryWorld) -> Callable[[], object]:
        good = world.data("good", "60")
        return (lambda: world.enter(good)) if command == "submit" else world.tick

    calm = fresh()
    body = commands(calm)
    if command == "tick":
        calm.enter(calm.data("good", "60"))
    points: list[tuple[int, str]] = []
    for number in itertools.count():
        calm.trace.unlink(missing_ok=True)  # a process counts its own points
        assert calm.forked(body, trace=True) == 0
        points += [(number, fault) for fault in points_of(calm)]
        calm.run_measures()
        if command == "submit" or not calm.open_runs():
            break
    calm.ticks_until_rest()
    for number, fault in points:
        world = fresh()
        body = commands(world)
        if command == "tick":
            world.enter(world.data("good", "60"))
        for _ in range(number):
            assert world.forked(body) == 0
            world.run_measures()
        assert world.forked(body, fault=fault) == -signal.SIGKILL, (number, fault)
        world.expire_leases()
        world.enter(world.data("good", "60"))
        world.ticks_until_rest()
        assert [(run.verdict, run.verdict_reason) for run in world.runs()] == [("accepted", "")], (number, fault)
        assert ran(world) == {"contamination": 1, "sft": 1, "grpo": 1, "evaluate": 4}, (number, fault)
        world.check_invariants()

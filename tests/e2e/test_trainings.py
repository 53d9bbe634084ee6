"""Trainings through the command line, the real controller, record, slots and job wrapper, on a cluster of files.

Attacked here: lost, failed and cancelled tasks, limits, kill -9 at every point, a record made anew from disk, figures.
"""

from __future__ import annotations

import itertools
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from outerloop.controller.evidence import verify
from outerloop.controller.rebuild import rebuild
from outerloop.job.layout import OUT
from outerloop.record.models import Attempt, Event, Measure, Slot
from outerloop.slots import SlotDirectory
from tests.controller_rig.kept import Kept
from tests.controller_rig.trainings import GPU_REPORT, TrainingWorld, reporting
from tests.e2e.test_crash_points import TABLES, points_of
from tests.postgres.conftest import _execute


@pytest.fixture
def world(tmp_path: Path, database: str) -> TrainingWorld:
    return TrainingWorld(tmp_path / "w", database)


def ended(world: TrainingWorld, run_id: str) -> tuple[str | None, str | None]:
    run = world.run(run_id)
    assert run.state == "ended", world.describe()
    return run.verdict, run.verdict_reason


@pytest.mark.parametrize("caller", ["wakes", "ticks"])
def test_every_task_runs_once_whoever_goes_on_with_it(world: TrainingWorld, caller: str) -> None:
    run_id = world.train(world.tasks_plan(5))
    world.wakes_until_rest() if caller == "wakes" else world.ticks_until_rest()
    assert ended(world, run_id) == ("finished", "")
    assert world.run(run_id).sentence == "all 5 tasks finished"
    assert world.ran() == {str(n): 1 for n in range(5)}
    world.check_invariants()


def test_status_says_how_far_running_tasks_are_and_survives_what_they_wrote(world: TrainingWorld) -> None:
    """Running jobs are forged, as the cluster of files runs each to its end: the queue's word, and their reports."""
    run_id = world.train(world.tasks_plan(2))
    deployment = world.open()
    try:
        with deployment.record.transaction("tx.observe") as session:
            session.execute(update(Attempt).values(slurm_state="running"))
    finally:
        deployment.close()
    slots = {slot.id: slot for slot in world.rows(Slot)}
    for measure, text in zip(
        sorted(world.rows(Measure), key=lambda measure: measure.role),
        ('{"schema": 1, "kind": "training", "state": "running", "step": 45}', '{"schema": 1, "kind": "tra'),
        strict=True,
    ):
        digest = slots[measure.slot_id].digest
        folder = SlotDirectory(world.state.slot(digest), digest).logs(1, 0) / OUT
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(text)
    told = world.cli("status")
    assert f"  {run_id}: task-0000 at step 45\n" in told
    assert json.loads(world.cli("status", "--json"))["steps"] == {run_id: "task-0000 at step 45"}


def test_asking_twice_finds_the_run_and_submits_nothing(world: TrainingWorld) -> None:
    first = world.train(world.tasks_plan(2))
    assert world.train(world.tasks_plan(2)) == first
    world.ticks_until_rest()
    assert world.train(world.tasks_plan(2)) == first
    assert world.ran() == {"0": 1, "1": 1} and len(world.runs()) == 1


def test_tasks_that_two_trainings_share_run_once(world: TrainingWorld) -> None:
    world.train(world.tasks_plan(2))
    world.train(world.tasks_plan(3))
    world.ticks_until_rest()
    assert world.ran() == {"0": 1, "1": 1, "2": 1}
    world.check_invariants()


def test_a_failed_task_fails_the_training_and_it_alone_is_executed_when_asked_again(world: TrainingWorld) -> None:
    world.task_does(1, "echo broken >&2; exit 3")
    run_id = world.train(world.tasks_plan(3))
    world.ticks_until_rest()
    assert ended(world, run_id) == ("failed", "EXIT_3")
    assert world.run(run_id).sentence == "1 of 3 tasks failed: task-0001 EXIT_3 (the command exited with 3)"
    assert "broken" in world.cli("logs", run_id, "--stderr")
    world.check_invariants()
    world.task_does(1, "true")
    again = world.train(world.tasks_plan(3))
    assert again != run_id
    world.ticks_until_rest()
    assert ended(world, again) == ("finished", "")
    assert world.ran() == {"0": 1, "1": 2, "2": 1}
    world.check_invariants()


def test_tasks_whose_node_died_are_redone_alone(world: TrainingWorld) -> None:
    run_id = world.train(world.tasks_plan(6))
    for job in list(world.measuring_jobs())[1:3]:
        world.cluster.change(job, state="node_fail")
    world.ticks_until_rest()
    assert ended(world, run_id) == ("finished", "")
    assert world.ran() == {str(n): 1 for n in range(6)}
    assert len(world.measuring_jobs()) == 8
    world.check_invariants()


def test_a_job_cancelled_by_a_person_blocks_the_training_and_retry_redoes_it_alone(world: TrainingWorld) -> None:
    run_id = world.train(world.tasks_plan(3))
    job = world.job_of("task-0001")
    world.cluster.change(job, state="cancelled", cancelled_by="1000")
    world.ticks_until_rest()
    run = world.run(run_id)
    assert (run.state, run.state_reason) == ("blocked", "CANCELLED"), world.describe()
    assert "task-0001" in run.state_detail and "by user 1000" in run.state_detail
    assert world.ran() == {"0": 1, "2": 1}
    world.cli("retry", run_id)
    world.ticks_until_rest()
    assert ended(world, run_id) == ("finished", "")
    assert world.ran() == {"0": 1, "1": 1, "2": 1}
    world.check_invariants()


def test_a_task_that_the_cluster_loses_again_and_again_blocks_the_training(world: TrainingWorld) -> None:
    run_id = world.train(world.tasks_plan(1))
    for _ in range(10):
        for job in world.cluster.startable():
            if "-wake-" not in world.cluster.jobs()[job]["name"]:
                world.cluster.change(job, state="node_fail")
        world.tick()
    run = world.run(run_id)
    assert (run.state, run.state_reason) == ("blocked", "INFRASTRUCTURE")
    assert len(world.measuring_jobs()) == world.settings.dispatch.max_attempts


def test_cancel_ends_it_and_its_jobs_and_asking_again_goes_on_with_what_is_left(world: TrainingWorld) -> None:
    run_id = world.train(world.tasks_plan(2))
    first = world.job_of("task-0000")
    world.cluster.execute(first)
    world.cli("cancel", run_id)
    assert ended(world, run_id) == ("cancelled", "operator")
    assert world.cluster.jobs()[world_job(world, first)]["state"] == "cancelled"
    again = world.train(world.tasks_plan(2))
    world.ticks_until_rest()
    assert ended(world, again) == ("finished", "")
    assert world.ran() == {"0": 1, "1": 1}
    world.check_invariants()


def world_job(world: TrainingWorld, other: str) -> str:
    """The measuring job that is not `other`."""
    [job] = [i for i in world.measuring_jobs() if i != other]
    return job


SAVES = """\
n=$(cat "$OUTERLOOP_CKPT_DIR/n" 2>/dev/null || echo 0); n=$((n + 1)); echo $n > "$OUTERLOOP_CKPT_DIR/n"
echo $n >> {marks}
d="$OUTERLOOP_CKPT_DIR/step-000000000$n"; mkdir "$d"; echo '{{}}' > "$d/manifest.json"
[ $n -ge 3 ] || exec sleep 60
"""


def test_a_training_that_hits_its_limit_goes_on_as_long_as_it_gets_on(world: TrainingWorld) -> None:
    run_id = world.train(world.script(SAVES.format(marks=world.marks)), "--minutes", "0.01")
    world.ticks_until_rest()
    assert ended(world, run_id) == ("finished", "")
    attempts = sorted(world.rows(Attempt), key=lambda attempt: attempt.n)
    assert [(a.outcome, a.reason, a.counted) for a in attempts] == [
        ("continue", "TIMEOUT", False),
        ("continue", "TIMEOUT", False),
        ("done", "", False),
    ]
    world.check_invariants()


def test_a_training_that_gets_nowhere_twice_has_stalled_and_more_minutes_let_it_go_on(world: TrainingWorld) -> None:
    plan = world.script(f"echo run >> {world.marks}; [ $(wc -l < {world.marks}) -ge 3 ] || exec sleep 60")
    run_id = world.train(plan, "--minutes", "0.01")
    world.ticks_until_rest()
    assert ended(world, run_id) == ("failed", "STALLED")
    world.check_invariants()
    again = world.train(plan, "--minutes", "0.5")
    world.ticks_until_rest()
    assert ended(world, again) == ("finished", "")
    assert len(world.rows(Slot)) == 1
    world.check_invariants()


def test_preempted_work_that_slurm_requeues_is_taken_over_by_the_same_attempt(world: TrainingWorld) -> None:
    """The first start leaves a requeue mark and a checkpoint; the job's second start goes on in the same attempt."""
    body = """\
cd "$OUTERLOOP_CKPT_DIR"
if [ -e requeue.json ]; then rm requeue.json; echo second >> MARKS; exit 0; fi
mkdir step-0000000001; echo '{}' > step-0000000001/manifest.json
echo '{}' > requeue.json; echo first >> MARKS; exit 75
"""
    run_id = world.train(world.script(body.replace("MARKS", str(world.marks))))
    [job] = world.measuring_jobs()
    world.cluster.execute(job)
    world.cluster.change(job, state="pending", exit=None, restarts=1)
    world.tick()
    assert world.run(run_id).state == "waiting"
    world.cluster.execute(job, restart=1)
    world.ticks_until_rest()
    assert ended(world, run_id) == ("finished", "")
    [attempt] = world.rows(Attempt)
    assert (attempt.n, attempt.outcome) == (1, "done")
    assert world.marks.read_text().split() == ["first", "second"]
    world.check_invariants()


def test_the_record_is_rebuilt_from_disk_and_a_changed_slot_is_found(world: TrainingWorld) -> None:
    world.task_does(2, "exit 4")
    run_id = world.train(world.tasks_plan(3))
    world.ticks_until_rest()
    before = world.snapshot()
    reports = [event.body for event in world.rows(Event) if event.kind == "facts"]
    deployment = world.open()
    try:
        done = rebuild(deployment.context)
        assert done.problems == [] and (done.runs, done.slots, done.verdicts) == (1, 3, 1)
        assert world.snapshot() == before
        assert [event.body for event in world.rows(Event) if event.kind == "facts"] == reports
        failed = next(slot for slot in world.rows(Slot) if slot.state == "failed")
        settled = deployment.context.slot(failed.digest).attempt(1) / "settled.json"
        settled.write_text(settled.read_text().replace("EXIT_4", "EXIT_5"))
        checked = verify(deployment.context, run_id, world.run(run_id).evidence, record=deployment.record)
        assert not checked.agrees and "EXIT_5" in checked.recomputed
    finally:
        deployment.close()


def test_an_unreachable_record_leaves_the_training_in_the_inbox(world: TrainingWorld) -> None:
    config = world.folder / "config.toml"
    text = config.read_text()
    url = text.split('database_url = "')[1].split('"')[0]
    config.write_text(text.replace(url, "postgresql://localhost:1/none"))
    told = world_cli_without_record(world)
    assert "is in the inbox" in told
    config.write_text(text)
    world.tick()
    world.ticks_until_rest()
    assert [run.verdict for run in world.runs()] == ["finished"]
    assert world.ran() == {"0": 1, "1": 1}


def world_cli_without_record(world: TrainingWorld) -> str:
    from click.testing import CliRunner

    from outerloop.cli import app

    env = {"OUTERLOOP_CONFIG": str(world.folder / "config.toml"), "NO_COLOR": "1"}
    result = CliRunner(env=env).invoke(
        app, ["submit", "training", world.tasks_plan(2), "--repo", str(world.repo)], prog_name="outerloop"
    )
    return result.output


# -- kill -9


@pytest.fixture
def worlds(tmp_path: Path, database: str) -> Callable[[], TrainingWorld]:
    count = itertools.count()

    def make() -> TrainingWorld:
        _execute(database, f"truncate {TABLES} restart identity cascade")
        return TrainingWorld(tmp_path / str(next(count)), database)

    return make


def telling(points: list[str]) -> list[str]:
    """Each point after an effect, the first time and every time that an event is written: the others lie between."""
    return [p for p in points if p.startswith("after:") and (p.endswith(":1") or ":run.event:" in p)]


def finish(world: TrainingWorld, fault: str) -> None:
    world.ticks_until_rest()
    assert [(run.verdict, run.verdict_reason) for run in world.runs()] == [("finished", "")], (
        fault,
        world.describe(),
    )
    assert world.ran() == {"0": 1, "1": 1}, fault
    events = sorted((event.seq, event.kind) for event in world.rows(Event))
    assert events == [(0, "facts"), (1, "verdict")], fault
    world.check_invariants()


def test_submit_killed_at_every_point(worlds: Callable[[], TrainingWorld]) -> None:
    kept = Kept(worlds())
    calm = kept.again()
    assert calm.forked(lambda: calm.train(calm.tasks_plan(2)), trace=True) == 0
    points = telling(points_of(calm))
    finish(calm, "")
    assert "after:inbox.write:kill:1" in points
    durable = False
    for fault in points:
        world = kept.again()
        assert world.forked(lambda w=world: w.train(w.tasks_plan(2)), fault=fault) == -signal.SIGKILL, fault
        durable = durable or fault == "after:inbox.write:kill:1"
        if not durable:
            world.train(world.tasks_plan(2))
        finish(world, fault)


def test_the_tick_that_ends_it_killed_at_every_point(worlds: Callable[[], TrainingWorld]) -> None:
    def ran() -> TrainingWorld:
        world = worlds()
        world.train(world.tasks_plan(2))
        world.run_measures()
        return world

    kept = Kept(ran())
    calm = kept.again()
    assert calm.forked(lambda: calm.tick(), trace=True) == 0
    points = telling(points_of(calm))
    assert [point for point in points if "run.event" in point] == [f"after:run.event:kill:{n}" for n in (1, 2)]
    finish(calm, "")
    for fault in points:
        world = kept.again()
        assert world.forked(lambda w=world: w.tick(), fault=fault) == -signal.SIGKILL, fault
        finish(world, fault)


# -- facts and figures

ASKED = ("--model", "llama-3.1-8b", "--gpus", "8xH100", "--sequence", "2048", "--lora", "--tokens", "1e8")


def planned(world: TrainingWorld) -> tuple[str, dict[str, Any]]:
    path = world.folder / "plan.json"
    path.write_text(world.cli("plan", *ASKED, "--json"))
    return str(path), json.loads(path.read_text())


def test_what_a_run_measured_becomes_a_figure_of_the_next_plan(world: TrainingWorld) -> None:
    path, before = planned(world)
    chosen = next(c for c in before["candidates"] if c["name"] == before["selected"])
    ranks = chosen["workers"]
    tools = reporting(world, {**GPU_REPORT, "world_size": ranks})
    run_id = world.train(path, command=("python", "train.py"))
    world.ticks_until_rest()
    assert ended(world, run_id) == ("finished", ""), tools
    [event] = [event for event in world.rows(Event) if event.kind == "facts"]
    assert event.body["reports"]["train"]["peak_memory_mb"]["reserved"] == 64_000
    after = json.loads(world.cli("plan", *ASKED, "--ledger", "record", "--json"))
    measured = next(c for c in after["candidates"] if c["name"] == chosen["name"])
    assert (measured["memory"]["basis"], measured["memory"]["central"]) == ("ledger", 64.0)
    rate = measured["tokens_per_second_per_gpu"]
    assert (rate["basis"], rate["central"]) == ("ledger", pytest.approx(80_000 / ranks))
    assert chosen["memory"]["basis"] == "static"
    shown = " ".join(world.cli("show", run_id).split())
    assert "500 ms a step" in shown and "peak 64,000 MB of GPU memory" in shown
    assert "measured 64.0 GB" in shown and "save every" in shown
    assert f"tokens/s on one GPU; measured {80_000 / ranks:,.0f}" in shown
    world.check_invariants()


@pytest.mark.parametrize(
    "change",
    [{"device": "cpu"}, {"device_name": "NVIDIA A100-SXM4-80GB"}, {"peak_memory_mb": None, "world_size": None}],
)
def test_a_report_from_other_hardware_or_without_numbers_is_no_figure(
    world: TrainingWorld, change: dict[str, Any]
) -> None:
    path, before = planned(world)
    reporting(world, GPU_REPORT | change)
    run_id = world.train(path, command=("python", "train.py"))
    world.ticks_until_rest()
    assert ended(world, run_id) == ("finished", "")
    after = json.loads(world.cli("plan", *ASKED, "--ledger", "record", "--json"))
    assert after["candidates"] == before["candidates"]
    world.cli("show", run_id)


def test_a_torn_report_harms_nothing(world: TrainingWorld) -> None:
    report = '{"schema": 1, "kind": "training", "step": "NaN", "checkpoint": [1], "peak'
    run_id = world.train(world.script(f"printf '%s' '{report}' > $OUTERLOOP_OUTPUT_DIR/run.json"))
    world.ticks_until_rest()
    assert ended(world, run_id) == ("finished", "")
    world.cli("show", run_id)
    world.cli("explain", run_id)


# -- what people see


def test_every_command_that_looks_understands_trainings(world: TrainingWorld) -> None:
    world.task_does(1, "exit 7")
    plan = world.tasks_plan(3)
    dry = world.cli("submit", "training", plan, "--repo", str(world.repo), "--dry-run", "--name", "sweep")
    assert "Dry run: nothing was submitted." in dry and "task-0000" in dry and not world.runs()
    run_id = world.train(plan, "--name", "sweep")
    for moment in ("waiting", "ended"):
        assert run_id in world.cli("status", "--all")
        shown = world.cli("show", run_id)
        assert f"training sweep of {world.runs()[0].target}" in shown.replace("\n", " ") and "task-0002" in shown
        assert ("Tasks: 3 submitted" if moment == "waiting" else "Tasks: 2 done, 1 failed EXIT_7") in shown
        listed = shown.partition("Tasks: ")[2].partition("Jobs")[0]
        assert listed.index("task-0000") < listed.index("task-0001") < listed.index("task-0002")
        assert json.loads(world.cli("show", run_id, "--json"))["state"] == moment
        assert run_id in world.cli("explain", run_id)
        json.loads(world.cli("explain", run_id, "--json"))
        if moment == "waiting":
            world.ticks_until_rest()
    assert "task-0001: EXIT_7" in world.cli("explain", run_id)
    world.cli("logs", run_id)
    assert "agree" in world.cli("verify", run_id)
    world.cli("verify", run_id, "--json")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--minutes", "700"), "--minutes 599 is the most"),
        (("--name", "a/b"), "job name 'a/b'"),
        (("--candidate", "nowhere"), "nowhere"),
        (("--lane", "moon", "--candidate", "main"), ""),
    ],
)
def test_what_cannot_be_taken_is_refused_with_its_reason(
    world: TrainingWorld, options: tuple[str, ...], said: str
) -> None:
    if "moon" in options:
        world.train(world.tasks_plan(1), *options)  # the local backend needs no lanes
        return
    code = 2 if "nowhere" in options else 3
    told = world.cli("submit", "training", world.tasks_plan(1), "--repo", str(world.repo), *options, code=code)
    assert said in told.replace("\n", " ") and "Traceback" not in told
    assert not world.runs()


def test_tasks_come_from_a_file_and_a_bad_line_is_named(world: TrainingWorld) -> None:
    plan = world.plan("array", family="lease_tasks", command=["sh", "-c", f"echo {{n}} >> {world.marks}"])
    given = world.folder / "tasks.jsonl"
    given.write_text('{"n": 1}\n[2]\n')
    told = world.cli("submit", "training", plan, "--repo", str(world.repo), "--tasks", str(given), code=2)
    assert "tasks.jsonl:2: must be an object" in told
    given.write_text('{"n": 1}\n{"n": 2}\n')
    run_id = world.train(plan, "--tasks", str(given))
    world.ticks_until_rest()
    assert ended(world, run_id) == ("finished", "") and world.ran() == {"1": 1, "2": 1}

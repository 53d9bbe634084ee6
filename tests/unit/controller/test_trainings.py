"""What decides about trainings without a cluster: verdicts, identities, reports, and names shared with other rooms."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from outerloop.cli.submit_training import training
from outerloop.compute.protocol import JobState
from outerloop.controller.request import ClimbRequest, Execution
from outerloop.controller.training_facts import LaneLosses, interval_advice, read_facts
from outerloop.controller.training_request import Task, TrainingRequest, read_request
from outerloop.controller.trainings import Outcome, training_verdict, training_work
from outerloop.dispatch.evidence import Action, Evidence, ResultFacts, read_evidence
from outerloop.dispatch.settle import CHECKPOINT_MANIFEST, newest_checkpoint
from outerloop.dispatch.submission import _launch_order
from outerloop.job.work import LAUNCH_VARIABLES, read_work
from outerloop.posttrain import store as posttrain
from outerloop.slots import SlotDirectory
from outerloop.strategies import StrategyPlan, compile_plan
from outerloop.torch import store

DONE, BROKEN = Outcome("done"), Outcome("failed", "EXIT_1", "the command exited with 1")


def request(**changes: Any) -> TrainingRequest:
    plan = StrategyPlan(family="ddp", command=("python", "train.py"), nodes=2, processes_per_node=2)
    [spec] = compile_plan(plan)
    fields: dict[str, Any] = {
        "id": "t-1",
        "question": "q",
        "target": "repo",
        "name": "training",
        "family": "ddp",
        "commit": "c" * 40,
        "tree": "a" * 40,
        "revision": "HEAD",
        "submitter": "me",
        "repository": "/repo",
        "created_at": "2026-01-01T00:00:00+00:00",
        "tasks": (Task(role="train", launch=spec.model_dump(mode="json")),),
        "nodes": 2,
        "cpus": 2,
        "minutes": 60.0,
        "execution": Execution(lane={"name": "default"}),
    }
    return TrainingRequest(**(fields | changes))


def test_a_training_ends_when_every_task_has() -> None:
    assert training_verdict({}) is None
    assert training_verdict({"a": DONE, "b": Outcome("open")}) is None
    assert training_verdict({"a": DONE, "b": Outcome("exhausted", "LOST")}) is None
    finished = training_verdict({"train": DONE})
    assert finished is not None and (finished["outcome"], finished["sentence"]) == ("finished", "the training finished")


def test_every_failed_task_is_in_the_verdict_and_some_in_its_sentence() -> None:
    outcomes = {f"task-{n}": BROKEN if n < 5 else DONE for n in range(9)}
    verdict = training_verdict(outcomes)
    assert verdict is not None
    assert (verdict["outcome"], verdict["reason"], verdict["tasks"], verdict["done"]) == ("failed", "EXIT_1", 9, 4)
    assert len(verdict["failed"]) == 5 and verdict["sentence"].endswith("and 2 more")
    mixed = training_verdict({"a": BROKEN, "b": Outcome("failed", "TIMEOUT")})
    assert mixed is not None and mixed["reason"] == "TASKS"


def test_a_request_comes_back_from_disk_as_its_kind() -> None:
    asked = request()
    assert read_request(json.loads(json.dumps(asked.to_json()))) == asked
    with pytest.raises(ValueError, match="ClimbRequest"):
        read_request({"kind": "climb"})
    assert ClimbRequest.model_fields["kind"].default == "climb"


def test_what_is_launched_names_the_slot_and_where_it_runs_does_not() -> None:
    asked = request()
    digest = training_work(asked, asked.tasks[0], "/m").digest
    elsewhere = request(minutes=5.0, execution=Execution(lane={"name": "other"}))
    assert training_work(elsewhere, elsewhere.tasks[0], "/elsewhere").digest == digest
    task = asked.tasks[0]
    files = {name: text + " " for name, text in task.launch["files"].items()}
    changed = task.model_copy(update={"launch": task.launch | {"files": files}})
    others = [
        training_work(asked, changed, "/m"),
        training_work(asked, task.model_copy(update={"replicate": 1}), "/m"),
        training_work(request(nodes=1), task, "/m"),
        training_work(request(tree="b" * 40), task, "/m"),
    ]
    assert len({digest, *(work.digest for work in others)}) == 5


def test_the_job_reads_every_launch_that_the_compilers_make() -> None:
    """Texts come with the work, hashes with the determinants, and the compilers' own variables are let pass."""
    plans = [
        StrategyPlan(family="fsdp2", command=("python", "t.py"), processes_per_node=2),
        StrategyPlan(family="hsdp", command=("python", "t.py"), processes_per_node=4, shard_group=2),
        StrategyPlan(family="local_process", command=("python", "t.py")),
        StrategyPlan(family="sharded_partial_fit", command=("python", "t.py"), shards=3),
        StrategyPlan(family="lease_tasks", command=("python", "{n}"), tasks=({"n": 1},)),
        StrategyPlan(family="own_command", command=("torchrun", "t.py"), files={"a.json": "{}"}),
        StrategyPlan(
            family="zero3_cpu_offload", command=("python", "t.py"), gpus_per_process=1, framework="accelerate"
        ),
    ]
    named = set()
    for plan in plans:
        [spec] = compile_plan(plan)
        asked = request(nodes=1, tasks=(Task(role="train", launch=spec.model_dump(mode="json")),))
        work = training_work(asked, asked.tasks[0], "/mirror")
        body = {
            "schema": 1,
            "digest": work.digest,
            "determinants": json.loads(json.dumps(work.determinants.canonical())),
            "work": dict(work.facts),
        }
        order = {"schema": 1, "digest": work.digest, "attempt": 1, "minutes": 1.0}
        read = read_work(body, order, work.digest, 1)
        assert read.launch is not None and dict(read.launch.files) == spec.files and read.launch.argv == spec.argv
        hashes = work.determinants.launch
        assert hashes is not None
        for name, text in spec.files.items():
            assert hashes["files"][name] == hashlib.sha256(text.encode()).hexdigest()
        named |= {name for name in spec.env if name.startswith("OUTERLOOP_")}
    assert named == LAUNCH_VARIABLES


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def test_checkpoints_are_seen_under_the_names_that_the_helper_gives_them(tmp_path: Path) -> None:
    assert CHECKPOINT_MANIFEST == store.MANIFEST
    assert newest_checkpoint(tmp_path / "none") == ""
    for step in (9, 10_000_000_000, 100):
        folder = tmp_path / store.checkpoint_name(step)
        folder.mkdir()
        (folder / store.MANIFEST).write_text("{}")
    (tmp_path / store.checkpoint_name(99_999_999_999)).mkdir()  # no manifest: not complete
    store.saving_folder(tmp_path, 99_999_999_998, "x").mkdir()
    (tmp_path / "step-7").mkdir()
    stage = tmp_path / "stage"
    posttrain.publish(_made(stage / "sft" / "checkpoints" / "checkpoint-30") / posttrain.MANIFEST, {"files": {}})
    _made(stage / "sft" / "checkpoints" / "checkpoint-60")  # not sealed
    assert newest_checkpoint(stage) == store.checkpoint_name(30)
    assert newest_checkpoint(tmp_path) == store.checkpoint_name(10_000_000_000)


def reports(tmp_path: Path, *bodies: Any) -> SlotDirectory:
    """A slot with one start per report, all in attempt 1."""
    slot = SlotDirectory(tmp_path, "d" * 64)
    for restart, body in enumerate(bodies):
        out = slot.logs(1, restart) / "out"
        out.mkdir(parents=True)
        (out / "run.json").write_text(body if isinstance(body, str) else json.dumps(body))
    return slot


def report(**values: Any) -> dict[str, Any]:
    return {"schema": 1, "kind": "training", **values}


def test_peaks_are_the_largest_of_all_starts_and_costs_those_of_the_last_that_has_them(tmp_path: Path) -> None:
    slot = reports(
        tmp_path,
        report(
            peak_memory_mb={"device": None, "reserved": 5.0, "rss": 9.0},
            step_seconds={"median": 2.0, "p90": 2.0, "max": 2.0},
            checkpoint={"count": 2, "failed": 1, "seconds_median": 0.5, "seconds_max": 3.0, "bytes": 7},
        ),
        report(
            step=40,
            peak_memory_mb={"reserved": 4.0, "rss": 11.0},
            step_seconds={"median": 1.0},
            checkpoint={"count": 0, "failed": 0, "seconds_median": None, "seconds_max": None, "bytes": 0},
        ),
    )
    facts = read_facts(slot)
    assert facts is not None
    assert (facts["starts"], facts["step"]) == (2, 40)
    assert facts["peak_memory_mb"] == {"device": None, "reserved": 5.0, "rss": 11.0}
    assert facts["step_seconds"]["median"] == 1.0
    assert facts["checkpoint"] == {"count": 2, "failed": 1, "seconds_median": 0.5, "seconds_max": 3.0, "bytes": 7}


@pytest.mark.parametrize(
    "body",
    [
        "",
        "[1, 2",
        "null",
        "[]",
        "{}",
        {"schema": 2, "kind": "training"},
        {"schema": 1, "kind": "else"},
        "\x00",
        "{" * 9999,
    ],
)
def test_what_is_no_report_is_passed_over(tmp_path: Path, body: Any) -> None:
    assert read_facts(reports(tmp_path, body)) is None


def test_numbers_that_are_none_count_as_unknown(tmp_path: Path) -> None:
    slot = reports(
        tmp_path, report(step="7", peak_memory_mb=[1], step_seconds={"median": True}, checkpoint="x", world_size={})
    )
    facts = read_facts(slot)
    assert facts is not None and facts["step"] is None and facts["step_seconds"] is None
    assert facts["peak_memory_mb"] == {"device": None, "reserved": None, "rss": None}
    assert facts["checkpoint"]["seconds_median"] is None


def test_the_interval_is_youngs_from_measured_cost_and_losses() -> None:
    facts = {"checkpoint": {"seconds_median": 2.0}, "step_seconds": {"median": 0.5}}
    advice = interval_advice(facts, LaneLosses("gpu", lost=4, node_hours=100.0, attempts=9), nodes=2)
    assert advice is not None
    # 4 losses in 100 node-hours on 2 nodes: one in 12.5 hours. sqrt(2 * 2 s * 45,000 s)
    assert advice.interval_seconds == pytest.approx((2 * 2.0 * 45_000) ** 0.5)
    assert advice.every_steps == round(advice.interval_seconds / 0.5)
    never = interval_advice(facts, LaneLosses("gpu", lost=0, node_hours=100.0, attempts=9), nodes=2)
    once = interval_advice(facts, LaneLosses("gpu", lost=1, node_hours=100.0, attempts=9), nodes=2)
    assert never is not None and once is not None and never.interval_seconds == once.interval_seconds
    assert interval_advice({}, LaneLosses("gpu", 1, 5.0, 1), 1) is None
    assert interval_advice(facts, LaneLosses("gpu", 0, 0.0, 0), 1) is None


BROKEN_COMMAND = ResultFacts(ok=False, value_usable=False, reason="EXIT_1", phase="command", detail="exited with 1")


@pytest.mark.parametrize(
    ("known", "action"),
    [
        ({"answered": False}, Action.NOTHING),
        ({"state": JobState.RUNNING, "listed": True}, Action.ALIVE),
        ({"state": JobState.PENDING, "listed": True}, Action.ALIVE),
        ({"state": JobState.NODE_FAIL}, Action.INFRASTRUCTURE),
        ({"state": JobState.NODE_FAIL, "resumable": True, "progressed": True}, Action.CONTINUE),
        ({"state": JobState.FAILED}, Action.FAILED),
        ({"state": None}, Action.FAILED),
    ],
)
def test_a_command_over_several_nodes_is_not_blamed_for_a_node_that_was_lost(
    known: dict[str, Any], action: Action
) -> None:
    seen = Evidence(**({"answered": True, "result": BROKEN_COMMAND, "several_nodes": True, "claimed": True} | known))
    assert read_evidence(seen).action is action
    alone = Evidence(**({"answered": True, "result": BROKEN_COMMAND, "claimed": True} | known))
    assert read_evidence(alone).action is Action.FAILED


def test_the_limit_of_resumable_work_is_no_failure_unless_it_stalls() -> None:
    late = ResultFacts(ok=False, value_usable=False, reason="TIMEOUT", phase="command", detail="late")

    def decided(**known: bool) -> tuple[Action, str]:
        decision = read_evidence(Evidence(answered=True, result=late, claimed=True, **known))
        return decision.action, decision.reason

    assert decided() == (Action.FAILED, "TIMEOUT")
    assert decided(resumable=True, progressed=True, stalled_before=True) == (Action.CONTINUE, "TIMEOUT")
    assert decided(resumable=True) == (Action.CONTINUE, "TIMEOUT")
    assert decided(resumable=True, stalled_before=True) == (Action.FAILED, "STALLED")


def test_several_nodes_are_told_how_the_lane_spells_gpus() -> None:
    order = {"lane": {"name": "gpu", "gpu_flag": "gres", "gpu_type": "a100"}, "gpus": 4, "nodes": 2}
    assert _launch_order(order) == {"gpu_form": ["--gres=gpu:a100:4"]}
    assert _launch_order({**order, "lane": {"name": "gpu", "gpu_flag": "gpus"}}) == {"gpu_form": ["--gpus=8"]}
    assert _launch_order({**order, "nodes": 1, "term_grace_seconds": 30}) == {"term_grace_seconds": 30.0}


def test_the_pages_plans_can_be_launched() -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "submit-a-training.md").read_text()
    plans = re.findall(r"```json [^\n]*\n(.*?)```", page, re.DOTALL)
    assert [len(compile_plan(StrategyPlan.model_validate_json(plan))) for plan in plans] == [1, 1, 2]
    known = {option for parameter in training.params for option in (*parameter.opts, *parameter.secondary_opts)}
    others = {
        "--json",
        "--ledger",
        "--follow",
        "--model",
        "--gpus",
        "--lora",
        "--tokens",
        "--nnodes",
        "--nproc-per-node",
    }
    assert set(re.findall(r"--[a-z][a-z-]+", page)) - known - others == {"--epochs", "--lr", "--seed"}

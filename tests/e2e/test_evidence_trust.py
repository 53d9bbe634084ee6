"""What must never lead to a verdict, and what `verify` and `explain` make of evidence that changed or was used up."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest
from sqlalchemy import select, update

from outerloop.controller import climbs as climbs_module
from outerloop.controller.views import reuse, reuse_before
from outerloop.record.models import Measure, Slot
from tests.e2e.evidence_world import EvidenceWorld, contract, result_file, tamper

Make = Callable[..., EvidenceWorld]
THRESHOLD = '{ kind = "threshold" }'
SIBLING = """
[[benchmarks]]
name = "size"
command = "sh bench.sh"
metric = "bytes"
direction = "min"
minutes = 3
cpus = 2
memory_gb = 0.5
lane = "big"
seed_env = "BENCH_SEED"
regression = { free = 0.0, max = 0.1 }
"""


@pytest.fixture
def make(tmp_path: Path, database: str) -> Make:
    return lambda text, **more: EvidenceWorld(tmp_path, database, text, **more)


def slot_of(world: EvidenceWorld, run_id: str, role: str) -> Slot:
    measure = next(m for m in world.rows(Measure) if m.run_id == run_id and m.role == role)
    return next(slot for slot in world.rows(Slot) if slot.id == measure.slot_id)


def test_sides_that_saw_different_machines_are_an_error_that_names_both(make: Make) -> None:
    world = make(contract(THRESHOLD))
    run_id = world.submit("better")
    world.run_measures()
    digest = slot_of(world, run_id, "candidate").digest
    seen = json.loads(result_file(world, digest).read_text())["cpus_seen"]
    tamper(world, digest, cpus_seen=seen + 3)
    world.tick()
    run = world.run(run_id)
    assert (run.state, run.state_reason, run.verdict) == ("blocked", "EVIDENCE", None)
    assert f"baseline saw {seen} CPUs and candidate saw {seen + 3}" in run.state_detail
    assert f"candidate saw {seen + 3}" in " ".join(world.cli("explain", run_id).stdout.split())

    other = world.submit("bigger")
    deployment = world.open()
    with deployment.record.transaction("tx.tick") as session:
        slot = session.scalars(select(Slot).where(Slot.digest == slot_of(world, other, "candidate").digest)).one()
        session.execute(update(Slot).where(Slot.id == slot.id).values(order=slot.order | {"image_digest": "sha256:b"}))
    deployment.close()
    world.run_measures()
    world.tick()
    run = world.run(other)
    assert (run.state_reason, run.verdict) == ("EVIDENCE", None)
    assert "baseline ran in image (none) and candidate in sha256:b" in run.state_detail


def test_an_image_that_is_replaced_while_a_climb_runs_stops_it(make: Make, tmp_path: Path) -> None:
    image = tmp_path / "measure.sif"
    image.write_bytes(b"one")
    world = make(contract(THRESHOLD, more=f'isolation = "apptainer"\nimage = "{image}"'))
    run_id = world.submit("better")
    jobs = list(world.measuring_jobs())
    for job_id in jobs:
        world.cluster.change(job_id, state="node_fail", node="n1")
    touched = image.stat().st_mtime_ns + 10**9
    os.utime(image, ns=(touched, touched))
    world.tick()
    world.tick()
    assert len(world.measuring_jobs()) == 4, "another modification time is no other content"
    for job_id in set(world.measuring_jobs()) - set(jobs):
        world.cluster.change(job_id, state="node_fail", node="n2")
    image.write_bytes(b"two")
    world.tick()
    world.tick()
    run = world.run(run_id)
    assert (run.state, run.state_reason) == ("blocked", "IMAGE") and str(image) in run.state_detail
    assert len(world.measuring_jobs()) == 4
    image.write_bytes(b"one")
    world.retry(run_id)
    world.tick()
    assert len(world.measuring_jobs()) == 6 and world.run(run_id).state == "waiting"


def test_verify_names_the_file_that_was_changed(make: Make) -> None:
    world = make(contract('{ kind = "paired", pairs = 3, alpha = 0.2 }', siblings=SIBLING, more='suite = ["size"]'))
    run_id = world.submit("bigger")
    world.ticks_until_rest()
    assert world.run(run_id).verdict_reason == "suite-regression"
    world.check_invariants()
    for role, metric, field in (("candidate-2", "cost", "metric"), ("sib-size-base-1", "bytes", "metric")):
        digest = slot_of(world, run_id, role).digest
        path = result_file(world, digest)
        before = path.read_text()
        body = json.loads(before)
        tamper(world, digest, **{field: {**body[field], "text": "7"}})
        told = world.json("verify", run_id, code=1)
        assert not told["agrees"]
        differences = "\n".join(told["differences"])
        assert f"{role}: {metric} was " in differences and f"is now 7 in {path}" in differences
        assert f"{path} was changed after it was accepted (metric)" in differences
        path.write_text(before)
        assert world.json("verify", run_id)["agrees"]
    # a change that no number of the verdict shows, a file that no longer fits its claim, and one that is gone
    path = tamper(world, digest, host="elsewhere")
    assert f"{path} was changed after it was accepted (host)" in world.json("verify", run_id, code=1)["differences"]
    tamper(world, digest, job_id="1")
    assert any(
        told.startswith("sib-size-base-1: no result that fits its claim")
        for told in world.json("verify", run_id, code=1)["differences"]
    )
    path.unlink()
    assert f"{path} is gone" in world.json("verify", run_id, code=1)["differences"]


def test_siblings_and_guards_with_resources_of_their_own(make: Make) -> None:
    guard = 'suite = ["size"]\neager = true\nguards = [{ metric = "bytes", max_loss = 0 }]'
    world = make(contract('{ kind = "paired", pairs = 3, alpha = 0.2 }', siblings=SIBLING, more=guard))
    run_id = world.submit("bigger")
    # eager: pairs and siblings go out at once, each with its own minutes, lane, CPUs and memory
    jobs = list(world.measuring_jobs().values())
    shapes = {(job["lane"], job["partition"], job["cpus"], job["memory_mb"], job["minutes"]) for job in jobs}
    assert len(jobs) == 12 and shapes == {("default", "cpu", 1, None, 6), ("big", "fat", 2, 512, 8)}
    suite = world.round(run_id)["suite_seeds"]["size"]
    assert len(set(suite)) == 3 and not set(suite) & set(world.round(run_id)["pair_seeds"])
    world.ticks_until_rest()
    run = world.run(run_id)
    assert run.evidence is not None and (run.verdict, run.verdict_reason) == ("rejected", "guard")
    [loss] = [loss for loss in run.evidence["findings"]["losses"] if loss["kind"] == "guard"]
    assert (loss["metric"], Decimal(loss["loss"]), loss["passed"]) == ("bytes", 100, False)
    world.check_invariants()


def test_scope_and_superseded_verdicts_are_recomputed_too(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make(contract(THRESHOLD))
    world.git("checkout", "-q", "-B", "sly", "main")
    (world.repo / "bench.sh").write_text("echo '{\"cost\": 1}'\n")
    world.git("commit", "-q", "-am", "sly")
    world.git("checkout", "-q", "main")
    sly = world.submit("sly")
    assert world.run(sly).verdict_reason == "scope"
    monkeypatch.setattr(climbs_module, "MOST_ROUNDS", 1)
    world.branch("best", cost="5")
    first, second = world.submit("better"), world.submit("best")
    world.run_measures()
    world.tick()
    world.ticks_until_rest()
    ended = {world.run(run_id).verdict_reason for run_id in (first, second)}
    assert ended == {"", "superseded"}
    world.check_invariants()
    for run_id in (sly, first, second):
        assert world.json("verify", run_id) == {**world.json("verify", run_id), "agrees": True, "differences": []}


def test_decisions_on_the_same_data_are_counted_shown_and_warned_about(make: Make) -> None:
    world = make(contract(THRESHOLD, more="deterministic = true", seeded=False))
    runs = []
    for cost in ("9", "11", "12"):
        world.branch(f"c{cost}", cost=cost)
        runs.append(world.submit(f"c{cost}"))
        world.ticks_until_rest()
    world.branch("broken", extra="exit 1")
    failed = world.submit("broken")
    world.ticks_until_rest()
    assert world.run(failed).verdict == "failed"
    deployment = world.open()
    try:
        [line] = reuse(deployment.record, "speed")
        assert (line.decisions, line.accepted, line.fresh_seeds) == (3, 1, False)
        assert [reuse_before(deployment.record, run_id) for run_id in (*runs, failed)] == [0, 1, 2, 3]
    finally:
        deployment.close()
    assert "3 verdicts on this definition and data." in world.cli("champions").stdout
    assert world.json("champions")[0]["reuse"]["decisions"] == 3
    assert "2 verdicts on this definition and data." in world.cli("explain", runs[1]).stdout
    assert world.json("explain", runs[1])["decided_before"] == 1
    # another definition of the benchmark starts anew
    (world.repo / ".outerloop.toml").write_text(world.text.replace("sh bench.sh", "sh ./bench.sh"))
    world.git("commit", "-q", "-am", "another definition")
    world.branch("fresh", cost="9", note="fresh")
    again = world.submit("fresh")
    world.ticks_until_rest()
    deployment = world.open()
    try:
        assert reuse_before(deployment.record, again) == 0
        assert sorted(line.decisions for line in reuse(deployment.record)) == [1, 3]
    finally:
        deployment.close()

"""Attacks: ranks that disagree on the checkpoint, on the order of samples, or on the step at which to stop."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from outerloop.strategies import FILES_TOKEN, StrategyPlan, compile_plan
from tests.torch.conftest import HERE, Steps, Training
from tests.torch.test_one_process import Make

COMMON = {"steps": 20, "samples": 52}


@pytest.fixture
def straight(training: Make) -> tuple[Steps, Steps]:
    """Two ranks, not interrupted."""
    run = training("straight", **COMMON)
    assert run.run(2) == [0, 0], run.log
    assert run.log == ""
    return run.steps(0), run.steps(1)


def test_two_ranks_killed_at_random_steps_repeat_every_loss_exactly(
    training: Make, straight: tuple[Steps, Steps]
) -> None:
    seed = random.randrange(10**6)
    draw = random.Random(seed)
    killed = training("killed", **COMMON)
    for step in sorted(draw.sample(range(1, 13), 2)):
        assert killed.run(2, kill={"step": step, "signal": "SIGKILL"}) == [-9, -9], f"seed {seed}: {killed.log}"
    # One rank alone dies: the other finds out and ends too, and what both had saved stands.
    one = killed.run(2, kill={"step": 14, "signal": "SIGKILL", "rank": 1})
    assert one[1] == -9
    assert one[0] not in (0, None), f"seed {seed}: {killed.log}"
    assert killed.run(2) == [0, 0], killed.log
    assert (killed.steps(0), killed.steps(1)) == straight, f"seed {seed}"


def test_the_ranks_share_the_samples_as_torchs_own_sampler_does(straight: tuple[Steps, Steps]) -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.data.distributed import DistributedSampler

    first_epoch = range(7)
    seen = [[i for step in first_epoch for i in steps[step][1]] for steps in straight]
    seed = 4  # the main rank's torch.manual_seed
    for rank in (0, 1):
        sampler: Any = DistributedSampler(range(52), 2, rank, shuffle=True, seed=seed)  # type: ignore[arg-type]
        assert seen[rank] == list(sampler)
        sampler.set_epoch(1)
        assert [i for step in range(7, 14) for i in straight[rank][step][1]] == list(sampler)
    assert sorted(seen[0] + seen[1]) == list(range(52))
    assert torch.initial_seed() is not None


def test_a_signal_to_one_rank_stops_both_at_one_step(training: Make, straight: tuple[Steps, Steps]) -> None:
    stopped = training("stopped", every=0, **COMMON)
    assert stopped.run(2, kill={"step": 8, "signal": "SIGTERM", "rank": 1}) == [75, 75], stopped.log
    marker = json.loads((stopped.checkpoints / "requeue.json").read_text())
    assert (marker["step"], marker["signal"], marker["world_size"]) == (9, "SIGTERM", 2)
    assert stopped.run(2) == [0, 0], stopped.log
    for rank in (0, 1):
        assert [line["step"] for line in stopped.lines(rank)] == list(range(20))
    assert (stopped.steps(0), stopped.steps(1)) == straight


def test_ranks_agree_to_pass_over_a_part_that_only_one_of_them_checked(
    training: Make, straight: tuple[Steps, Steps]
) -> None:
    torn = training("torn", **COMMON)
    assert torn.run(2, kill={"step": 11, "signal": "SIGKILL"}) == [-9, -9]
    part = torn.checkpoints / "step-0000000009" / "rank-1.pt"
    part.write_bytes(part.read_bytes() + b"x")
    assert torn.run(2) == [0, 0], torn.log
    assert "step-0000000009 is torn (rank-1.pt)" in torn.log
    assert (torn.steps(0), torn.steps(1)) == straight


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (2, 3)])
def test_another_number_of_ranks_goes_on_at_the_same_global_sample(training: Make, before: int, after: int) -> None:
    """Batch 2 × 2 ranks, 4 × 1 and 2 × 3: the epoch's order is followed whoever reads it."""
    samples = 48
    run = training("run", samples=samples, every=1)
    # Five steps are saved: 0 to 4.
    assert set(run.run(before, batch=4 // before, kill={"step": 5, "signal": "SIGKILL"})) == {-9}, run.log
    codes = run.run(after, batch=4 if after == 1 else 2, steps=60)
    assert codes == [0] * after, run.log
    straight = training("straight", samples=samples)
    assert set(straight.run(before, batch=4 // before, steps=12)) == {0}
    order = global_order([straight.lines(rank) for rank in range(before)])
    head = global_order([run.lines(rank)[:5] for rank in range(before)])
    rest = [
        [line for line in run.lines(rank)[6 if rank < before else 0 :] if line["step"] >= 5] for rank in range(after)
    ]
    tail = global_order(rest)
    assert head == order[:20]
    assert tail[: samples - 20] == order[20:samples]
    assert f"continuing a training of {before} ranks with {after}" in run.log
    # And the next epoch is whole again.
    following = tail[(samples - 20 + after - 1) // after * after :][:samples]
    assert sorted(following) == list(range(samples))


def global_order(ranks: list[list[dict[str, Any]]]) -> list[int]:
    """The samples in the order of the epoch: each step's batches, taken in turn from the ranks."""
    order = []
    for lines in zip(*ranks, strict=True):
        width = max(len(line["ids"]) for line in lines)
        for position in range(width):
            order += [line["ids"][position] for line in lines if position < len(line["ids"])]
    return order


def test_fsdp2_resumes_exactly_and_its_checkpoints_fit_other_layouts(training: Make) -> None:
    config = COMMON | {"fsdp": True}
    straight = training("straight", **config)
    assert straight.run(2) == [0, 0], straight.log
    sharded = training("sharded", **config)
    assert sharded.run(2, kill={"step": 11, "signal": "SIGKILL"}) == [-9, -9], sharded.log
    folder = sharded.checkpoints / "step-0000000009"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["format"] == "sharded"
    assert {"__0_0.distcp", "__1_0.distcp", ".metadata", "rank-0.pt", "rank-1.pt"} <= set(manifest["parts"])
    assert sharded.run(2) == [0, 0], sharded.log
    assert (sharded.steps(0), sharded.steps(1)) == (straight.steps(0), straight.steps(1))

    # Two shards into one plain process, and its whole file into two shards again.
    assert sharded.run(fsdp=False, steps=24, kill={"step": 22, "signal": "SIGKILL"}) == [-9], sharded.log
    assert (sharded.checkpoints / "step-0000000021" / "model.pt").exists()
    assert sharded.run(2, steps=26) == [0, 0], sharded.log
    assert [line["step"] for line in sharded.lines(1)][-4:] == [22, 23, 24, 25]

    torn = training("torn", **config)
    assert torn.run(2, kill={"step": 11, "signal": "SIGKILL"}) == [-9, -9]
    shard = torn.checkpoints / "step-0000000009" / "__1_0.distcp"
    shard.write_bytes(shard.read_bytes()[:-1])
    assert torn.run(2) == [0, 0], torn.log
    assert (torn.steps(0), torn.steps(1)) == (straight.steps(0), straight.steps(1))


def test_a_training_that_changes_its_layout_stays_the_same_training(training: Make) -> None:
    """Plain, FSDP2 × 2, DDP × 2, plain, FSDP2 × 2 on the same global batch of 8: the gradient is the same mean, so
    the losses follow the uninterrupted run to rounding only if every optimizer and scheduler state is carried over."""
    config = {"loader": "sequence", "noise": False, "samples": 80, "every": 1}
    straight = training("straight", **config)
    assert straight.run(batch=8, steps=25) == [0], straight.log
    truth = [float.fromhex(loss) for loss, _ in straight.steps().values()]
    run = training("run", **config)
    layouts = ((1, False), (2, True), (2, False), (1, False), (2, True))
    for number, (ranks, fsdp) in enumerate(layouts):
        codes = run.run(ranks, fsdp=fsdp, batch=8 // ranks, steps=5 * (number + 1))
        assert codes == [0] * ranks, run.log
    other = {line["step"]: float.fromhex(line["loss"]) for line in run.lines(1)}
    for line in run.lines(0):
        step, loss = line["step"], float.fromhex(line["loss"])
        mean = (loss + other[step]) / 2 if step in other else loss
        assert mean == pytest.approx(truth[step], rel=1e-3), f"step {step}"
    assert [line["step"] for line in run.lines(0)] == list(range(25))


def test_a_disk_that_refuses_one_ranks_part_stops_neither(training: Make) -> None:
    run = training("run", **COMMON | {"steps": 150, "every": 10})
    link = run.folder / "link"
    run.env["OUTERLOOP_CKPT_DIR"] = str(link)
    link.symlink_to(run.checkpoints)
    run.checkpoints.mkdir()
    (run.folder / "file").write_text("")
    (run.folder / "other").symlink_to(run.folder / "file")
    pids = run.start(2)
    deadline = time.monotonic() + 60
    while not run.saved():
        assert time.monotonic() < deadline, run.log
        time.sleep(0.005)
    (run.folder / "other").replace(link)
    assert run.wait(pids) == [0, 0], run.log
    assert "could not be saved" in run.log
    assert len(run.steps(1)) == 150


def test_loaders_that_are_not_split_are_left_alone_with_a_warning_and_still_resume(training: Make) -> None:
    config = {"loader": "own sampler", "steps": 12}
    straight = training("straight", **config)
    assert straight.run(2) == [0, 0], straight.log
    assert "nothing is split" in straight.log
    killed = training("killed", **config)
    assert killed.run(2, kill={"step": 8, "signal": "SIGKILL"}) == [-9, -9]
    assert killed.run(2) == [0, 0], killed.log
    assert (killed.steps(0), killed.steps(1)) == (straight.steps(0), straight.steps(1))


def test_the_compiled_launch_runs_and_stops_under_torchrun(training: Make, tmp_path: Path) -> None:
    """The whole way: plan, spec, torchrun, SIGTERM to its agent, marker, and on to the end."""
    run: Training = training("run", steps=4000, every=0)
    config = tmp_path / "config.json"
    plan = StrategyPlan(
        family="ddp", command=(sys.executable, str(HERE / "training.py"), str(config)), processes_per_node=2
    )
    (spec,) = compile_plan(plan)
    argv, env = spec.resolve({FILES_TOKEN: str(tmp_path)})
    tools = tmp_path / "tools"
    tools.mkdir()
    # The torchrun of this environment, wherever its script is.
    (tools / "torchrun").write_text(f'#!/bin/sh\nexec {sys.executable} -m torch.distributed.run "$@"\n')
    (tools / "torchrun").chmod(0o755)
    environment = {**os.environ, **run.env, **env, "PATH": f"{tools}:{os.environ['PATH']}"}

    config.write_text(json.dumps(run.config | {"out": str(run.folder)}))
    with (run.folder / "log.txt").open("w") as log:
        process = subprocess.Popen(argv, env=environment, stdout=log, stderr=log, cwd=HERE.parents[1])
    deadline = time.monotonic() + 90
    while len(run.lines(1)) < 5:
        assert time.monotonic() < deadline and process.poll() is None, run.log
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    # torchrun turns 75 into 1: the marker decides.
    assert process.wait(60) == 1, run.log
    marker = json.loads((run.checkpoints / "requeue.json").read_text())
    assert run.saved() == [marker["step"]]
    assert run.lines(0)[-1]["step"] == run.lines(1)[-1]["step"] == marker["step"]

    assert run.run(2, steps=marker["step"] + 3) == [0, 0], run.log
    assert [line["step"] for line in run.lines(1)] == list(range(marker["step"] + 3))
    beat = json.loads((run.folder / "out" / "ranks" / "rank-1.json").read_text())
    assert (beat["rank"], beat["world_size"], beat["state"]) == (1, 2, "finished")
    assert json.loads((run.folder / "out" / "run.json").read_text())["backend"] == "gloo"
